"""Checkpoints of other projects: recognise their weight names and compare them with our backbones.

Two tables hold what is known: `LAYOUTS` (naming schemes) and `BRANCHES` (which of two networks in a file to load).
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vidssl.errors import CheckpointError, ConfigError
from vidssl.models.backbones import BACKBONES, Backbone, build_backbone

Shapes = dict[str, tuple[int, ...]]


class Layout(NamedTuple):
    """How a project names the weights of a network."""

    name: str
    sign: str  # regular expression of one weight of the network; the text before it is the network's prefix in the file
    renames: tuple[
        tuple[str, str], ...
    ] = ()  # regular expressions, all applied in order; results are names below `net.`


_SLOWFAST = (
    (r"^s1\.pathway0_stem\.conv\.", "blocks.0.conv."),
    (r"^s1\.pathway0_stem\.bn\.", "blocks.0.norm."),
    (r"^s2\.", "blocks.1."),
    (r"^s3\.", "blocks.2."),
    (r"^s4\.", "blocks.3."),
    (r"^s5\.", "blocks.4."),
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
    Layout("torchvision", r"layer1\.0\.conv1\.weight"),  # ResNets, also of timm and MoCo
    Layout("torchvision", r"layer1\.0\.conv1\.0\.(0\.)?weight"),  # r3d_18, mc3_18, r2plus1d_18
    Layout("torchvision", r"features\.0\.0\.0\.weight"),  # s3d
    Layout("torchvision", r"conv_proj\.weight"),  # mvit
    Layout("torchvision", r"patch_embed\.proj\.weight"),  # swin3d
)

# (loaded, ignored): of two networks whose prefixes differ in this component only.
BRANCHES = (
    ("backbone", "backbone_hist"),  # SlowFast: the online network, not its moving average
    ("encoder_q", "encoder_k"),  # MoCo: online
    ("trunk", "momentum_trunk"),  # eztorch: online
    ("target_encoder", "encoder"),  # V-JEPA evaluates the moving average
    ("ema_encoder", "encoder"),  # V-JEPA 2.1: moving average
)

_COUNTER = "num_batches_tracked"  # absent before torch 0.4.1, and used by batch norms without momentum only
_MAX_DEPTH = 8  # of nested dictionaries
_MAX_NAMES = 3  # of each kind in a message


@dataclass(frozen=True)
class FoundNetwork:
    """The weights of one network in a file, under the names that a backbone of vidssl gives them."""

    source: str  # path of the file
    layout: str  # name of the layout
    prefix: str  # text before the network's names in the file, "model_state."
    weights: dict[str, Tensor] = field(repr=False)
    names: dict[str, str] = field(repr=False)  # names in a backbone to names in the file
    others: tuple[str, ...] = field(repr=False)  # names in the file of all other weights


@dataclass(frozen=True)
class Match:
    """Comparison of a network in a file with a backbone; `str()` is one line for the log."""

    network: FoundNetwork
    backbone: str  # name
    settings: dict[str, Any]  # of the backbone, as far as they follow from the weights: the width
    fitting: tuple[str, ...]  # names with equal shapes
    missing: tuple[str, ...]  # names that only the backbone has
    unknown: tuple[str, ...]  # names inside the network that the backbone does not have
    reshaped: tuple[str, ...]  # names and both shapes, where these differ
    left: tuple[str, ...]  # names in the file that belong to no backbone: heads, queues, other networks

    @property
    def complete(self) -> bool:
        """Whether every weight fits."""
        return not (self.missing or self.unknown or self.reshaped)

    @property
    def likeness(self) -> tuple[float, int]:
        """Fraction of the file's matrices and kernels that fit, then the number of all weights that fit.

        Vectors are left out of the fraction: batch norms of many networks have equal names and sizes.
        """
        unfit_names = [*self.unknown, *(text.partition(":")[0] for text in self.reshaped)]
        weights = self.network.weights
        fit, unfit = (sum(weights[n].ndim > 1 for n in names) for names in (self.fitting, unfit_names))
        return fit / max(fit + unfit, 1), len(self.fitting)

    @property
    def weights(self) -> dict[str, Tensor]:
        """The weights that fit, by their names in the backbone."""
        return {name: self.network.weights[name] for name in self.fitting}

    def __str__(self) -> str:
        network, count = self.network, f"{len(self.fitting)} weights"
        text = f"{network.source}: {'all ' if self.complete else ''}{count} of {self.backbone}, named as in "
        text += network.layout + (f", from {network.prefix.rstrip('.')}" if network.prefix else "")
        if not self.complete:
            text += f"; {differences(self.missing, self.unknown, self.reshaped)}"
        return f"{text}; {len(self.left)} not used{first_names(self.left)}"


def differences(missing: Iterable[str], unknown: Iterable[str], reshaped: Iterable[str]) -> str:
    """Count and name weights that do not fit: `2 weights missing (a; b), 0 unknown, 0 of another shape`."""
    kinds = {"weights missing": list(missing), "unknown": list(unknown), "of another shape": list(reshaped)}
    return ", ".join(f"{len(names)} {kind}{first_names(names)}" for kind, names in kinds.items())


def first_names(names: Iterable[str]) -> str:
    """Format the first few names in brackets; an empty string where there are none."""
    names = list(names)
    if len(names) > _MAX_NAMES:
        names = [*names[:_MAX_NAMES], "…"]
    return f" ({'; '.join(names)})" if names else ""


def shapes_of(backbone: Backbone) -> Shapes:
    """Return the shapes of a backbone's weights by name."""
    state = backbone.state_dict()
    return {name: tuple(value.shape) for name, value in state.items() if isinstance(value, Tensor)}


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


