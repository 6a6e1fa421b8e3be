"""Compare the networks in a file with backbones, and choose the one that fits."""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vidssl.errors import CheckpointError, ConfigError, first_few
from vidssl.models.backbones import BACKBONES, Backbone, build_backbone


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
LAYOUTS = (
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
    found: dict[str, Tensor] = {}
    if isinstance(content, Mapping) and depth < _MAX_DEPTH:
        for key, value in content.items():
            if isinstance(key, str) and isinstance(value, Tensor):
                found[prefix + key] = value
            elif isinstance(key, str):
                found |= flatten(value, f"{prefix}{key}.", depth + 1)
    return found


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
    own = Layout("vidssl", re.escape(first.removeprefix(top)))
    found: dict[str, Layout] = {}  # by prefix
    for layout in (*LAYOUTS, own) if layouts is None else layouts:
        for name in names:
            if match := re.fullmatch(rf"((?:.*?\.)??)(?:net\.)?{layout.sign}", name):
                found.setdefault(match[1], layout)
    # A part of a network may contain the first name of the whole.
    parts = {p for p in found if found[p] is own and any(p != whole and p.startswith(whole) for whole in found)}
    found = {prefix: layout for prefix, layout in found.items() if prefix not in parts}
    chosen = {p for p in found if any(new != old and new.startswith(p) for new, old in names.items())}  # by `keys`
    found = {prefix: layout for prefix, layout in found.items() if prefix in chosen or not chosen}
    for loaded, ignored in BRANCHES:
        for prefix in list(found):
            twin = ".".join(loaded if part == ignored else part for part in prefix.split("."))
            if twin != prefix and twin in found:
                del found[prefix]
    networks = []
    for prefix, layout in found.items():
        inside = {n.removeprefix(prefix).removeprefix("net."): old for n, old in names.items() if n.startswith(prefix)}
        renamed = {top + _rename(name, layout): old for name, old in inside.items()}
        networks.append(Network(layout.name, prefix, renamed))
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
            raise CheckpointError(
                f"{source}: keys would rename both {renamed[new]} and {old} to '{new}': use longer prefixes"
            )
        renamed[new] = old
    if unused:
        raise CheckpointError(
            f"{source}: no weight uses the prefix '{next(iter(unused))}' of keys; names in the file: "
            f"{first_few([*renamed.values()])}"
        )
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
    left: list[str]  # names in the file of weights that are not loaded: heads, queues, other networks

    def __str__(self) -> str:
        count = f"{len(self.weights)} weights" if self.misfits else f"all {len(self.weights)} weights"
        origin = f", from {self.network.prefix.rstrip('.')}" if self.network.prefix else ""
        misfits = f"; {len(self.misfits)} do not fit{_first(self.misfits)}" if self.misfits else ""
        return (
            f"{self.source}: {count} of {self.backbone['name']}, named as in {self.network.layout}{origin}{misfits}; "
            f"{len(self.left)} not used{_first(self.left)}"
        )


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


def compare(network: Network, weights: Weights, own: Shapes, source: str, backbone: dict[str, Any]) -> Match:
    """Compare a network in the `weights` of a file with a backbone whose weights have the shapes `own`."""
    theirs = {name: weights[old] for name, old in network.names.items()}
    fitting, misfits = {}, []
    for name, shape in own.items():
        if name not in theirs:
            if not name.endswith(_COUNTER):
                misfits.append(f"{name}: missing")
        elif theirs[name].shape == shape:
            fitting[name] = theirs[name]
        else:
            misfits.append(f"{name}: {tuple(theirs[name].shape)}, here {shape}")
    # A head is a part of its own. More weights in a part that the backbone has belong to another, deeper network.
    parts = {_part(name) for name in own}
    misfits += [f"{name}: unknown" for name in theirs if name not in own and _part(name) in parts]
    used = {network.names[name] for name in fitting}
    return Match(source, network, backbone, fitting, misfits, [name for name in weights if name not in used])


def _part(name: str) -> str:
    return name.removeprefix("net.").split(".")[0]


def match_backbones(weights: Weights, keys: Mapping[str, str], source: str, arch: str | None) -> list[Match]:
    """Compare each network in a file with every registered backbone, or with the one named `arch`."""
    matches = []
    for name in BACKBONES if arch is None else [arch]:
        try:
            own = _shapes(name=name)
        except ConfigError:
            if arch is not None:
                raise
            continue  # a backbone with required settings cannot be guessed
        for network in find_networks(weights, keys, source, own):
            backbone: dict[str, Any] = {"name": name}
            stem = weights.get(network.names.get("net.blocks.0.conv.weight", ""))
            if name in ("resnet3d18", "resnet3d50") and stem is not None and stem.ndim == 5:
                backbone["width"] = max(4, len(stem))  # the stem has as many channels as the network is wide
            matches.append(compare(network, weights, _shapes(**backbone), source, backbone))
    return matches


def choose_match(matches: list[Match], weights: Weights, source: str, partial: bool, trained: str = "") -> Match:
    """Return the match of which all weights fit, or with `partial` the one of which most do.

    `trained` is added to errors: the backbone that the weights are of.

    Raises:
        CheckpointError: None fits, or several do.
    """
    if not weights:
        raise CheckpointError(f"{source} holds no named weights: save the network's state_dict() with torch.save")
    if not matches:
        raise CheckpointError(
            f"{source}: no known layout has these weight names{_first([*weights])}; rename prefixes with "
            "init.keys={OLD: NEW} (Python: keys=)"
        )
    most = max(len(match.weights) - len(match.misfits) for match in matches)
    complete = [match for match in matches if not match.misfits]
    best, *others = complete or [match for match in matches if len(match.weights) - len(match.misfits) == most]
    fits = any(weight.ndim for weight in best.weights.values())  # not only counters, which are scalars
    if best.misfits and not (partial and fits):
        some = ", or load what fits with init.partial=true (Python: arch=, partial=True)"
        raise CheckpointError(
            f"{source} does not fit {best.backbone['name']}: {len(best.weights)} weights fit, {len(best.misfits)} do "
            f"not{_first(best.misfits)}; names read as those of {best.network.layout} after '{best.network.prefix}'; "
            f"use the backbone that was trained{trained}{some if fits else ' (Python: arch=)'}"
        )
    if others:
        options = " or ".join(f"{match.backbone['name']} from '{match.network.prefix}'" for match in [best, *others])
        raise CheckpointError(
            f"{source} can be {options}: choose the backbone (Python: arch=), or the network with "
            "init.keys={PREFIX: ''} (Python: keys=)"
        )
    return best


def check_architecture(architecture: str, backbone: str, matches: list[Match], source: str) -> None:
    """Raise a CheckpointError if weights by name, of an `architecture`, fit no match with the named `backbone`."""
    if any(not match.misfits for match in matches):
        return
    misfits = min((match.misfits for match in matches), key=len, default=[])
    remedy = f"set backbone={{name: {architecture}}}" if architecture in BACKBONES else "name other weights"
    if (architecture, backbone) in (("resnet18", "resnet3d18"), ("resnet50", "resnet3d50")):
        remedy += ", or init.inflate=true"
    raise CheckpointError(f"{source} is {architecture}, and the backbone {backbone}{_first(misfits)}: {remedy}")
