"""Write the lists of HMDB51 from its split files: train1.csv, test1.csv and so on, classes.txt, root.txt.

    python datasets/prepare_hmdb51.py /data/hmdb51 --splits /data/testTrainMulti_7030_splits --out lists/hmdb51

The videos are <class>/<file>.avi; files with another suffix and folders of images are found too.
"""

from pathlib import Path

from vidssl.commands.arguments import list_parser
from vidssl.commands.cli import guarded, prepare


def main() -> None:
    """Parse, write the lists, report."""
    parser = list_parser(__doc__)
    parser.add_argument("root", type=Path, help="folder of the videos")
    parser.add_argument("--splits", type=Path, required=True, help="folder testTrainMulti_7030_splits")
    options = parser.parse_args()
    from vidssl.prepare import prepare_hmdb51

    prepare(options, prepare_hmdb51)


if __name__ == "__main__":
    guarded(main)
