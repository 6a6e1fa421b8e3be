"""Read checkpoint files safely: nothing in a file can run code unless it is trusted."""

import json
import logging
import pickle
import re
import warnings
from collections import OrderedDict
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from vidssl.base.atomic import file_hash, write_whole
from vidssl.base.errors import CheckpointError, UntrustedError
from vidssl.base.safe_parse import parse_json

_TORCH = (b"PK\x03\x04", b"\x80")  # first bytes of a zip file and, before torch 1.6, of a pickle
_SAFETENSORS = b'{"'  # from byte 8 on
_CLASS = re.compile(r"[\w.<>]+")
_METADATA = "vidssl"  # key of the metadata of a safetensors file
_STEP = re.compile(r"step-\d+\.pt")
LAST = "last.pt"  # stands for the newest checkpoint of a run, see `meaning_of_last`
_log = logging.getLogger(__name__)


def checkpoint_path(folder: Path, step: int) -> Path:
    """Return the path of the checkpoint of a step."""
    return folder / f"step-{step:08d}.pt"


def step_of(path: Path) -> int:
    """Return the step in the name of a checkpoint."""
    return int(path.stem.removeprefix("step-"))


def saved(folder: Path) -> list[Path]:
    """List the checkpoints of a folder, newest first."""
    return sorted(filter(lambda path: _STEP.fullmatch(path.name), folder.glob("step-*.pt")), key=step_of, reverse=True)


def newest_in(folder: Path) -> Path | None:
    """Find the newest checkpoint in the folder `checkpoints` of a run whose sha256, if it has one, is right.

    Names decide, as in resuming: `last.pt` may have become something else. It counts if it is a copy of a later step
    than those that are there.
    """
    newest, errors, last = None, list[CheckpointError](), folder / LAST
    for path in saved(folder):
        try:
            if hash_file(path).exists():
                _check_once(path.absolute(), path.exists() and (path.stat().st_size, path.stat().st_mtime_ns))
            newest = path
            break
        except CheckpointError as error:
            _log.warning("%s; falling back to the checkpoint before it", error)
            errors.append(error)
    meant, is_copy = meaning_of_last(folder)
    if is_copy and (newest is None or (meant is not None and step_of(meant) > step_of(newest))):
        return last
    if newest is None and errors:
        raise errors[0]
    if newest is not None and meant is not None and meant.name != newest.name:
        _log.warning("%s stands for %s; %s is used, the newest that is valid", last, meant.name, newest.name)
    return last if last.is_symlink() and newest is not None and last.resolve() == newest.resolve() else newest


def meaning_of_last(folder: Path, trust: bool = False) -> tuple[Path | None, bool]:
    """Return the checkpoint of a run that `last.pt` stands for, which may be missing, and whether it is a copy of it.

    It is written as a link. After the folder was copied, by git, 7-Zip or cp -L, through Google Drive or exFAT, it can
    be a text with the name or a copy of that, or an earlier, checkpoint, or missing.
    """
    last = folder / LAST
    if last.is_symlink():
        name = last.readlink().name
    elif not last.is_file():
        return None, False
    elif last.stat().st_size < 100:
        name = last.read_text(errors="replace").strip()
    else:
        with suppress(CheckpointError, LookupError, TypeError, ValueError):
            content = read_file(last, trust)
            if str(content["format"]).startswith("vidssl-checkpoint-"):
                return checkpoint_path(folder, content["step"]), True
        return None, True
    return (folder / name if _STEP.fullmatch(name) else None), False


def check_hash(path: Path) -> str:
    """Compare a checkpoint with the sha256 beside it, and return that; a CheckpointError if they differ."""
    try:
        expected = read_hashes(path.resolve())
        actual = file_hash(path)
    except OSError as error:
        raise CheckpointError(f"cannot check {path}: {error.strerror} ({error.filename})") from None
    if actual not in expected:
        raise CheckpointError(f"checkpoint {path} is damaged: its sha256 differs from the one beside it")
    return actual


@cache
def _check_once(path: Path, state: Any) -> str:
    return check_hash(path)


def read_hashes(path: Path) -> list[str]:
    """Read the hashes that are valid for a checkpoint: one, or two while it is being replaced."""
    return hash_file(path).read_text(errors="replace").split()


def hash_file(path: Path) -> Path:
    """Return the file with the sha256 of a checkpoint."""
    return path.with_suffix(".sha256")


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
    raise CheckpointError(f"{path} is {_kind(head)}: give a file of torch.save or safetensors; of ONNX onnx:FILE")


def _load(file: BinaryIO, path: Path, trust: bool) -> Any:
    """Load a file of torch."""
    try:
        with warnings.catch_warnings():  # torch advises to report pickles of other protocols to it
            warnings.filterwarnings("ignore", "Detected pickle protocol")
            return torch.load(file, map_location="cpu", weights_only=not trust)
    except OSError:
        raise
    except Exception as error:  # damaged files make torch raise anything, and so can objects with trust
        match = re.search(r"GLOBAL (\S+)", str(error)) if isinstance(error, pickle.UnpicklingError) else None
        if match and not trust:
            rule = "only tensors and plain data are loaded, as other objects can run code"
            remedy = "load it with trust=True (in a run: checkpoint.trust=true) if you trust its author"
            raise UntrustedError(f"checkpoint {path} holds {match[1]}: {rule}; {remedy}") from None
        reason = " ".join(str(error).rpartition("WeightsUnpickler error: ")[2].split())[:120]
        if "Unsupported operand" in reason:  # protocol 4, which pickle.dump writes
            reason = "a pickle of objects, which can hold code, and is not loaded"
        raise CheckpointError(
            f"cannot load checkpoint {path} ({type(error).__name__}: {reason}): if torch.save wrote it, it is damaged: "
            "replace it; else, as a pickle or a program of torch.export (.pt2), write torch.save(state_dict, FILE)"
        ) from None


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
                match = re.search(r"Unsupported global: GLOBAL (\S+)", str(error))
                if not match:
                    break
                names.add(match[1] if "." in match[1] else f"builtins.{match[1]}")
    return None
