"""Load checkpoints of vidssl and of other projects into backbones and methods."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeGuard

from pydantic import BeforeValidator, Field, PlainSerializer
from torch import Tensor, nn

from vidssl.config import Settings
from vidssl.errors import CheckpointError
from vidssl.models.backbones import BACKBONES, Backbone, build_backbone
from vidssl.models.checkpoint_files import UntrustedError as UntrustedError  # also for importers of this module
from vidssl.models.checkpoint_files import read_file, read_without_objects
from vidssl.models.checkpoint_layouts import FoundNetwork, find_networks, flatten
from vidssl.models.checkpoint_match import Match, choose_match, compare, differences, match_backbones, shapes_of

FORMAT = "vidssl-checkpoint-2"  # raised when the content of checkpoints changes
_EXTRA = "_extra_state"  # torch's key in a state_dict


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
    content = read_file(Path(path), trust, any_project=False)
    if not is_checkpoint(content):
        raise CheckpointError(
            f"{path} is not a vidssl checkpoint (format {FORMAT}); expected: a .pt file that vidssl wrote"
        )
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
    try:
        return read_file(Path(path), trust, any_project=True)
    except UntrustedError:
        content = read_without_objects(Path(path))
        if content is None or is_checkpoint(content):
            raise
        return content


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
