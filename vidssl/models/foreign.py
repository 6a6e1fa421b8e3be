"""Whose names the weights of a file have, and which backbone they fit."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vidssl.errors import CheckpointError, ConfigError
from vidssl.models.backbones import BACKBONES, Backbone, build_backbone

Shapes = dict[str, tuple[int, ...]]


class Layout(NamedTuple):
    """How a project names the weights of a network."""

    name: str
    sign: (
        str  # matches one weight of the network; what stands before it says where in the file the network is
    )
    renames: tuple[tuple[str, str], ...] = ()  # all that match, in order; the outcome is a name below `net.`


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

# Of the layouts whose sign is found at a place, the first counts.
LAYOUTS = (
    Layout("SlowFast", r"s2\.pathway0_res0\.branch2\.c\.weight", _SLOWFAST),
    Layout("SlowFast, basic blocks", r"s2\.pathway0_res0\.branch2\.b\.weight", _SLOWFAST + _BASIC),
    Layout("pytorchvideo", r"blocks\.1\.res_blocks\.0\.branch2\.conv_c\.weight", _HEAD),
    Layout("eztorch, basic blocks", r"blocks\.1\.res_blocks\.0\.branch2\.conv_b\.weight", _HEAD + _BASIC),
    Layout("torchvision", r"layer1\.0\.conv1\.weight"),  # ResNets, timm's and MoCo's too
    Layout("torchvision", r"layer1\.0\.conv1\.0\.(0\.)?weight"),  # r3d_18, mc3_18, r2plus1d_18
    Layout("torchvision", r"features\.0\.0\.0\.weight"),  # s3d
    Layout("torchvision", r"conv_proj\.weight"),  # mvit
    Layout("torchvision", r"patch_embed\.proj\.weight"),  # swin3d
)

# Where a file holds both of two networks, the first is taken.
BRANCHES = (
    ("backbone", "backbone_hist"),  # SlowFast: the online network, not its moving average
    ("encoder_q", "encoder_k"),  # MoCo: the same
    ("trunk", "momentum_trunk"),  # eztorch: the same
    ("target_encoder", "encoder"),  # V-JEPA evaluates the moving average
    ("ema_encoder", "encoder"),  # V-JEPA 2.1: the same
)

_COUNTER = "num_batches_tracked"  # files from before torch 0.4.1 have none; only an average without momentum reads it
_DEEPEST = 8  # dictionaries inside one another
_SHOWN = 3  # names of each sort in a message


@dataclass(frozen=True)
class MatchedLayout:
    """The weights of one network of a file.

    Attributes:
        source: The file.
        layout: Whose names they have there.
        place: What stands before these.
        weights: By the names that they have in a backbone.
        names: The names in the file of these.
        others: The names of all other weights of the file.
    """

    source: str
    layout: str
    place: str
    weights: dict[str, Tensor] = field(repr=False)
    names: dict[str, str] = field(repr=False)
    others: tuple[str, ...] = field(repr=False)


@dataclass(frozen=True)
class Matched:
    """How the weights of a file fit a backbone; as a string, one line for a log.

    Attributes:
        reading: The weights.
        backbone: Which backbone, in words or its name.
        settings: Of the backbone, where its weights tell them.
        fitting: Names of those that fit.
        missing: Names that the backbone has and the file has not.
        unknown: Names inside of the network that the backbone has not.
        reshaped: Names, and both shapes, of those that differ in shape.
        left: Names in the file that no backbone takes: heads, queues, other networks.
    """

    reading: MatchedLayout
    backbone: str
    settings: dict[str, Any]
    fitting: tuple[str, ...]
    missing: tuple[str, ...]
    unknown: tuple[str, ...]
    reshaped: tuple[str, ...]
    left: tuple[str, ...]

    @property
    def whole(self) -> bool:
        """Whether every weight fits."""
        return not (self.missing or self.unknown or self.reshaped)

    @property
    def likeness(self) -> tuple[float, int]:
        """The share of the file's matrices and kernels in this network that fit, then the number of all that fit.

        Batch norms tell little: many networks have them by the same names and in the same sizes.
        """
        broken = [*self.unknown, *(told.partition(":")[0] for told in self.reshaped)]
        fit, unfit = (
            sum(self.reading.weights[n].ndim > 1 for n in names) for names in (self.fitting, broken)
        )
        return fit / max(fit + unfit, 1), len(self.fitting)

    @property
    def weights(self) -> dict[str, Tensor]:
        """The weights that fit, by the names of the backbone."""
        return {name: self.reading.weights[name] for name in self.fitting}

    def differences(self) -> str:
        """Tell what does not fit: counts, and the first names of each sort."""
        sorts = {"weights missing": self.missing, "unknown": self.unknown, "of another shape": self.reshaped}
        return ", ".join(f"{len(names)} {sort}{first_of(names)}" for sort, names in sorts.items())

    def __str__(self) -> str:
        told = f"all {len(self.fitting)} weights" if self.whole else f"{len(self.fitting)} weights"
        told = f"{self.reading.source}: {told} of {self.backbone}, named as in {self.reading.layout}"
        if self.reading.place:
            told += f", from {self.reading.place.rstrip('.')}"
        if not self.whole:
            told += f"; {self.differences()}"
        return f"{told}; {len(self.left)} left over{first_of(self.left)}"


def first_of(names: Iterable[str]) -> str:
    """Show the first names, in brackets."""
    names = list(names)
    if len(names) > _SHOWN:
        names = [*names[:_SHOWN], "…"]
    return f" ({'; '.join(names)})" if names else ""


def shapes_of(backbone: Backbone) -> Shapes:
    """List the shapes of a backbone's weights."""
    state = backbone.state_dict()
    return {name: tuple(value.shape) for name, value in state.items() if isinstance(value, Tensor)}


