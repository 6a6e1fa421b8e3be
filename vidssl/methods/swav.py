"""SwAV: Caron et al., *Unsupervised Learning of Visual Features by Contrasting Cluster Assignments* (2020)."""

import logging

import torch
from pydantic import Field
from torch import Tensor, nn

from vidssl import losses
from vidssl.base import distributed
from vidssl.base.errors import ConfigError
from vidssl.base.schedule import Temperature, constant
from vidssl.base.types import Batch
from vidssl.losses import full_precision, unit
from vidssl.methods.base import METHODS
from vidssl.methods.in_batch import InBatchMethod
from vidssl.models.backbones import Backbone
from vidssl.models.heads import Head

_log = logging.getLogger(__name__)


@METHODS.register("swav")
class SwAV(InBatchMethod):
    """Predict the cluster of a view from the other views of its video; clusters are prototypes, which are trained."""

    class Config(InBatchMethod.Config):
        """Settings; defaults are those that the large-scale study on video released."""

        projector: Head = Head(layers=3, hidden=2048, out=128, norm="hidden")
        prototypes: int = Field(default=1000, ge=2)  # K
        temperature: Temperature = constant(0.1)  # tau
        epsilon: float = Field(default=0.05, gt=0)  # smoothness of the assignments; smaller: harder
        iterations: int = Field(default=3, ge=1)  # of Sinkhorn-Knopp
        key_views: tuple[int, ...] = (0, 1)  # views whose assignments are predicted, from each of the other views
        frozen: float = Field(default=0.005, ge=0, lt=1)  # fraction of the run in which the prototypes are constants

    config: Config

    def __init__(self, config: Config, backbone: Backbone) -> None:
        super().__init__(config, backbone)
        self.prototypes = nn.Parameter(unit(torch.randn(config.prototypes, config.projector.out)))

    def embed(self, batch: Batch) -> Tensor:
        """Compute the scores (B, views, K) of all views."""
        embedding, c = super().embed(batch), self.prototypes.T
        if self.progress < self.config.frozen:
            c = c.detach() + 0 * c  # a gradient of 0, not none, for which DDP would wait
        with full_precision(batch.index.device):
            return unit(embedding) @ c

    def objective(self, embedding: Tensor, group: Tensor) -> dict[str, Tensor]:
        """Swapped prediction (Eq. 6) of all rows, on every process."""
        views, c = embedding.shape[1], self.config
        if not c.key_views or not {*c.key_views} <= {*range(views)}:
            raise ConfigError(f"method.key_views {list(c.key_views)} do not fit the {views} views of data.views")
        if self.step == 0 and 4 * len(embedding) < c.prototypes and distributed.is_main():
            _log.warning(
                "%d videos per step are divided equally among %d prototypes: too few to be clusters; raise batch_size "
                "or set method.prototypes to at most %d",
                len(embedding),
                c.prototypes,
                4 * len(embedding),
            )
        tau = c.temperature.at(self.progress)
        return {"loss": losses.swapped_prediction(embedding, c.key_views, tau, c.epsilon, c.iterations)}

    def after_step(self, progress: float) -> None:
        """Normalise the prototypes."""
        super().after_step(progress)
        with torch.no_grad():
            self.prototypes.copy_(unit(self.prototypes))
