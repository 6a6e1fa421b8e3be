"""Features side by side: those of several networks, `A+B`, and those of the clips of a video in their order."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from vidssl.base.errors import ConfigError
from vidssl.models.backbones import Backbone

SUMS = {"vidssl-default": "vidssl-frames+0.5*floor:motion"}  # that come with vidssl
_PART = re.compile(r"((?P<weight>\d+(\.\d+)?)\*)?(?P<name>[^*#]+)(#(?P<stream>\w+))?")


@dataclass(frozen=True)
class EncoderPart:
    """A network of a sum, by its name."""

    name: str
    weight: float = 1.0  # length of its part of the features
    stream: str | None = None

    @property
    def model(self) -> str:
        """The name of the network alone."""
        return self.name if self.stream is None else f"{self.name}#{self.stream}"


def parts_of(model: object) -> list[EncoderPart]:
    """Return the parts of `[WEIGHT*]NAME[#STREAM]+…`: one for a stream of one network, none for a plain name.

    A path that exists is a plain name, also as the name of a part; `SUMS` have names of their own.

    Raises:
        ConfigError: It is written in another way.
    """
    text = "" if not isinstance(model, str) or os.path.lexists(model) else f"+{model}+"
    for name, parts in SUMS.items():
        text = text.replace(f"+{name}+", f"+{parts}+")
    pieces = list[str]()
    for piece in text[1:-1].split("+") if re.search(r".[+#].|^.[\d.]+\*", text) else ():
        longer = _PART.fullmatch(f"{pieces[-1]}+{piece}") if pieces else None
        if longer is not None and os.path.lexists(longer["name"]):
            pieces[-1] = longer[0]
        else:
            pieces.append(piece)
    encoders = list[EncoderPart]()
    for piece in pieces:
        match = _PART.fullmatch(piece)
        if os.path.lexists(piece):  # also with # or * in its name
            encoders.append(EncoderPart(piece))
        elif match is not None and float(match["weight"] or 1) and match["name"] not in SUMS:
            encoders.append(EncoderPart(match["name"], float(match["weight"] or 1), match["stream"]))
    if len(encoders) < len(pieces) or (len(encoders) == 1 and (encoders[0].weight != 1 or not encoders[0].stream)):
        form = "A+B, and each part as [WEIGHT*]NAME[#STREAM], such as A+0.5*B#differences"
        raise ConfigError(f"{model}: write a sum of networks as {form}; weights are above 0")
    return encoders


class Joined(Backbone):
    """Several networks as one, which see their own clips of a video: `self(clips, n)` encodes those of network n.

    The features of a video are side by side; with `weights` each part is a vector of this length, so that equal weights
    count alike in similarities.
    """

    last_maps = ""

    def __init__(self, networks: Sequence[Backbone], weights: Sequence[float] | None = None) -> None:
        super().__init__()
        self.networks, self.weights = [*networks], weights
        self.registered = nn.ModuleList(networks)  # moves them to a device
        self.dims = [network.dim for network in networks]
        self.dim = sum(self.dims)

    def forward(self, x: Tensor, number: int | None = None) -> Tensor:
        """Encode clips (B, 3, T, S, S) as features (B, D) of one of the networks."""
        if number is None:
            raise ConfigError("a sum has several networks, each with its own clips, and this is for one: name it")
        features: Tensor = self.networks[number](x)
        return features

    def finish(self, features: Tensor) -> Tensor:
        """Finish the part of each network in features (…, dim) of videos, and scale it to its weight."""
        parts = torch.split(features, self.dims, dim=-1)
        finished = torch.cat([network.finish(part) for network, part in zip(self.networks, parts, strict=True)], dim=-1)
        return finished if self.weights is None else unit_parts(finished, self.dims, self.weights)


class InOrder(Backbone):
    """A network that sees all clips of a video one after another, (B, 3, clips T, S, S): features (B, clips D)."""

    last_maps = ""

    def __init__(self, network: Backbone, clips: int, frames: int) -> None:
        super().__init__()
        self.network, self.clips, self.frames, self.dim = network, clips, frames, network.dim * clips

    def forward(self, x: Tensor) -> Tensor:
        """Encode clips."""
        if x.shape[2] != self.clips * self.frames:
            raise ConfigError(f"join=order joins the {self.clips} clips of a video, and this has its own: leave it out")
        clips = torch.cat(torch.stack(torch.split(x, self.frames, dim=2), dim=1).unbind())  # (B clips, 3, T, S, S)
        features: Tensor = self.network(clips)
        return features.reshape(len(x), self.dim)

    def finish(self, features: Tensor) -> Tensor:
        """Finish the part of each clip in features (…, dim) of videos."""
        return self.network.finish(features.reshape(*features.shape[:-1], self.clips, self.network.dim)).flatten(-2)


def unit_parts(features: Tensor, dims: Sequence[int], weights: Sequence[float] | None = None) -> Tensor:
    """Make the parts of features (…, D), of these lengths, unit vectors, times `weights` if there are any."""
    units = [functional.normalize(part, dim=-1) for part in torch.split(features, [*dims], dim=-1)]
    return torch.cat(units if weights is None else [w * unit for w, unit in zip(weights, units, strict=True)], dim=-1)
