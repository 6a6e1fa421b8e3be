"""Two streams: a network for the frames and one for their differences (Simonyan and Zisserman, 2014).

Shapes: B clips, T frames, H x W pixels; C channels of a feature map; dim features of a clip; N videos.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from pydantic import Field, field_validator
from torch import Tensor, nn

from vidssl.base.config import InnerMistakes, Settings, bind_inner
from vidssl.base.errors import ConfigError
from vidssl.models.backbones import BACKBONES, Backbone, build_backbone
from vidssl.models.joined_features import unit_parts

_RGB: dict[str, Any] = {"name": "resnet3d18"}
_STREAMS = {"rgb": _RGB, "differences": {**_RGB, "frame_differences": True}}


@BACKBONES.register("two_streams")
class TwoStreams(Backbone):
    """Networks with separate weights that see the same clips; the features are those of all, joined.

    The features of a video are averaged over its clips first. Then the part of each stream is made a unit vector, so
    that all streams count alike in similarities.
    """

    class Config(Settings):
        # A backbone and its settings for each stream, by the stream's name. What a stream sees is a setting of its
        # backbone: `frame_differences`.
        streams: dict[str, dict[str, Any]] = Field(default=_STREAMS, min_length=2, validate_default=True)

        @field_validator("streams")
        @classmethod
        def _with_defaults(cls, streams: dict[str, Any]) -> dict[str, Any]:
            for name in streams:
                if not name.isidentifier() or hasattr(nn.ModuleDict, name):
                    raise ValueError(f"{name!r} cannot be the name of a stream: use a word such as rgb")
            if nested := [name for name, encoder in streams.items() if encoder.get("name") == "two_streams"]:
                raise ValueError(f"{nested[0]} is two_streams: name its streams here, beside the others")
            bound, mistakes = dict[str, Any](), list[str]()
            for name, encoder in streams.items():
                try:
                    bound[name] = bind_inner(BACKBONES, encoder, name)
                except InnerMistakes as error:
                    mistakes += error.lines
            if mistakes:
                raise InnerMistakes(mistakes)
            return bound

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.encoders = nn.ModuleDict({name: build_backbone(**encoder) for name, encoder in config.streams.items()})
        self.dims = [encoder.dim for _, encoder in self.streams()]
        self.dim = sum(self.dims)
        self.feature_layers = tuple(f"{name}.{layer}" for name, net in self.streams() for layer in net.feature_layers)
        name, encoder = next(self.streams())
        self.last_maps = f"{name}.{encoder.last_maps}"

    def streams(self) -> Iterator[tuple[str, Backbone]]:
        """Yield name and network of each stream."""
        for name, encoder in self.encoders.items():
            assert isinstance(encoder, Backbone)
            yield name, encoder

    def stream(self, name: str) -> Backbone:
        """Return the network of a stream; a ConfigError if there is none of the name."""
        networks = dict(self.streams())
        if name not in networks:
            raise ConfigError(f"no stream '{name}': the backbone has {', '.join(networks)}")
        return networks[name]

    def forward(self, x: Tensor) -> Tensor:
        """Encode clips (B, 3, T, H, W) as features (B, dim), those of one stream after those of the other."""
        return torch.cat([encoder(x) for _, encoder in self.streams()], dim=1)

    def finish(self, features: Tensor) -> Tensor:
        """Make the part of each stream in the features (N, dim) of videos a unit vector."""
        return unit_parts(features, self.dims)

    def features(self, x: Tensor, out: Sequence[str]) -> list[Tensor]:
        """Compute the feature maps (B, C, T', H', W') of the layers named in `out`, as `rgb.layer4`."""
        self.check_layers(out)
        maps: dict[str, Tensor] = {}
        for name, encoder in self.streams():
            layers = [layer for layer in out if layer.startswith(f"{name}.")]
            if layers:
                outputs = encoder.features(x, [layer.removeprefix(f"{name}.") for layer in layers])
                maps |= zip(layers, outputs, strict=True)
        return [maps[layer] for layer in out]

    @classmethod
    def check_regions(cls) -> None:
        """Raise a ConfigError: only the network of a single stream has a third stage."""
        raise ConfigError('regions need one network: name a stream, such as stream="rgb", or method.name=two_streams')

    def layer_module(self, layer: str) -> nn.Module:
        """Return the module whose output has the maps of a layer, as `rgb.layer4`."""
        name, _, inner = layer.partition(".")
        return self.stream(name).layer_module(inner) if name in self.encoders else super().layer_module(layer)
