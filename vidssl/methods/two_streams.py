"""Two streams: a method on the network of each stream, with a loss of its own."""

from typing import Any, cast

import torch
from pydantic import field_validator
from torch import Tensor, nn

from vidssl.base.config import Settings, bind_choice, bind_inner, build
from vidssl.base.errors import ConfigError
from vidssl.base.types import Batch
from vidssl.methods.base import METHODS, Encode, Method
from vidssl.models.backbones import Backbone
from vidssl.models.two_streams import TwoStreams


@METHODS.register("two_streams")
class TwoStreamsMethod(Method):
    """Trains the network of each stream by a method of its own, on the same views of the same clips.

    The loss is the sum of theirs, and no stream's weights depend on the loss of another. A joint loss needs no such
    method: it is that of another method on the backbone `two_streams`.
    """

    class Config(Settings):
        method: dict[str, Any]  # name and settings of the method, the same for each stream
        tracks: str = "rgb"  # the stream whose network makes the run's tracks

        @field_validator("method")
        @classmethod
        def _with_defaults(cls, method: dict[str, Any]) -> dict[str, Any]:
            return bind_inner(METHODS, method)

        @property
        def inner(self) -> Any:
            """The config of the method of each stream."""
            return bind_choice(METHODS, self.method, "method")

    def __init__(self, config: Config, backbone: Backbone) -> None:
        if not isinstance(backbone, TwoStreams):
            raise ConfigError("two_streams needs a network for each stream: set backbone.name=two_streams")
        super().__init__(config, backbone)
        # Their networks are those of the backbone: checkpoints have both names for each weight, and one copy of it.
        methods = {name: build(METHODS, config.inner, encoder) for name, encoder in backbone.streams()}
        self.streams = nn.ModuleDict(methods)
        self._tracking = config.tracks
        self.dims = backbone.dims
        self.averages_labelled, self.in_batch = self.parts[0].averages_labelled, self.parts[0].in_batch

    @classmethod
    def innermost(cls, config: Settings) -> tuple[type[Method], Settings]:
        """Return class and config of the method of each stream."""
        assert isinstance(config, cls.Config)
        return METHODS[config.inner.name].innermost(config.inner)

    @property
    def parts(self) -> list[Method]:
        """The methods of the streams."""
        return [cast(Method, method) for method in self.streams.values()]

    def stream(self, name: str) -> Method:
        """Return the method of a stream."""
        return cast(Method, self.streams[name])

    @property
    def target_backbone(self) -> Backbone:
        """The network that updates a run's tracks: that of the stream `tracks`."""
        if self._tracking not in self.streams:
            raise ConfigError(f"method.tracks: no stream '{self._tracking}'; there are: {', '.join(self.streams)}")
        return self.stream(self._tracking).target_backbone

    def allocate(self, num_records: int) -> None:
        """Allocate state per record of the training list."""
        for method in self.parts:
            method.allocate(num_records)

    def begin(self, encode: Encode) -> None:
        """Prepare state that needs the initial weights."""
        for method in self.parts:
            method.begin(encode)

    def forward(self, batch: Batch, gradient: Tensor | None = None) -> dict[str, Tensor]:
        """Sum the losses of all streams, whose scalars are `rgb.loss` and so on; `gradient` as in `InBatchMethod`."""
        if gradient is not None:
            return {"loss": (self.embed(batch) * gradient).sum()}
        self._set_up_step()
        return self._summed([method(batch) for method in self.parts])

    def embed(self, batch: Batch) -> Tensor:
        """Compute the embeddings (B, streams, views, d)."""
        self._set_up_step()
        return torch.stack([method.embed(batch) for method in self.parts], dim=1)

    def group(self, batch: Batch) -> Tensor:
        """Group the samples (B,), alike in all streams."""
        return self.parts[0].group(batch)

    def contrast(self, embedding: Tensor, group: Tensor) -> dict[str, Tensor]:
        """Compute the scalars of a step from all its embeddings (B, streams, views, d)."""
        rows = zip(self.parts, embedding.unbind(dim=1), strict=True)
        return self._summed([method.contrast(embeddings, group) for method, embeddings in rows])

    def classify(self, features: Tensor) -> Tensor:
        """Average the class probabilities (B, classes) of the streams, given their features (B, dim)."""
        parts = zip(self.parts, torch.split(features, self.dims, dim=1), strict=True)
        return torch.stack([method.classify(x) for method, x in parts]).mean(dim=0)

    def logits(self, features: Tensor) -> Tensor:
        """Compute the logarithms of these probabilities."""
        return self.classify(features).clamp_min(torch.finfo(torch.float32).tiny).log()

    def after_step(self, progress: float) -> None:
        """Update the state of all streams."""
        super().after_step(progress)
        for method in self.parts:
            method.after_step(progress)

    def _set_up_step(self) -> None:
        """Copy the attributes that the loop sets to the methods of the streams."""
        for method in self.parts:
            method.watched, method.micro_batch, method.labelled = self.watched, self.micro_batch, self.labelled

    def _summed(self, scalars: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        """Sum the losses of the streams; with a stream's name before theirs, keep its scalars if they are logged."""
        loss = torch.stack([of_stream["loss"] for of_stream in scalars]).sum()
        if not self.watched:
            return {"loss": loss}
        streams = zip(self.streams, scalars, strict=True)
        named = {f"{stream}.{key}": value for stream, of_stream in streams for key, value in of_stream.items()}
        return {"loss": loss, **named}
