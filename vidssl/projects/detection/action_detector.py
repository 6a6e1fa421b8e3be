"""The actions of the persons in key frames of videos, by RoI features (SlowFast, section 5).

Shapes: B clips, T frames, H x W pixels; n persons of a clip; C channels of the last stage.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional
from torchvision.ops import roi_align

from vidssl.errors import ConfigError
from vidssl.losses import full_precision
from vidssl.methods.base import Method
from vidssl.models.backbones import Backbone
from vidssl.models.resnet3d import ResNet3D
from vidssl.projects.detection.average_precision import Detections, voc_average_precision
from vidssl.projects.detection.images import DetectionBatch, Target
from vidssl.projects.detection.lists_with_boxes import BoxList
from vidssl.projects.detection.schema import ActionDetectorSettings

_OUTPUT_SIZE = 7  # of RoIAlign
_STRIDE = 16  # of the feature map, pixels


class ActionDetector(Method):
    """A classifier of persons, whose boxes are given: several actions each, by a sigmoid (Feichtenhofer et al., 2019).

    The feature maps of the last stage are averaged over time. RoIAlign extracts the features of each box; they are
    max-pooled and classified by a linear layer. All layers are trained.
    """

    def __init__(self, config: ActionDetectorSettings, backbone: Backbone, classes: int) -> None:
        if not isinstance(backbone, ResNet3D):
            raise ConfigError(
                f"an action detector needs a 3D ResNet, got {type(backbone).__name__}: set backbone.name to "
                "resnet3d18 or resnet3d50"
            )
        super().__init__(config, backbone)
        dilate_last_stage(backbone)
        self.dropout = nn.Dropout(config.dropout)
        self.head = nn.Linear(backbone.dim, classes)
        nn.init.normal_(self.head.weight, std=0.01)
        nn.init.zeros_(self.head.bias)

    def forward(self, batch: DetectionBatch) -> dict[str, Tensor]:  # type: ignore[override]
        """Compute the binary cross-entropy, its mean over the persons and actions of the batch; 0 without a person."""
        logits = torch.cat(self._classify(batch))
        labels = torch.cat([target["labels"] for target in batch.targets])
        with full_precision(batch.index.device):
            total = functional.binary_cross_entropy_with_logits(logits, labels, reduction="sum")
            return {"loss": total / max(1, labels.numel())}

    @torch.no_grad()
    def detect(self, batch: DetectionBatch) -> list[Target]:
        """Compute the probability of each action for each person: boxes (n * classes, 4), labels from 1, scores."""
        found = []
        for target, logits in zip(batch.targets, self._classify(batch), strict=True):
            persons, classes = logits.shape
            labels = torch.arange(1, classes + 1, device=logits.device).repeat(persons)
            boxes = target["boxes"].repeat_interleave(classes, dim=0)
            found.append({"boxes": boxes, "labels": labels, "scores": logits.sigmoid().flatten()})
        return found

    def average_precisions(self, found: Sequence[Detections], boxes: BoxList) -> dict[str, float]:
        """Compute `AP50`: AVA's mean over the actions that occur of the average precision at an overlap of 0.5."""
        return {"AP50": voc_average_precision(found, boxes, points=None)}

    def _classify(self, batch: DetectionBatch) -> list[Tensor]:
        """Compute the logits (n, classes) of the persons of each clip; clips of one size are encoded together."""
        sizes = [clip.shape for clip in batch.images]
        found: dict[int, Tensor] = {}
        for size in dict.fromkeys(sizes):
            chosen = [n for n, other in enumerate(sizes) if other == size]
            (maps,) = self.backbone.features(torch.stack([batch.images[n] for n in chosen]), ("layer4",))
            boxes = [batch.targets[n]["boxes"] for n in chosen]
            with full_precision(batch.index.device):
                regions = roi_align(maps.float().mean(dim=2), boxes, _OUTPUT_SIZE, 1 / _STRIDE, aligned=True)
                logits = self.head(self.dropout(regions.amax(dim=(2, 3))))
            found |= dict(zip(chosen, logits.split([len(each) for each in boxes]), strict=True))
        return [found[n] for n in range(len(sizes))]


def dilate_last_stage(backbone: ResNet3D) -> None:
    """Give the convolutions of the last stage stride 1 and dilation 2, in place: its maps are H / 16 x W / 16."""
    for module in backbone.net.blocks[-1].modules():
        if isinstance(module, nn.Conv3d):
            module.stride = (1, 1, 1)
            if module.kernel_size[1:] == (3, 3):
                module.dilation, module.padding = (1, 2, 2), (*module.padding[:1], 2, 2)
