"""Time what is done for each row of a list: `python benchmarks/lists.py [--rows N] [--folders N] [--json FILE]`.

Small files in some folders and a list of them; for the last row, folders of images. Printed: CPU microseconds per row,
medians over rounds, and ratios to the floor: `csv.reader` over the list, one `os.lstat` per row. The last line is the
private memory that a forked process gets by reading each record once.
"""

import argparse
import csv
import os
import re
import tempfile
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from measure import finish, paired, ratio, table

from vidssl.data import VideoList, read_list, write_lists
from vidssl.data.find_same_videos import own_rows
from vidssl.data.list_identity import identify


def make(root: Path, parsed: Namespace) -> tuple[Path, Path]:
    """Write files and folders of images, and a list of each."""
    names = [f"{n % parsed.folders:04d}/{n:07d}.mp4" for n in range(parsed.rows)]
    for folder in {name.split("/")[0] for name in names}:
        (root / folder).mkdir()
    for number, name in enumerate(names):
        (root / name).write_bytes(bytes(number % 100))
    folders = [f"frames/{n:04d}" for n in range(max(1, parsed.rows // 100))]
    for folder in folders:
        (root / folder).mkdir(parents=True)
        for n in range(parsed.images):
            (root / folder / f"{n:05d}.jpg").touch()
    lists = {"files": names, "frames": folders}
    rows = {name: [(path, n % 400) for n, path in enumerate(paths)] for name, paths in lists.items()}
    write_lists(root / "lists", root, rows, [str(n) for n in range(400)])
    return root / "lists" / "files.csv", root / "lists" / "frames.csv"


def _run(action: Callable[[], object], _: int) -> None:
    action()


def floor(path: Path, root: Path) -> int:
    """Read the rows as text, and look at each file once."""
    with open(path, newline="", encoding="utf-8") as file:
        rows = csv.reader(file)
        next(rows)
        return sum(os.lstat(f"{root}/{row[0]}").st_size for row in rows)


def private(videos: VideoList) -> float:
    """MB that a forked process gets for itself when it reads each record once; Linux only."""
    reading_end, writing_end = os.pipe()
    child = os.fork()
    if child == 0:
        before = _private_bytes()
        for record in videos.records:
            record.path.__len__()
        os.write(writing_end, str(_private_bytes() - before).encode())
        os._exit(0)
    os.waitpid(child, 0)
    return int(os.read(reading_end, 99)) / 1e6


def _private_bytes() -> int:
    kilobytes = re.findall(r"Private_\w+: +(\d+) kB", Path("/proc/self/smaps_rollup").read_text())
    return 1024 * sum(map(int, kilobytes))


def main() -> None:
    """Print the table, write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20000)
    parser.add_argument("--folders", type=int, default=100, help="folders that the files lie in")
    parser.add_argument("--images", type=int, default=100, help="images of each folder of images")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="file for the figures")
    parsed = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        files, frames = make(Path(folder), parsed)
        videos, sequences = read_list(files), read_list(frames)
        images_title = f"identify, folders of {parsed.images} images"
        actions = {
            "floor": partial(floor, files, Path(folder)),
            "read_list": partial(read_list, files),
            "own_rows, of two lists": partial(own_rows, videos, videos),
            "identify, files": partial(identify, videos),
            images_title: partial(identify, sequences),
        }
        times = paired({name: partial(_run, action) for name, action in actions.items()}, parsed.rounds)
        rows = []
        for name, time in times.items():
            count = len(sequences) if name == images_title else parsed.rows
            quotient = "" if name == images_title else f"{ratio(times, name, 'floor'):.2f}"
            rows.append([name, f"{1000 * np.median(time) / count:.1f}", quotient])
        memory = private(videos)
    print(table(["", "microseconds per row", "times the floor"], rows))
    print(f"\nprivate memory of a forked process that reads {parsed.rows} records: {memory:.2f} MB")
    finish({"rows": {row[0]: float(row[1]) for row in rows}, "private_mb": memory}, parsed.json)


if __name__ == "__main__":
    main()
