"""SupCon: Khosla et al., *Supervised Contrastive Learning* (2020)."""

from torch import Tensor

from vidssl.base.types import Batch
from vidssl.methods.base import METHODS
from vidssl.methods.in_batch import ContrastiveMethod
from vidssl.models.heads import Head


@METHODS.register("supcon")
class SupCon(ContrastiveMethod):
    """Contrast classes within the batch: all clips of the class are positives, those of others negatives (Eq. 2)."""

    class Config(ContrastiveMethod.Config):
        """Settings; the head is that of the paper's released code."""

        projector: Head = Head(layers=2, hidden=2048, out=128, norm="none")

    needs_labels = True
    fewest_views = 1  # a clip that is alone of its class in the batch is only a negative

    def group(self, batch: Batch) -> Tensor:
        """Group by class."""
        return batch.label
