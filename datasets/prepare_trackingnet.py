"""Write the lists of TrackingNet, one row a sequence of frames: train.csv, test.csv where TEST is there, root.txt.

    python datasets/prepare_trackingnet.py /data/TrackingNet --out lists/trackingnet
    python datasets/prepare_trackingnet.py /data/TrackingNet --chunks 0-3 --out lists/trackingnet4

The folder holds TRAIN_<n>/{frames,anno} and TEST/{frames,anno}. There are no labels; boxes are counted.
"""

from pathlib import Path

from vidssl.commands.arguments import list_parser
from vidssl.commands.cli import guarded, prepare


def main() -> None:
    """Parse, write the lists, report."""
    parser = list_parser(__doc__, fps=30.0)
    parser.add_argument("root", type=Path, help="folder with TRAIN_0 and so on")
    parser.add_argument(
        "--chunks", metavar="N-M", help="training chunks, such as 0-3 or 0,2 (default: all there are)"
    )
    options = parser.parse_args()
    from vidssl.prepare import prepare_trackingnet

    prepare(options, prepare_trackingnet)


if __name__ == "__main__":
    guarded(main)
