"""Detectors: Faster and Mask R-CNN of objects on a 2D backbone, and actions of persons by RoI features of a 3D one.

Of torchvision's parts; actions in key frames as in SlowFast, section 5. Shapes: B images or clips, T frames, H x W
pixels; C channels of a map or the last stage; R regions, n persons of a clip.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torchvision.models.detection import faster_rcnn, mask_rcnn
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.roi_heads import RoIHeads
from torchvision.models.detection.rpn import RegionProposalNetwork, RPNHead
from torchvision.ops import FeaturePyramidNetwork, MultiScaleRoIAlign, roi_align
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool

from vidssl.apps.detection.average_precision import Detections, coco_average_precision, voc_average_precision
from vidssl.apps.detection.coco_lists import BoxList
from vidssl.apps.detection.config import ActionDetectorSettings, DetectorSettings
from vidssl.apps.detection.images_and_clips import DetectionBatch, Target
from vidssl.base.errors import ConfigError
from vidssl.losses import full_precision
from vidssl.methods.base import Method
from vidssl.models.backbones import Backbone
from vidssl.models.resnet2d import ResNet2D
from vidssl.models.resnet3d import ResNet3D

_STRIDE = 32  # images are padded to a multiple of it


class Detector(Method):
    """Faster R-CNN (Ren et al., 2015) or, with `masks`, Mask R-CNN (He et al., 2017), whose layers are all trained."""

    def __init__(self, config: DetectorSettings, backbone: Backbone, classes: int) -> None:
        if not isinstance(backbone, ResNet2D):
            raise ConfigError(f"detectors need a 2D ResNet, got {type(backbone).__name__}: set backbone.name=resnet50")
        super().__init__(config, backbone)
        sizes = [config.anchor * 2**n for n in range(5)]
        c4 = config.name == "c4"
        channels = [backbone.dim // 2**n for n in (3, 2, 1, 0)]  # of the maps of the four stages
        if c4:
            anchors = AnchorGenerator((tuple(sizes),), ((0.5, 1.0, 2.0),))
            # Detectron2's Res5ROIHeads and, in MoCo's protocol, their batch norm.
            self.region_norm = nn.BatchNorm2d(channels[-1])
            heads = self._c4_heads(channels, classes + 1)
        else:
            anchors = AnchorGenerator(tuple((size,) for size in sizes), ((0.5, 1.0, 2.0),) * 5)
            self.pyramid = FeaturePyramidNetwork(channels, config.width, LastLevelMaxPool(), nn.BatchNorm2d)
            heads = self._fpn_heads(classes + 1)
        head = RPNHead(channels[2] if c4 else config.width, anchors.num_anchors_per_location()[0])
        # The numbers of proposals are Detectron2's: for c4 those of all scales, for fpn those of each level.
        before = {"training": 12_000, "testing": 6_000} if c4 else {"training": 2_000, "testing": 1_000}
        after = {"training": 2_000 if c4 else 1_000, "testing": config.proposals}
        self.proposals = RegionProposalNetwork(anchors, head, 0.7, 0.3, 256, 0.5, before, after, 0.7)
        self.heads = RoIHeads(*heads[:3], 0.5, 0.5, config.regions, 0.25, None, 0.05, 0.5, 100, *heads[3:])

    @property
    def title(self) -> str:
        """Its name, for the log."""
        return f"{'Mask' if self.config.masks else 'Faster'} R-CNN ({self.config.name})"

    def _c4_heads(self, channels: list[int], classes: int) -> list[nn.Module]:
        last = channels[-1]
        box = [_align(["0"], 14), _FourthStage(self, pooled=True), faster_rcnn.FastRCNNPredictor(last, classes)]
        if not self.config.masks:
            return box
        predictor = mask_rcnn.MaskRCNNPredictor(last, 256, classes)
        return [*box, _align(["0"], 14), _FourthStage(self, pooled=False), predictor]

    def _fpn_heads(self, classes: int) -> list[nn.Module]:
        width, levels = self.config.width, ["0", "1", "2", "3"]
        head = faster_rcnn.TwoMLPHead(width * 7**2, 4 * width)
        box = [_align(levels, 7), head, faster_rcnn.FastRCNNPredictor(4 * width, classes)]
        if not self.config.masks:
            return box
        mask_head = mask_rcnn.MaskRCNNHeads(width, (width,) * 4, 1)
        return [*box, _align(levels, 14), mask_head, mask_rcnn.MaskRCNNPredictor(width, width, classes)]

    def maps(self, padded: Tensor) -> dict[str, Tensor]:
        """Compute the feature maps of normalised images (B, 3, H, W) that proposals and regions come from, by name."""
        layers = ("layer3",) if self.config.name == "c4" else ("layer1", "layer2", "layer3", "layer4")
        features = self.backbone.features(padded.unsqueeze(2), layers)
        maps = {str(n): stage.squeeze(2) for n, stage in enumerate(features)}
        return maps if self.config.name == "c4" else self.pyramid(maps)

    def encode_regions(self, x: Tensor) -> Tensor:
        """Apply the fourth stage to regions (R, C, 14, 14) of the third: (R, C', 7, 7)."""
        net: Any = self.backbone.net
        maps: Tensor = self.region_norm(net.layer4(x))
        return maps

    def forward(self, batch: DetectionBatch) -> dict[str, Tensor]:  # type: ignore[override]
        """Compute the losses of the proposals and of the heads, and their sum `loss`."""
        images, maps = self._encode(batch)
        with full_precision(batch.index.device):
            targets = list(batch.targets)
            proposals, losses = self.proposals(images, maps, targets)
            _, more = self.heads(maps, proposals, images.image_sizes, targets)
            losses |= more
            return {"loss": torch.stack([*losses.values()]).sum(), **losses}

    @torch.no_grad()
    def detect(self, batch: DetectionBatch) -> list[Target]:
        """Find at most 100 objects in each image: boxes (n, 4) xyxy in its pixels, labels (n,) from 1, scores (n,).

        With `masks` also masks (n, 1, M, M), probabilities within each box.
        """
        images, maps = self._encode(batch)
        with full_precision(batch.index.device):
            proposals, _ = self.proposals(images, maps)
            detections: list[Target] = self.heads(maps, proposals, images.image_sizes)[0]
        return detections

    def average_precisions(self, detections: Sequence[Detections], boxes: BoxList) -> dict[str, float]:
        """Compute `box_AP`, `box_AP50`, `box_AP75`, the same of masks if there are any, `voc_AP50` and `voc07_AP50`."""
        kinds = {"box": "bbox", "mask": "segm"} if self.config.masks else {"box": "bbox"}
        coco = {kind: coco_average_precision(detections, boxes, name) for kind, name in kinds.items()}
        numbers = {f"{kind}_{name}": value for kind, values in coco.items() for name, value in values.items()}
        voc = {"voc_AP50": None, "voc07_AP50": 11}
        return numbers | {name: voc_average_precision(detections, boxes, points) for name, points in voc.items()}

    def _encode(self, batch: DetectionBatch) -> tuple[ImageList, dict[str, Tensor]]:
        sizes = [(image.shape[1], image.shape[2]) for image in batch.images]
        height, width = (-(-max(side) // _STRIDE) * _STRIDE for side in zip(*sizes, strict=True))
        padded = batch.images[0].new_zeros(len(sizes), 3, height, width)
        for target, image in zip(padded, batch.images, strict=True):
            target[:, : image.shape[1], : image.shape[2]] = image
        return ImageList(padded, sizes), {name: x.float() for name, x in self.maps(padded).items()}


class _FourthStage(nn.Module):
    """The head of c4: it shares the fourth stage with the backbone of the detector, where it is saved."""

    def __init__(self, detector: Detector, pooled: bool) -> None:
        super().__init__()
        self._detector, self._pooled = (detector,), pooled  # a tuple: not a submodule

    def forward(self, x: Tensor) -> Tensor:
        maps = self._detector[0].encode_regions(x)
        return maps.mean(dim=(2, 3)) if self._pooled else maps


def _align(levels: list[str], size: int) -> MultiScaleRoIAlign:
    return MultiScaleRoIAlign(levels, size, sampling_ratio=2)


_OUTPUT_SIZE = 7  # of RoIAlign
_CLIP_STRIDE = 16  # of the feature map, pixels


class ActionDetector(Method):
    """A classifier of persons, whose boxes are given: several actions each, by a sigmoid (Feichtenhofer et al., 2019).

    The feature maps of the last stage are averaged over time. RoIAlign extracts the features of each box; they are
    max-pooled and classified by a linear layer. All layers are trained.
    """

    title = "action detector"

    def __init__(self, config: ActionDetectorSettings, backbone: Backbone, classes: int) -> None:
        if not isinstance(backbone, ResNet3D):
            kind = type(backbone).__name__
            raise ConfigError(f"an action detector needs a 3D ResNet, got {kind}: set backbone.name=resnet3d50")
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
        detections = []
        for target, logits in zip(batch.targets, self._classify(batch), strict=True):
            persons, classes = logits.shape
            labels = torch.arange(1, classes + 1, device=logits.device).repeat(persons)
            boxes = target["boxes"].repeat_interleave(classes, dim=0)
            detections.append({"boxes": boxes, "labels": labels, "scores": logits.sigmoid().flatten()})
        return detections

    def average_precisions(self, detections: Sequence[Detections], boxes: BoxList) -> dict[str, float]:
        """Compute `AP50`: AVA's mean over the actions that occur of the average precision at an overlap of 0.5."""
        return {"AP50": voc_average_precision(detections, boxes, points=None)}

    def _classify(self, batch: DetectionBatch) -> list[Tensor]:
        """Compute the logits (n, classes) of the persons of each clip; clips of one size are encoded together."""
        sizes = [clip.shape for clip in batch.images]
        logits_of: dict[int, Tensor] = {}
        for size in dict.fromkeys(sizes):
            clips = [n for n, clip in enumerate(batch.images) if clip.shape == size]
            (maps,) = self.backbone.features(torch.stack([batch.images[n] for n in clips]), ("layer4",))
            boxes = [batch.targets[n]["boxes"] for n in clips]
            with full_precision(batch.index.device):
                regions = roi_align(maps.float().mean(dim=2), boxes, _OUTPUT_SIZE, 1 / _CLIP_STRIDE, aligned=True)
                logits = self.head(self.dropout(regions.amax(dim=(2, 3))))
            logits_of |= dict(zip(clips, logits.split([*map(len, boxes)]), strict=True))
        return [logits_of[n] for n in range(len(sizes))]


def dilate_last_stage(backbone: ResNet3D) -> None:
    """Give the convolutions of the last stage stride 1 and dilation 2, in place: its maps are H / 16 x W / 16."""
    for module in backbone.net.blocks[-1].modules():
        if isinstance(module, nn.Conv3d):
            module.stride = (1, 1, 1)
            if module.kernel_size[1:] == (3, 3):
                module.dilation, module.padding = (1, 2, 2), (*module.padding[:1], 2, 2)
