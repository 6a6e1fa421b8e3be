"""VICReg: Bardes, Ponce, LeCun, *Variance-Invariance-Covariance Regularization for Self-Supervised Learning* (2022)."""

from pydantic import Field
from torch import Tensor

from vidssl import losses
from vidssl.base.errors import ConfigError
from vidssl.methods.base import METHODS
from vidssl.methods.in_batch import InBatchMethod
from vidssl.models.heads import Head


@METHODS.register("vicreg")
class VICReg(InBatchMethod):
    """Views of a video are equal, every dimension varies over the videos, no two dimensions are correlated (Eq. 6)."""

    class Config(InBatchMethod.Config):
        """Settings; defaults are those of the paper, on images."""

        projector: Head = Head(layers=3, hidden=8192, out=8192, norm="hidden")  # the paper's expander
        invariance: float = Field(default=25.0, ge=0)  # lambda
        variance: float = Field(default=25.0, ge=0)  # mu
        covariance: float = Field(default=1.0, ge=0)  # nu

    config: Config

    def objective(self, embedding: Tensor, group: Tensor) -> dict[str, Tensor]:
        """Eq. (6), with the three terms; `embedding_std`, over the videos, is 0 where they have collapsed."""
        if len(embedding) < 2:
            raise ConfigError("the variance over videos needs at least 2 of them in a step, got 1: raise batch_size")
        terms = losses.vicreg(embedding)
        loss = sum((getattr(self.config, name) * term for name, term in terms.items()), embedding.new_zeros(()))
        scalars = {name: term.detach() for name, term in terms.items()}
        return {"loss": loss, **scalars, "embedding_std": embedding.detach().std(dim=0).mean()}
