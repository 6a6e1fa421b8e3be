"""Write digits as images, coloured or plain: a list of ten classes for studies of views, and one with few labels.

    python benchmarks/coloured_digits.py --out data/coloured_digits
    python benchmarks/coloured_digits.py --mnist /data/mnist --out data/coloured_digits
    python benchmarks/coloured_digits.py --mnist /data/mnist --plain --out data/plain_digits
    python benchmarks/coloured_digits.py --mnist /data/mnist --gray 0.7 --out data/pale_digits

Each image (28 x 28 pixels, resized to 32) is a digit in a random colour on a background of another random colour, which
do not depend on the class; with `--plain` it is white on black. The channels of a colour are independent, unless
`--gray` mixes it with a random gray. Without `--mnist`, a folder with idx files, the digits are those of scikit-learn.
Writes train.csv, test.csv and labels10.csv: train.csv with the labels of a tenth of the images.
"""

import argparse
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from vidssl.base.keyed_generators import generator
from vidssl.base.types import VideoRecord
from vidssl.data.moving_digits import digit_images
from vidssl.data.write_lists import write_lists

SIDE = 32
DIGITS = tuple("0123456789")
BLACK_WHITE = np.array([[1.0] * 3, [0.0] * 3])  # digit, background
CONTRAST = 0.35  # smallest distance of the two colours, of the diagonal of the RGB cube


def main() -> None:
    """Write the images and lists."""
    parser = argparse.ArgumentParser(description="Write digits as images, with lists.")
    parser.add_argument("--mnist", type=Path, help="folder with idx files; default: the digits of scikit-learn")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--plain", action="store_true", help="white on black instead of random colours")
    parser.add_argument("--gray", type=float, default=0.0, help="weight of a random gray in each colour, 0 to 1")
    parser.add_argument("--train", type=int, default=2000, help="maximum of training images")
    parser.add_argument("--test", type=int, default=1000)
    parsed = parser.parse_args()
    images, pools = digit_images(parsed.mnist)
    rows: dict[str, list[VideoRecord]] = {}
    for part, limit in (("train", parsed.train), ("test", parsed.test)):
        folder = parsed.out / "images" / part
        folder.mkdir(parents=True, exist_ok=True)
        numbered = [(digit, number) for digit, numbers in enumerate(pools[part]) for number in numbers]
        order = generator(0, len(part)).permutation(len(numbered))[:limit]
        rows[part] = []
        for n, (digit, number) in enumerate(numbered[at] for at in order):
            colours = BLACK_WHITE if parsed.plain else draw_colours(generator(1, number), parsed.gray)
            cv2.imwrite(str(folder / f"{n:05d}.png"), blend(images[number], colours)[..., ::-1])
            rows[part].append(VideoRecord(f"{part}/{n:05d}.png", digit))
    num_labelled = len(rows["train"]) // 10
    rows["labels10"] = rows["train"][:num_labelled] + [VideoRecord(row.path) for row in rows["train"][num_labelled:]]
    write_lists(parsed.out, parsed.out / "images", rows, DIGITS)
    print(f"{len(rows['train'])} training and {len(rows['test'])} test images in {parsed.out}")


def draw_colours(source: np.random.Generator, gray: float) -> NDArray[np.float64]:
    """Draw the colours of digit and background (2, 3), RGB in [0, 1]."""
    while True:
        colours = source.uniform(0, 1, (2, 3))
        if gray:
            colours = gray * source.uniform(0, 1, (2, 1)) + (1 - gray) * colours
        if np.linalg.norm(colours[0] - colours[1]) > CONTRAST * np.sqrt(3):
            return colours


def blend(image: NDArray[np.float64], colours: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Blend two colours (2, 3) by an image (E, E) in [0, 1]: (32, 32, 3) RGB."""
    opacity = cv2.resize(image, (SIDE, SIDE), interpolation=cv2.INTER_LINEAR)[..., None]
    return np.rint(255 * (opacity * colours[0] + (1 - opacity) * colours[1])).astype(np.uint8)


if __name__ == "__main__":
    main()
