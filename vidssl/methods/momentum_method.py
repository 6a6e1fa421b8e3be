"""Methods that compare queries of an online network with keys of a target network, its moving average.

Shapes: N samples of a process, clips (N, C, T, S, S), boxes (N, 4) xyxy, d embedding dimension, K keys in the queue.
"""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, cast

import torch
from pydantic import AfterValidator, Field
from torch import Tensor, nn

from vidssl.base import distributed
from vidssl.base.config import Settings
from vidssl.base.errors import ConfigError
from vidssl.base.schedule import Schedule, Temperature, UnitInterval, constant
from vidssl.base.types import Batch
from vidssl.losses import full_precision, unit
from vidssl.methods.base import Encoded, Method
from vidssl.methods.interclr_branch import Inter, InterBranch
from vidssl.methods.jigsaw_branch import Jigsaw, JigsawBranch
from vidssl.methods.statistics import key_statistics
from vidssl.models.backbones import Backbone
from vidssl.models.heads import Head, check_batch_norm, mlp


class KeyQueue(nn.Module):
    """The last K keys of all processes: unit rows, equal on every process, written when a step ends."""

    keys: Tensor  # (K, d)
    pointer: Tensor  # (), where the next key goes

    def __init__(self, size: int, dim: int) -> None:  # of size 0 it ignores keys
        super().__init__()
        self.register_buffer("keys", unit(torch.randn(size, dim)))
        self.register_buffer("pointer", torch.zeros((), dtype=torch.int64))
        self._held: list[Callable[[], Tensor]] = []  # wait for the keys of one micro-batch

    def hold(self, keys: Tensor) -> None:
        """Collect keys (N, …, d) of N samples of this process; the gather overlaps with the backward pass."""
        if len(self.keys):
            self._held.append(distributed.gather_later(keys.detach()))

    @torch.no_grad()
    def enqueue(self) -> None:
        """Replace the oldest keys by the collected ones of all processes, in the order of the step's global batch."""
        if not self._held:
            return
        held = torch.cat([wait() for wait in self._held], dim=1)  # (world, N, …, d)
        self._held = []
        keys = held.flatten(0, -2)[-len(self.keys) :]
        places = (self.pointer + torch.arange(len(keys), device=keys.device)) % len(self.keys)
        # A new tensor, not a write in place: the graph of this step may still hold the old one.
        self.keys = self.keys.index_copy(0, places, keys)
        self.pointer = (self.pointer + len(keys)) % len(self.keys)


def _unique(views: tuple[int, ...]) -> tuple[int, ...]:
    if len({*views}) < len(views):
        raise ValueError("contains a view twice: each of its keys would enter the queue twice")
    return views


KeyViews = Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1), AfterValidator(_unique)]