def rename_prefixes(names: Iterable[str], keys: Mapping[str, str], source: str) -> dict[str, str]:
    """Replace the longest prefix in `keys` of each name; return new names to names in the file.

    Raises:
        CheckpointError: A prefix is never used, or two weights would get one name.
    """
    renamed: dict[str, str] = {}
    unused = set(keys)
    for old in names:
        prefix = max((prefix for prefix in keys if old.startswith(prefix)), key=len, default="")
        unused.discard(prefix)
        new = keys.get(prefix, "") + old[len(prefix) :]
        if new in renamed:
            raise CheckpointError(
                f"{source}: keys would rename both {renamed[new]} and {old} to '{new}': use longer prefixes"
            )
        renamed[new] = old
    for prefix in keys:
        if prefix in unused:
            raise CheckpointError(
                f"{source}: no weight uses the prefix '{prefix}' of keys; names in the file:{first_names(names)}"
            )
    return renamed


def find_networks(
    weights: Mapping[str, Tensor], keys: Mapping[str, str], source: str, own_names: Iterable[str]
) -> list[FoundNetwork]:
    """Find the networks in the weights of a file, after renaming with `rename_prefixes`.

    The layout of the wanted backbone itself (`own_names`) is searched too, with and without `net.`. If `keys` rename
    the sign of any network, only such networks are returned.
    """
    names = rename_prefixes(weights, keys, source)
    first = next(iter(own_names), "")
    top = "net." if first.startswith("net.") else ""
    own = Layout("vidssl", re.escape(first.removeprefix(top)))
    found: dict[str, tuple[Layout, str]] = {}  # prefix to layout and name of the sign
    for layout in (*LAYOUTS, own) if top else (own,):
        for name in names:
            if match := re.fullmatch(rf"((?:.*\.)?){layout.sign}", name):
                found.setdefault(match[1], (layout, name))
    for prefix, (layout, _) in list(found.items()):
        # A part of a network may contain the first name of the whole.
        if layout is own and any(prefix != outer and prefix.startswith(outer) for outer in found):
            del found[prefix]
    for loaded, ignored in BRANCHES:
        for prefix in list(found):
            twin = ".".join(loaded if part == ignored else part for part in prefix.split("."))
            if twin != prefix and twin in found:
                del found[prefix]
    chosen = {prefix: layout for prefix, (layout, sign) in found.items() if names[sign] != sign}
    chosen = chosen or {prefix: layout for prefix, (layout, _) in found.items()}
    networks = []
    for prefix, layout in chosen.items():
        inside = {name.removeprefix(prefix): old for name, old in names.items() if name.startswith(prefix)}
        inside = {top + _apply(layout.renames, name): old for name, old in inside.items()}
        others = tuple(old for name, old in names.items() if not name.startswith(prefix))
        renamed = {new: weights[old] for new, old in inside.items()}
        networks.append(FoundNetwork(source, layout.name, prefix, renamed, inside, others))
    return networks


def _apply(renames: tuple[tuple[str, str], ...], name: str) -> str:
    for pattern, replacement in renames:
        name = re.sub(pattern, replacement, name)
    return name


