"""Write the lists of UCF101 from its split files: train1.csv, test1.csv and so on, classes.txt, root.txt.

    python datasets/prepare_ucf101.py /data/UCF-101 --splits /data/ucfTrainTestlist --out lists/ucf101

The videos are <Class>/v_<Class>_gNN_cNN.avi; files with another suffix and folders of images are found too.
"""

from pathlib import Path

from vidssl.commands.arguments import list_parser
from vidssl.commands.cli import guarded, prepare


def main() -> None:
    """Parse, write the lists, report."""
    parser = list_parser(__doc__)
    parser.add_argument("root", type=Path, help="folder of the videos")
    parser.add_argument("--splits", type=Path, required=True, help="folder ucfTrainTestlist")
    options = parser.parse_args()
    from vidssl.prepare import prepare_ucf101

    prepare(options, prepare_ucf101)


if __name__ == "__main__":
    guarded(main)
