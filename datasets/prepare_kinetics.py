r"""Write the lists of Kinetics-400, -600 or -700 from its CSV files: train.csv, test.csv, classes.txt, root.txt.

    python datasets/prepare_kinetics.py /data/k400 --train train.csv --test validate.csv --out lists/k400
    python datasets/prepare_kinetics.py /data/k400 --train train.csv --test validate.csv \
        --classes mini_kinetics_classes.txt --out lists/k200

The videos are <id>_<start>_<end>.mp4 or <id>.mp4, in whatever folders.
"""

from pathlib import Path

from vidssl.commands.arguments import list_parser
from vidssl.commands.cli import guarded, prepare


def main() -> None:
    """Parse, write the lists, report."""
    parser = list_parser(__doc__, max_missing=0.2)
    parser.add_argument("root", type=Path, help="folder of the videos")
    parser.add_argument("--train", type=Path, required=True, metavar="CSV", help="official training list")
    parser.add_argument("--test", type=Path, metavar="CSV", help="official validation list")
    parser.add_argument(
        "--classes", type=Path, metavar="FILE", help="classes to keep, one a line (default: all)"
    )
    parser.add_argument(
        "--untrimmed", action="store_true", help="the files are whole videos <id>.mp4: write start and end"
    )
    options = parser.parse_args()
    from vidssl.prepare import prepare_kinetics

    prepare(options, prepare_kinetics)


if __name__ == "__main__":
    guarded(main)