def compare(
    network: FoundNetwork, own: Shapes, backbone: str, settings: dict[str, Any] | None = None
) -> Match:
    """Compare the weights of a network with those of a backbone, by name and shape."""
    missing, fitting, reshaped = [], [], []
    for name, shape in own.items():
        if name not in network.weights:
            if not name.endswith(_COUNTER):
                missing.append(name)
        elif (theirs := tuple(network.weights[name].shape)) != shape:
            reshaped.append(f"{name}: {theirs}, here {shape}")
        else:
            fitting.append(name)
    if all(name.endswith(_COUNTER) for name in fitting):
        fitting = []
    # A head is a part of its own. More weights in a part that the backbone has belong to another, deeper network.
    parts = {_part(name) for name in own}
    extra = [name for name in network.weights if name not in own]
    unknown = tuple(name for name in extra if _part(name) in parts)
    left = tuple(network.names[name] for name in extra if _part(name) not in parts)
    names = tuple(fitting), tuple(missing), unknown, tuple(reshaped), left + network.others
    return Match(network, backbone, settings or {}, *names)


def _part(name: str) -> str:
    return name.removeprefix("net.").split(".")[0]


def match_backbones(
    weights: Mapping[str, Tensor], keys: Mapping[str, str], source: str, arch: str | None
) -> list[Match]:
    """Compare each network in a file with every registered backbone, or with the one named `arch`."""
    matches = []
    for name in BACKBONES if arch is None else [arch]:
        try:
            own = _shapes(name)
        except ConfigError:
            if arch is not None:
                raise
            continue  # a backbone with required settings cannot be guessed
        for network in find_networks(weights, keys, source, own):
            # The stem of a ResNet3D has as many channels as the network is wide.
            stem = network.weights.get("net.blocks.0.conv.weight")
            width = len(stem) if stem is not None and stem.ndim == 5 and len(stem) >= 4 else None
            if name not in ("resnet3d18", "resnet3d50") or width is None:
                matches.append(compare(network, own, name))
            else:
                shapes = _shapes(name, width)
                matches.append(compare(network, shapes, name, {"width": width}))
    return matches


@lru_cache(maxsize=64)
def _shapes(name: str, width: int | None = None) -> Shapes:
    """Return the shapes of a backbone's weights without allocating them."""
    with torch.device("meta"):
        return shapes_of(build_backbone(name, **({} if width is None else {"width": width})))


def choose_match(matches: list[Match], weights: Mapping[str, Tensor], source: str, partial: bool) -> Match:
    """Return the match of which all weights fit, or with `partial` the one of which most do.

    Raises:
        CheckpointError: None fits, or several do.
    """
    if not weights:
        raise CheckpointError(
            f"{source} holds no named weights: save the network's state_dict() with torch.save"
        )
    if not matches:
        raise CheckpointError(
            f"{source}: no known layout has these weight names{first_names(weights)}; rename prefixes with "
            "init.keys={OLD: NEW} (Python: keys=)"
        )
    best = [match for match in matches if match.complete]
    if not best:
        most = max(match.likeness for match in matches)
        best = [match for match in matches if match.likeness == most]
        if not partial or not best[0].fitting:
            raise CheckpointError(_why_not(best[0], several=len({m.backbone for m in matches}) > 1))
    if len(best) > 1:
        options = " or ".join(f"{match.backbone} from '{match.network.prefix}'" for match in best)
        raise CheckpointError(
            f"{source} can be {options}: choose the backbone (Python: arch=), or the network with "
            "init.keys={PREFIX: ''} (Python: keys=)"
        )
    return best[0]


def _why_not(match: Match, several: bool) -> str:
    source, prefix = match.network.source, match.network.prefix
    read_as = f"names read as those of {match.network.layout}" + (f" after '{prefix}'" if prefix else "")
    if several and not match.fitting:
        return f"{source} fits no backbone, not a single weight does; {read_as}"
    head = f"fits no backbone, best {match.backbone}" if several else f"does not fit {match.backbone}"
    text = f"{source} {head}: {differences(match.missing, match.unknown, match.reshaped)}; {read_as}"
    if not match.fitting:
        return f"{text}; no weight fits: use another file or backbone"
    return (
        f"{text}; use the backbone that was trained, or load only what fits with init.partial=true "
        "(Python: partial=True)"
    )
