"""Methods whose loss compares the clips of a step with one another."""

import torch
from torch import Tensor

from vidssl import losses
from vidssl.base import distributed
from vidssl.base.config import Settings
from vidssl.base.errors import ConfigError
from vidssl.base.schedule import Temperature, constant
from vidssl.base.types import Batch
from vidssl.losses import full, full_precision, unit
from vidssl.methods.base import Method
from vidssl.methods.statistics import group_statistics
from vidssl.models.backbones import Backbone
from vidssl.models.heads import Head, check_batch_norm, mlp


class InBatchMethod(Method):
    """One network, no queue. A method adds `objective`, and `group` if its positives are not those of the same video.

    The loss is that of the whole step, whatever the number of processes and micro-batches: with several micro-batches
    the loop calls `embed` and `contrast` separately, see `vidssl.engine.training_step`.
    """

    class Config(Settings):
        """Settings."""

        projector: Head  # on the backbone

    in_batch = True
    fewest_views = 2  # with fewer there are no positives

    def __init__(self, config: Config, backbone: Backbone) -> None:
        super().__init__(config, backbone)
        if not hasattr(config, "projector"):
            raise ConfigError(f"{type(self).__name__}.Config has no `projector`: derive it from InBatchMethod.Config")
        self.projector = mlp(backbone.dim, config.projector)

    def group(self, batch: Batch) -> Tensor:
        """Group the samples (B,): clips of equal number are positives of each other, here those of a video."""
        return batch.index

    def forward(self, batch: Batch, gradient: Tensor | None = None) -> dict[str, Tensor]:
        """Compare all views of all samples; with the step's `gradient` of the embeddings only backpropagate that."""
        embedding = self.embed(batch)
        if gradient is not None:
            return {"loss": (embedding * gradient).sum()}
        return self.contrast(embedding, self.group(batch))

    def embed(self, batch: Batch) -> Tensor:
        """Compute the embeddings (B, views, d) of all views, float32, of any length."""
        if len(batch.views) < self.fewest_views:
            raise ConfigError(f"{len(batch.views)} view has no positives: data.views needs {self.fewest_views} recipes")
        check_batch_norm(len(batch.index), self.projector)
        return full(torch.stack([self.projector(self.backbone(view)) for view in batch.views], dim=1))

    def contrast(self, embedding: Tensor, group: Tensor) -> dict[str, Tensor]:
        """Compute the scalars of a step from all its embeddings (B, views, d) on this process and their groups (B,)."""
        with full_precision(group.device):
            every, every_group = distributed.gather_with_grad(embedding), distributed.gather(group)
            scalars = self.objective(every, every_group)
            if self.watched:
                every_group = every_group.repeat_interleave(every.shape[1])
                scalars |= group_statistics(unit(every.detach()).flatten(0, 1), every_group)
        return scalars

    def objective(self, embedding: Tensor, group: Tensor) -> dict[str, Tensor]:
        """Compute `loss`, and other scalars, of the embeddings (N, views, d) of all processes and their groups (N,).

        The loss is averaged over processes: it is either that of all rows, or that of this process's part of them.
        """
        raise ConfigError(f"method {type(self).__name__} has no objective(embedding, group): see docs/extend.md")


class ContrastiveMethod(InBatchMethod):
    """The negatives of a clip are the other clips of the step: SimCLR and SupCon."""

    class Config(InBatchMethod.Config):
        """Settings; defaults are those of the large-scale study on video, with the batch norms of SimCLR's code."""

        projector: Head = Head(layers=3, hidden=2048, out=128, norm="all")
        temperature: Temperature = constant(0.1)  # tau

    config: Config

    def embed(self, batch: Batch) -> Tensor:
        """Compute the embeddings (B, views, d) of all views, unit rows."""
        return unit(super().embed(batch))

    def objective(self, embedding: Tensor, group: Tensor) -> dict[str, Tensor]:
        """NT-Xent, or L_out, of this process's rows against all."""
        rows, views = embedding.flatten(0, 1), embedding.shape[1]
        per_process = len(rows) // distributed.world()
        anchors = slice(distributed.rank() * per_process, (distributed.rank() + 1) * per_process)
        tau = self.config.temperature.at(self.progress)
        return {"loss": losses.nt_xent(rows, group.repeat_interleave(views), tau, anchors)}
