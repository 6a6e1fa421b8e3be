"""Load checkpoints of vidssl and other projects, and weights by name: the networks of a file matched to a backbone."""

import json
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
from pydantic import BeforeValidator, Field, PlainSerializer
from torch import Tensor

from vidssl.base import distributed
from vidssl.base.command_line_and_notices import log_once
from vidssl.base.config import Settings
from vidssl.base.errors import CheckpointError, ConfigError, first_few
from vidssl.base.plugins import explaining, import_modules, modules_of, not_imported
from vidssl.models.backbones import BACKBONES, Backbone, build_backbone
from vidssl.models.eval_mode import usual_torch
from vidssl.models.external import is_external, load_library_encoder
from vidssl.models.read_and_write_weights import (
    Normalization,
    backbone_weights,
    check_finite_weights,
    is_checkpoint,
    load_state,
    normalization_of,
    read_anything,
)
from vidssl.models.resnet2d import RESNETS_2D
from vidssl.models.resnet3d import ResNet3D


class Layout(NamedTuple):
    """How a project names the weights of a network."""

    name: str
    # Regular expression of one weight of the network; the text before it is the network's prefix in the file.
    sign: str
    # Regular expressions and replacements, all applied in order; the results are names below `net.`.
    renames: tuple[tuple[str, str], ...] = ()


_SLOWFAST = (
    (r"^s1\.pathway0_stem\.conv\.", "blocks.0.conv."),
    (r"^s1\.pathway0_stem\.bn\.", "blocks.0.norm."),
    *((rf"^s{stage}\.", f"blocks.{stage - 1}.") for stage in (2, 3, 4, 5)),
    (r"\.pathway0_res(\d+)\.", r".res_blocks.\1."),
    (r"\.branch1\.", ".branch1_conv."),
    (r"\.branch1_bn\.", ".branch1_norm."),
    (r"\.branch2\.([abc])\.", r".branch2.conv_\1."),
    (r"\.branch2\.([abc])_bn\.", r".branch2.norm_\1."),
)
_HEAD = ((r"^blocks\.5\.", "head."),)
_BASIC = (
    (r"\.branch2\.conv_a\.", ".branch2.0."),
    (r"\.branch2\.norm_a\.", ".branch2.1."),
    (r"\.branch2\.conv_b\.", ".branch2.3."),
    (r"\.branch2\.norm_b\.", ".branch2.4."),
)

# Where the signs of several layouts match at one prefix, the first layout counts.
CHECKPOINT_LAYOUTS = (
    Layout("SlowFast", r"s2\.pathway0_res0\.branch2\.c\.weight", _SLOWFAST),
    Layout("SlowFast, basic blocks", r"s2\.pathway0_res0\.branch2\.b\.weight", _SLOWFAST + _BASIC),
    Layout("pytorchvideo", r"blocks\.1\.res_blocks\.0\.branch2\.conv_c\.weight", _HEAD),
    Layout("eztorch, basic blocks", r"blocks\.1\.res_blocks\.0\.branch2\.conv_b\.weight", _HEAD + _BASIC),
    # ResNets, also of timm and MoCo; r3d_18, mc3_18, r2plus1d_18; s3d; mvit; swin3d.
    Layout("torchvision", r"(layer1\.0\.conv1(\.0){0,2}|features\.0\.0\.0|conv_proj|patch_embed\.proj)\.weight"),
)

# 2D ResNets under the names of the 3D ResNets that they can be inflated into.
_BLOCKS = (
    (r"^conv1\.", "blocks.0.conv."),
    (r"^bn1\.", "blocks.0.norm."),
    (r"^layer(\d)\.(\d+)\.", r"blocks.\1.res_blocks.\2."),
    (r"\.downsample\.0\.", ".branch1_conv."),
    (r"\.downsample\.1\.", ".branch1_norm."),
    *(
        (rf"(res_blocks\.\d+)\.{theirs}{number}\.", rf"\1.branch2.{ours}_{letter}.")
        for theirs, ours in (("conv", "conv"), ("bn", "norm"))
        for number, letter in enumerate("abc", start=1)
    ),
)
INFLATED = (
    Layout("torchvision, inflated", r"layer1\.0\.conv3\.weight", _BLOCKS),  # bottlenecks
    Layout("torchvision, inflated", r"layer1\.0\.conv1\.weight", _BLOCKS + _BASIC),
)

