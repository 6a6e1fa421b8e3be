"""SimCLR: Chen et al., *A Simple Framework for Contrastive Learning of Visual Representations* (2020)."""

from math import log

from torch import Tensor

from vidssl import distributed
from vidssl.methods.base import METHODS
from vidssl.methods.in_batch import InBatchMethod
from vidssl.types import Batch


@METHODS.register("simclr")
class SimCLR(InBatchMethod):
    """Contrast within the batch: other views of a video are the positives, all other clips the negatives (Eq. 1)."""

    def group(self, batch: Batch) -> Tensor:
        """Group by record: a video that is in the batch twice is not its own negative."""
        return batch.index

    def contrast(self, embedding: Tensor, group: Tensor) -> dict[str, Tensor]:
        """NT-Xent; `i_nce`, in nats, is a lower bound of the mutual information of two views (Tian et al., 2020)."""
        scalars = super().contrast(embedding, group)
        if self.watched:
            clips = distributed.world() * embedding.shape[0] * embedding.shape[1]
            scalars["i_nce"] = log(clips - 1) - scalars["loss"].detach()
        return scalars