def flatten(content: Any, before: str = "", depth: int = 0) -> dict[str, Tensor]:
    """Collect the tensors of dictionaries in dictionaries; dots join the keys. All else is left out."""
    found: dict[str, Tensor] = {}
    if isinstance(content, Mapping) and depth < _DEEPEST:
        for key, value in content.items():
            if isinstance(key, str) and isinstance(value, Tensor):
                found[before + key] = value
            elif isinstance(key, str):
                found |= flatten(value, f"{before}{key}.", depth + 1)
    return found


def renamed(weights: Mapping[str, Tensor], keys: Mapping[str, str], source: str) -> dict[str, str]:
    """Exchange the beginnings of names, the longest first.

    Args:
        weights: By the names of the file.
        keys: Beginnings, and what stands in their place.
        source: The file, for messages.

    Returns:
        New names to those in the file.

    Raises:
        CheckpointError: No name begins so, or two weights would have one name.
    """
    names: dict[str, str] = {}
    used = set()
    for old in weights:
        start = max((start for start in keys if old.startswith(start)), key=len, default=None)
        used.add(start)
        new = old if start is None else keys[start] + old[len(start) :]
        if new in names:
            raise CheckpointError(
                f"{source}: keys would call both {names[new]} and {old} '{new}': make the beginnings longer"
            )
        names[new] = old
    for start in keys:
        if start not in used:
            raise CheckpointError(
                f"{source}: no weight is left whose name begins with '{start}', as keys says; "
                f"names there are{first_of(weights)}"
            )
    return names


def readings(
    weights: Mapping[str, Tensor], keys: Mapping[str, str], source: str, own: Iterable[str]
) -> list[MatchedLayout]:
    """Find the networks of a file.

    Args:
        weights: By the names of the file.
        keys: As of `renamed`. Of several networks, those that it names are meant.
        source: The file, for messages.
        own: The names in the backbone that is looked for. They count as a layout too, with `net.` and without.

    Raises:
        CheckpointError: As of `renamed`.
    """
    names = renamed(weights, keys, source)
    first = next(iter(own), "")
    below = "net." if first.startswith("net.") else ""
    itself = Layout("vidssl", re.escape(first.removeprefix(below)))
    found: dict[str, tuple[Layout, str]] = {}  # place to layout and sign
    for layout in (*LAYOUTS, itself) if below else (itself,):
        for name in names:
            at = re.fullmatch(rf"((?:.*\.)?){layout.sign}", name)
            if at:
                found.setdefault(at[1], (layout, name))
    for place, (layout, _) in list(found.items()):
        if layout is itself and any(place != outer and place.startswith(outer) for outer in found):
            del found[place]  # a part of a network may begin with a name that the whole begins with
    for better, other in BRANCHES:
        for place in list(found):
            twin = ".".join(better if part == other else part for part in place.split("."))
            if twin != place and twin in found:
                del found[place]
    meant = {place: (layout, sign) for place, (layout, sign) in found.items() if names[sign] != sign}
    return [
        _read(weights, names, layout, place, below, source) for place, (layout, _) in (meant or found).items()
    ]


def _read(
    weights: Mapping[str, Tensor], names: dict[str, str], layout: Layout, place: str, below: str, source: str
) -> MatchedLayout:
    inside = {}
    for name, old in names.items():
        if name.startswith(place):
            new = name[len(place) :]
            for pattern, replacement in layout.renames:
                new = re.sub(pattern, replacement, new)
            inside[below + new] = old
    others = tuple(old for name, old in names.items() if not name.startswith(place))
    return MatchedLayout(
        source, layout.name, place, {new: weights[old] for new, old in inside.items()}, inside, others
    )