# (loaded, ignored): of two networks whose prefixes differ in this component only.
BRANCHES = (
    ("backbone", "backbone_hist"),  # SlowFast: the online network, not its moving average
    ("encoder_q", "encoder_k"),  # MoCo: online
    ("trunk", "momentum_trunk"),  # eztorch: online
    ("target_encoder", "encoder"),  # V-JEPA evaluates the moving average
    ("ema_encoder", "encoder"),  # V-JEPA 2.1: moving average
)

_MAX_DEPTH = 8  # of nested dictionaries


class Network(NamedTuple):
    """A network in a file."""

    layout: str  # name of the layout
    prefix: str  # text before the network's names in the file, "model_state."
    names: dict[str, str]  # names in a backbone of vidssl to names in the file


def flatten(content: Any, prefix: str = "", depth: int = 0) -> dict[str, Tensor]:
    """Collect the tensors of nested dictionaries, their keys joined by dots; skip everything else."""
    tensors: dict[str, Tensor] = {}
    if isinstance(content, Mapping) and depth < _MAX_DEPTH:
        for key, value in content.items():
            if isinstance(key, str) and isinstance(value, Tensor):
                tensors[prefix + key] = value
            elif isinstance(key, str):
                tensors |= flatten(value, f"{prefix}{key}.", depth + 1)
    return tensors


def find_networks(
    weights: Iterable[str],
    keys: Mapping[str, str],
    source: str,
    own_names: Iterable[str],
    layouts: Sequence[Layout] | None = None,
) -> list[Network]:
    """Find the networks in a file by the names of its weights, some of whose prefixes are replaced (`keys`).

    They have one of the `layouts`. By default these are `LAYOUTS` and that of the wanted backbone itself (`own_names`),
    with and without `net.`.

    Raises:
        CheckpointError: A prefix in `keys` is never used, or two weights would get one name.
    """
    names = _replace_prefixes(weights, keys, source)
    first = next(iter(own_names), "")
    top = "net." if first.startswith("net.") else ""
    vidssl_layout = Layout("vidssl", re.escape(first.removeprefix(top)))
    matches: dict[str, Layout] = {}  # by prefix
    for layout in (*CHECKPOINT_LAYOUTS, vidssl_layout) if layouts is None else layouts:
        for name in names:
            if match := re.fullmatch(rf"((?:.*?\.)??)(?:net\.)?{layout.sign}", name):
                matches.setdefault(match[1], layout)
    # A part of a network may contain the first name of the whole.
    for prefix, layout in [*matches.items()]:
        if layout is vidssl_layout and any(prefix != whole and prefix.startswith(whole) for whole in matches):
            del matches[prefix]
    renamed = {p for p in matches if any(new != old and new.startswith(p) for new, old in names.items())}  # by `keys`
    matches = {prefix: layout for prefix, layout in matches.items() if prefix in renamed or not renamed}
    for loaded, ignored in BRANCHES:
        for prefix in list(matches):
            twin = ".".join(loaded if part == ignored else part for part in prefix.split("."))
            if twin != prefix and twin in matches:
                del matches[prefix]
    networks = []
    for prefix, layout in matches.items():
        inside = {n.removeprefix(prefix).removeprefix("net."): old for n, old in names.items() if n.startswith(prefix)}
        ours = {top + _rename(name, layout): old for name, old in inside.items()}
        networks.append(Network(layout.name, prefix, ours))
    return networks


def _replace_prefixes(names: Iterable[str], keys: Mapping[str, str], source: str) -> dict[str, str]:
    """Replace the longest prefix in `keys` of each name; return new names to old names."""
    renamed: dict[str, str] = {}
    unused = dict.fromkeys(keys)
    for old in names:
        prefix = max((prefix for prefix in keys if old.startswith(prefix)), key=len, default="")
        unused.pop(prefix, None)
        new = keys.get(prefix, "") + old[len(prefix) :]
        if new in renamed:
            raise CheckpointError(f"{source}: keys rename {renamed[new]} and {old} to '{new}': use longer prefixes")
        renamed[new] = old
    if unused:
        known = first_few([*renamed.values()])
        raise CheckpointError(f"{source}: no weight has the prefix '{next(iter(unused))}' of keys, but {known}")
    return renamed


