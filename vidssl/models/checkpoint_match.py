"""Compare the networks in a file with backbones, and choose the one that fits."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from vidssl.errors import CheckpointError, ConfigError
from vidssl.models.backbones import BACKBONES, Backbone, build_backbone
from vidssl.models.checkpoint_layouts import FoundNetwork, find_networks, first_names

Shapes = dict[str, tuple[int, ...]]

_COUNTER = "num_batches_tracked"  # absent before torch 0.4.1, and used by batch norms without momentum only


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


def shapes_of(backbone: Backbone) -> Shapes:
    """Return the shapes of a backbone's weights by name."""
    state = backbone.state_dict()
    return {name: tuple(value.shape) for name, value in state.items() if isinstance(value, Tensor)}


def compare(network: FoundNetwork, own: Shapes, backbone: str, settings: dict[str, Any] | None = None) -> Match:
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
        raise CheckpointError(f"{source} holds no named weights: save the network's state_dict() with torch.save")
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
