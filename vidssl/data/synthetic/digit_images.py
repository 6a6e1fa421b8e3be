"""The images of digits that moving digits are drawn from: those of scikit-learn, or MNIST's files."""

import gzip
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from vidssl.errors import DataError

Floats = NDArray[np.float32]
Pixels = NDArray[np.uint8]


def make_glyph(pixels: NDArray[np.float64]) -> Floats:
    """Turn the image of a digit (0 to 1) into a sharp opacity (56, 56), with the margin of MNIST."""
    inner = 40 if len(pixels) == 8 else 56  # the 8x8 digits have no margin
    large = cv2.resize(pixels.astype(np.float32), (inner, inner), interpolation=cv2.INTER_CUBIC)
    padded = np.pad(large, (56 - inner) // 2)
    return np.asarray(np.clip((padded - 0.3) / 0.3, 0, 1), np.float32)


def digit_images(mnist: Path | None) -> tuple[NDArray[np.float64], dict[str, list[list[int]]]]:
    """Return images (N, E, E) in [0, 1], and the image numbers for each split and digit; the splits are disjoint."""
    if mnist is None:
        from sklearn.datasets import load_digits  # takes a second, and is needed here only

        images, labels = load_digits(return_X_y=True)
        images = images.reshape(-1, 8, 8) / 16
    else:
        names = [name for name in ("train", "t10k") if list(mnist.glob(f"{name}-images-idx3-ubyte*"))] or ["t10k"]
        images = np.concatenate([_read_idx(mnist / f"{name}-images-idx3-ubyte") for name in names]) / 255
        labels = np.concatenate([_read_idx(mnist / f"{name}-labels-idx1-ubyte") for name in names])
        if images.shape[1:] != (28, 28) or len(images) != len(labels):
            raise DataError(f"{mnist}: {len(labels)} labels for images {images.shape}; MNIST has N labels, (N, 28, 28)")
    pools: dict[str, list[list[int]]] = {"train": [], "test": []}
    for digit in range(10):
        numbers = np.flatnonzero(labels == digit).tolist()
        cut = 4 * len(numbers) // 5  # the last fifth is for testing; in MNIST these are other writers
        if cut == 0 or cut == len(numbers):
            raise DataError(f"{mnist}: {len(numbers)} images of the digit {digit}, need at least 2")
        pools["train"].append(numbers[:cut])
        pools["test"].append(numbers[cut:])
    return images, pools


def _read_idx(path: Path) -> Pixels:
    """Read an array of the idx format, raw or .gz: two zero bytes, type, number of axes, their lengths, values."""
    try:
        packed = path.with_name(f"{path.name}.gz")
        content = path.read_bytes() if path.exists() else gzip.decompress(packed.read_bytes())
        if content[:3] != b"\x00\x00\x08":
            raise ValueError("not an idx file of bytes")
        axes = content[3]
        shape = np.frombuffer(content, ">u4", axes, offset=4)
        return np.frombuffer(content, np.uint8, offset=4 + 4 * axes).reshape(shape)
    except (OSError, EOFError, ValueError, IndexError) as error:
        raise DataError(f"{path}: cannot be read as MNIST ({error})") from None
