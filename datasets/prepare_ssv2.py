r"""Write the lists of Something-Something v2 from its JSON files: train.csv, test.csv, classes.txt, root.txt.

    python datasets/prepare_ssv2.py /data/ssv2/videos --out lists/ssv2 \
        --train something-something-v2-train.json --test something-something-v2-validation.json \
        --labels something-something-v2-labels.json

The videos are <id>.webm; files with another suffix and folders of images are found too.
"""

from pathlib import Path

from vidssl.commands.arguments import list_parser
from vidssl.commands.cli import guarded, prepare


def main() -> None:
    """Parse, write the lists, report."""
    parser = list_parser(__doc__)
    parser.add_argument("root", type=Path, help="folder of the videos")
    parser.add_argument("--train", type=Path, required=True, metavar="JSON", help="official training list")
    parser.add_argument("--test", type=Path, required=True, metavar="JSON", help="official validation list")
    parser.add_argument(
        "--labels", type=Path, required=True, metavar="JSON", help="names and numbers of the classes"
    )
    options = parser.parse_args()
    from vidssl.prepare import prepare_ssv2

    prepare(options, prepare_ssv2)


if __name__ == "__main__":
    guarded(main)
