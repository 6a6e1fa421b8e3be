"""Compare the networks in a file with backbones, and choose the one that fits."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vidssl.errors import CheckpointError, ConfigError, first_few
from vidssl.models.backbones import BACKBONES, Backbone, build_backbone
from vidssl.models.checkpoint_layouts import Network, find_networks

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
