r"""Write vidssl's list for a list of SlowFast, pytorchvideo or mmaction2: train.csv, classes.txt, root.txt.

    python datasets/prepare_list.py k400/train.csv --form slowfast --root /data/k400 --out lists/k400
    python datasets/prepare_list.py ucf101_val_split_1_rawframes.txt --form mmaction2_rawframes \
        --root /data/ucf101/rawframes --classes label_map.txt --name test --out lists/ucf101 --fps 25

A line that could be read in two ways is an error.
"""

from pathlib import Path

from vidssl.commands.arguments import list_parser
from vidssl.commands.cli import guarded, prepare


def main() -> None:
    """Parse, write the lists, report."""
    parser = list_parser(__doc__)
    parser.add_argument("videos", type=Path, metavar="list", help="list of another project")
    parser.add_argument(
        "--form",
        required=True,
        metavar="FORM",
        help="what a line is: slowfast, mmaction2 or mmaction2_rawframes",
    )
    parser.add_argument("--root", type=Path, required=True, help="folder that the paths are relative to")
    parser.add_argument("--name", default="train", help="name of the list that is written (default train)")
    parser.add_argument(
        "--separator", default=" ", metavar="CHARACTER", help="between fields (default: a blank)"
    )
    parser.add_argument("--classes", type=Path, metavar="FILE", help="names of the classes, one a line")
    options = parser.parse_args()
    from vidssl.prepare import prepare_list

    prepare(options, prepare_list)


if __name__ == "__main__":
    guarded(main)
