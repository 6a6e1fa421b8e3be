"""CMC: Tian et al., *Contrastive Multiview Coding* (2020), with negatives of the batch."""

from math import log

import torch
from torch import Tensor, nn

from vidssl import distributed
from vidssl.errors import ConfigError
from vidssl.losses import unit
from vidssl.methods.base import METHODS
from vidssl.methods.in_batch import InBatchMethod
from vidssl.models.backbones import Backbone
from vidssl.models.heads import Head, check_batch_norm, mlp
from vidssl.projects.views.two_encoders import TwoEncoders
from vidssl.schedule import Temperature, constant
from vidssl.types import Batch


def two_view_nce(embedding: Tensor, group: Tensor, temperature: float, anchors: slice = slice(None)) -> Tensor:
    """InfoNCE between two views of N videos, the mean of both directions (Tian et al., CMC, 2020, Eq. 3, 4).

    `embedding` (N, 2, d) has the unit rows of all processes. Each view is contrasted with the other view of all videos,
    never with its own kind; videos of equal number in `group` (N,) are one video. `anchors` are those of this process.
    """
    positive = (group[anchors, None] == group).to(embedding.dtype)
    terms = []
    for this, other in ((0, 1), (1, 0)):
        similarity = embedding[anchors, this] @ embedding[:, other].T / temperature
        mean = (similarity * positive).sum(dim=1) / positive.sum(dim=1)
        terms.append((torch.logsumexp(similarity, dim=1) - mean).mean())
    return (terms[0] + terms[1]) / 2


@METHODS.register("cmc")
class CMC(InBatchMethod):
    """Two encoders, one for each view; each view is compared with the other views of all videos (Eq. 3, 4).

    One view in the batch is split by the backbone. Of two each encoder sees one; a backbone with a split takes its part
    of each.
    """

    class Config(InBatchMethod.Config):
        """Settings; the paper has a linear layer of 128 outputs and a temperature of 0.07."""

        projector: Head = Head(layers=1, out=128, norm="none")
        temperature: Temperature = constant(0.07)  # tau

    config: Config

    def __init__(self, config: Config, backbone: Backbone) -> None:
        if not isinstance(backbone, TwoEncoders):
            raise ConfigError("cmc needs an encoder for each view: set backbone.name=two_encoders")
        super().__init__(config, backbone)
        self.dims = list(backbone.dims)
        self.projector = nn.Sequential(*(mlp(dim, config.projector) for dim in self.dims))  # one for each view

    def embed(self, batch: Batch) -> Tensor:
        """Compute the embeddings (B, 2, d) of both views, unit rows."""
        count, split = len(batch.views), getattr(self.backbone, "split", None)
        if count > 2 or (count == 1 and split is None):
            raise ConfigError(
                f"cmc compares two views, got {count}: give two views in data.views, or one and backbone.split"
            )
        check_batch_norm(len(batch.index), self.projector)
        features = self.backbone(*batch.views).split(self.dims, dim=1)
        return unit(torch.stack([head(x) for head, x in zip(self.projector, features, strict=True)], dim=1))

    def objective(self, embedding: Tensor, group: Tensor) -> dict[str, Tensor]:
        """InfoNCE of this process's rows, in both directions; `i_nce` in nats, at most log(N)."""
        own = len(embedding) // distributed.world()
        anchors = slice(distributed.rank() * own, (distributed.rank() + 1) * own)
        scalars = {"loss": two_view_nce(embedding, group, self.config.temperature.at(self.progress), anchors)}
        if self.watched:
            scalars["i_nce"] = log(len(embedding)) - scalars["loss"].detach()
        return scalars
