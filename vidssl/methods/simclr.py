"""SimCLR: a simple framework for contrastive learning (Chen et al., 2020)."""

import math

from torch import Tensor

from vidssl import distributed
from vidssl.methods.base import METHODS
from vidssl.methods.in_batch import InBatchMethod
from vidssl.types import Batch


@METHODS.register("simclr")
class SimCLR(InBatchMethod):
    """Contrast within the batch: other views of a video are the positives, all other clips the negatives (Eq. 1)."""

    class Config(InBatchMethod.Config):
        """Settings of the large-scale study on video, with the batch norms of the paper's released code."""

    def group(self, batch: Batch) -> Tensor:
        """Group by record: a video that is in the batch twice is not its own negative."""
        return batch.index

    def contrast(self, embedding: Tensor, group: Tensor) -> dict[str, Tensor]:
        """NT-Xent; `i_nce`, in nats, is a lower bound of the mutual information of two views (Tian et al., 2020)."""
        scalars = super().contrast(embedding, group)
        if self.watched:
            others = distributed.world() * embedding[..., 0].numel() - 1
            scalars["i_nce"] = math.log(others) - scalars["loss"].detach()
        return scalars
