"""Videos stored as images: a folder with one file per frame, as in TrackingNet, or a single image."""

import logging
import re
import stat
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image as header  # reads headers only

from vidssl.base.errors import DecodeError, TooLargeError, too_large, why_unreadable
from vidssl.base.types import VideoMeta

IMAGE_SUFFIXES = frozenset((".jpg", ".jpeg", ".png", ".bmp", ".webp"))
_SUFFIXES = "|".join(map(re.escape, sorted(IMAGE_SUFFIXES)))
_NUMBERED = re.compile(rf"(?!\.)(.*?)(\d+)(?:{_SUFFIXES})", re.IGNORECASE)  # prefix and number

_log = logging.getLogger(__name__)
_warned: list[Path] = []  # the first animated image of this process: one warning is enough

_NO_IMAGE = "not an image, or damaged"
# Checked by content, so that a file of another kind never reaches a decoder, whatever its suffix.
_KINDS = ("JPEG", "PNG", "BMP", "DIB", "WEBP")


def frame_number(name: str) -> tuple[str, int] | None:
    """Split the name of an image into prefix and frame number; None without a number."""
    match = _NUMBERED.fullmatch(name)
    return match and (match[1], int(match[2]))


def numbers_by_name(images: Sequence[str]) -> dict[str, list[int]]:
    """Frame numbers of the images of a folder, by prefix; empty unless most images have a number."""
    numbers: dict[str, list[int]] = {}
    for prefix, number in filter(None, map(frame_number, images)):
        numbers.setdefault(prefix, []).append(number)
    return numbers if 2 * sum(map(len, numbers.values())) > len(images) else {}


def is_sequence(numbers: Mapping[str, Sequence[int]]) -> bool:
    """Whether these are the frames of one video: one prefix, each number once."""
    return len(numbers) == 1 and all(len({*of_prefix}) == len(of_prefix) for of_prefix in numbers.values())


def has_other_images(images: Sequence[str]) -> bool:
    """Whether most images of a folder beside those of its most frequent prefix have a number of these, or all do.

    So have flow, masks, depth and thumbs of the frames of a video: `flow_x_0001.jpg`, `0001_mask.png`, `0001.png`.
    """
    kinds: dict[str, dict[int, str]] = {}  # by prefix: an image of each number
    for image in images:
        if parts := frame_number(image):
            prefix, number = parts
            kinds.setdefault(prefix, {}).setdefault(number, image)
    frames = max(kinds.values(), key=len, default={})
    rest = {*images} - {*frames.values()}
    shared = sum(any(int(digits) in frames for digits in re.findall(r"\d+", Path(name).stem)) for name in rest)
    return 2 * shared > len(rest) and (shared > 1 or len(frames) > 2)


def is_image(path: Path) -> bool:
    """Whether a path has the suffix of an image."""
    return path.suffix.lower() in IMAGE_SUFFIXES


def num_animated(path: Path) -> int:
    """Number of frames of an animated image (WebP, PNG), of which only the first one is read; 1 for other files."""
    if path.suffix.lower() not in (".webp", ".png"):
        return 1
    try:
        with header.open(path, formats=_KINDS) as image:
            return _num_frames(image)
    except (OSError, ValueError, SyntaxError, header.DecompressionBombError):
        return 1  # that it cannot be read is reported where it is read


def _num_frames(image: header.Image) -> int:
    # Photos of some phones are JPEG files of several images, which are no animation.
    return int(getattr(image, "n_frames", 1)) if image.format in ("WEBP", "PNG") else 1


def _is_turned(image: header.Image) -> bool:
    """Whether x and y change places by the orientation in the EXIF data."""
    with suppress(OSError, ValueError, SyntaxError, TypeError, struct.error):  # damaged: OpenCV does not turn it either
        return "exif" in image.info and image.getexif().get(0x0112, 1) in (5, 6, 7, 8)
    return False


class FrameFolder:
    """Decoder for a folder of images, sorted by the number at the end of their names, however padded.

    `path` can also be an image: a video of one frame, by default at 1 frame per second. A folder needs `fps`.
    """

    def __init__(self, path: Path, fps: float | None, max_pixels: int) -> None:
        if path.is_dir():
            self._files = _in_order(path)
        else:
            self._files, fps = [path], fps or 1.0
        self._max_pixels = max_pixels
        width, height = self._size(self._files[0], as_shown=True)
        if fps is None:
            raise DecodeError(f"{path}: images have no frame rate: set data.fps, or add a column fps to the list")
        self.meta = VideoMeta(len(self._files), fps, height, width)

    def fetch(self, numbers: Sequence[int]) -> Iterator[tuple[int, NDArray[np.uint8]]]:
        """Yield (number, image) of the wanted frames."""
        return ((number, self._read(self._files[number])) for number in numbers)

    def iter_frames(self) -> Iterator[NDArray[np.uint8]]:
        """Yield all images."""
        return map(self._read, self._files)

    def close(self) -> None:
        """Do nothing: no file is open."""

    def _size(self, file: Path, as_shown: bool = False) -> tuple[int, int]:
        """Read width and height from the header of an image and check them against the limit.

        `as_shown`: as OpenCV returns them, turned by the orientation in the EXIF data.
        """
        try:
            if not stat.S_ISREG(file.stat().st_mode):
                raise DecodeError(f"{file}: a pipe, socket, device or folder, not an image")
            with header.open(file, formats=_KINDS) as image:
                width, height = image.size
                if as_shown and _is_turned(image):
                    width, height = height, width
                if image.format == "PNG" and ";16" in str(image.tile):
                    raise DecodeError(f"{file}: 16 bits per channel: write 8, only you know what is black and white")
                if len(self._files) == 1 and not _warned and (count := _num_frames(image)) > 1:
                    _warned.append(file)
                    _log.warning("%s is animated: only the first of its %d frames is read, as always", file, count)
        except header.DecompressionBombError as error:
            raise TooLargeError(f"{file}: {error}") from None
        except OSError as error:
            reason = why_unreadable(file, error) if error.errno else _NO_IMAGE  # an error of PIL has no number
            raise DecodeError(f"{file}: {reason}") from None
        except ValueError:
            raise DecodeError(f"{file}: {_NO_IMAGE}") from None
        if height * width > self._max_pixels:
            raise too_large(file, width, height, self._max_pixels)
        return width, height

    def _read(self, file: Path) -> NDArray[np.uint8]:
        self._size(file)
        image = None
        with suppress(OSError, cv2.error):  # cv2.error: more pixels in its header than OpenCV reads at all
            image = cv2.imdecode(np.fromfile(file, np.uint8), cv2.IMREAD_COLOR_RGB)
        if image is None:
            raise DecodeError(f"{file}: {_NO_IMAGE}")
        return np.asarray(image, np.uint8)


def _in_order(path: Path) -> list[Path]:
    try:
        numbered = sorted((*parts, file) for file in path.iterdir() if (parts := frame_number(file.name)))
    except OSError as error:
        raise DecodeError(f"{path}: {why_unreadable(path, error)}") from None
    if not numbered:
        raise DecodeError(f"{path}: no numbered images in the folder ({', '.join(sorted(IMAGE_SUFFIXES))})")
    for (prefix, number, file), (next_prefix, next_number, next_file) in pairwise(numbered):
        if prefix != next_prefix:
            raise DecodeError(f"{path}: images are named {prefix}N and {next_prefix}N: keep one kind per folder")
        if number == next_number:
            raise DecodeError(f"{path}: {file.name} and {next_file.name} are both frame {number}")
    return [file for _, _, file in numbered]
