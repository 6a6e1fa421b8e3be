"""ReSSL: relational self-supervised learning (Zheng et al., 2021)."""

from pydantic import model_validator
from torch import Tensor

from vidssl import losses
from vidssl.methods.base import METHODS
from vidssl.methods.momentum import KeyViews, MomentumMethod, Queued
from vidssl.methods.parts import Temperature
from vidssl.models.heads import Head
from vidssl.schedule import constant

_CHECKED = 1000  # moments of the run at which the temperatures are compared


@METHODS.register("ressl")
class ReSSL(MomentumMethod):
    """Relate: a strong view keeps the relations that a weak view of its video has to the queue (SCE, Eq. 6).

    Views: the first is the query's, strong; the second the key's, weak.
    """

    class Config(MomentumMethod.Config, Queued):
        """Settings of ReSSL."""

        projector: Head = Head(layers=2, hidden=4096, out=256, norm="none")
        target_temperature: Temperature = constant(0.05)  # tau_m
        key_views: KeyViews = (1,)

        @model_validator(mode="after")
        def _target_is_sharper(self) -> "ReSSL.Config":
            for step in range(_CHECKED + 1):
                progress = step / _CHECKED
                tau, tau_m = self.temperature.at(progress), self.target_temperature.at(progress)
                if tau_m >= tau:
                    raise ValueError(
                        f"target_temperature {tau_m:g} is not below temperature {tau:g} at {progress:.1%} of the run: "
                        "the target must be sharper than the query's relations"
                    )
            return self

    config: Config

    def pair_loss(self, query: Tensor, key: Tensor) -> Tensor:
        """Eq. (6): cross-entropy of the two distributions over the queue; the positive is excluded."""
        temperature = self.config.temperature.at(self.progress)
        target_temperature = self.config.target_temperature.at(self.progress)
        return losses.ressl(query, key, self.queue.keys, temperature, target_temperature)
