r"""Write the lists of Kinetics-400, -600 or -700 from its CSV files: train.csv, test.csv, classes.txt, root.txt.

    python datasets/prepare_kinetics.py /data/k400 --train train.csv --test validate.csv --out lists/k400
    python datasets/prepare_kinetics.py /data/k400 --train train.csv --test validate.csv \
        --classes mini_kinetics_classes.txt --out lists/k200

The videos are <id>_<start>_<end>.mp4 or <id>.mp4, in whatever folders.
"""

import argparse
from pathlib import Path

from vidssl.cli import guarded
from vidssl.data.official import prepare_kinetics


def main() -> None:
    """Parse, write the lists, report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("root", type=Path, help="folder of the videos")
    parser.add_argument("--out", type=Path, required=True, help="folder for the lists")
    parser.add_argument("--train", type=Path, required=True, metavar="CSV", help="official training list")
    parser.add_argument("--test", type=Path, metavar="CSV", help="official validation list")
    parser.add_argument(
        "--classes", type=Path, metavar="FILE", help="classes to keep, one a line (default: all)"
    )
    parser.add_argument(
        "--untrimmed", action="store_true", help="the files are whole videos <id>.mp4: write start and end"
    )
    parser.add_argument(
        "--max-missing",
        type=float,
        default=0.2,
        help="share of the files of a list that may be missing (default 0.2)",
    )
    parser.add_argument("--fps", type=float, help="frames per second of folders of images")
    options = vars(parser.parse_args())
    out = options["out"]
    print(prepare_kinetics(**options))
    print(f"lists written to {out}")


if __name__ == "__main__":
    guarded(main)
