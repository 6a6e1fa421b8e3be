"""SimCLR: Chen et al., *A Simple Framework for Contrastive Learning of Visual Representations* (2020)."""

from math import log

from torch import Tensor

from vidssl.methods.base import METHODS
from vidssl.methods.in_batch import ContrastiveMethod


@METHODS.register("simclr")
class SimCLR(ContrastiveMethod):
    """Contrast within the batch: other views of a video are the positives, all other clips the negatives (Eq. 1)."""

    def objective(self, embedding: Tensor, group: Tensor) -> dict[str, Tensor]:
        """NT-Xent; `i_nce`, in nats, is a lower bound of the mutual information of two views (Tian et al., 2020)."""
        scalars = super().objective(embedding, group)
        if self.watched:
            scalars["i_nce"] = log(embedding.shape[0] * embedding.shape[1] - 1) - scalars["loss"].detach()
        return scalars
