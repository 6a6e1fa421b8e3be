"""Read checkpoints safely, take the backbone's weights out, load weights into modules."""

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
from vidssl.models.checkpoint_layouts import (
    FoundNetwork,
    Match,
    choose_match,
    compare,
    differences,
    find_networks,
    flatten,
    match_backbones,
    shapes_of,
)

FORMAT = "vidssl-checkpoint-2"  # raised when the content of checkpoints changes
_EXTRA = "_extra_state"  # torch's key in a state_dict
_EXPECTED = "expected: a .pt file that vidssl wrote"
_EXPECTED_ANY = (
    "expected: a checkpoint that torch.save wrote (.pt, .pth, .pyth, .ckpt), or a .safetensors file"
)

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


# Reading files ----------------------------------------------------------------------------------------------


def read_checkpoint(path: str | Path, trust: bool = False) -> dict[str, Any]:
    """Load a checkpoint of vidssl onto the CPU without running code from it. The suffix does not matter.

    Args:
        path: The file.
        trust: Also load objects of any class, such as the state of your own method. This can run any code: use it
            only for files whose author you trust.

    Raises:
        CheckpointError: The file is missing, damaged or not written by vidssl.
        UntrustedError: It holds more than tensors and plain data, and `trust` is False.
    """
    content = _read(Path(path), trust, any_project=False)
    if not is_checkpoint(content):
        raise CheckpointError(f"{path} is not a vidssl checkpoint (format {FORMAT}); {_EXPECTED}")
    return content


def read_anything(path: str | Path, trust: bool = False) -> Any:
    """Load any file written by torch.save or safetensors onto the CPU without running code from it.

    Objects other than tensors and plain data, such as the settings and callbacks in Lightning's checkpoints, are left
    out. In checkpoints of vidssl they may be state, and are an error.

    Args:
        path: A zip file, a pickle of torch before 1.6, or a safetensors file.
        trust: As `read_checkpoint`.

    Raises:
        CheckpointError: The file is missing, damaged or of another format.
        UntrustedError: It holds objects that cannot be left out, and `trust` is False.
    """
    return _read(Path(path), trust, any_project=True)


def is_checkpoint(content: Any) -> TypeGuard[dict[str, Any]]:
    """Whether the content of a file is a vidssl checkpoint.

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


def _read(path: Path, trust: bool, any_project: bool) -> Any:
    expected = _EXPECTED_ANY if any_project else _EXPECTED
    try:
        with open(path, "rb") as file:
            head = file.read(512)
            if any_project and head.startswith(_SAFETENSORS, 8):
                return _read_safetensors(path)
            if not head.startswith((_ZIP, _PICKLE) if any_project else _ZIP):
                raise CheckpointError(f"{path} is {_kind(head)}; {expected}")
            try:
                return _load(path, file, trust, expected)
            except UntrustedError:
                content = _load_without_objects(file) if any_project else None
                if content is None or is_checkpoint(content):
                    raise
                return content
    except OSError as error:
        raise CheckpointError(f"cannot read checkpoint {path}: {error.strerror or error}") from None


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    from safetensors.torch import load  # here: few files need it

    try:
        return load(path.read_bytes())
    except OSError:
        raise
    except Exception as error:
        raise CheckpointError(
            f"{path} is a damaged safetensors file ({_one_line(error)}): replace it"
        ) from None


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


def _load_without_objects(file: IO[bytes]) -> Any:
    """Load with a replacement for each class and function, so that none is imported; None where that fails."""
    for replacement in (
        _Empty,
        _PlainDict,
    ):  # only an error of torch reveals that an object is filled as a dictionary
        try:
            file.seek(0)
            names = set(torch.serialization.get_unsafe_globals_in_checkpoint(file))
        except Exception:
            names = set()  # the pickles of torch before 1.6: errors name one at a time
        for _ in range(1000):
            file.seek(0)
            try:
                with torch.serialization.safe_globals([_named(name, replacement) for name in names]):
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


# Weights of a backbone --------------------------------------------------------------------------------------


def backbone_weights(checkpoint: dict[str, Any]) -> dict[str, Tensor]:
    """Return the weights of a checkpoint's online backbone, the one that is evaluated."""
    weights = checkpoint["method"]
    return {key.removeprefix("backbone."): weights[key] for key in weights if key.startswith("backbone.")}


