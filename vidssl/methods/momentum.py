"""Methods that compare queries of an online network with keys of its slowly moving average."""

import copy
from collections.abc import Sequence
from functools import partial
from itertools import product
from math import log
from typing import Annotated, cast

import torch
from pydantic import AfterValidator, Field
from torch import Tensor, nn

from vidssl import distributed, losses
from vidssl.config import Settings
from vidssl.errors import ConfigError
from vidssl.methods.bank import MemoryBank
from vidssl.methods.base import Method
from vidssl.methods.inter import Inter, InterBranch
from vidssl.methods.jigsaw import Jigsaw, JigsawBranch, whole_views
from vidssl.methods.parts import (
    KeyQueue,
    Temperature,
    UnitInterval,
    check_batch_norm,
    full_precision,
    key_statistics,
    move_towards,
    shuffled,
    unit,
)
from vidssl.models.backbones import Backbone
from vidssl.models.heads import Head, mlp
from vidssl.schedule import Schedule, constant
from vidssl.types import Batch


def _different(views: tuple[int, ...]) -> tuple[int, ...]:
    if len({*views}) < len(views):
        raise ValueError("names a view twice: each of its keys would enter the queue twice")
    return views


KeyViews = Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1), AfterValidator(_different)]


class Queued(Settings):
    """What settings of a method have whose negatives wait in a queue."""

    queue: int = Field(default=65536, ge=1)  # K
    temperature: Temperature = constant(0.1)  # tau


