"""Write the lists of UCF101 from its split files: train1.csv, test1.csv and so on, classes.txt, root.txt.

    python datasets/prepare_ucf101.py /data/UCF-101 --splits /data/ucfTrainTestlist --out lists/ucf101

The videos are <Class>/v_<Class>_gNN_cNN.avi; files with another suffix and folders of images are found too.
"""

import argparse
from pathlib import Path

from vidssl.cli import guarded
from vidssl.data.official import prepare_ucf101


def main() -> None:
    """Parse, write the lists, report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("root", type=Path, help="folder of the videos")
    parser.add_argument("--out", type=Path, required=True, help="folder for the lists")
    parser.add_argument("--splits", type=Path, required=True, help="folder ucfTrainTestlist")
    parser.add_argument(
        "--max-missing",
        type=float,
        default=0.05,
        help="share of the files of a list that may be missing (default 0.05)",
    )
    parser.add_argument("--fps", type=float, help="frames per second of folders of images")
    options = vars(parser.parse_args())
    out = options["out"]
    print(prepare_ucf101(**options))
    print(f"lists written to {out}")


if __name__ == "__main__":
    guarded(main)
