r"""Cut the videos of a list into chunks of consecutive frames, far apart, each a video of its own.

    python datasets/prepare_chunks.py lists/trackingnet/train.csv --out lists/trackingnet_chunks
    python datasets/prepare_chunks.py lists/mine/train.csv --out lists/mine_chunks --chunks 4 --frames 60 --short drop

Writes the list again, with start and end of each chunk in seconds. Nothing is decoded or copied.
"""

import argparse
from pathlib import Path

from vidssl.commands.arguments import above_zero, at_least
from vidssl.commands.cli import guarded, prepare


def main() -> None:
    """Parse, write the list, report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("videos", type=Path, metavar="list", help="list of videos")
    parser.add_argument("--out", type=Path, required=True, help="folder for the list of chunks")
    parser.add_argument("--chunks", type=at_least(1), default=4, help="of each video (default 4)")
    parser.add_argument("--frames", type=at_least(1), default=60, help="of each chunk (default 60)")
    parser.add_argument(
        "--short",
        choices=("keep", "drop"),
        default="keep",
        help="make a shorter video one chunk, or leave it out (default keep)",
    )
    parser.add_argument("--root", type=Path, help="folder of the videos, instead of the one in root.txt")
    parser.add_argument("--allow-external", action="store_true", help="accept paths that leave the root")
    parser.add_argument("--fps", type=above_zero, help="of folders of images whose list does not say it")
    options = parser.parse_args()
    from vidssl.prepare.chunks import prepare_chunks

    prepare(options, prepare_chunks)


if __name__ == "__main__":
    guarded(main)
