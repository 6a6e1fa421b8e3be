"""Detectors: the maps of the backbone, what is trained, the sum of losses."""

import pytest
import torch

from vidssl.apps.detection.config import DetectorSettings
from vidssl.apps.detection.detectors import Detector
from vidssl.apps.detection.images_and_clips import DetectionBatch
from vidssl.base.errors import ConfigError
from vidssl.models.backbones import build_backbone


def build(name="fpn", **settings):
    torch.manual_seed(0)
    overrides = DetectorSettings(name=name, anchor=8, width=16, regions=8, proposals=8, **settings)
    return Detector(overrides, build_backbone("resnet18"), classes=2)


def batch(masks=False, empty=False):
    torch.manual_seed(1)
    images = torch.randn(3, 64, 80), torch.randn(3, 50, 70)
    boxes = [[[10.0, 10, 30, 34], [40, 20, 60, 50]], [] if empty else [[5.0, 5, 45, 40]]]
    targets = []
    for image, corners in zip(images, boxes, strict=True):
        target = {"boxes": torch.tensor(corners).reshape(-1, 4)}
        target["labels"] = torch.ones(len(corners), dtype=torch.int64)
        if masks:
            target["masks"] = torch.ones(len(corners), *image.shape[1:], dtype=torch.uint8)
        targets.append(target)
    return DetectionBatch(images, tuple(targets), torch.tensor([0, 1]))


def test_maps_are_those_of_the_backbone():
    detector, images = build("c4").eval(), torch.randn(2, 3, 64, 96)
    third = detector.backbone.features(images[:, :, None], ["layer3"])[0][:, :, 0]
    assert torch.equal(detector.maps(images)["0"], third)
    # The fourth stage of whole maps, averaged, is the backbone's output.
    features = detector.encode_regions(third).mean(dim=(2, 3))
    detector.region_norm = torch.nn.Identity()
    assert torch.allclose(detector.encode_regions(third).mean(dim=(2, 3)), detector.backbone(images[:, :, None]))
    assert features.shape == (2, 512)
    pyramid = build("fpn").eval()
    maps = pyramid.maps(images)
    assert [tuple(x.shape[1:]) for x in maps.values()] == [(16, 64 >> n, 96 >> n) for n in (2, 3, 4, 5)] + [(16, 1, 2)]
    layers = ("layer1", "layer2", "layer3", "layer4")
    encoded = pyramid.backbone.features(images[:, :, None], layers)
    again = pyramid.pyramid({str(n): x[:, :, 0] for n, x in enumerate(encoded)})
    assert all(torch.equal(maps[name], again[name]) for name in maps)


@pytest.mark.parametrize(("name", "masks"), [("fpn", False), ("c4", True)])
def test_losses_and_gradients(name, masks):
    detector = build(name, masks=masks)
    scalars = detector(batch(masks, empty=True))
    parts = {key: value for key, value in scalars.items() if key != "loss"}
    assert ("loss_mask" in parts) == masks and len(parts) == 4 + masks
    assert torch.allclose(scalars["loss"], sum(parts.values()))
    scalars["loss"].backward()
    without = [key for key, p in detector.named_parameters() if p.grad is None]
    assert not without and all(bool(torch.isfinite(p.grad).all()) for p in detector.parameters())
    detections = detector.eval().detect(batch())
    assert len(detections) == 2 and ("masks" in detections[0]) == masks
    for one, width in zip(detections, (80, 70), strict=True):
        assert (one["boxes"] >= 0).all() and (one["boxes"][:, 2] <= width).all()


def test_padding_and_the_other_images_do_not_change_detections():
    detector, both = build().eval(), batch()
    alone = DetectionBatch(both.images[:1], both.targets[:1], both.index[:1])
    one, other = detector.detect(alone)[0], detector.detect(both)[0]
    assert torch.allclose(one["boxes"], other["boxes"], atol=1e-3) and torch.equal(one["labels"], other["labels"])


def test_the_fourth_stage_is_saved_once():
    detector = build("c4", masks=True)
    names = [name for name in detector.state_dict() if "layer4.0.conv1" in name]
    assert names == ["backbone.net.layer4.0.conv1.weight"]


def test_the_backbone_must_be_2d():
    with pytest.raises(ConfigError, match=r"need a 2D ResNet, got ResNet3D18: set backbone.name"):
        Detector(DetectorSettings(name="fpn"), build_backbone("resnet3d18", width=8), 2)
