"""Read checkpoint files safely: nothing in a file can run code unless it is trusted."""

import json
import pickle
import re
import zipfile
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from vidssl.atomic import write_whole
from vidssl.errors import CheckpointError, UntrustedError
from vidssl.untrusted_files import parse_json

_TORCH = (b"PK\x03\x04", b"\x80")  # first bytes of a zip file and, before torch 1.6, of a pickle
_SAFETENSORS = b'{"'  # from byte 8 on
_CLASS = re.compile(r"[\w.<>]+")
_METADATA = "vidssl"  # key of the metadata of a safetensors file


def read_file(path: Path, trust: bool) -> Any:
    """Load the content of a file of torch or safetensors onto the CPU, whatever its suffix.

    Objects other than tensors and plain data can run code: they are an UntrustedError, except with `trust`.
    """
    try:
        if path.is_fifo():  # it would wait for a writer
            raise CheckpointError(f"cannot read checkpoint {path}: a pipe, not a file")
        with open(path, "rb") as file:
            head = file.read(512)
            file.seek(0)
            if head.startswith(_SAFETENSORS, 8):
                return _parse_safetensors(file.read(), path)
            if head.startswith(_TORCH):
                # The open file, not the path: torch.load treats some suffixes specially.
                return _load(file, path, trust)
    except ValueError as error:  # of the name: a NUL, or half a surrogate pair
        raise CheckpointError(f"cannot read checkpoint {str(path)!r}: {error}") from None
    except OSError as error:
        raise CheckpointError(f"cannot read checkpoint {path}: {error.strerror or error}") from None
    other = f", or onnx:{path}" if Path(path).suffix == ".onnx" else ""
    wanted = f"a file that torch.save (.pt, .pth, .pyth, .ckpt) or safetensors wrote{other}"
    raise CheckpointError(f"{path} is {_kind(head)}; expected: {wanted}")


def _load(file: BinaryIO, path: Path, trust: bool) -> Any:
    """Load a file of torch."""
    try:
        return torch.load(file, map_location="cpu", weights_only=not trust)
    except OSError:
        raise
    except Exception as error:  # damaged files make torch raise anything, and so can objects with trust
        found = re.search(r"GLOBAL (\S+)", str(error)) if isinstance(error, pickle.UnpicklingError) else None
        if found and not trust:
            raise UntrustedError(
                f"checkpoint {path} holds {found[1]}: only tensors and plain data are loaded, as other objects can run "
                "code; load it with trust=True (in a run: checkpoint.trust=true) if you trust its author"
            ) from None
        if _is_other_archive(file):
            raise CheckpointError(
                f"cannot load checkpoint {path}: an archive that torch.save did not write, such as a program of "
                "torch.export (.pt2): give the run, or the file of weights, that it was made from"
            ) from None
        reason = " ".join(str(error).rpartition("WeightsUnpickler error: ")[2].split())[:120]
        if path.suffix == ".pkl":
            raise CheckpointError(
                f"cannot load checkpoint {path} ({type(error).__name__}: {reason}): pickled, but not by "
                "torch.save? Load it with the program that wrote it, and write torch.save(state_dict, FILE)"
            ) from None
        raise CheckpointError(
            f"cannot load checkpoint {path} ({type(error).__name__}: {reason}): if it is damaged, replace it"
        ) from None


def _is_other_archive(file: BinaryIO) -> bool:
    """Whether a file is a whole zip archive that `torch.save` did not write."""
    with (
        suppress(zipfile.BadZipFile, NotImplementedError, ArithmeticError, ValueError, OSError),
        zipfile.ZipFile(file) as archive,
    ):
        return not any(name.endswith("data.pkl") for name in archive.namelist())
    return False


def _parse_safetensors(content: bytes, path: Path) -> dict[str, Any]:
    from safetensors import SafetensorError  # here: few files need it
    from safetensors.torch import load

    try:
        weights = load(content)
        length = int.from_bytes(content[:8], "little")
        metadata = parse_json(content[8 : 8 + length]).get("__metadata__", {})
        if _METADATA not in metadata:
            return weights
        others = parse_json(metadata[_METADATA])
        config, step = others["config"], others["step"]
    except (SafetensorError, LookupError, TypeError, ValueError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:160]
        raise CheckpointError(f"cannot load checkpoint {path} ({reason}): if it is damaged, replace it") from None
    if not isinstance(config, dict) or not isinstance(step, int):
        raise CheckpointError(f"cannot load checkpoint {path}: its metadata holds no config and step: replace it")
    return {**others, "method": weights}


def write_safetensors(path: Path, weights: dict[str, Tensor], content: dict[str, Any]) -> None:
    """Write weights, with the other content of a checkpoint of vidssl as JSON in the metadata."""
    from safetensors.torch import save

    write_whole(path, save(weights, metadata={_METADATA: json.dumps(content)}))


def _kind(head: bytes) -> str:
    if not head:
        return "empty"
    if head.startswith(b"version https://git-lfs"):
        return "a git-lfs pointer (fetch the file with git lfs pull)"
    return "a web page" if b"<html" in head.lower() else "not a checkpoint"


class _Empty:
    """Replaces an object of any class: ignores its arguments and state."""

    def __new__(cls, *_: Any) -> "_Empty":
        return object.__new__(cls)

    def __setstate__(self, _: Any) -> None: ...


class _PlainDict:
    """Replaces a dictionary of any class: becomes a plain one, which is filled with the same items."""

    def __new__(cls, *_: Any) -> "OrderedDict[Any, Any]":  # type: ignore[misc]
        return OrderedDict()


def read_without_objects(path: Path) -> Any:
    """Load a file with a replacement for each class and function, so that none is imported; None where that fails."""
    for replacement in (_Empty, _PlainDict):  # only an error of torch reveals that an object is filled as a dictionary
        names: set[str] = set()
        with suppress(Exception):  # in a pickle of torch before 1.6 errors name one at a time
            names |= set(torch.serialization.get_unsafe_globals_in_checkpoint(path))
        for _ in range(1000):
            if not all(map(_CLASS.fullmatch, names)):
                break  # a damaged file
            split = [name.rpartition(".") for name in names]  # torch looks classes up by name
            allowed: list[Any] = [type(last, (replacement,), {"__module__": module}) for module, _, last in split]
            try:
                with open(path, "rb") as file, torch.serialization.safe_globals(allowed):
                    return torch.load(file, map_location="cpu", weights_only=True)
            except Exception as error:
                found = re.search(r"Unsupported global: GLOBAL (\S+)", str(error))
                if not found:
                    break
                names.add(found[1] if "." in found[1] else f"builtins.{found[1]}")
    return None