class MomentumMethod(Method):
    """Online network, target network and, with a `QueueConfig`, a queue of keys. A method adds `pair_loss`."""

    class Config(Settings):
        projector: Head = Head()  # of both networks
        predictor: Head | None = None  # of the online network only
        momentum: UnitInterval = Schedule(start=0.99, end=1.0)  # of the target
        key_views: KeyViews = (0, 1)  # views that are encoded as keys; [0, 1]: symmetric loss, [1]: asymmetric
        jigsaw: Jigsaw | None = None  # PIRL's branch
        inter: Inter | None = None  # InterCLR's branch

    def __init__(self, config: Config, backbone: Backbone) -> None:
        super().__init__(config, backbone)
        self.projector = mlp(backbone.dim, config.projector)
        out, predictor = config.projector.out, config.predictor
        if predictor is not None and predictor.out != out:
            raise ConfigError(f"predictor.out {predictor.out} is not projector.out {out}: make them equal")
        self.predictor = nn.Identity() if predictor is None else mlp(out, predictor)
        self.target = copy.deepcopy(nn.Sequential(self.backbone, self.projector)).requires_grad_(False)
        queued = config if isinstance(config, QueueConfig) else None
        self.queue = KeyQueue(0 if queued is None else queued.queue, out)
        self.temperature: Schedule | None = None if queued is None else queued.temperature
        if config.jigsaw is not None:
            self.branches["jigsaw"] = JigsawBranch(config.jigsaw, backbone.dim, out)
        if config.inter is not None:
            self.branches["inter"] = InterBranch(config.inter, out, self.temperature)
        self.shuffle = False  # whether keys are encoded in batches that are shuffled over the processes (`sync_bn`)

    @property
    def target_backbone(self) -> Backbone:
        """The moving average of the backbone."""
        return cast(Backbone, self.target[0])

    @property
    def key_network(self) -> nn.Module:
        """The target network."""
        return self.target

    def pair_loss(self, query: Tensor, key: Tensor) -> Tensor:
        """Compare queries with their keys, both (N, d) unit rows, and with `self.queue.keys`; return a scalar."""
        raise ConfigError(f"method {type(self).__name__} has no pair_loss(query, key): see docs/extend.md")

    def encode_view(self, backbone: Backbone, clips: Tensor, boxes: Tensor | None = None) -> list[Tensor]:
        """Compute the features (N, dim) of a view: of the clip and, with patch pairs, of the region in `boxes`."""
        return [backbone(clips)]

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Average the loss over all ordered pairs of a query view and another key view."""
        key_views, views = self.config.key_views, self.shared_views(len(batch.views))
        if len(views) < 2 or not {*key_views} <= {*views}:
            raise ConfigError(f"key_views {key_views} do not fit the views {views}: data.views needs more recipes")
        check_batch_norm(len(batch.index), self.projector, self.predictor)
        with torch.no_grad():
            keys = {k: self._embed_key(batch, k) for k in key_views}
        queries = self._embed_queries(batch, [v for v in views if {*key_views} - {v}])
        # Clips are compared with clips; with patch pairs also regions with regions.
        parts = [
            Encoded({q: x[n] for q, x in queries.items()}, {k: x[n] for k, x in keys.items()})
            for n in range(len(keys[key_views[0]]))
        ]
        scalars = self.compare_with_branches(batch, replace(parts[0], patches=parts[1] if len(parts) > 1 else None))
        if self.watched:
            scalars |= self._statistics(parts)
        # All keys of a video are neighbours in the queue.
        self.queue.hold(torch.stack([x for k in key_views for x in keys[k]], dim=1))
        return scalars

    def compare(self, encoded: Encoded) -> Tensor:
        """Average `pair_loss` over all ordered pairs of a query view and another key view."""
        with full_precision(self.queue.keys.device):
            return torch.stack([self.pair_loss(encoded.queries[q], encoded.keys[k]) for q, k in encoded.pairs()]).mean()

    def _embed_queries(self, batch: Batch, views: list[int]) -> dict[int, list[Tensor]]:
        """Embed views by the online network: unit rows (N, d) of the clip, and of the region if there is one."""
        # Views of one size that are no keys are joined to one batch: local views of multi-crop. A key view has a batch
        # of its own, as its key has: batch norm then treats both alike.
        groups: dict[object, list[int]] = {}
        for v in views:
            groups.setdefault(v if v in self.config.key_views else batch.views[v].shape, []).append(v)
        embedded: dict[int, list[Tensor]] = {}
        for group in groups.values():
            parts = zip(*(_inputs(batch, v) for v in group), strict=True)
            inputs = (torch.cat(x) if len(x) > 1 else x[0] for x in parts)
            features = self.encode_view(self.backbone, *inputs)
            rows = [unit(self.predictor(self.projector(x))).chunk(len(group)) for x in features]
            embedded.update({v: [x[n] for x in rows] for n, v in enumerate(group)})
        return {v: embedded[v] for v in views}

    def _embed_key(self, batch: Batch, view: int) -> list[Tensor]:
        def encoder(*inputs: Tensor) -> Tensor:  # one tensor (N, 1 or 2, d), as rows may be exchanged
            features = self.encode_view(self.target_backbone, *inputs)
            return torch.stack([self.target[1](x) for x in features], dim=1)

        with torch.inference_mode():
            inputs = _inputs(batch, view)
            rows = shuffled(encoder, *inputs) if self.shuffle else encoder(*inputs)
        return [unit(x) for x in rows.unbind(dim=1)]

    def _statistics(self, parts: list[Encoded]) -> dict[str, Tensor]:
        pairs = parts[0].pairs()
        one_each = parts[0].keys[pairs[0][1]]
        if not len(self.queue.keys):
            pairs = pairs[:1]  # negatives are the batch's other keys, not other views of the same video
        query = torch.cat([part.queries[q] for q, _ in pairs for part in parts])
        key = torch.cat([part.keys[k] for _, k in pairs for part in parts])
        tau = None if self.temperature is None else self.temperature.at(self.progress)
        return key_statistics(query, key, self.queue.keys, one_each, tau)

    def after_step(self, progress: float) -> None:
        """Move the target towards the online network (SCE, Eq. 2), then write the step's keys to the queue."""
        super().after_step(progress)
        online: list[Tensor] = [*self.backbone.parameters(), *self.projector.parameters()]
        with torch.no_grad():  # buffers stay: the target's batch norms have the statistics of its own activations
            torch._foreach_lerp_(list(self.target.parameters()), online, 1.0 - self.config.momentum.at(progress))
        self.queue.enqueue()


class QueueConfig(MomentumMethod.Config):
    """Settings of methods whose negatives come from a queue of keys."""

    queue: int = Field(default=65536, ge=1)  # K, number of keys
    temperature: Temperature = constant(0.1)  # tau


def _inputs(batch: Batch, view: int) -> tuple[Tensor, ...]:
    return (batch.views[view],) if batch.boxes is None else (batch.views[view], batch.boxes[:, view])


def shuffled(encoder: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """Encode inputs (N, …) in batches that are shuffled over all processes (MoCo, section 3.3); return the own rows."""
    if distributed.world() == 1:
        return encoder(*inputs)
    rows = len(inputs[0])
    order = distributed.broadcast(torch.randperm(distributed.world() * rows))
    encoded = distributed.gather(encoder(*(distributed.exchange(x, order) for x in inputs)))
    return encoded[torch.argsort(order)[distributed.rank() * rows :][:rows].to(encoded.device)]
