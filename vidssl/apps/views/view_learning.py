"""View learning: Tian et al., *What Makes for Good Views for Contrastive Learning?* (2020), sections 4.2 and B.5."""

from math import log
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from vidssl.apps.views.cmc import first_and_others, two_view_nce
from vidssl.apps.views.invertible_colors import ColorFlow
from vidssl.base import distributed
from vidssl.base.config import Settings
from vidssl.base.errors import ConfigError
from vidssl.base.schedule import Temperature, constant
from vidssl.base.types import Batch
from vidssl.losses import full, full_precision, unit
from vidssl.methods.base import METHODS, Method
from vidssl.models.backbones import Backbone, build_backbone
from vidssl.models.heads import Head, check_batch_norm, mlp


@METHODS.register("view_learning")
class ViewLearning(Method):
    """Train a `color_flow` whose two views share little: it minimises the I_NCE that two encoders maximise.

    With `classes` it is semi-supervised: two more encoders classify the labelled clips of the batch by one view each,
    and the flow minimises their loss too. All are updated in the same step, the flow by the reversed gradient of
    InfoNCE. Negatives are those of a micro-batch, of all processes; the classification loss is the mean over the
    labelled clips of the step.
    """

    averages_labelled = True

    class Config(Settings):
        """Settings; the learning rate of the flow is `optimizer.backbone_scale` times that of the encoders."""

        encoder: dict[str, Any] = Field(default={"name": "resnet18"})  # of a view: a backbone and its settings
        projector: Head = Head(layers=1, out=128, norm="none")
        temperature: Temperature = constant(0.07)  # tau
        classes: int | None = Field(default=None, ge=2)  # of the labelled clips; None: unsupervised

    def __init__(self, config: Config, backbone: Backbone) -> None:
        if not isinstance(backbone, ColorFlow):
            raise ConfigError("view_learning trains a generator of views: set backbone.name=color_flow")
        super().__init__(config, backbone)
        self.encoders = nn.ModuleList([_network(config, None) for _ in range(2)])
        count = 0 if config.classes is None else 2
        self.classifiers = nn.ModuleList([_network(config, config.classes) for _ in range(count)])

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Compute InfoNCE of the two views of the first clip, and the cross-entropy of the labelled ones."""
        if len(batch.views) > 1:
            raise ConfigError(f"view_learning splits one view, got {len(batch.views)}: give one recipe in data.views")
        check_batch_norm(len(batch.index), *self.encoders)
        with full_precision(batch.index.device):  # as `color_flow` splits the clips of methods that use the views
            (mapped,) = self.backbone.features(full(batch.views[0]), ("views",))
        reversed_views = first_and_others(_Reversed.apply(mapped))
        embedding = torch.stack([unit(f(v)) for f, v in zip(self.encoders, reversed_views, strict=True)], dim=1)
        with full_precision(batch.index.device):
            every, group = distributed.gather_with_grad(embedding), distributed.gather(batch.index)
            loss = two_view_nce(every, group, self.config.temperature.at(self.progress))
        scalars = {"loss": loss, "i_nce": log(len(every)) - loss.detach()}
        if self.config.classes is not None:
            logits = [c(v) for c, v in zip(self.classifiers, first_and_others(mapped), strict=True)]
            scalars |= self._classify(logits, batch.label)
            scalars["loss"] = loss + scalars["classification_loss"]
            scalars["classification_loss"] = scalars["classification_loss"].detach()
        return scalars

    def _classify(self, logits: list[Tensor], label: Tensor) -> dict[str, Tensor]:
        """Cross-entropy of both views, summed, over the labelled clips; 0 without any; their accuracy by view.

        The loop averages over processes and micro-batches, some of which may have few labelled clips or none: each sum
        is divided by the mean number of theirs.
        """
        known = label >= 0
        count = distributed.mean((known.sum() if self.labelled is None else self.labelled).double()).float()
        count = torch.where(count > 0, count, 1.0)
        terms = [functional.cross_entropy(full(x), label, ignore_index=-1, reduction="sum") / count for x in logits]
        right = [((x.argmax(dim=1) == label) & known).sum() / count for x in logits]
        return {"classification_loss": terms[0] + terms[1], "accuracy_first": right[0], "accuracy_others": right[1]}


class _Reversed(torch.autograd.Function):
    """The identity, whose gradient is negated: what the encoders minimise the flow maximises."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return -gradient


def _network(config: ViewLearning.Config, classes: int | None) -> nn.Sequential:
    """Build an encoder with a projector, or with a linear classifier."""
    encoder = build_backbone(**config.encoder)
    head = mlp(encoder.dim, config.projector) if classes is None else nn.Linear(encoder.dim, classes)
    return nn.Sequential(encoder, head)