def _rename(name: str, layout: Layout) -> str:
    for pattern, replacement in layout.renames:
        name = re.sub(pattern, replacement, name)
    return name


Shapes = dict[str, tuple[int, ...]]  # of weights, by name
Weights = Mapping[str, Tensor]

_COUNTER = "num_batches_tracked"  # absent before torch 0.4.1, and used by batch norms without momentum only


class Match(NamedTuple):
    """Comparison of a network in a file with a backbone; `str()` is one line for the log."""

    source: str  # path of the file
    network: Network
    backbone: dict[str, Any]  # its name, and settings that follow from the weights: the width
    weights: dict[str, Tensor]  # those that fit, by their names in the backbone
    misfits: list[str]  # names of all others in the network or the backbone, and why they do not fit
    unused: list[str]  # names in the file of weights that are not loaded: heads, queues, other networks

    def __str__(self) -> str:
        count = f"{'' if self.misfits else 'all '}{len(self.weights)} weights of {self.backbone['name']} are loaded"
        origin = f", from {self.network.prefix.rstrip('.')}" if self.network.prefix else ""
        misfits = f"; {len(self.misfits)} do not fit{_first(self.misfits)}" if self.misfits else ""
        unused = f"; {len(self.unused)} of the file are not used{_first(self.unused)}" if self.unused else ""
        return f"{self.source}: {count}, named as in {self.network.layout}{origin}{misfits}{unused}"


def _first(names: list[str]) -> str:
    return f" ({first_few(names, separator='; ')})" if names else ""


def shapes_of(backbone: Backbone) -> Shapes:
    """Return the shapes of a backbone's weights by name."""
    state = backbone.state_dict()
    return {name: tuple(value.shape) for name, value in state.items() if isinstance(value, Tensor)}


@lru_cache(maxsize=64)
def _shapes(**backbone: Any) -> Shapes:
    with torch.device("meta"):  # allocates nothing
        return shapes_of(build_backbone(**backbone))


def match_weights(network: Network, weights: Weights, shapes: Shapes, source: str, backbone: dict[str, Any]) -> Match:
    """Compare a network in the `weights` of a file with a backbone whose weights have the `shapes`."""
    theirs = {name: weights[old] for name, old in network.names.items()}
    fitting, misfits = {}, []
    for name, shape in shapes.items():
        if name not in theirs:
            if not name.endswith(_COUNTER):
                misfits.append(f"{name}: missing")
        elif theirs[name].shape == shape:
            fitting[name] = theirs[name]
        else:
            misfits.append(f"{name}: {tuple(theirs[name].shape)}, here {shape}")
    # A head is a part of its own. More weights in a part that the backbone has belong to another, deeper network.
    parts = {_part(name) for name in shapes}
    misfits += [f"{name}: unknown" for name in theirs if name not in shapes and _part(name) in parts]
    used = {network.names[name] for name in fitting}
    return Match(source, network, backbone, fitting, misfits, [name for name in weights if name not in used])


def _part(name: str) -> str:
    return name.removeprefix("net.").split(".")[0]


def match_backbones(weights: Weights, keys: Mapping[str, str], source: str, arch: str | None) -> list[Match]:
    """Compare each network in a file with every registered backbone, or with the one named `arch`."""
    matches = []
    for name in BACKBONES if arch is None else [arch]:
        try:
            shapes = _shapes(name=name)
        except ConfigError:
            if arch is not None:
                raise
            continue  # a backbone with required settings cannot be guessed
        for network in find_networks(weights, keys, source, shapes):
            backbone: dict[str, Any] = {"name": name}
            stem = weights.get(network.names.get("net.blocks.0.conv.weight", ""))
            if name in ("resnet3d18", "resnet3d50") and stem is not None and stem.ndim == 5:
                backbone["width"] = max(4, len(stem))  # the stem has as many channels as the network is wide
            matches.append(match_weights(network, weights, _shapes(**backbone), source, backbone))
    return matches


