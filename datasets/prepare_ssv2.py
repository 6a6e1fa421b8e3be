r"""Write the lists of Something-Something v2 from its JSON files: train.csv, test.csv, classes.txt, root.txt.

    python datasets/prepare_ssv2.py /data/ssv2/videos --out lists/ssv2 \
        --train something-something-v2-train.json --test something-something-v2-validation.json \
        --labels something-something-v2-labels.json

The videos are <id>.webm; files with another suffix and folders of images are found too.
"""

import argparse
from pathlib import Path

from vidssl.cli import guarded
from vidssl.data.official import prepare_ssv2


def main() -> None:
    """Parse, write the lists, report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("root", type=Path, help="folder of the videos")
    parser.add_argument("--out", type=Path, required=True, help="folder for the lists")
    parser.add_argument("--train", type=Path, required=True, metavar="JSON", help="official training list")
    parser.add_argument("--test", type=Path, required=True, metavar="JSON", help="official validation list")
    parser.add_argument(
        "--labels", type=Path, required=True, metavar="JSON", help="names and numbers of the classes"
    )
    parser.add_argument(
        "--max-missing",
        type=float,
        default=0.05,
        help="share of the files of a list that may be missing (default 0.05)",
    )
    parser.add_argument("--fps", type=float, help="frames per second of folders of images")
    options = vars(parser.parse_args())
    out = options["out"]
    print(prepare_ssv2(**options))
    print(f"lists written to {out}")


if __name__ == "__main__":
    guarded(main)
