"""ReSSL: relational self-supervised learning (Zheng et al., 2021)."""

from pydantic import model_validator
from torch import Tensor

from vidssl import losses
from vidssl.base.schedule import Temperature, constant
from vidssl.methods.base import METHODS
from vidssl.methods.momentum_method import KeyViews, MomentumMethod, QueueConfig
from vidssl.models.heads import Head


@METHODS.register("ressl")
class ReSSL(MomentumMethod):
    """Match the relations of a strong view to the queue with those of a weak view of the same video (SCE, Eq. 6)."""

    class Config(QueueConfig):
        """Settings; the first view is the query, strong, and the second the key, weak."""

        projector: Head = Head(layers=2, hidden=4096, out=256, norm="none")
        target_temperature: Temperature = constant(0.05)  # tau_m, below tau during the whole run
        key_views: KeyViews = (1,)

        @model_validator(mode="after")
        def _target_is_sharper(self) -> "ReSSL.Config":
            for progress in (point / 1000 for point in range(1001)):
                tau, tau_m = self.temperature.at(progress), self.target_temperature.at(progress)
                if tau_m >= tau:
                    temperatures = f"target_temperature {tau_m:g} is not below temperature {tau:g}"
                    raise ValueError(f"{temperatures} at {progress:.1%} of the run")
            return self

    config: Config

    def pair_loss(self, query: Tensor, key: Tensor) -> Tensor:
        """Eq. (6): cross-entropy of the two distributions over the queue; the positive is excluded."""
        tau, tau_m = (t.at(self.progress) for t in (self.config.temperature, self.config.target_temperature))
        return losses.ressl(query, key, self.queue.keys, tau, tau_m)
