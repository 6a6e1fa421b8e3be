"""Methods that compare queries of an online network with keys of its slowly moving average."""

import copy
from itertools import product
from typing import Annotated, cast

import torch
from pydantic import AfterValidator, Field
from torch import Tensor, nn

from vidssl import comm
from vidssl.config import Settings
from vidssl.errors import ConfigError
from vidssl.methods.base import Method
from vidssl.methods.parts import KeyQueue, full_precision, key_statistics, move_towards, shuffled, unit
from vidssl.models.backbones import Backbone
from vidssl.models.heads import Head, mlp
from vidssl.schedule import Schedule, Scheduled, constant
from vidssl.types import Batch


def _different(views: tuple[int, ...]) -> tuple[int, ...]:
    if len({*views}) < len(views):
        raise ValueError("names a view twice: each of its keys would enter the queue twice")
    return views


KeyViews = Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1), AfterValidator(_different)]


class MomentumMethod(Method):
    """Online network, target network, queue of keys. A method adds `pair_loss`.

    Attributes:
        shuffle: Whether keys are encoded in batches that are shuffled over the processes.
        weights: In the loss, of each thing that `look` gives.
    """

    class Config(Settings):
        """Settings that all of these methods share."""

        projector: Head = Head()
        predictor: Head | None = None  # on the online branch only
        queue: int = Field(default=65536, ge=1)  # K
        momentum: Scheduled = Schedule(start=0.99, end=1.0)  # of the target
        temperature: Scheduled = constant(0.1)  # tau
        # Which views are encoded as keys: (0, 1) is the symmetric loss, (1,) the asymmetric one.
        key_views: KeyViews = (0, 1)

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
        self.queue = KeyQueue(config.queue, out)
        self.shuffle = False
        self.weights: tuple[float, ...] = (1.0,)

    @property
    def target_backbone(self) -> Backbone:
        """The slowly moving average of the backbone."""
        return cast(Backbone, self.target[0])

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
        if len(views) < 2 or max(key_views) >= len(views):
            raise ConfigError(
                f"key_views {key_views} and {len(views)} views do not fit: data.views needs more recipes"
            )
        pairs = [(q, k) for q, k in product(range(len(views)), key_views) if q != k]
        with torch.no_grad():
            keys = {k: unit(self._encode_key(*_inputs(batch, k))) for k in key_views}
        online = nn.Sequential(self.projector, self.predictor)
        queries = {
            q: unit(self._encode(self.backbone, online, *_inputs(batch, q))) for q in {q for q, _ in pairs}
        }
        with full_precision(batch.label.device):
            loss = torch.zeros((), device=batch.label.device)
            for n, weight in enumerate(self.weights):
                compared = [self.pair_loss(queries[q][:, n], keys[k][:, n]) for q, k in pairs]
                loss = loss + weight * torch.stack(compared).mean()
            scalars = {"loss": loss}
            if self.watched:
                every_query, every_key = (
                    comm.gather(torch.cat(rows).flatten(0, 1))
                    for rows in ([queries[q] for q, _ in pairs], [keys[k] for _, k in pairs])
                )
                scalars.update(key_statistics(every_query, every_key, self.queue.keys))
        self.queue.hold(torch.cat([keys[k] for k in key_views], dim=1))
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
        """Move the target, then let the step's keys into the queue."""
        super().after_step(progress)
        move_towards(
            self.target, nn.Sequential(self.backbone, self.projector), self.config.momentum.at(progress)
        )
        self.queue.enqueue()


def _inputs(batch: Batch, view: int) -> tuple[Tensor, ...]:
    """Clips of a view, and where it shows the patch pair if there are tracks."""
    return (batch.views[view],) if batch.boxes is None else (batch.views[view], batch.boxes[:, view])
