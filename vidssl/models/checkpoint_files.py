"""Read checkpoint files safely: nothing in a file can run code unless it is trusted."""

import pickle
import re
import zipfile
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from vidssl.errors import CheckpointError

_EXPECTED = "expected: a .pt file that vidssl wrote"
_EXPECTED_ANY = "expected: a checkpoint that torch.save wrote (.pt, .pth, .pyth, .ckpt), or a .safetensors file"

# First bytes of files, and their offset.
_ZIP = b"PK\x03\x04"
_PICKLE = b"\x80"  # torch before 1.6
_SAFETENSORS = b'{"'  # offset 8
_KINDS = (
    (0, b"version https://git-lfs", "a git-lfs pointer, not the file (fetch it with git lfs pull)"),
    (8, _SAFETENSORS, "a safetensors file"),
    (0, _PICKLE, "a pickle"),
    (4, b"ftyp", "a video (mp4)"),
    (0, b"\x1a\x45\xdf\xa3", "a video (webm, mkv)"),
    (8, b"AVI ", "a video (avi)"),
    (0, b"\x89HDF", "an HDF5 file"),
    (0, b"\x93NUMPY", "a numpy file"),
    (0, b"\x1f\x8b", "a gzip file"),
    (257, b"ustar", "a tar file"),
)


class UntrustedError(CheckpointError):
    """A checkpoint holds objects other than tensors and plain data; loading them can run code."""


def read_file(path: Path, trust: bool, any_project: bool) -> Any:
    """Load the content of a file onto the CPU, whatever its suffix.

    Args:
        path: A zip file of torch; with `any_project` also a pickle of torch before 1.6, or a safetensors file.
        trust: Also load objects other than tensors and plain data, which can run code.
        any_project: Whether the file may be from another project.

    Raises:
        CheckpointError: The file is missing, damaged or of another format.
        UntrustedError: It holds such objects, and `trust` is False.
    """
    expected = _EXPECTED_ANY if any_project else _EXPECTED
    try:
        with open(path, "rb") as file:
            head = file.read(512)
            if any_project and head.startswith(_SAFETENSORS, 8):
                return _read_safetensors(path)
            if not head.startswith((_ZIP, _PICKLE) if any_project else _ZIP):
                raise CheckpointError(f"{path} is {_kind(head)}; {expected}")
            return _load(path, file, trust, expected)
    except OSError as error:
        raise CheckpointError(f"cannot read checkpoint {path}: {error.strerror or error}") from None


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    from safetensors.torch import load  # here: few files need it

    try:
        return load(path.read_bytes())
    except OSError:
        raise
    except Exception as error:
        raise CheckpointError(f"{path} is a damaged safetensors file ({_one_line(error)}): replace it") from None


def _load(path: Path, file: IO[bytes], trust: bool, expected: str) -> Any:
    file.seek(0)
    try:
        # The open file, not the path: torch.load treats some suffixes specially.
        return torch.load(file, map_location="cpu", weights_only=not trust)
    except pickle.UnpicklingError as error:
        found = None if trust else re.search(r"GLOBAL (\S+)", str(error))
        if found:
            raise UntrustedError(
                f"checkpoint {path} holds {found[1]}: only tensors and plain data are loaded, as other objects can "
                "run code; load it with --trust-checkpoint (in a run: checkpoint.trust=true, Python: trust=True) if "
                "you trust its author"
            ) from None
        raise CheckpointError(_damaged(path, file, "", expected)) from None
    except ImportError as error:
        raise CheckpointError(
            f"checkpoint {path} holds objects of a missing module ({error}): install it, or run where it is found"
        ) from None
    except Exception as error:  # damaged files make torch raise anything, and so can objects with trust
        raise CheckpointError(_damaged(path, file, _one_line(error), expected)) from None


class _Empty:
    """Replaces an object of any class: ignores its arguments and state."""

    def __new__(cls, *_: Any, **__: Any) -> "_Empty":
        return object.__new__(cls)

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __setstate__(self, _: Any) -> None:
        pass


class _PlainDict:
    """Replaces a dictionary of any class: becomes a plain one with the same items."""

    def __new__(cls, *_: Any, **__: Any) -> "OrderedDict[Any, Any]":  # type: ignore[misc]
        return OrderedDict()


def read_without_objects(path: Path) -> Any:
    """Load a file with a replacement for each class and function, so that none is imported; None where that fails."""
    for replacement in (_Empty, _PlainDict):  # only an error of torch reveals that an object is filled as a dictionary
        names: set[str] = set()
        with suppress(Exception):  # in a pickle of torch before 1.6 errors name one at a time
            names |= set(torch.serialization.get_unsafe_globals_in_checkpoint(path))
        for _ in range(1000):
            try:
                with (
                    open(path, "rb") as file,
                    torch.serialization.safe_globals([_named(name, replacement) for name in names]),
                ):
                    return torch.load(file, map_location="cpu", weights_only=True)
            except pickle.UnpicklingError as error:
                found = re.search(r"Unsupported global: GLOBAL (\S+)", str(error))
                if not found:
                    break
                names.add(found[1] if "." in found[1] else f"builtins.{found[1]}")
            except Exception:
                break
    return None


def _named(name: str, replacement: type) -> type:
    """Make a subclass with the name of the class that it replaces: torch looks classes up by name."""
    module, _, last = name.rpartition(".")
    return type(last, (replacement,), {"__module__": module})


def _damaged(path: Path, file: IO[bytes], reason: str, expected: str) -> str:
    file.seek(0)
    if not file.read(4).startswith(_ZIP):
        return f"{path} is a pickle that torch did not write, or a damaged one; {expected}"
    try:
        with zipfile.ZipFile(file) as archive:
            written_by_torch = any(name.endswith("/data.pkl") for name in archive.namelist())
    except Exception:
        written_by_torch = True  # too damaged to tell
    if not written_by_torch:
        return f"{path} is a zip file that torch did not write; {expected}"
    return f"checkpoint {path} is damaged: {reason}{': ' if reason else ''}replace it"


def _kind(head: bytes) -> str:
    """Guess what a file is from its first 512 bytes."""
    if not head:
        return "empty"
    for offset, sign, name in _KINDS:
        if head.startswith(sign, offset):
            return name
    if head.lstrip().lower().startswith((b"<!doctype html", b"<html")):
        return "a web page"
    try:
        head[:500].decode()
    except UnicodeDecodeError as error:
        if error.start <= 496:  # else a character was cut in two
            return "of unknown format"
    return "of unknown format" if b"\0" in head else "text"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:120]