def choose_match(matches: list[Match], weights: Weights, source: str, partial: bool, trained: str = "") -> Match:
    """Return the match of which all weights fit, or with `partial` the one of which most do.

    `trained` is added to errors: the backbone that the weights are of.

    Raises:
        CheckpointError: None fits, or several do.
    """
    if not weights:
        raise CheckpointError(f"{source} holds no named weights: save the network's state_dict() with torch.save")
    if not matches and trained:
        raise CheckpointError(f"{source} holds another network: use the backbone that was trained{trained}")
    if not matches:
        remedy = "rename prefixes with init.keys={OLD: NEW} (Python: keys=)"
        raise CheckpointError(f"{source}: no known layout has these weight names{_first([*weights])}; {remedy}")
    most = max(len(match.weights) - len(match.misfits) for match in matches)
    complete = [match for match in matches if not match.misfits]
    best, *others = complete or [match for match in matches if len(match.weights) - len(match.misfits) == most]
    fits = any(weight.ndim for weight in best.weights.values())  # not only counters, which are scalars
    if best.misfits and not (partial and fits):
        after = f" after '{best.network.prefix}'" if best.network.prefix else ""
        some = ", or load what fits with init.partial=true (Python: arch=, partial=True)"
        count = f"{len(best.weights) or 'none'} of {len(best.weights) + len(best.misfits)} weights fit"
        raise CheckpointError(
            f"{source} does not fit {best.backbone['name']}: {count}{_first(best.misfits)}; named as in "
            f"{best.network.layout}{after}; use the backbone that was trained{trained}"
            f"{some if fits else '' if trained else ' (Python: arch=)'}"
        )
    if others:
        options = " or ".join(f"{match.backbone['name']} from '{match.network.prefix}'" for match in [best, *others])
        remedy = "choose the backbone (Python: arch=), or the network with init.keys={PREFIX: ''} (Python: keys=)"
        raise CheckpointError(f"{source} can be {options}: {remedy}")
    return best


def inflate(network: Network, weights: Mapping[str, Tensor], shapes: Shapes) -> dict[str, Tensor]:
    """Return `weights` with the kernels (O, I, H, W) of a network as (O, I, T, H, W): in the middle of T, zeros beside.

    T is that of the kernel in the backbone, whose weights have the `shapes`. Kernels of other shapes stay.
    """
    inflated = dict(weights)
    for name, old in network.names.items():
        shape, kernel = shapes.get(name, ()), weights[old]
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
    """Load the weights of a file of any project into a backbone, and log how they matched.

    `normalization` is the mean and std of the run's pixels, and `name` that of the backbone. If the weights were, or
    may have been, trained with other pixels, that is a warning with the settings to use.

    Raises:
        CheckpointError: The file is not a valid checkpoint, or its weights do not fit the backbone.
        ConfigError: It is a name without trained weights.
    """
    trained, fitting = None, ""
    if is_external(settings.file):
        architecture, content, trained = _read_by_name(settings.file, trust)
        inflatable = isinstance(backbone, ResNet3D) and architecture in RESNETS_2D and not settings.inflate
        fitting = f", {_as_setting({'name': architecture})}" + ", or set init.inflate=true" * inflatable
    else:
        content = read_anything(settings.file, trust)
        trained = normalization_of(content["config"]) if is_checkpoint(content) else None
    match = _fill(backbone, content, settings, fitting)
    if distributed.is_main():
        log_once(_log, logging.INFO, str(match))
        if normalization is not None:
            _warn_of_pixels(match, trained, name, normalization)
    return match


def _fill(backbone: Backbone, content: Any, settings: InitialWeights, fitting: str = "") -> Match:
    """Load the content of a file; `fitting` names the backbone that fits it, for errors."""
    source, shapes = settings.file, shapes_of(backbone)
    if settings.inflate and (not isinstance(backbone, ResNet3D) or backbone.frame_differences):
        remedy = "use resnet3d18 (for resnet18) or resnet3d50 (for resnet50), without frame_differences"
        raise CheckpointError(f"{source} cannot be inflated into this {type(backbone).__name__}: {remedy}")
    whole = is_checkpoint(content) and not settings.keys
    weights = flatten(content["method"] if whole else content)
    names = [name for name in weights if name.startswith("backbone.")] if whole else [*weights]
    if settings.inflate:
        networks = find_networks(names, settings.keys, source, shapes, INFLATED)
        if not networks:
            raise CheckpointError(f"{source} holds no 2D ResNet with torchvision's names: leave out init.inflate")
        for network in networks:
            weights = inflate(network, weights, shapes)
    elif whole:
        networks = [Network("vidssl", "backbone.", {name.removeprefix("backbone."): name for name in names})]
    else:
        networks = find_networks(weights, settings.keys, source, shapes)
    if whole:
        fitting = f", 'backbone={json.dumps(content['config']['backbone'])}'"
    matches = [match_weights(network, weights, shapes, source, {"name": "the backbone"}) for network in networks]
    if not (fitting or settings.inflate or settings.partial) and all(match.misfits for match in matches):
        others = [match for match in match_backbones(weights, settings.keys, source, None) if not match.misfits]
        fitting = ", " * bool(others) + " or ".join(dict.fromkeys(_as_setting(match.backbone) for match in others))
    match = choose_match(matches, weights, source, settings.partial, fitting)
    check_finite_weights(match.weights, source)
    if is_checkpoint(content):
        _warn_of_differences(match, content["config"]["backbone"], backbone)
    backbone.load_state_dict(match.weights, strict=False)
    return match


