"""Weights from files: read a checkpoint safely, take the backbone out of it, put weights into modules."""

import pickle
import re
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Annotated, Any, TypeGuard

import torch
from pydantic import BeforeValidator, Field, PlainSerializer
from torch import Tensor, nn

from vidssl.config import Settings
from vidssl.errors import CheckpointError
from vidssl.models.backbones import BACKBONES, Backbone, build_backbone
from vidssl.models.foreign import (
    Matched,
    MatchedLayout,
    choose,
    first_of,
    flatten,
    infer,
    match,
    readings,
    shapes_of,
)
from vidssl.models.safetensors import read_safetensors

FORMAT = "vidssl-checkpoint-2"  # raised when the content of checkpoints changes
_EXTRA = "_extra_state"  # what torch calls it in a state_dict
_EXPECTED = "expected: a .pt file that vidssl wrote"
_EXPECTED_ANY = (
    "expected: a checkpoint that torch.save wrote (.pt, .pth, .pyth, .ckpt), or a .safetensors file"
)

# How files begin that are taken for a checkpoint, and where.
_ZIP = b"PK\x03\x04"
_PICKLE = b"\x80"  # torch before 1.6 wrote these
_SAFETENSORS = b'{"'  # from byte 8
_KINDS = (
    (0, b"version https://git-lfs", "a pointer of git-lfs, not the file (git lfs pull fetches it)"),
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
            content = _load(path, file, trust, _EXPECTED)
    except OSError as error:
        raise CheckpointError(f"cannot read checkpoint {path}: {error.strerror or error}") from None
    if not is_checkpoint(content):
        raise CheckpointError(f"{path} is no checkpoint of vidssl (format {FORMAT}); {_EXPECTED}")
    return content


def read_anything(path: str | Path, trust: bool = False) -> Any:
    """Load what any program saved with torch, or a safetensors file, onto the CPU; nothing in it can run code.

    Objects that are no tensors and no plain data are left out: the settings and callbacks of Lightning's
    checkpoints, say. In checkpoints of vidssl they may be state, and are an error.

    Args:
        path: The file. Zip files, the pickles that torch before 1.6 wrote, and safetensors are known.
        trust: As of `read_checkpoint`.

    Raises:
        CheckpointError: The file is missing, damaged or something else.
        UntrustedError: It holds what cannot be left out, and `trust` is False.
    """
    path = Path(path)
    try:
        with open(path, "rb") as file:
            head = file.read(512)
            if head.startswith(_SAFETENSORS, 8):
                return read_safetensors(path)
            if not head.startswith((_ZIP, _PICKLE)):
                raise CheckpointError(f"{path} is {_kind(head)}; {_EXPECTED_ANY}")
            try:
                return _load(path, file, trust, _EXPECTED_ANY)
            except UntrustedError as error:
                content = _load_without_objects(file)
                if content is None or is_checkpoint(content):
                    raise error from None
                return content
    except OSError as error:
        raise CheckpointError(f"cannot read checkpoint {path}: {error.strerror or error}") from None


def is_checkpoint(content: Any) -> TypeGuard[dict[str, Any]]:
    """Whether what was read is a checkpoint of vidssl.

    Raises:
        CheckpointError: It was written by a version with another format.
    """
    found = content.get("format") if isinstance(content, dict) else None
    if isinstance(found, str) and found.startswith("vidssl-checkpoint-") and found != FORMAT:
        raise CheckpointError(
            f"the checkpoint has format {found}, this version of vidssl reads {FORMAT}: use the version that wrote "
            "it, or train again"
        )
    return isinstance(content, dict) and content.get("format") == FORMAT and "method" in content


class _LeftOut:
    """Stands for an object of any class: takes what a pickle gives to it, and keeps nothing."""

    def __new__(cls, *_: Any, **__: Any) -> "_LeftOut":
        return object.__new__(cls)

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __setstate__(self, _: Any) -> None:
        pass


class _Items:
    """Stands for a dictionary of any class: becomes a plain one, with its items."""

    def __new__(cls, *_: Any, **__: Any) -> "OrderedDict[Any, Any]":  # type: ignore[misc]
        return OrderedDict()


def _load_without_objects(file: IO[bytes]) -> Any:
    """Load with a class of ours in place of each class and function: none is imported. None where that cannot be."""
    # Only an error of torch tells that an object is filled like a dictionary.
    for stand_in in (_LeftOut, _Items):
        try:
            file.seek(0)
            names = set(torch.serialization.get_unsafe_globals_in_checkpoint(file))
        except Exception:
            names = set()  # of an old file they become known one after the other
        for _ in range(1000):
            file.seek(0)
            try:
                with torch.serialization.safe_globals([_called(name, stand_in) for name in names]):
                    return torch.load(file, map_location="cpu", weights_only=True)
            except pickle.UnpicklingError as error:
                found = re.search(r"Unsupported global: GLOBAL (\S+)", str(error))
                if not found:
                    break
                names.add(found[1] if "." in found[1] else f"builtins.{found[1]}")
            except Exception:
                break
    return None


def _called(name: str, stand_in: type) -> type:
    """Make a stand-in by the name of what it stands for, which is how torch looks it up."""
    module, _, last = name.rpartition(".")
    return type(last, (stand_in,), {"__module__": module})


def _load(path: Path, file: IO[bytes], trust: bool, expected: str) -> Any:
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
        raise CheckpointError(_damaged(path, file, "", expected)) from None
    except ImportError as error:
        raise CheckpointError(
            f"checkpoint {path} holds objects of a module that is missing ({error}): install it, or run where it lies"
        ) from None
    except Exception as error:  # flipped bytes can make torch, and with trust anybody's code, raise anything
        raise CheckpointError(_damaged(path, file, " ".join(str(error).split())[:120], expected)) from None


def _damaged(path: Path, file: IO[bytes], reason: str, expected: str) -> str:
    file.seek(0)
    if not file.read(4).startswith(_ZIP):
        return f"{path} is a pickle that torch did not write, or a damaged one; {expected}"
    if not _is_of_torch(file):
        return f"{path} is a zip file of something else; {expected}"
    return f"checkpoint {path} is damaged: {reason}{': ' if reason else ''}take another one"


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


class InitialWeights(Settings):
    """Weights that a backbone starts from."""

    file: str = Field(min_length=1)  # of vidssl or of another project
    partial: bool = False  # be content with the weights that fit
    keys: dict[str, str] = Field(default={})  # beginnings of names in the file, to what stands in their place


def _from_file(value: Any) -> Any:
    return {"file": value} if isinstance(value, str) else value


def _to_file(initial: InitialWeights) -> Any:
    return initial.model_dump() if initial.partial or initial.keys else initial.file


Initial = Annotated[InitialWeights, BeforeValidator(_from_file), PlainSerializer(_to_file)]


def load_backbone(
    path: str | Path,
    arch: str | None = None,
    *,
    partial: bool = False,
    keys: Mapping[str, str] | None = None,
    trust: bool = False,
) -> Backbone:
    """Make the trained backbone of a checkpoint of vidssl or of another project, on the CPU and in eval mode.

    Args:
        path: The file; docs/weights.md lists what is known.
        arch: Name of the backbone. Without it the checkpoint's config tells, or names and shapes of the weights do.
        partial: Be content with the weights that fit; the others stay as a new backbone has them.
        keys: Beginnings of names in the file, to what stands in their place; the longest counts, `""` takes away.
        trust: As of `read_checkpoint`.

    Raises:
        ConfigError: There is no backbone of that name.
        CheckpointError: The file is no sound checkpoint, or its weights do not fit the backbone.
    """
    if arch is not None:
        BACKBONES[arch]  # names the nearest one where there is none
    content = read_anything(path, trust)
    if is_checkpoint(content) and not keys:
        settings = content["config"]["backbone"]
        if arch not in (None, settings["name"]):
            raise CheckpointError(
                f"{path} holds a {settings['name']}, not a {arch}: leave arch out, it is known"
            )
        backbone = build_backbone(**settings)
        if partial:
            _fill(backbone, content, InitialWeights(file=str(path), partial=True))
        else:
            load_weights(backbone, backbone_weights(content), str(path))
        return backbone.eval()
    weights = flatten(content)
    found = choose(infer(weights, keys or {}, str(path), arch), weights, str(path), partial)
    backbone = build_backbone(found.backbone, **found.settings)
    load_weights(backbone, {**backbone.state_dict(), **found.weights}, str(path))
    return backbone.eval()


def load_initial(backbone: Backbone, settings: InitialWeights, trust: bool = False) -> Matched:
    """Put the weights of a file, of vidssl or of another project, into a backbone.

    Args:
        backbone: Changed in place, or not at all.
        settings: The file, and how it is read.
        trust: As of `read_checkpoint`.

    Returns:
        What fitted; as a string, one line for the log.

    Raises:
        CheckpointError: The file is no sound checkpoint, or its weights do not fit the backbone.
    """
    return _fill(backbone, read_anything(settings.file, trust), settings)


def _fill(backbone: Backbone, content: Any, settings: InitialWeights) -> Matched:
    source, own = settings.file, shapes_of(backbone)
    if is_checkpoint(content) and not settings.keys:
        weights, place = content["method"], "backbone."
        names = {key.removeprefix(place): key for key in weights if key.startswith(place)}
        others = tuple(key for key in weights if not key.startswith(place))
        found = [MatchedLayout(source, "vidssl", place, backbone_weights(content), names, others)]
    else:
        weights = flatten(content)
        found = readings(weights, settings.keys, source, own) if weights else []
    best = choose([match(one, own, "the backbone") for one in found], weights, source, settings.partial)
    load_weights(backbone, {**backbone.state_dict(), **best.weights}, source)
    return best


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
        told = ", ".join(f"{len(names)} {sort}{first_of(names)}" for sort, names in differences.items())
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


def _shape(value: Any) -> tuple[int, ...] | str:
    """Give the shape of a tensor, in words where it is none."""
    return tuple(value.shape) if isinstance(value, Tensor) else "no tensor"
