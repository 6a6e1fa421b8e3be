"""Write the lists of TrackingNet, one row a sequence of frames: train.csv, test.csv where TEST is there, root.txt.

    python datasets/prepare_trackingnet.py /data/TrackingNet --out lists/trackingnet
    python datasets/prepare_trackingnet.py /data/TrackingNet --chunks 0-3 --out lists/trackingnet4

The folder holds TRAIN_<n>/{frames,anno} and TEST/{frames,anno}. There are no labels; boxes are counted.
"""

import argparse
from pathlib import Path

from vidssl.cli import guarded
from vidssl.data.official import prepare_trackingnet


def main() -> None:
    """Parse, write the lists, report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("root", type=Path, help="folder with TRAIN_0 and so on")
    parser.add_argument("--out", type=Path, required=True, help="folder for the lists")
    parser.add_argument(
        "--chunks", metavar="N-M", help="training chunks, such as 0-3 or 0,2 (default: all there are)"
    )
    parser.add_argument(
        "--fps", type=float, default=30.0, help="frames per second, which the frames do not say (default 30)"
    )
    parser.add_argument(
        "--max-missing",
        type=float,
        default=0.05,
        help="share of the files of a list that may be missing (default 0.05)",
    )
    options = vars(parser.parse_args())
    out = options["out"]
    print(prepare_trackingnet(**options))
    print(f"lists written to {out}")


if __name__ == "__main__":
    guarded(main)
