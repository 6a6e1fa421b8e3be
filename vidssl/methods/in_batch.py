"""Methods whose negatives are the other clips of the batch: SimCLR and SupCon."""

import torch
from torch import Tensor

from vidssl import distributed, losses
from vidssl.config import Settings
from vidssl.errors import ConfigError
from vidssl.losses import full_precision, unit
from vidssl.methods.base import Method
from vidssl.methods.statistics import group_statistics
from vidssl.models.backbones import Backbone
from vidssl.models.heads import Head, check_batch_norm, mlp
from vidssl.schedule import Temperature, constant
from vidssl.types import Batch


class InBatchMethod(Method):
    """One network, no queue. A method adds `group`.

    The negatives are those of the whole step, whatever the number of processes and micro-batches: with several
    micro-batches the loop calls `embed` and `contrast` separately, see `vidssl.engine.accumulate`.
    """

    class Config(Settings):
        """Settings; defaults are those of the large-scale study on video, with the batch norms of SimCLR's code."""

        projector: Head = Head(layers=3, hidden=2048, out=128, norm="all")
        temperature: Temperature = constant(0.1)  # tau

    fewest_views = 2  # with fewer there are no positives

    def __init__(self, config: Config, backbone: Backbone) -> None:
        super().__init__(backbone)
        self.config = config
        self.projector = mlp(backbone.dim, config.projector)

    def group(self, batch: Batch) -> Tensor:
        """Group the samples (B,): clips of equal number are positives of each other."""
        raise NotImplementedError

    def forward(self, batch: Batch, gradient: Tensor | None = None) -> dict[str, Tensor]:
        """Contrast all views of all samples; with the step's `gradient` of the embeddings only backpropagate that."""
        embedding = self.embed(batch)
        if gradient is not None:
            return {"loss": (embedding * gradient).sum()}
        return self.contrast(embedding, self.group(batch))

    def embed(self, batch: Batch) -> Tensor:
        """Compute the embeddings (B, views, d) of all views, unit rows."""
        if len(batch.views) < self.fewest_views:
            raise ConfigError(f"{len(batch.views)} view has no positives: data.views needs {self.fewest_views} recipes")
        check_batch_norm(len(batch.index), self.projector)
        return unit(torch.stack([self.projector(self.backbone(view)) for view in batch.views], dim=1))

    def contrast(self, embedding: Tensor, group: Tensor) -> dict[str, Tensor]:
        """Compute the scalars of a step from all its embeddings (B, views, d) on this process and their groups (B,)."""
        group = group.repeat_interleave(embedding.shape[1])
        with full_precision(group.device):
            every, every_group = distributed.gather_with_grad(embedding.flatten(0, 1)), distributed.gather(group)
            own = slice(distributed.rank() * len(group), (distributed.rank() + 1) * len(group))
            loss = losses.nt_xent(every, every_group, self.config.temperature.at(self.progress), own)
            scalars = {"loss": loss}
            if self.watched:
                scalars |= group_statistics(every.detach(), every_group)
        return scalars