def _as_setting(backbone: Mapping[str, Any]) -> str:
    return f"'backbone={{{', '.join(f'{name}: {value}' for name, value in backbone.items())}}}'"


def _warn_of_differences(match: Match, trained: Mapping[str, Any], backbone: Backbone) -> None:
    """Warn of weights of a network of frames in one of their differences, or the reverse; `trained` is its config."""
    streams = {f"encoders.{name}": stream for name, stream in (trained.get("streams") or {}).items()} or {"": trained}
    theirs = [path for path, settings in streams.items() if settings.get("frame_differences")]
    ours = [path for path, module in backbone.named_modules() if getattr(module, "frame_differences", False)]
    for name in match.weights:
        old = match.network.names[name]
        was = any(not path or f".{path}." in f".{old}" for path in theirs)
        now = any(not path or f".{path}." in f".{name}" for path in ours)
        if was != now and distributed.is_main():
            text = f"{match.source}: {old} was trained on {_SEEN[was]}, and {name} of the backbone sees {_SEEN[now]}"
            remedy = f"set its frame_differences={str(was).lower()}, or choose other weights with init.keys"
            return log_once(_log, logging.WARNING, f"{text}: {remedy}")


def _warn_of_pixels(
    match: Match, trained: Normalization | None, name: str | None, normalization: Normalization
) -> None:
    """Warn if weights were trained with another mean and std of pixels, or are named as in a library with others."""
    if trained is not None:
        if not trained.is_close(normalization):
            log_once(_log, logging.WARNING, f"{match.source} was trained with another mean and std: set {trained}")
        return
    library, usual = match.network.layout.partition(",")[0], _DEFAULT  # which is that of the video libraries
    name = str(name).replace("resnet3d", "resnet")  # which was inflated
    if library == "torchvision":
        from torchvision.models import get_model_weights, list_models  # slow import

        if name not in list_models():
            return
        preset: Any = get_model_weights(name).DEFAULT.transforms()
        usual = Normalization(tuple(preset.mean), tuple(preset.std))
    if library in ("SlowFast", "pytorchvideo", "eztorch", "torchvision") and not usual.is_close(normalization):
        text = f"{match.source} is named as in {library}, whose {name} has another mean and std"
        log_once(_log, logging.WARNING, f"{text}: if these are its weights, set {usual}")


def _read_by_name(name: str, trust: bool) -> tuple[str, dict[str, Tensor], Normalization]:
    """Read trained weights of a library without their classifier: architecture, weights, mean and std of their pixels.

    Raises:
        CheckpointError: The library is not installed, has no such network or weights, or cannot download them.
        ConfigError: It is a name of no weights.
    """
    library, _, inner = name.partition(":")
    network, _, tag = inner.partition("@")
    if library not in ("torchvision", "timm"):
        raise ConfigError(f"init={name}: init takes names of torchvision: and timm:, or a file")
    if tag == "none":
        raise ConfigError(f"init={name} has no trained weights: leave init out to start untrained")
    architecture = network.partition(".")[0]
    # Others of timm have the same weights and another computation: resnetaa50, resnetblur50.
    if library == "timm" and architecture not in RESNETS_2D:
        raise CheckpointError(f"{name} is a {architecture}: of timm, init takes {', '.join(RESNETS_2D)}")
    encoder = load_library_encoder(name, trust)
    return architecture, encoder.network.state_dict(), Normalization(encoder.mean, encoder.std)
