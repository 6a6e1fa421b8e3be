"""Cut the objects of Pascal-Part out of VOC 2010, and write them with masks of their parts and lists for each class.

    python datasets/prepare_pascal_parts.py /data/VOCdevkit/VOC2010 /data/Annotations_Part --out lists/pascal_parts

OUT/CLASS holds images/, masks/, train.csv, val.csv, parts.txt (line n names part n), classes.txt and root.txt.
"""

import argparse
from pathlib import Path

from vidssl.commands import guarded


def main() -> None:
    """Parse, cut, report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("voc", type=Path, help="folder VOC2010")
    parser.add_argument("annotations", type=Path, help="folder Annotations_Part")
    parser.add_argument("--out", type=Path, required=True, help="new folder for crops, masks and lists")
    parser.add_argument("--size", type=int, default=224, help="side of the crops, pixels (default 224)")
    parser.add_argument(
        "--min-side", type=int, default=32, help="leave out objects with a shorter side, pixels (default 32)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the split, where VOC brings none (default 0)")
    options = parser.parse_args()
    from vidssl.prepare import prepare_pascal_parts

    print(prepare_pascal_parts(**vars(options)))
    print(f"lists written to {options.out}")


if __name__ == "__main__":
    guarded(main)