class InitialWeights(Settings):
    """Initial weights of a backbone."""

    file: str = Field(min_length=1)  # checkpoint of vidssl or of another project
    partial: bool = False  # load only the weights that fit
    keys: dict[str, str] = Field(default={})  # prefixes of names in the file, and their replacements


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
    """Load the trained backbone of a checkpoint of vidssl or of another project, on the CPU and in eval mode.

    Args:
        path: The file; docs/weights.md lists the known formats.
        arch: Name of the backbone; default: from the checkpoint's config, else from names and shapes of the weights.
        partial: Load only the weights that fit, and initialise the others.
        keys: Prefixes of names in the file, and their replacements; the longest counts, `""` removes one.
        trust: As `read_checkpoint`.

    Raises:
        ConfigError: There is no backbone of that name.
        CheckpointError: The file is not a valid checkpoint, or its weights do not fit the backbone.
    """
    if arch is not None:
        BACKBONES[arch]  # raises a ConfigError with the nearest name
    content = read_anything(path, trust)
    if is_checkpoint(content) and not keys:
        settings = content["config"]["backbone"]
        if arch not in (None, settings["name"]):
            raise CheckpointError(f"{path} holds a {settings['name']}, not a {arch}: leave out arch")
        backbone = build_backbone(**settings)
        if partial:
            _fill(backbone, content, InitialWeights(file=str(path), partial=True))
        else:
            load_state(backbone, backbone_weights(content), str(path))
        return backbone.eval()
    weights = flatten(content)
    match = choose_match(match_backbones(weights, keys or {}, str(path), arch), weights, str(path), partial)
    backbone = build_backbone(match.backbone, **match.settings)
    load_state(backbone, {**backbone.state_dict(), **match.weights}, str(path))
    return backbone.eval()


def load_initial(backbone: Backbone, settings: InitialWeights, trust: bool = False) -> Match:
    """Load the weights of a file, of vidssl or of another project, into a backbone: all of them or none.

    Returns:
        Which weights were loaded; `str()` is one line for the log.

    Raises:
        CheckpointError: The file is not a valid checkpoint, or its weights do not fit the backbone.
    """
    return _fill(backbone, read_anything(settings.file, trust), settings)


def _fill(backbone: Backbone, content: Any, settings: InitialWeights) -> Match:
    source, own = settings.file, shapes_of(backbone)
    if is_checkpoint(content) and not settings.keys:
        weights, prefix = content["method"], "backbone."
        names = {key.removeprefix(prefix): key for key in weights if key.startswith(prefix)}
        others = tuple(key for key in weights if not key.startswith(prefix))
        networks = [FoundNetwork(source, "vidssl", prefix, backbone_weights(content), names, others)]
    else:
        weights = flatten(content)
        networks = find_networks(weights, settings.keys, source, own) if weights else []
    matches = [compare(network, own, "the backbone") for network in networks]
    match = choose_match(matches, weights, source, settings.partial)
    load_state(backbone, {**backbone.state_dict(), **match.weights}, source)
    return match


def load_state(module: nn.Module, state: Mapping[str, Any], source: str) -> None:
    """Load a `state_dict()` into a backbone or a method: all of it, or nothing.

    Args:
        module: Changed in place.
        state: Tensors and extra state of modules.
        source: Path of the file, for messages.

    Raises:
        CheckpointError: Names or shapes differ; the message counts and names them.
    """
    own = module.state_dict()
    missing = [key for key in own if key not in state]
    unknown = [key for key in state if key not in own]
    reshaped = [
        f"{key}: {_shape(state[key])}, here {_shape(own[key])}"
        for key in own
        if key in state and not key.endswith(_EXTRA) and _shape(own[key]) != _shape(state[key])
    ]
    part = "backbone" if isinstance(module, Backbone) else "method"
    if missing or unknown or reshaped:
        raise CheckpointError(
            f"{source} does not fit the {part}: {differences(missing, unknown, reshaped)}; "
            f"build the {part} with the config that it was trained with"
        )
    try:
        # Extra state first: only its own module can check it.
        for name, child in module.named_modules():
            key = f"{name}.{_EXTRA}" if name else _EXTRA
            if key in own:
                child.set_extra_state(state[key])
        module.load_state_dict(state)
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise CheckpointError(f"{source} does not fit the {part}: {reason}") from error


def _shape(value: Any) -> tuple[int, ...] | str:
    return tuple(value.shape) if isinstance(value, Tensor) else "not a tensor"
