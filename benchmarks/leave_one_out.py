r"""Write the lists of leave-one-group-out tests: of each person or recording, all other videos as training list.

    python benchmarks/leave_one_out.py lists/utd_mhad/train.csv --group '_s(\d)_' --out lists/utd_mhad_persons

OUT/split1/test.csv has the videos of the first group, OUT/split1/train.csv all others, and so on in the order of the
names. A video's group is what `--group` finds in its name, or the column `group` of the CSV that `--groups` names.
"""

import argparse
import csv
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vidssl.data.recordings_and_class_folders import recordings_by
from vidssl.data.video_list import VideoList, read_list

Names = NDArray[np.str_]


def main() -> None:
    """Write the lists."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("list", type=Path)
    parser.add_argument("--group", help="expression for the group in a video's name: its first capture group")
    parser.add_argument("--groups", type=Path, help="CSV with the columns path and group")
    parser.add_argument("--out", type=Path, required=True)
    parsed = parser.parse_args()
    videos = read_list(parsed.list)
    groups = groups_of(videos, parsed.group, parsed.groups)
    header, *rows = parsed.list.read_text().splitlines()
    for n, group in enumerate(sorted({*groups.tolist()}), start=1):
        folder = parsed.out / f"split{n}"
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("classes.txt", "root.txt"):
            (folder / name).write_text((parsed.list.parent / name).read_text())
        for name, mask in (("train", groups != group), ("test", groups == group)):
            split_rows = [row for row, selected in zip(rows, mask, strict=True) if selected]
            (folder / f"{name}.csv").write_text("\n".join([header, *split_rows, ""]))
        print(f"{folder}: {group}, {sum(groups == group)} of {len(groups)} videos")


def groups_of(videos: VideoList, pattern: str | None, file: Path | None) -> Names:
    """Return the group of each video (N,): of the column `group` of `file`, or what `pattern` finds in the name."""
    if (pattern is None) == (file is None):
        sys.exit("pass either --group or --groups")
    if file is not None:
        with file.open(newline="") as stream:
            group_of_path = {row["path"]: row["group"] for row in csv.DictReader(stream)}
        groups = [group_of_path.get(name) for name in videos.names]
        source = file
    else:
        groups = recordings_by(pattern or "", videos.names)
        source = Path(f"--group {pattern}")
    if None in groups:
        sys.exit(f"{source} has no group for {videos.names[groups.index(None)]!r} of {videos.path}")
    return np.array(groups)


if __name__ == "__main__":
    main()
