"""Similarity Contrastive Estimation (Denize et al., 2023)."""

from torch import Tensor

from vidssl import losses
from vidssl.base.schedule import Temperature, UnitInterval, constant
from vidssl.methods.base import METHODS
from vidssl.methods.momentum_method import MomentumMethod, QueueConfig
from vidssl.models.heads import Head


@METHODS.register("sce")
class SCE(MomentumMethod):
    """Contrast with soft targets: the key is the positive, its relations to the queue weight the negatives (Eq. 10)."""

    class Config(QueueConfig):
        """Settings; defaults are the paper's best on video: Tables 17 and 24, section D.3."""

        predictor: Head | None = Head(layers=2, hidden=1024, out=256, norm="hidden")
        target_temperature: Temperature = constant(0.05)  # tau_m, below tau: the target is sharper
        coefficient: UnitInterval = constant(0.5)  # lambda: 1 is MoCo's InfoNCE
        positive_slot: losses.PositiveSlot = "masked"  # masked: Eq. (5); zero: Algorithm 1
        relational: UnitInterval | None = (
            None  # mu of Eq. (11), the weight of L_ReSSL; null: 1 - lambda, as in Eq. (10)
        )
        ceiling: UnitInterval | None = None  # eta, that of L_Ceil; null: 1 - lambda

    config: Config

    def pair_loss(self, query: Tensor, key: Tensor) -> Tensor:
        """Eq. (11), which is Eq. (10) by default, with the queue as the other instances."""
        config, progress = self.config, self.progress
        tau, tau_m = config.temperature.at(progress), config.target_temperature.at(progress)
        coefficient = config.coefficient.at(progress)
        relational = None if config.relational is None else config.relational.at(progress)
        ceiling = None if config.ceiling is None else config.ceiling.at(progress)
        slot, negatives = config.positive_slot, self.queue.keys
        return losses.sce(query, key, negatives, tau, tau_m, coefficient, slot, relational, ceiling)
