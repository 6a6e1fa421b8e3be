"""MoCo v2 with many clips of a video (He et al., 2020; Chen et al., 2020; Feichtenhofer et al., 2021)."""

from torch import Tensor

from vidssl import losses
from vidssl.base.schedule import Schedule, UnitInterval
from vidssl.methods.base import METHODS
from vidssl.methods.momentum_method import MomentumMethod, QueueConfig
from vidssl.models.heads import Head


@METHODS.register("moco")
class MoCo(MomentumMethod):
    """Contrast the other clips of a video, the positives, with a queue of negatives (InfoNCE)."""

    class Config(QueueConfig):
        """Settings; defaults are those of the large-scale study on video."""

        projector: Head = Head(layers=2, hidden=2048, out=128, norm="none")
        momentum: UnitInterval = Schedule(start=0.994, end=1.0)
        margin: float = 0.0  # m of MarginNCE (InterCLR, Eq. 5), of the cosine; 0 is InfoNCE

    config: Config

    def pair_loss(self, query: Tensor, key: Tensor) -> Tensor:
        """InfoNCE with the queue as negatives."""
        tau = self.config.temperature.at(self.progress)
        return losses.margin_nce(query, key, self.queue.keys, tau, self.config.margin)
