"""Masks: which part of an object each pixel of a frame shows."""

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vidssl.errors import DataError

NOT_COUNTED = 255  # a pixel of which nobody says what it shows


def read_mask(path: str, height: int, width: int) -> NDArray[np.uint8]:
    """Read the mask of a record.

    Args:
        path: A PNG of one channel, or with a palette, whose indices are then the numbers.
        height: Of the frames that it belongs to, pixels.
        width: The same.

    Returns:
        (H, W) uint8: numbers of parts, `NOT_COUNTED` where it is not known.

    Raises:
        DataError: It is missing, no such PNG, or of another size than the frames.
    """
    try:
        with Image.open(path, formats=("PNG",)) as image:
            if image.mode not in ("L", "P"):
                raise DataError(f"mask {path} is a PNG of mode {image.mode}: write one channel of 8 bits")
            # Pillow stretches 2 and 4 bits of gray to 0-255, which makes other numbers of them.
            if image.mode == "L" and image.tile[0][3] != "L":
                raise DataError(f"mask {path} is a PNG of fewer than 8 bits: write one channel of 8 bits")
            # The size is in the header: nothing large is decoded.
            if image.size != (width, height):
                shown = "x".join(map(str, image.size))
                raise DataError(
                    f"mask {path} is {shown}, the frames are {width}x{height}: masks have the size of the frames"
                )
            return np.asarray(image, np.uint8).copy()
    except FileNotFoundError:
        raise DataError(f"mask {path}: No such file") from None
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"mask {path} is no PNG, or damaged: {error}") from None
