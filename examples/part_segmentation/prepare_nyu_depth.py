r"""Write the images and labels of NYU-Depth-v2 as image files, masks and lists.

    pip install h5py
    python examples/part_segmentation/prepare_nyu_depth.py nyu_depth_v2_labeled.mat splits.mat --out lists/nyu_depth

Both files are those of the data set: https://cs.nyu.edu/~silberman/datasets/nyu_depth_v2.html
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from vidssl.base.atomic import write_whole
from vidssl.base.errors import ConfigError, DataError, VidsslError
from vidssl.base.types import VideoRecord
from vidssl.data.write_lists import write_lists

IGNORED = 255  # label of pixels that are not counted
SPLITS = {"train": "trainNdxs", "test": "testNdxs"}  # of splits.mat


def main() -> None:
    """Prepare, and print what was written."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("labeled", type=Path, help="nyu_depth_v2_labeled.mat")
    parser.add_argument("splits", type=Path, help="splits.mat")
    parser.add_argument("--out", type=Path, required=True, help="new folder for images, masks and lists")
    parser.add_argument("--classes", type=int, default=40, help="number of the most frequent classes (default 40)")
    options = parser.parse_args()
    try:
        print(prepare_nyu_depth(options.labeled, options.splits, options.out, options.classes))
    except (VidsslError, OSError) as error:
        sys.exit(f"error: {error}")


def prepare_nyu_depth(labeled: Path, splits: Path, out: Path, classes: int = 40) -> str:
    """Write each image with a mask of its classes: those with the most pixels in the training images, in this order.

    All other pixels, unlabelled or of rarer classes, are 255.

    Returns:
        A report: images of each split, and the fraction of labelled training pixels that the classes have.

    Raises:
        ConfigError: `classes` is not between 2 and 255, or h5py is not installed.
        DataError: A file cannot be read or has another structure, or `out` is not empty.
    """
    if not 2 <= classes <= IGNORED:
        raise ConfigError(f"classes is {classes}: a mask has 2 to {IGNORED}")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DataError(f"{out} is not empty: choose a new folder")
    try:
        import h5py
    except ImportError:
        raise ConfigError("NYU-Depth-v2 is an HDF5 file: pip install h5py") from None
    try:
        numbers = read_splits(splits)
        with h5py.File(labeled) as content:
            images, labels = content["images"], content["labels"]
            names = ["".join(map(chr, content[at][:].ravel())) for at in content["names"][:].ravel()]
            counts = np.zeros(len(names) + 1, np.int64)  # label 0 is unlabelled
            for n in numbers["train"]:
                counts += np.bincount(labels[n].ravel(), minlength=len(counts))
            counts[0] = 0
            common = [int(label) for label in np.argsort(-counts, kind="stable")[:classes] if counts[label]]
            class_of = np.full(len(counts), IGNORED, np.uint8)
            class_of[common] = np.arange(len(common))
            rows = {
                split: [_write_image(out, n, images[n], class_of[labels[n]]) for n in numbers[split]]
                for split in SPLITS
            }
    except (OSError, KeyError, ValueError, IndexError, TypeError, NotImplementedError) as error:
        raise DataError(f"{labeled} and {splits} are not the files of NYU-Depth-v2, or damaged: {error}") from None
    write_whole(out / "parts.txt", "".join(f"{names[label - 1]}\n" for label in common).encode())
    write_lists(out, out, rows, ("scene",))
    counted = counts[common].sum() / max(counts.sum(), 1)
    sizes = ", ".join(f"{len(rows[split])} {split}" for split in SPLITS)
    return f"{sizes}; {len(common)} classes with {100 * counted:.1f} % of the labelled training pixels; lists in {out}"


def read_splits(file: Path) -> dict[str, list[int]]:
    """Read the numbers of the images of each split, from 0."""
    from scipy.io import loadmat

    content = loadmat(str(file))
    return {split: [int(n) - 1 for n in content[name].ravel()] for split, name in SPLITS.items()}


def _write_image(out: Path, number: int, image: NDArray[Any], mask: NDArray[np.uint8]) -> VideoRecord:
    """Write an image (3, W, H) and its mask (W, H): MATLAB's order of axes reversed."""
    paths = f"images/{number:04d}.png", f"masks/{number:04d}.png"
    for path, pixels in zip(paths, (np.ascontiguousarray(image.transpose(2, 1, 0)[..., ::-1]), mask.T), strict=True):
        (out / path).parent.mkdir(parents=True, exist_ok=True)
        (out / path).write_bytes(cv2.imencode(".png", pixels)[1].tobytes())
    return VideoRecord(paths[0], 0, mask=paths[1])


if __name__ == "__main__":
    main()
