"""Methods that contrast a batch with itself: the negatives are the other clips of all processes."""

from typing import ClassVar

import torch
from torch import Tensor

from vidssl import distributed, losses
from vidssl.config import Settings
from vidssl.errors import ConfigError
from vidssl.methods.base import Method
from vidssl.methods.parts import Temperature, check_batch_norm, effective_rank, full_precision, unit
from vidssl.models.backbones import Backbone
from vidssl.models.heads import Head, mlp
from vidssl.schedule import constant
from vidssl.types import Batch


class InBatchMethod(Method):
    """One network, no queue. A method adds `group`.

    The negatives are those of the whole step, whatever the number of processes and micro-batches: with several
    micro-batches the loop calls `embed` and `contrast` by themselves, see `vidssl.engine.accumulate`.

    Attributes:
        fewest_views: That it can learn from.
    """

    class Config(Settings):
        """Settings that these methods share."""

        projector: Head = Head(layers=3, hidden=2048, out=128, norm="all")
        temperature: Temperature = constant(0.1)  # tau

    fewest_views: ClassVar[int] = 2

    def __init__(self, config: Config, backbone: Backbone) -> None:
        super().__init__(backbone)
        self.config = config
        self.projector = mlp(backbone.dim, config.projector)

    def group(self, batch: Batch) -> Tensor:
        """Number the samples (B,): clips of equal number are one another's positives."""
        raise NotImplementedError

    def forward(self, batch: Batch, gradient: Tensor | None = None) -> dict[str, Tensor]:
        """Contrast all views of all samples with one another, over all processes.

        To change the loss, override `contrast`, not this: with micro-batches `forward` does not compute the loss.

        Args:
            batch: All samples of a step; or some of them, with `gradient`.
            gradient: (B, views, d), that of a loss by the embeddings of the batch: the result then is a `"loss"` with
                this gradient. So a step of several micro-batches learns from the loss of all of them.
        """
        embedding = self.embed(batch)
        if gradient is not None:
            return {"loss": (embedding * gradient).sum()}
        return self.contrast(embedding, self.group(batch))

    def embed(self, batch: Batch) -> Tensor:
        """Compute the unit embeddings (B, views, d) of all views.

        Raises:
            ConfigError: There are too few views, or too few samples for batch norm.
        """
        views = len(batch.views)
        if views < self.fewest_views:
            raise ConfigError(
                f"{views} view gives no positives, the fewest are {self.fewest_views}: data.views needs more recipes"
            )
        check_batch_norm(self.projector, len(batch.index))
        return unit(torch.stack([self.projector(self.backbone(view)) for view in batch.views], dim=1))

    def contrast(self, embedding: Tensor, group: Tensor) -> dict[str, Tensor]:
        """Compute the scalars of a step; it has no weights of its own.

        Args:
            embedding: (B, views, d) unit rows, of all samples of this process.
            group: (B,), as `group` gives them.
        """
        group = group.repeat_interleave(embedding.shape[1])
        with full_precision(group.device):
            every, every_group = (
                distributed.gather_with_grad(embedding.flatten(0, 1)),
                distributed.gather(group),
            )
            own = slice(distributed.rank() * len(group), (distributed.rank() + 1) * len(group))
            loss = losses.nt_xent(every, every_group, self.config.temperature.at(self.progress), own)
            scalars = {"loss": loss}
            if self.watched:
                scalars.update(group_statistics(every.detach(), every_group))
        return scalars


@torch.no_grad()
def group_statistics(embedding: Tensor, group: Tensor) -> dict[str, Tensor]:
    """Measure what `key_statistics` does, with the rows of other groups as negatives.

    Args:
        embedding: (R, d) unit rows, which are queries and keys.
        group: (R,), rows of equal number are one another's positives.

    Returns:
        `positive_similarity`; `negative_similarity` and `negative_spread`; `key_rank`, the effective rank of the
        first row of each group, and `key_rank_limit`, min(groups, d). Values without pairs are 0.
    """
    similarity = embedding @ embedding.T
    same = group[:, None] == group
    itself = torch.eye(len(group), dtype=torch.bool, device=group.device)

    def mean(x: Tensor, pairs: Tensor) -> Tensor:
        return (x * pairs).sum() / pairs.sum().clamp(min=1)

    negative, one_each = mean(similarity, ~same), embedding[~same.tril(-1).any(dim=1)]
    return {
        "positive_similarity": mean(similarity, same & ~itself),
        "negative_similarity": negative,
        "negative_spread": mean((similarity - negative) ** 2, ~same).sqrt(),
        "key_rank": effective_rank(one_each),
        "key_rank_limit": embedding.new_tensor(min(one_each.shape)),
    }
