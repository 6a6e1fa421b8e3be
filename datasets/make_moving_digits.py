"""Render the embedded data set: digits that move over a panning texture, with known motion, digit and boxes.

    python datasets/make_moving_digits.py --out data/moving_digits
    python datasets/make_moving_digits.py --out data/moving_digits_32 --size 32
    python datasets/make_moving_digits.py --out data/moving_mnist --mnist /data/mnist
    python datasets/make_moving_digits.py --out data/moving_digits_parts --masks

A second run with the same settings does nothing.
"""

import argparse
from pathlib import Path

from vidssl.commands.cli import guarded


def main() -> None:
    """Parse, render, report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for videos and lists")
    parser.add_argument("--train", type=int, default=640, help="training videos (default 640)")
    parser.add_argument("--test", type=int, default=160, help="test videos (default 160)")
    parser.add_argument("--frames", type=int, default=48, help="frames of a video (default 48)")
    parser.add_argument("--fps", type=int, default=25, help="frames per second (default 25)")
    parser.add_argument("--size", type=int, default=64, help="height and width in pixels (default 64)")
    parser.add_argument("--seed", type=int, default=0, help="seed of everything that is drawn (default 0)")
    parser.add_argument(
        "--mnist", type=Path, help="folder with MNIST's idx files, to use instead of 8x8 digits"
    )
    parser.add_argument(
        "--masks", action="store_true", help="also write crops of the digits, and the part of each pixel"
    )
    options = vars(parser.parse_args())
    from vidssl.config import bind
    from vidssl.data.synthetic.moving_digits import MovingDigits, ensure

    out = options.pop("out")
    settings = bind(
        MovingDigits,
        {**options, "mnist": options["mnist"] and str(options["mnist"])},
        "make_moving_digits.py",
    )
    made = ensure(out, settings)
    what = "rendered" if made else "found"
    print(f"{what} {settings.train} training and {settings.test} test videos in {out}")
    for path in sorted(out.glob("*/*.csv")):
        print(path)


if __name__ == "__main__":
    guarded(main)
