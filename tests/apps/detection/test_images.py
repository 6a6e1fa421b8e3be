"""Images with boxes and masks: resizing, mirror images, batches."""

import cv2
import numpy as np
import pytest
import torch

from vidssl.apps.detection.coco_lists import read_boxes
from vidssl.apps.detection.images_and_clips import BoxDataset, ImageSettings, batches, outline_mask, resized_size
from vidssl.base.errors import DataError

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def boxes(shapes):
    return read_boxes([shapes / "lists/coco/toy.json"])


@pytest.mark.parametrize(("flip", "short"), [(0.0, 64), (1.0, 100)])
def test_boxes_and_masks_follow_the_pixels(boxes, flip, short):
    """Each object has its own colour: where it is in the image, there are its box and its mask."""
    dataset = BoxDataset(boxes, ImageSettings(), (short,), flip, masks=True)
    for index in range(len(boxes)):
        image, target, _ = dataset.sample(0, index)
        assert min(image.shape[:2]) == short and target["masks"].shape == (2, *image.shape[:2])
        for label, box, mask in zip(target["labels"], target["boxes"], target["masks"], strict=True):
            channel = 0 if boxes.classes[label - 1] == "disc" else 2
            shown = image[..., channel].astype(int) - image[..., 1] > 80
            assert (shown & (mask > 0)).sum() / (shown | (mask > 0)).sum() > 0.9
            ys, xs = np.nonzero(shown)
            assert np.abs(box - [xs.min(), ys.min(), xs.max() + 1, ys.max() + 1]).max() < 3


def test_sizes():
    assert resized_size(480, 640, 256, 1333) == (256, 341)
    assert resized_size(100, 400, 80, 200) == (50, 200)


def test_random_choices_depend_on_the_key_alone(boxes):
    dataset = BoxDataset(boxes, ImageSettings(), (48, 56, 64, 72), 0.5)
    samples = [dataset.sample(epoch, 3) for epoch in range(12)]
    assert len({min(image.shape[:2]) for image, _, _ in samples}) > 2
    again = dataset.sample(5, 3)
    assert np.array_equal(again[0], samples[5][0]) and np.array_equal(again[1]["boxes"], samples[5][1]["boxes"])


def test_batches_do_not_depend_on_workers(boxes):
    keys = [[(0, 1), (0, 0)], [(1, 5)]]
    made = [
        [*batches(BoxDataset(boxes, ImageSettings(workers=n, std=(0.5,)), (48, 64), 0.5, True), keys, CPU)]
        for n in (0, 2)
    ]
    for one, other in zip(*made, strict=True):
        assert torch.equal(one.index, other.index) and one.images[0].shape == other.images[0].shape
        assert all(torch.equal(a, b) for a, b in zip(one.images, other.images, strict=True))
        assert all(torch.equal(a[k], b[k]) for a, b in zip(one.targets, other.targets, strict=True) for k in a)
    first = made[0][0].images[0]
    assert first.dtype == torch.float32 and first.shape[0] == 3
    assert -0.9 <= first.min() < first.max() <= 1.1


def test_run_lengths_and_polygons_are_one_mask():
    square = [[4.0, 8.0, 20.0, 8.0, 20.0, 24.0, 4.0, 24.0]]
    mask = outline_mask(square, 32, 40, 32, 40)
    assert mask.sum() == 256 and mask[8:24, 4:20].all()
    runs, flat = [], np.concatenate([[0], mask.ravel(order="F"), [2]])
    runs = np.diff(np.concatenate([[0], np.flatnonzero(np.diff(flat[1:])) + 1])).tolist()
    assert np.array_equal(outline_mask({"counts": runs, "size": [32, 40]}, 32, 40, 32, 40), mask)
    assert outline_mask(square, 32, 40, 64, 80).sum() == 1024


def test_a_wrong_or_damaged_image_is_named(boxes, shapes, tmp_path):
    (tmp_path / "toy").mkdir()
    path = tmp_path / "toy" / "000.png"
    dataset = BoxDataset(read_boxes([shapes / "lists/coco/toy.json"], tmp_path), ImageSettings(), (64,))
    with pytest.raises(DataError, match=r"cannot read image .*000.png: No such file"):
        dataset.sample(0, 0)
    path.write_bytes(b"text")
    with pytest.raises(DataError, match=r"cannot decode image .*000.png"):
        dataset.sample(0, 0)
    cv2.imwrite(str(path), np.zeros((10, 12, 3), np.uint8))
    with pytest.raises(DataError, match=r"000.png has 12x10 pixels, in .*toy.json 64x96"):
        dataset.sample(0, 0)
