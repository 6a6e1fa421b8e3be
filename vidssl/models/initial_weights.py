"""Load checkpoints of vidssl and of other projects, and weights by name, into backbones."""

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainSerializer
from torch import Tensor

from vidssl import distributed
from vidssl.config import Settings
from vidssl.errors import CheckpointError, ConfigError
from vidssl.models.backbones import BACKBONES, Backbone, build_backbone
from vidssl.models.eval_mode import usual_torch
from vidssl.models.external import is_external, load_encoder
from vidssl.models.match_backbone import (
    INFLATED,
    Match,
    Network,
    Shapes,
    check_architecture,
    choose_match,
    compare,
    find_networks,
    flatten,
    match_backbones,
    shapes_of,
)
from vidssl.models.pixel_normalization import Normalization, normalization_of
from vidssl.models.resnet2d import NETWORKS
from vidssl.models.resnet3d import ResNet3D
from vidssl.models.weights import backbone_weights, check_finite, is_checkpoint, load_state, read_anything
from vidssl.plugins import explaining, import_modules, modules_of, not_imported
from vidssl.running_command import log_once

# Why other backbones cannot compute the same.
_REASONS = {
    "r3d_18": "its stem has no max pooling",
    "mc3_18": "its stem has no max pooling",
    "r2plus1d_18": "its kernels are split into space and time, and its stem has no max pooling",
}


def check_inflatable(backbone: Backbone, name: str, source: str) -> None:
    """Raise a CheckpointError if no 2D ResNet can be inflated into a backbone."""
    reason = None
    if not isinstance(backbone, ResNet3D):
        reason = _REASONS.get(name, "it is no 3D ResNet of vidssl")
    elif backbone.frame_differences:
        reason = "with frame_differences it does not see frames"
    if reason:
        raise CheckpointError(
            f"{source} cannot be inflated into {name}: {reason}; use resnet3d18 (for resnet18) or resnet3d50 "
            "(for resnet50)"
        )


def check_same_shape(network: Network, weights: Mapping[str, Tensor], own: Shapes, source: str) -> None:
    """Raise a CheckpointError if the 2D network in a file has other blocks, stages or another stem than the backbone.

    `own` has the shapes of the backbone's weights.
    """
    theirs = {name: tuple(weights[old].shape) for name, old in network.names.items()}
    two, three = _describe(theirs), _describe(own)
    different = [f"{two[part]}, not {three[part]}" for part in two if two[part] != three[part]]
    if different:
        raise CheckpointError(
            f"{source} cannot be inflated into the backbone: it has {'; '.join(different)}; choose the backbone and "
            "width that fit"
        )


def _describe(shapes: Shapes) -> dict[str, str]:
    bottleneck = any(name.endswith(".branch2.conv_c.weight") for name in shapes)
    blocks = {tuple(name.split(".")[2:5:2]) for name in shapes if ".res_blocks." in name}  # stage and number
    counts = [sum(stage == str(n) for stage, _ in blocks) for n in (1, 2, 3, 4)]
    stem = shapes.get("net.blocks.0.conv.weight", (0, 0, 0))
    return {
        "kind": "bottlenecks" if bottleneck else "basic blocks",
        "blocks": f"{'-'.join(map(str, counts))} blocks",
        "stem": f"a stem of {' x '.join(map(str, stem[-2:]))}",
        "width": f"{stem[0]} channels in the stem",
    }


