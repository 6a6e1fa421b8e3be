"""Weights from files: read a checkpoint safely, take the backbone out of it, put weights into modules."""

import pickle
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor, nn

from vidssl.errors import CheckpointError
from vidssl.models.backbones import Backbone, build_backbone

FORMAT = "vidssl-checkpoint-1"
_EXTRA = "_extra_state"  # what torch calls it in a state_dict
_EXPECTED = "expected: a .pt file that vidssl wrote"
_SHOWN = 3  # names of each sort in a message

# How files begin that are taken for a checkpoint, and where.
_ZIP = b"PK\x03\x04"
_KINDS = (
    (0, b"version https://git-lfs", "a pointer of git-lfs, not the file (git lfs pull fetches it)"),
    (8, b'{"', "a safetensors file"),
    (0, b"\x80", "a pickle"),
    (4, b"ftyp", "a video (mp4)"),
    (0, b"\x1a\x45\xdf\xa3", "a video (webm, mkv)"),
    (8, b"AVI ", "a video (avi)"),
    (0, b"\x89HDF", "an HDF5 file"),
    (0, b"\x93NUMPY", "a numpy file"),
    (0, b"\x1f\x8b", "a gzip file"),
    (257, b"ustar", "a tar file"),
)


class UntrustedError(CheckpointError):
    """A checkpoint holds more than tensors and plain data: to load it is to run what its author wrote."""


def read_checkpoint(path: str | Path, trust: bool = False) -> dict[str, Any]:
    """Load a checkpoint onto the CPU; nothing in it can run code. What it is decides, not its suffix.

    Args:
        path: The file.
        trust: Load objects of any class as well, which a method of your own may have put into its state. They
            can run any code: only for files whose author you trust.

    Raises:
        CheckpointError: The file is missing, damaged or not made by vidssl.
        UntrustedError: It holds more than tensors and plain data, and `trust` is False.
    """
    path = Path(path)
    try:
        with open(path, "rb") as file:
            head = file.read(512)
            if not head.startswith(_ZIP):
                raise CheckpointError(f"{path} is {_kind(head)}; {_EXPECTED}")
            content = _load(path, file, trust)
    except OSError as error:
        raise CheckpointError(f"cannot read checkpoint {path}: {error.strerror or error}") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT or "method" not in content:
        raise CheckpointError(f"{path} is no checkpoint of vidssl (format {FORMAT}); {_EXPECTED}")
    return content


def _load(path: Path, file: IO[bytes], trust: bool) -> Any:
    file.seek(0)
    try:
        # The open file: of a path torch looks at the suffix.
        return torch.load(file, map_location="cpu", weights_only=not trust)
    except pickle.UnpicklingError as error:
        found = None if trust else re.search(r"GLOBAL (\S+)", str(error))
        if found:
            raise UntrustedError(
                f"checkpoint {path} holds {found[1]}: only tensors and plain data are loaded, for anything else can "
                "run code; --trust-checkpoint (a run: checkpoint.trust=true, Python: trust=True) is for those who "
                "trust its author"
            ) from None
        raise CheckpointError(f"checkpoint {path} is damaged: take another one") from None
    except ImportError as error:
        raise CheckpointError(
            f"checkpoint {path} holds objects of a module that is missing ({error}): install it, or run where it lies"
        ) from None
    except Exception as error:  # flipped bytes can make torch, and with trust anybody's code, raise anything
        if not _is_of_torch(file):
            raise CheckpointError(f"{path} is a zip file of something else; {_EXPECTED}") from None
        reason = " ".join(str(error).split())[:120]
        raise CheckpointError(f"checkpoint {path} is damaged: {reason}: take another one") from None


def _kind(head: bytes) -> str:
    """Say what a file seems to be, by its first 512 bytes."""
    if not head:
        return "empty"
    for start, sign, name in _KINDS:
        if head.startswith(sign, start):
            return name
    if head.lstrip().lower().startswith((b"<!doctype html", b"<html")):
        return "a web page"
    if b"\0" in head:
        return "of no known kind"
    try:
        head[:500].decode()
    except UnicodeDecodeError as error:
        return "text" if error.start > 496 else "of no known kind"  # a character may be cut in two
    return "text"


def _is_of_torch(file: IO[bytes]) -> bool:
    """Whether a zip file is torch's, or too damaged to say."""
    try:
        with zipfile.ZipFile(file) as archive:
            return any(name.endswith("/data.pkl") for name in archive.namelist())
    except Exception:
        return True


def backbone_weights(checkpoint: dict[str, Any]) -> dict[str, Tensor]:
    """Pick the weights of the backbone that is evaluated: the online one."""
    weights = checkpoint["method"]
    return {key.removeprefix("backbone."): weights[key] for key in weights if key.startswith("backbone.")}


def load_backbone(path: str | Path, trust: bool = False) -> Backbone:
    """Make the trained backbone of a checkpoint, on the CPU and in eval mode.

    Args:
        path: The checkpoint.
        trust: As of `read_checkpoint`.

    Raises:
        CheckpointError: The file is no sound checkpoint, or its weights do not fit its own config.
    """
    checkpoint = read_checkpoint(path, trust)
    backbone = build_backbone(**checkpoint["config"]["backbone"])
    load_weights(backbone, backbone_weights(checkpoint), str(path))
    return backbone.eval()


def load_weights(backbone: Backbone, weights: Mapping[str, Any], source: str) -> None:
    """Put weights into a backbone; all of them or none, as `load_state` does."""
    load_state(backbone, weights, source)


def load_state(module: nn.Module, state: Mapping[str, Any], source: str) -> None:
    """Put a state, as `state_dict()` gives it, into a backbone or a whole method; all of it or nothing.

    Args:
        module: Changed in place.
        state: Tensors, and what modules added to them as extra state.
        source: Where it is from, for messages.

    Raises:
        CheckpointError: Names or shapes differ; the message tells how many, and the first of each sort.
    """
    own = module.state_dict()
    differences = {
        "weights missing": [key for key in own if key not in state],
        "unknown": [key for key in state if key not in own],
        "of another shape": [
            f"{key}: {_shape(state[key])}, here {_shape(own[key])}"
            for key in own
            if key in state and not key.endswith(_EXTRA) and _shape(own[key]) != _shape(state[key])
        ],
    }
    part = "backbone" if isinstance(module, Backbone) else "method"
    if any(differences.values()):
        told = ", ".join(f"{len(names)} {sort}{_first(names)}" for sort, names in differences.items())
        raise CheckpointError(
            f"{source} does not fit the {part}: {told}; build the {part} with the config that it was trained with"
        )
    try:
        # Extra state first: each module reads its own, and nothing can be known about it beforehand.
        for name, child in module.named_modules():
            key = f"{name}.{_EXTRA}" if name else _EXTRA
            if key in own:
                child.set_extra_state(state[key])
        module.load_state_dict(state)
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise CheckpointError(f"{source} does not fit the {part}: {reason}") from error


def _first(names: list[str]) -> str:
    """Show some names, in brackets."""
    if len(names) > _SHOWN:
        names = [*names[:_SHOWN], "…"]
    return f" ({'; '.join(names)})" if names else ""


def _shape(value: Any) -> tuple[int, ...] | str:
    """Give the shape of a tensor, in words where it is none."""
    return tuple(value.shape) if isinstance(value, Tensor) else "no tensor"