class MomentumMethod(Method):
    """Online network, target network and, where settings are `Queued`, a queue of keys. A method adds `pair_loss`.

    Attributes:
        queue: Of keys; of size 0 without `Queued`.
        bank: The target's newest key of each video; only with InterCLR's branch.
        shuffle: Whether keys are encoded in batches that are shuffled over the processes.
        weights: In the loss, of each thing that `look` gives.
    """

    class Config(Settings):
        """Settings that all of these methods share."""

        projector: Head = Head()
        predictor: Head | None = None  # on the online branch only
        momentum: UnitInterval = Schedule(start=0.99, end=1.0)  # of the target
        # Which views are encoded as keys: (0, 1) is the symmetric loss, (1,) the asymmetric one.
        key_views: KeyViews = (0, 1)
        jigsaw: Jigsaw | None = None  # PIRL's branch
        inter: Inter | None = None  # InterCLR's branch

    def __init__(self, config: Config, backbone: Backbone) -> None:
        super().__init__(backbone)
        self.config = config
        self.projector = mlp(backbone.dim, config.projector)
        out = config.projector.out
        if config.predictor is not None and config.predictor.out != out:
            raise ConfigError(
                f"predictor.out {config.predictor.out} is not projector.out {out}: make them equal"
            )
        self.predictor = nn.Identity() if config.predictor is None else mlp(out, config.predictor)
        self.target = copy.deepcopy(nn.Sequential(self.backbone, self.projector)).requires_grad_(False)
        self.queue = KeyQueue(config.queue if isinstance(config, Queued) else 0, out)
        self.jigsaw = None if config.jigsaw is None else JigsawBranch(config.jigsaw, backbone.dim, out)
        temperature = config.temperature if isinstance(config, Queued) else None
        self.inter = None if config.inter is None else InterBranch(config.inter, out, temperature)
        if self.inter is not None:
            self.bank = MemoryBank(out, omega=1.0)
        self.shuffle = False
        self.weights: tuple[float, ...] = (1.0,)

    @property
    def target_backbone(self) -> Backbone:
        """The slowly moving average of the backbone."""
        return cast(Backbone, self.target[0])

    def allocate(self, num_records: int) -> None:
        """Make room in the bank, where there is one."""
        if self.inter is not None:
            self.bank.allocate(num_records)
            self.inter.clusters.allocate(num_records)

    def pair_loss(self, query: Tensor, key: Tensor) -> Tensor:
        """Compare queries with their keys, both (N, d) unit rows, and with `self.queue.keys`; gives a scalar."""
        raise NotImplementedError

    def look(self, backbone: Backbone, clips: Tensor, boxes: Tensor | None = None) -> list[Tensor]:
        """Give what of a view is compared, each (B, dim): its clips, and whatever a method sees in them besides.

        Args:
            backbone: Of the online or of the target network.
            clips: (B, C, T, S, S).
            boxes: (B, 4) xyxy in pixels of the clips: the region of the patch pair; None where there are no tracks.
        """
        return [backbone(clips)]

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Average the loss over all ordered pairs of a query view and another key view."""
        views, key_views = batch.views, self.config.key_views
        whole = whole_views(self.config.jigsaw, len(views))
        if len(whole) < 2 or not {*key_views} <= {*whole}:
            used = f", of which jigsaw cuts one ({len(whole)} are left)" if len(whole) < len(views) else ""
            raise ConfigError(
                f"key_views {key_views} and {len(views)} views{used} do not fit: data.views needs more recipes"
            )
        check_batch_norm(nn.Sequential(self.projector, self.predictor), len(batch.index))
        pairs = _pairs(whole, key_views)
        with torch.no_grad():
            keys = {k: unit(self._encode_key(*_inputs(batch, k))) for k in key_views}
        queries = self._queries(batch, sorted({q for q, _ in pairs}))
        puzzles = self._puzzles(batch, list(queries))
        with full_precision(batch.label.device):
            loss = self._compare(queries, keys, pairs, self.weights)
            if self.config.jigsaw is not None:
                share = self.config.jigsaw.weight
                cut = _pairs(sorted(puzzles), key_views)
                loss = (1 - share) * loss + share * self._compare(puzzles, keys, cut, (1.0,))
            scalars = {"loss": loss}
            if self.inter is not None:
                clips = [query[:, 0] for query in queries.values()]
                index, bank = batch.index, self.bank
                scalars = self.inter.mix(loss, clips, index, bank, self.step, self.progress)
                newest = torch.stack([key[:, 0] for key in keys.values()]).mean(dim=0)
                bank.hold(index, unit(newest))
            if self.watched:
                scalars.update(self._watch(queries, keys, pairs))
        self.queue.hold(torch.cat([keys[k] for k in key_views], dim=1))
        return scalars

    def _queries(self, batch: Batch, numbers: list[int]) -> dict[int, Tensor]:
        """Encode views by the online network: (B, len(weights), d) each.

        Views of one size that are no keys go through together: local views of multi-crop. A key view goes alone, as its
        key does: batch norm then sees both of them alike.
        """
        online = nn.Sequential(self.projector, self.predictor)
        groups: dict[object, list[int]] = {}
        for q in numbers:
            groups.setdefault(q if q in self.config.key_views else batch.views[q].shape, []).append(q)
        queries: dict[int, Tensor] = {}
        for group in groups.values():
            inputs = zip(*(_inputs(batch, q) for q in group), strict=True)
            joined = (x[0] if len(x) == 1 else torch.cat(x) for x in inputs)
            encoded = unit(self._encode(self.backbone, online, *joined))
            queries.update(zip(group, encoded.chunk(len(group)), strict=True))
        return queries

    def _puzzles(self, batch: Batch, numbers: list[int]) -> dict[int, Tensor]:
        """Encode the branch's own view, or these, cut into patches: (B, 1, d) each; none without the JigSaw branch."""
        if self.jigsaw is None:
            return {}
        if self.jigsaw.config.view is not None:
            numbers = [self.jigsaw.config.view]
        embed = partial(self.jigsaw, self.backbone)
        return {q: unit(embed(batch.views[q], batch.index, self.step, q)).unsqueeze(1) for q in numbers}

    def _compare(
        self,
        queries: dict[int, Tensor],
        keys: dict[int, Tensor],
        pairs: list[tuple[int, int]],
        weights: tuple[float, ...],
    ) -> Tensor:
        parts = []
        for n, weight in enumerate(weights):
            compared = [self.pair_loss(queries[q][:, n], keys[k][:, n]) for q, k in pairs]
            parts.append(weight * torch.stack(compared).mean())
        return torch.stack(parts).sum()

    @torch.no_grad()
    def _watch(
        self, queries: dict[int, Tensor], keys: dict[int, Tensor], pairs: list[tuple[int, int]]
    ) -> dict[str, Tensor]:
        """Measure the keys of all processes, and of methods with negatives how much a query tells of its key."""
        if not len(self.queue.keys):
            pairs = pairs[:1]  # negatives are the batch's other keys: not other views of the same video
        every_query, every_key = (
            distributed.gather(torch.cat(rows).flatten(0, 1))
            for rows in ([queries[q] for q, _ in pairs], [keys[k] for _, k in pairs])
        )
        one_each = distributed.gather(keys[pairs[0][1]][:, 0])
        scalars = key_statistics(every_query, every_key, self.queue.keys, one_each)
        if isinstance(self.config, Queued):
            tau = self.config.temperature.at(self.progress)
            found = losses.info_nce(every_query, every_key, self.queue.keys, tau)
            scalars["i_nce"] = log(len(self.queue.keys) + 1) - found
        return scalars

    def _encode(self, backbone: Backbone, head: nn.Module, *inputs: Tensor) -> Tensor:
        """Encode all that is compared of a view: (B, len(weights), d)."""
        return torch.stack([head(x) for x in self.look(backbone, *inputs)], dim=1)

    @torch.inference_mode()
    def _encode_key(self, *inputs: Tensor) -> Tensor:
        def encoder(*rows: Tensor) -> Tensor:
            return self._encode(self.target_backbone, self.target[1], *rows)

        return shuffled(encoder, *inputs) if self.shuffle else encoder(*inputs)

    def after_step(self, progress: float) -> None:
        """Move the target, then let the step's keys into the queue and the bank."""
        super().after_step(progress)
        move_towards(
            self.target, nn.Sequential(self.backbone, self.projector), self.config.momentum.at(progress)
        )
        self.queue.enqueue()
        if self.inter is not None:
            self.inter.after_step(self.bank, self.step)


def _pairs(queries: Sequence[int], keys: Sequence[int]) -> list[tuple[int, int]]:
    """All ordered pairs of a query view and another key view."""
    return [(q, k) for q, k in product(queries, keys) if q != k]


def _inputs(batch: Batch, view: int) -> tuple[Tensor, ...]:
    """Clips of a view, and where it shows the patch pair if there are tracks."""
    return (batch.views[view],) if batch.boxes is None else (batch.views[view], batch.boxes[:, view])
