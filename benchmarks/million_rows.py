"""Run InterCLR on NPID on a list of a million rows: `python benchmarks/million_rows.py [--rows N] [--json FILE]`.

The rows are spans of a few hard links to one small video, so that a step costs the same for every list. Printed for a
tenth of the rows and for all: seconds from the start of the command to the first step, of one step, and of saving, for
a fresh run and a resumed one; and the memory of the main process (resident) and of one of two workers (private). The
bank has 128 dimensions.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from measure import finish, table

from vidssl.data.moving_digits import MovingDigits, ensure
from vidssl.engine import run_setup as training
from vidssl.engine import train as loop
from vidssl.engine.run_config import load_run

CONFIG = Path(__file__).parents[1] / "configs/toy/interclr_npid.yaml"
LINKS = 1000
STEPS = 8  # of each part


def make_list(folder: Path, rows: int) -> Path:
    """Write a list of distinct spans, and the videos that it needs."""
    settings = MovingDigits(train=8, test=8, frames=24, size=48)
    ensure(folder / "digits", settings)
    source = sorted((folder / "digits/videos/train").glob("*.mp4"))[0]
    (folder / "links").mkdir(exist_ok=True)
    for n in range(LINKS):
        link = folder / f"links/{n:04d}.mp4"
        if not link.exists():
            os.link(source, link)
    path = folder / f"list-{rows}.csv"
    with open(path, "w") as file:
        file.write("path,label,start,end\n")
        for n in range(rows):
            file.write(f"{n % LINKS:04d}.mp4,0,{(n // LINKS) * 1e-4:.4f},0.9\n")
    (folder / "root.txt").write_text(f"{folder / 'links'}\n")
    return path


def measure_run(path: Path, output: Path, until: int) -> dict[str, float]:
    """Train in this process up to a step; called in a process of its own."""
    start = time.perf_counter()
    settings = [
        f"data.train={path}",
        "data.moving_digits=null",
        f"output={output}",
        "data.workers=2",
        "steps=100",
        "method.projector.out=128",
        "method.inter.clusters=1000",
        "method.inter.iterations=1",
        "method.negatives=4096",
        f"checkpoint.every={until}",
        "batch_size=32",
        "micro_batch_size=32",
        "log_every=100",
        "device=cpu",
    ]
    run, marks = load_run(CONFIG, settings), []
    set_lr, save, saving = loop.set_lr, training.save, []
    memory: dict[str, float] = {}

    def mark(*arguments: Any) -> float:
        marks.append(time.perf_counter())
        if len(marks) == STEPS:
            memory.update(main=_megabytes("self", "Rss"), worker=max(_megabytes(pid, "Private") for pid in _children()))
        return set_lr(*arguments)

    def timed_save(*arguments: Any) -> None:
        before = time.perf_counter()
        save(*arguments)
        saving.append(time.perf_counter() - before)

    loop.set_lr, training.save = mark, timed_save
    loop.train(run, until)
    step = float(np.median(np.diff(marks)))
    return {"start": marks[0] - start, "step": step, "save": saving[-1], **memory}


def _children() -> list[str]:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


def _megabytes(pid: str, kind: str) -> float:
    kilobytes = re.findall(rf"^{kind}\w*: +(\d+) kB$", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    return sum(map(int, kilobytes)) / 1000


def main() -> None:
    """Print the table, write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_300_000)
    parser.add_argument("--part", nargs=3, metavar=("LIST", "OUTPUT", "UNTIL"), help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, help="file for the figures")
    parsed = parser.parse_args()
    if parsed.part:
        print(json.dumps(measure_run(Path(parsed.part[0]), Path(parsed.part[1]), int(parsed.part[2]))))
        return
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        for rows in (parsed.rows // 10, parsed.rows):
            path = make_list(Path(name), rows)
            for part, until in (("fresh", STEPS), ("resumed", 2 * STEPS)):
                words = [sys.executable, __file__, "--part", str(path), f"{name}/run-{rows}", str(until)]
                process = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
                figures[f"{rows} rows, {part}"] = json.loads(process.stdout.splitlines()[-1])
            size = sum(file.stat().st_size for file in Path(name, f"run-{rows}/checkpoints").glob("*.pt")) / 2e6
            figures[f"{rows} rows, resumed"]["checkpoint"] = size
    columns = ["start", "step", "save", "main", "worker"]
    rows_of = [[label, *(f"{numbers[key]:.1f}" for key in columns)] for label, numbers in figures.items()]
    header = ["", "start (s)", "step (s)", "save (s)", "main process (MB)", "worker (MB)"]
    print(table(header, rows_of))
    finish(figures, parsed.json)


if __name__ == "__main__":
    main()
