"""What could be added to two streams: losses and a network that are compared in study.yaml and motion.yaml.

    PYTHONPATH=examples/two_streams vidssl train --cfg configs/studies/small_video/two_streams.yaml \
        imports='[arms]' method.method.name=shuffled_negatives

Shapes: B videos, clips (B, C, T, S, S), d embedding dimension.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from vidssl.base.types import Batch
from vidssl.data.clip_samplers import SAMPLERS, Clip, Pair, Sampler
from vidssl.losses import full, full_precision, unit
from vidssl.methods.base import METHODS, Branch, Encoded, Method
from vidssl.methods.frame_invariance import FrameInvariance
from vidssl.methods.simclr import SimCLR
from vidssl.methods.two_streams import TwoStreamsMethod
from vidssl.models.backbones import BACKBONES, Backbone
from vidssl.models.heads import Head, mlp
from vidssl.models.resnet3d import ResNet3D18


def nce(query: Tensor, key: Tensor, *negatives: Tensor, temperature: float) -> Tensor:
    """InfoNCE of rows (B, d); negatives are rows for all queries (K, d) or for each its own (B, K, d)."""
    with full_precision(query.device):
        similarities = [query @ n.T if n.ndim == 2 else torch.einsum("bd,bkd->bk", query, n) for n in negatives]
        logits = torch.cat([(query * key).sum(dim=1, keepdim=True), *similarities], dim=1) / temperature
        return functional.cross_entropy(logits, logits.new_zeros(len(logits), dtype=torch.int64))


class Shuffled(Branch):
    """Adds the key of the same clip, its frames out of order, to the negatives of a query (IIC: Tao et al., 2020)."""

    def forward(self, host: Method, batch: Batch, encoded: Encoded, loss: Tensor) -> dict[str, Tensor]:
        """Return the loss with these negatives, in place of that without."""
        assert isinstance(host, FrameInvariance)
        with torch.no_grad():
            shuffled = {k: unit(host.target(out_of_order(batch.views[k]))) for k in encoded.keys}
        tau = host.config.temperature.at(host.progress)
        losses = [
            nce(encoded.queries[q], encoded.keys[k], host.queue.keys, shuffled[k][:, None], temperature=tau)
            for q, k in encoded.pairs()
        ]
        return {"loss": torch.stack(losses).mean()}


def out_of_order(clips: Tensor) -> Tensor:
    """Shuffle the frames of each clip, in one order for all clips, which is not the one they have."""
    count = clips.shape[2]
    order = torch.randperm(count)
    while torch.equal(order, torch.arange(count)):
        order = torch.randperm(count)
    return clips[:, :, order.to(clips.device)]


@METHODS.register("shuffled_negatives")
class ShuffledNegatives(FrameInvariance):
    """Frame invariance with negatives of the same video whose frames are shuffled."""

    class Config(FrameInvariance.Config):
        """Settings of frame invariance."""

    def __init__(self, config: Config, backbone: Backbone) -> None:
        super().__init__(config, backbone)
        self.branches["shuffled"] = Shuffled()


class Distant(Branch):
    """Tells two crops of one clip from a distant clip of the same video (TCLR: Dave et al., 2022, local-local)."""

    def __init__(self, head: Head, dim: int, temperature: float) -> None:
        super().__init__()
        self.head, self.temperature = mlp(dim, head), temperature

    def forward(self, host: Method, batch: Batch, encoded: Encoded, loss: Tensor) -> dict[str, Tensor]:
        """Add the loss; views 0 and 1 are distant clips, view 2 is the clip of view 0 in another crop."""
        a, far, near = (unit(self.head(full(host.backbone(batch.views[v])))) for v in (0, 1, 2))
        local = nce(a, near, far[:, None], temperature=self.temperature)
        return {"loss": loss + local, "distant": local.detach()}


@METHODS.register("distant_negatives")
class DistantNegatives(FrameInvariance):
    """Frame invariance and, by another head, the discrimination of distant clips of a video."""

    class Config(FrameInvariance.Config):
        """Settings of frame invariance; the sampler is `near_and_far`."""

    def __init__(self, config: Config, backbone: Backbone) -> None:
        super().__init__(config, backbone)
        self.branches["distant"] = Distant(config.projector, backbone.dim, config.temperature.at(0.0))

    def shared_views(self, count: int) -> list[int]:
        """List the views of frame invariance: the third is for the branch."""
        return [0, 1]


@SAMPLERS.register("near_and_far")
class NearAndFar(Sampler):
    """Two distant clips of `pair`, and the first of them again for the third view."""

    class Config(Pair.Config):
        """Settings of `pair`."""

    def __call__(self, meta: Any, generators: Any) -> list[Clip]:
        """Draw the clips."""
        settings = {name: getattr(self.config, name) for name in Pair.Config.model_fields}
        first, second = Pair(Pair.Config(**settings))(meta, generators[:2])
        return [first, second, first]


class Order(Branch):
    """Classifies in which order the frames of a clip are (VCOP, Xu et al., 2019; jointly: PCL, Tao et al., 2021)."""

    def __init__(self, dim: int, frames: int, weight: float) -> None:
        super().__init__()
        self.orders = torch.cartesian_prod(*[torch.arange(frames)] * frames)
        self.orders = self.orders[(self.orders.sort(dim=1).values == torch.arange(frames)).all(dim=1)]
        self.head, self.weight = nn.Linear(dim, len(self.orders)), weight

    def forward(self, host: Method, batch: Batch, encoded: Encoded, loss: Tensor) -> dict[str, Tensor]:
        """Add the cross-entropy of a random order of each clip of the first view."""
        clips = batch.views[0]
        order_index = torch.randint(len(self.orders), (len(clips),))
        shuffled = torch.stack([clip[:, order] for clip, order in zip(clips, self.orders[order_index], strict=True)])
        label = order_index.to(clips.device)
        logits = self.head(full(host.backbone(shuffled)))
        order_loss = functional.cross_entropy(logits, label)
        right = (logits.argmax(dim=1) == label).float().mean()
        return {"loss": loss + self.weight * order_loss, "order": order_loss.detach(), "order_accuracy": right}


@METHODS.register("order_pretext")
class OrderPretext(FrameInvariance):
    """Frame invariance and the classification of the order of frames."""

    class Config(FrameInvariance.Config):
        order_weight: float = 0.5
        frames: int = Field(default=4, ge=2, le=5)  # of a clip

    def __init__(self, config: Config, backbone: Backbone) -> None:
        super().__init__(config, backbone)
        self.branches["order"] = Order(backbone.dim, config.frames, config.order_weight)


class KeptEmbeddings(Branch):
    """Keeps the embeddings of a step for the method around it."""

    encoded: Encoded

    def forward(self, host: Method, batch: Batch, encoded: Encoded, loss: Tensor) -> dict[str, Tensor]:
        """Keep them."""
        self.encoded = encoded
        return {"loss": loss}


@METHODS.register("cross_streams")
class CrossStreams(TwoStreamsMethod):
    """Two streams whose queries are also compared with the keys and the queue of the other stream.

    IIC (Tao et al., 2020) and CoCLR (Han et al., 2020) with differences of frames; the inner method has a queue.
    """

    class Config(TwoStreamsMethod.Config):
        cross_weight: float = 0.5  # of the comparison with the other streams

    def __init__(self, config: Config, backbone: Backbone) -> None:
        super().__init__(config, backbone)
        self.weight = config.cross_weight
        for method in self.parts:
            method.branches["kept"] = KeptEmbeddings()

    def forward(self, batch: Batch, gradient: Tensor | None = None) -> dict[str, Tensor]:
        """Add the comparison of the streams with one another."""
        scalars = super().forward(batch, gradient)
        losses = []
        for query_method in self.parts:
            for key_method in self.parts:
                if query_method is key_method:
                    continue
                assert isinstance(query_method, FrameInvariance) and isinstance(key_method, FrameInvariance)
                query_stream, key_stream = (method.branches["kept"].encoded for method in (query_method, key_method))
                tau, queue = query_method.config.temperature.at(self.progress), key_method.queue.keys
                crossed = Encoded(query_stream.queries, key_stream.keys)
                losses += [nce(crossed.queries[q], crossed.keys[k], queue, temperature=tau) for q, k in crossed.pairs()]
        cross = torch.stack(losses).mean()
        loss = (1 - self.weight) * scalars["loss"] + len(self.parts) * self.weight * cross
        return {**scalars, "loss": loss, "cross": cross.detach()}


@METHODS.register("other_times")
class OtherTimes(SimCLR):
    """SimCLR that takes a clip with its frames reversed or shuffled for a clip of another video."""

    class Config(SimCLR.Config):
        change: Literal["reversed", "shuffled"] = "reversed"

    config: Config

    def embed(self, batch: Batch) -> Tensor:
        """Compute the embeddings (2B, views, d): after those of the clips those of the changed clips."""
        changed = torch.stack(batch.views).flatten(0, 1)
        changed = changed.flip(2) if self.config.change == "reversed" else out_of_order(changed)
        views = tuple(changed.chunk(len(batch.views)))
        return torch.cat([super().embed(batch), super().embed(replace(batch, views=views))])

    def group(self, batch: Batch) -> Tensor:
        """Group the samples (2B,): the changed clips of a video are positives of each other."""
        return torch.cat([batch.index, -1 - batch.index])


@BACKBONES.register("far_differences")
class FarDifferences(ResNet3D18):
    """ResNet3D-18 on the differences of frames that are some frames apart."""

    class Config(ResNet3D18.Config):
        distance: int = Field(default=3, ge=1)  # in frames of the clip

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.distance = config.distance

    def features(self, x: Tensor, out: Sequence[str]) -> list[Tensor]:
        """Compute the feature maps of the layers named in `out`, of T - distance differences."""
        return super().features(x[:, :, self.distance :] - x[:, :, : -self.distance], out)