def match(
    reading: MatchedLayout, own: Shapes, backbone: str, settings: dict[str, Any] | None = None
) -> Matched:
    """Compare the weights of a file with those of a backbone, by name and shape."""
    parts = {_part(name) for name in own}
    missing, fitting, reshaped = [], [], []
    for name, shape in own.items():
        if name not in reading.weights:
            if not name.endswith(_COUNTER):
                missing.append(name)
        elif (there := tuple(reading.weights[name].shape)) != shape:
            reshaped.append(f"{name}: {there}, here {shape}")
        else:
            fitting.append(name)
    if all(name.endswith(_COUNTER) for name in fitting):
        fitting = []  # a counter of steps is no weight
    extra = [name for name in reading.weights if name not in own]
    # A head is a part of its own. More of a part that the backbone has is another, deeper network.
    unknown = [name for name in extra if _part(name) in parts]
    left = [reading.names[name] for name in extra if _part(name) not in parts]
    return Matched(
        reading,
        backbone,
        settings or {},
        tuple(fitting),
        tuple(missing),
        tuple(unknown),
        tuple(reshaped),
        (*left, *reading.others),
    )


def _part(name: str) -> str:
    return name.removeprefix("net.").split(".")[0]


def infer(
    weights: Mapping[str, Tensor], keys: Mapping[str, str], source: str, arch: str | None
) -> list[Matched]:
    """Compare the weights of a file with those of every backbone that has a name, or of one.

    Raises:
        ConfigError: There is no backbone of that name.
        CheckpointError: As of `renamed`.
    """
    matches = []
    for name in BACKBONES if arch is None else [arch]:
        try:
            own = _shapes(name, {})
        except ConfigError:
            if arch is not None:
                raise
            continue  # a backbone that needs settings is nothing to guess
        for reading in readings(weights, keys, source, own):
            settings = _settings(name, reading)
            shapes = _shapes(name, settings) if settings else own
            matches.append(match(reading, shapes, name, settings))
    return matches


def _shapes(name: str, settings: dict[str, Any]) -> Shapes:
    with torch.device("meta"):
        return shapes_of(build_backbone(name, **settings))


def _settings(name: str, reading: MatchedLayout) -> dict[str, Any]:
    """Tell the width of a ResNet3D from its stem."""
    stem = reading.weights.get("net.blocks.0.conv.weight")
    wide = name in ("resnet3d18", "resnet3d50") and stem is not None and stem.ndim == 5 and len(stem) >= 4
    return {"width": len(stem)} if wide and stem is not None else {}


def choose(matches: list[Matched], weights: Mapping[str, Tensor], source: str, partial: bool) -> Matched:
    """Pick the backbone and the network that fit.

    Args:
        matches: All comparisons.
        weights: Of the file, for messages.
        source: The file, for messages.
        partial: Be content with the one of which most fits.

    Raises:
        CheckpointError: None fits, or several do.
    """
    if not weights:
        raise CheckpointError(
            f"{source} holds no weights by name: save the network's state_dict() with torch.save"
        )
    if not matches:
        raise CheckpointError(
            f"{source}: no network is known by these names{first_of(weights)}; tell what stands for what with "
            "init.keys={OLD: NEW}, beginnings of names (Python: keys=)"
        )
    best = [found for found in matches if found.whole]
    if not best:
        most = max(found.likeness for found in matches)
        best = [found for found in matches if found.likeness == most]
        if not partial or not best[0].fitting:
            raise CheckpointError(_refusal(best[0], several=len({m.backbone for m in matches}) > 1))
    if len(best) > 1:
        told = " or ".join(f"{m.backbone} from '{m.reading.place}'" for m in best)
        raise CheckpointError(
            f"{source} can be {told}: name the backbone (Python: arch=), or the network with "
            "init.keys={BEGINNING: ''} (Python: keys=)"
        )
    return best[0]


def _refusal(found: Matched, several: bool) -> str:
    source, place = found.reading.source, found.reading.place
    told = f"names are read as those of {found.reading.layout}" + (f" after '{place}'" if place else "")
    if several and not found.fitting:
        return f"{source} fits no backbone, not in one weight; {told}"
    head = f"fits no backbone, best {found.backbone}" if several else f"does not fit {found.backbone}"
    told = f"{source} {head}: {found.differences()}; {told}"
    if not found.fitting:
        return f"{told}; nothing fits: take another file or backbone"
    return (
        f"{told}; choose the backbone that was trained, or take what fits with init.partial=true "
        "(Python: partial=True)"
    )
