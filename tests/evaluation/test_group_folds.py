"""Each video is predicted by those of other recordings."""

import numpy as np
import pytest
import torch

from vidssl.evaluation.group_folds import fold_table, num_neighbours, predict
from vidssl.types import Features


@pytest.mark.parametrize(
    ("counts", "expected"),
    [([30, 30], 20), ([21, 21], 20), ([5, 5, 5], 4), ([4, 6, 6, 5, 4], 4), ([1, 1, 1], 1), ([2, 100], 20), ([1, 8], 3)],
)
def test_as_many_neighbours_vote_as_small_classes_can_win(counts, expected):
    assert num_neighbours(np.repeat(np.arange(len(counts)), counts)) == expected


def test_well_divided_small_classes_are_recognised():
    """By a vote of 20 of 30 videos, classes of four would never be, however well they are divided."""
    label = np.repeat(np.arange(7), [6, 4, 4, 4, 4, 4, 4])
    noise = torch.randn(len(label), 7, generator=torch.Generator().manual_seed(0))
    x = torch.eye(7)[torch.from_numpy(label)] + 0.05 * noise
    groups = np.arange(len(label))
    features = Features(x, torch.from_numpy(label), torch.arange(len(label)))
    assert (predict(features, groups, fold_table(groups, label), (1,)).knn == label).all()
