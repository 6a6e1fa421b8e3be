"""benchmarks/floors.py: thumbnails see no motion, frame differences nothing else."""

import runpy
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from vidssl.models.backbones import BACKBONES, build_backbone

FLOORS = Path(__file__).parents[2] / "benchmarks" / "floors.py"


@pytest.fixture
def floors():
    before = set(BACKBONES)
    runpy.run_path(str(FLOORS), run_name="floors")
    yield
    for name in set(BACKBONES) - before:
        del BACKBONES._entries[name]


def test_a_thumbnail_is_the_middle_frame_averaged_over_areas(floors):
    clip = torch.rand(2, 3, 4, 64, 64)
    features = build_backbone("thumbnails")(clip)
    image = cv2.resize(clip[1, :, 2].permute(1, 2, 0).numpy(), (16, 16), interpolation=cv2.INTER_AREA)
    np.testing.assert_allclose(features[1].view(3, 16, 16).permute(1, 2, 0).numpy(), image, atol=1e-6)


def test_differences_of_still_frames_are_zero_and_of_a_moving_square_are_where_it_moves(floors):
    clip = torch.rand(1, 3, 1, 64, 64).repeat(1, 1, 4, 1, 1)
    backbone = build_backbone("frame_differences", side=8)
    assert not backbone(clip).any()
    clip[:, :, ::2, :8, 8:16] += 0.5
    expected = torch.zeros(3, 8, 8)
    expected[:, 0, 1] = 0.5
    torch.testing.assert_close(backbone(clip).view(3, 8, 8), expected)
