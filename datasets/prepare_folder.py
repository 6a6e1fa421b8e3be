r"""Write the lists of a folder of videos: train.csv, test.csv, classes.txt and root.txt.

    python datasets/prepare_folder.py /data/actions --out lists/actions --test 0.33 --group 'person\d+'
    python datasets/prepare_folder.py /data/street --out lists/street --labels /data/street/labels.csv \
        --group-column source_id
    python datasets/prepare_folder.py /data/kinetics --out lists/kinetics
    python datasets/prepare_folder.py /data/unlabelled --out lists/unlabelled --unlabeled
    python datasets/prepare_folder.py /data/rawframes --out lists/rawframes --fps 25
    python datasets/prepare_folder.py /data/pictures --out lists/pictures --images
    python datasets/prepare_folder.py /data/imagenet/train --out lists/imagenet100 --test 0 --images \
        --classes datasets/imagenet100.txt

The folder holds <class>/<file>, or files without classes, or one of these in train, val and test, which then are the
lists. Clips of one group (a person, a camera) land on one side.
"""

import argparse
from pathlib import Path

from vidssl.commands.cli import guarded, prepare


def main() -> None:
    """Parse, prepare, report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("root", type=Path, help="folder of videos")
    parser.add_argument("--out", type=Path, required=True, help="folder for the lists")
    parser.add_argument(
        "--test",
        type=float,
        help="fraction of the groups to test on (default 0.33; 0, none, where there are no classes)",
    )
    parser.add_argument(
        "--group", metavar="REGEX", help="what in a path names its group: first capture group or match"
    )
    parser.add_argument("--labels", type=Path, metavar="CSV", help="file with the columns path,label")
    parser.add_argument(
        "--group-column", metavar="NAME", help="column of the labels file that names the group"
    )
    parser.add_argument("--seed", type=int, default=0, help="decides which groups are tested (default 0)")
    parser.add_argument(
        "--images", action="store_true", help="list image files: each is a video of one frame"
    )
    parser.add_argument(
        "--classes", type=Path, metavar="FILE", help="classes to keep, one a line (default: all)"
    )
    parser.add_argument(
        "--unlabeled", action="store_true", help="the folders are not classes: no video gets a label"
    )
    parser.add_argument(
        "--follow-links", action="store_true", help="follow links to folders, and links that leave the folder"
    )
    parser.add_argument(
        "--fps", type=float, help="frames per second of folders of images, where these are the videos"
    )
    options = parser.parse_args()
    from vidssl.prepare.folder import prepare_folder

    prepare(options, prepare_folder)


if __name__ == "__main__":
    guarded(main)
