"""Balestriero & LeCun, *LeJEPA: Provable and Scalable Self-Supervised Learning Without the Heuristics* (2025)."""

import torch
from pydantic import Field
from torch import Tensor

from vidssl import losses
from vidssl.base.errors import ConfigError
from vidssl.base.keyed_generators import RngStream
from vidssl.base.schedule import UnitInterval, constant
from vidssl.methods.base import METHODS
from vidssl.methods.in_batch import InBatchMethod
from vidssl.models.heads import Head


@METHODS.register("lejepa")
class LeJEPA(InBatchMethod):
    """Views of a video are pulled to their mean; SIGReg keeps the embeddings of each view standard normal."""

    class Config(InBatchMethod.Config):
        """Settings; defaults are those of the paper, the projector that of its minimal example and of LeVJEPA."""

        projector: Head = Head(layers=3, hidden=2048, out=128, norm="hidden")
        coefficient: UnitInterval = constant(0.05)  # lambda: the fraction of SIGReg
        directions: int = Field(default=1024, ge=1)  # drawn anew in each step
        global_views: int | None = Field(default=None, ge=1)  # the first ones, whose mean is the target; None: all

    config: Config

    def objective(self, embedding: Tensor, group: Tensor) -> dict[str, Tensor]:
        """Algorithms 1 and 2; `embedding_std`, over the videos, is near 1, and 0 where they have collapsed."""
        views, first = embedding.shape[1], self.config.global_views
        if first is not None and first > views:
            raise ConfigError(f"method.global_views {first} exceeds the {views} views of data.views")
        source = self.generator(RngStream.DIRECTIONS, 0, embedding.device)
        shape = embedding.shape[-1], self.config.directions
        directions = torch.randn(shape, generator=source, device=embedding.device, dtype=embedding.dtype)
        invariance = (embedding - embedding[:, :first].mean(dim=1, keepdim=True)).square().mean()
        sigreg = losses.sigreg(embedding, directions)
        coefficient = self.config.coefficient.at(self.progress)
        return {
            "loss": (1 - coefficient) * invariance + coefficient * sigreg,
            "invariance": invariance.detach(),
            "sigreg": sigreg.detach(),
            "embedding_std": embedding.detach().std(dim=0, correction=0).mean(),
        }
