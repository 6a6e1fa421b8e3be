"""Errors that a user can cause. Each message is one line: what happened, the value, the limit, the remedy."""

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from errno import EACCES, EDQUOT, ENOSPC, ENOTDIR, EPERM, EROFS
from pathlib import Path


class VidsslError(Exception):
    """An error that a user can fix; commands print it as one line and exit with status 2.

    Line breaks in the message are escaped: names of files and classes may hold some.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(re.sub("[\r\n]", lambda match: repr(match[0])[1:-1], message))

    @property
    def code(self) -> str:
        """Its class in this module in words, such as `data` or `no_video`: `--json` states it beside the message."""
        name = next(kind.__name__ for kind in type(self).__mro__ if kind.__module__ == __name__)
        return re.sub("(?<=[a-z])(?=[A-Z])", "_", name.removesuffix("Error")).lower()


class ConfigError(VidsslError):
    """A config or an argument is wrong. Of a config the message has all mistakes."""


class DataError(VidsslError):
    """A list, a record or a whole data set cannot be used."""


class OutputError(DataError):
    """A file or folder cannot be written: no permission, no space."""


class DecodeError(DataError):
    """A video cannot be opened or decoded."""


class NoVideoError(DecodeError):
    """A file can be read, but has no video stream."""


class UndecodableError(DecodeError):
    """The video stream of a file cannot be decoded at all: FFmpeg lacks the decoder, or no frame has a header."""


class TooLargeError(DecodeError):
    """The frames of a video exceed the size limit."""


def too_large(path: object, width: int, height: int, max_pixels: int) -> TooLargeError:
    """Make the error for a video or image of more pixels than the limit."""
    return TooLargeError(f"{path}: {width}x{height} is more than {max_pixels} pixels; raise the limit if meant")


class SeveralSizesError(DecodeError):
    """The frames of a video differ in size."""


class FramesOutOfOrderError(VidsslError):
    """The decoder returns frames in another order than their timestamps; the file is counted from now on: ask again."""


class CheckpointError(VidsslError):
    """A checkpoint is missing, damaged or does not fit."""


class UntrustedError(CheckpointError):
    """A checkpoint holds objects other than tensors and plain data; loading them can run code."""


class TrainingError(VidsslError):
    """Training cannot continue: the loss is not finite, or the machine lacks what the config asks for."""


class PeerError(VidsslError):
    """Another process of the run failed or has ended; that one logs why.

    Attributes:
        kind: The class of its error; None: it has ended.
        reason: What its error says.
    """

    def __init__(self, message: str, kind: type[VidsslError] | None = None, reason: str = "") -> None:
        super().__init__(message)
        self.kind, self.reason = kind, reason


class Interrupted(BaseException):
    """A signal asked the run to stop. Not an error, so `except Exception` does not catch it.

    Attributes:
        signal: Its number.
    """

    def __init__(self, signal: int) -> None:
        super().__init__(signal)
        self.signal = signal


@contextmanager
def naming(cause: str) -> Iterator[None]:
    """Put the file, or the setting that a user can change, before a DataError."""
    try:
        yield
    except DataError as error:
        raise type(error)(f"{cause}: {error}") from None


def first_few(items: Iterable[object], limit: int = 3, separator: str = ", ") -> str:
    """Join the first items of a long list for a message, and count the rest: `a, b, c and 4 more`."""
    texts = [str(item) for item in items]
    more = len(texts) - limit
    return separator.join(texts[:limit]) + (f" and {more} more" if more > 0 else "")


def how_many(count: int, unit: str) -> str:
    """Return a count with its unit: `1 video`, `1,200 videos`."""
    return f"{count:,} {unit}{'s' * (count != 1)}"


def hint_at_device(name: str) -> str:
    """Return what the error for a device that cannot be chosen adds, if `name` is that option."""
    return "; CUDA_VISIBLE_DEVICES=1 names one GPU of several for cuda, and mps is not used" * (name == "device")


_REMEDIES = {
    **dict.fromkeys((ENOSPC, EDQUOT), "; free disk space or choose another folder"),
    **dict.fromkeys((EACCES, EPERM), "; give this user the permission"),
    EROFS: "; choose another folder",
    ENOTDIR: "; a folder of this path is a file",
}


def in_words(error: Exception) -> str:
    """Return what an error says; one of the file system says its file, the reason and the remedy, without numbers."""
    text = str(error)
    if isinstance(error, OSError) and error.strerror:
        file = "" if error.filename is None else f"{error.filename}: "
        text = f"{file}{error.strerror}{_REMEDIES.get(error.errno or 0, '')}"
    return text + "; set TMPDIR to a writable folder" * ("usable temporary directory" in text)


def why_unreadable(path: str | Path, error: OSError | None = None) -> str:
    """Return why the system does not let a file be read, and the remedy, without its path; None: it is missing."""
    if error is None or isinstance(error, FileNotFoundError):
        is_link = os.path.islink(path)  # noqa: PTH114 - no error for names that no file can have
        return f"a link to {Path(path).readlink()}, which does not exist" if is_link else "No such file"
    return f"cannot be read: {error.strerror}{_REMEDIES.get(error.errno or 0, '')}"


def in_one_line(error: Exception, limit: int = 300) -> str:
    """Describe an error of other code in one line, with at most `limit` characters of its message."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:limit]}"


def writable_cache(error: Exception) -> str:
    """Return what to do if an error of another library is that its folder of downloads cannot be written, else ""."""
    unwritable = isinstance(error, OSError) and error.errno in (EACCES, EPERM, EROFS, ENOTDIR)
    return "; set TORCH_HOME (torchvision, hub) and HF_HOME (timm, transformers) to writable folders" * unwritable
