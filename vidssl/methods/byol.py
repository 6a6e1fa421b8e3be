"""BYOL: bootstrap your own latent (Grill et al., 2020), with many clips of a video (Feichtenhofer et al., 2021)."""

from torch import Tensor

from vidssl import losses
from vidssl.base.schedule import Schedule, UnitInterval
from vidssl.methods.base import METHODS
from vidssl.methods.momentum_method import MomentumMethod
from vidssl.models.heads import Head


@METHODS.register("byol")
class BYOL(MomentumMethod):
    """Predict the target's embedding of another view, without negatives."""

    class Config(MomentumMethod.Config):
        """Settings; defaults are those of both papers: projector and predictor 4096-256, momentum 0.996 → 1."""

        projector: Head = Head(layers=2, hidden=4096, out=256, norm="hidden")
        predictor: Head | None = Head(layers=2, hidden=4096, out=256, norm="hidden")
        momentum: UnitInterval = Schedule(start=0.996, end=1.0)

    def pair_loss(self, query: Tensor, key: Tensor) -> Tensor:
        """Eq. (2): the squared distance of unit vectors."""
        return losses.squared_distance(query, key)