def inflate(network: Network, weights: Mapping[str, Tensor], own: Shapes) -> dict[str, Tensor]:
    """Return `weights` with the kernels (O, I, H, W) of a network as (O, I, T, H, W): in the middle of T, zeros beside.

    T is that of the kernel in the backbone, whose weights have the shapes `own`. Kernels of other shapes stay.
    """
    inflated = dict(weights)
    for name, old in network.names.items():
        shape, kernel = own.get(name, ()), weights[old]
        if len(shape) == 5 and kernel.shape == (*shape[:2], *shape[3:]) and shape[2] % 2 == 1:
            inflated[old] = kernel.new_zeros(shape)
            inflated[old][:, :, shape[2] // 2] = kernel
    return inflated


_log = logging.getLogger(__name__)
_SEEN = ("frames", "differences of frames")
_DEFAULT = Normalization((0.45,), (0.225,))  # of the configs


class InitialWeights(Settings):
    """Initial weights of a backbone."""

    # Checkpoint of vidssl or of another project, or weights by name: torchvision:NAME[@WEIGHTS], timm:NAME[.TAG].
    file: str = Field(min_length=1)
    partial: bool = False  # load only the weights that fit
    keys: dict[str, str] = Field(default={})  # prefixes of names in the file, and their replacements
    inflate: bool = False  # the weights are those of a 2D ResNet, the backbone is a 3D one


def _from_file(value: Any) -> Any:
    if isinstance(value, dict) and value.get("fold") is False:  # in checkpoints until November 2026, without effect
        value = {name: each for name, each in value.items() if name != "fold"}
    return {"file": value} if isinstance(value, str) else value


def _to_file(initial: InitialWeights) -> Any:
    return initial.model_dump() if initial != InitialWeights(file=initial.file) else initial.file


Initial = Annotated[InitialWeights, BeforeValidator(_from_file), PlainSerializer(_to_file)]


@usual_torch()
def load_backbone(
    path: str | Path,
    arch: str | None = None,
    *,
    partial: bool = False,
    keys: Mapping[str, str] | None = None,
    trust: bool = False,
    imports: Sequence[str] = (),
) -> Backbone:
    """Load the trained backbone of a checkpoint of vidssl or of another project, on the CPU and in eval mode.

    Its `run_config` is the config of the run that trained it, if vidssl did: `vidssl.extract` takes the clips from it.

    Args:
        path: A file, a folder of `vidssl export` or of a run, or the name of a network: see `weights_file`.
        arch: Name of the backbone; default: from the checkpoint's config, else from names and shapes of the weights.
        partial: Load only the weights that fit, and initialise the others; other projects' files need `arch` then.
        keys: Prefixes of names in the file, and their replacements; the longest counts, `""` removes one.
        trust: As `read_anything`; also import the modules that the config of the checkpoint names.
        imports: Modules with your own backbones, which are imported first.

    Raises:
        ConfigError: There is no backbone of that name.
        CheckpointError: The file is not a valid checkpoint, or its weights do not fit the backbone.
    """
    import_modules(imports, "imports")
    if arch is not None:
        BACKBONES[arch]  # raises a ConfigError with the nearest name
    content = read_anything(path, trust)
    initial = InitialWeights(file=str(path), partial=partial, keys=dict(keys or {}))
    if is_checkpoint(content):
        settings = content["config"]["backbone"]
        if arch not in (None, settings["name"]):
            raise CheckpointError(f"{path} holds a {settings['name']}, not a {arch}: leave out arch")
    else:
        weights = flatten(content)
        matches = match_backbones(weights, initial.keys, initial.file, arch)
        settings = choose_match(matches, weights, initial.file, partial and arch is not None).backbone
    named = modules_of(content["config"], str(path)) if is_checkpoint(content) else []
    if trust:
        import_modules(named, f"config of {path}: imports")
    with explaining(not_imported(named)):
        backbone = build_backbone(**settings)
    if is_checkpoint(content) and not (partial or keys):
        load_state(backbone, backbone_weights(content), initial.file)
    else:
        _fill(backbone, content, initial)
    if is_checkpoint(content):
        backbone.run_config = content["config"]
    return backbone.eval()


def load_initial(
    backbone: Backbone,
    settings: InitialWeights,
    trust: bool = False,
    name: str | None = None,
    normalization: Normalization | None = None,
) -> Match:
    """Load the weights of a file of any project into a backbone; `str()` of the result is one line for the log.

    `name` is that of the backbone, for errors, and `normalization` the mean and std of the run's pixels. If the weights
    were trained with others, that is a warning with the settings to use.

    Raises:
        CheckpointError: The file is not a valid checkpoint, or its weights do not fit the backbone.
        ConfigError: It is a name without trained weights.
    """
    trained: Normalization | None
    architecture = None
    if is_external(settings.file):
        architecture, content, trained = _read_by_name(settings.file, trust)
    else:
        content = read_anything(settings.file, trust)
        trained = normalization_of(content["config"]) if is_checkpoint(content) else None
    match = _fill(backbone, content, settings, name or type(backbone).__name__, architecture)
    if trained is None or normalization is None or trained.is_close(normalization):
        return match
    if distributed.is_main():
        text = f"{settings.file} was trained with another mean and std: set {trained}"
        log_once(_log, logging.WARNING, text)
    return match


def _fill(
    backbone: Backbone,
    content: Any,
    settings: InitialWeights,
    name: str = "the backbone",
    architecture: str | None = None,
) -> Match:
    """Load the content of a file; `architecture` is that of weights by name."""
    source, own, trained = settings.file, shapes_of(backbone), ""
    whole = is_checkpoint(content) and not settings.keys
    weights = flatten(content["method"] if whole else content)
    online = {name.removeprefix("backbone."): name for name in weights if name.startswith("backbone.")}
    if whole:
        trained = f", 'backbone={json.dumps(content['config']['backbone'])}'"
    if settings.inflate:
        check_inflatable(backbone, name, source)
        networks = find_networks([*online.values()] if whole else weights, settings.keys, source, own, INFLATED)
        if not networks:
            raise CheckpointError(f"{source} holds no 2D ResNet with torchvision's names: leave out init.inflate")
        for network in networks:
            if not settings.partial:
                check_same_shape(network, weights, own, source)
            weights = inflate(network, weights, own)
    elif whole:
        networks = [Network("vidssl", "backbone.", online)]
    else:
        networks = find_networks(weights, settings.keys, source, own)
    matches = [compare(network, weights, own, source, {"name": "the backbone"}) for network in networks]
    if architecture is not None and not settings.partial:
        check_architecture(architecture, name, matches, source)
    match = choose_match(matches, weights, source, settings.partial, trained)
    check_finite(match.weights, source)
    if is_checkpoint(content):
        _warn_of_differences(match, content["config"]["backbone"], backbone)
    backbone.load_state_dict(match.weights, strict=False)
    return match


def _warn_of_differences(match: Match, trained: Mapping[str, Any], backbone: Backbone) -> None:
    """Warn of weights of a network of frames in one of their differences, or the reverse; `trained` is its config."""
    streams = {f"encoders.{name}": stream for name, stream in (trained.get("streams") or {}).items()} or {"": trained}
    theirs = [path for path, settings in streams.items() if settings.get("frame_differences")]
    own = [path for path, module in backbone.named_modules() if getattr(module, "frame_differences", False)]
    for name in match.weights:
        old = match.network.names[name]
        was = any(not path or f".{path}." in f".{old}" for path in theirs)
        now = any(not path or f".{path}." in f".{name}" for path in own)
        if was != now and distributed.is_main():
            text = f"{match.source}: {old} was trained on {_SEEN[was]}, and {name} of the backbone sees {_SEEN[now]}"
            remedy = f"set its frame_differences={str(was).lower()}, or choose other weights with init.keys"
            return log_once(_log, logging.WARNING, f"{text}: {remedy}")


def log_match(match: Match, name: str, normalization: Normalization | None) -> None:
    """Log how weights were loaded into the backbone `name`; warn if they look like those of another mean and std."""
    if not distributed.is_main():
        return
    log_once(_log, logging.INFO, str(match))
    known = is_external(match.source) or normalization is None or not normalization.is_close(_DEFAULT)
    if known or not match.network.layout.startswith("torchvision"):
        return
    from torchvision.models import get_model_weights, list_models  # slow import

    name = name.replace("resnet3d", "resnet")  # which was inflated
    if name in list_models():
        preset: Any = get_model_weights(name).DEFAULT.transforms()
        usual = Normalization(tuple(preset.mean), tuple(preset.std))
        text = f"{match.source} is named as in torchvision, whose {name} has another mean and std"
        log_once(_log, logging.WARNING, f"{text}: if these are its weights, set {usual}")


def _read_by_name(name: str, trust: bool) -> tuple[str, dict[str, Tensor], Normalization]:
    """Read trained weights of a library without their classifier: architecture, weights, mean and std of their pixels.

    Raises:
        CheckpointError: The library is not installed, has no such network or weights, or cannot download them.
        ConfigError: It is a name of no weights, or one with settings of clips.
    """
    library, _, inner = name.partition(":")
    network, _, tag = inner.partition("@")
    if library not in ("torchvision", "timm"):
        raise ConfigError(f"init={name}: init takes names of torchvision: and timm:, or a file")
    if tag == "none":
        raise ConfigError(f"init={name} has no trained weights: leave init out to start untrained")
    if "," in name:
        raise ConfigError(f"init={name}: settings of clips are for tests: leave out ,{name.partition(',')[2]}")
    architecture = network.partition(".")[0]
    # Others of timm have the same weights and another computation: resnetaa50, resnetblur50.
    if library == "timm" and architecture not in NETWORKS:
        raise CheckpointError(f"{name} is a {architecture}: of timm, init takes {', '.join(NETWORKS)}")
    encoder = load_encoder(name, trust)
    return architecture, encoder.network.state_dict(), Normalization(encoder.mean, encoder.std)
