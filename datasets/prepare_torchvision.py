r"""Write an image set of torchvision as PNG files and lists: train.csv, test.csv, classes.txt, root.txt.

    python datasets/prepare_torchvision.py CIFAR10 --root /data/torchvision --download --out lists/cifar10
    python datasets/prepare_torchvision.py STL10 --root /data/torchvision --out lists/stl10 --images /data/pictures

Each image is a video of one frame. STL10 also gets unlabeled.csv. A second run changes nothing, or goes on.
"""

import argparse
from pathlib import Path

from vidssl.commands.cli import guarded, prepare


def main() -> None:
    """Parse, write the images and their lists, report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", help="class of torchvision.datasets, such as CIFAR10, STL10, SVHN, MNIST")
    parser.add_argument("--root", type=Path, required=True, help="folder that torchvision keeps the set in")
    parser.add_argument("--out", type=Path, required=True, help="folder for the lists")
    parser.add_argument("--download", action="store_true", help="have torchvision download what is missing")
    parser.add_argument("--images", type=Path, help="folder for the images (default OUT/images)")
    options = parser.parse_args()
    from vidssl.prepare import prepare_torchvision

    prepare(options, prepare_torchvision)


if __name__ == "__main__":
    guarded(main)
