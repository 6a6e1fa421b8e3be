"""Predictions of each video by those of other recordings."""

import numpy as np
import pytest
import torch

from vidssl.base.keyed_generators import generator
from vidssl.base.types import Features
from vidssl.evaluation.leave_recording_out import fold_table, num_neighbours, predict_left_out, vote_of_others


@pytest.mark.parametrize(
    ("counts", "expected"),
    [([30, 30], 20), ([21, 21], 20), ([5, 5, 5], 4), ([4, 6, 6, 5, 4], 4), ([1, 1, 1], 1), ([2, 100], 20), ([1, 8], 3)],
)
def test_as_many_neighbours_vote_as_small_classes_can_win(counts, expected):
    assert num_neighbours(np.repeat(np.arange(len(counts)), counts)) == expected


def test_each_video_is_predicted_by_those_of_other_recordings():
    """Against loops."""
    rng = generator(3)
    label, groups = np.arange(48) % 3, 3 * (np.arange(48) // 6)
    x = rng.normal(size=(48, 12)) + rng.normal(size=(3, 12))[label] + 2 * rng.normal(size=(17, 12))[groups // 3]
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    features = Features(torch.from_numpy(x).float(), torch.from_numpy(label), torch.arange(48))
    folds = fold_table(groups, label)
    assert all(len(np.unique(folds[groups == group])) == 1 for group in groups)
    predicted, voted = predict_left_out(features, groups, folds, ()), []
    for row in range(48):
        rest = np.flatnonzero(groups != groups[row])
        near = rest[np.argsort(-(unit[rest] @ unit[row]), kind="stable")]
        assert predicted.nearest[row] == near[0]
        votes = np.zeros(3)
        near = near[: num_neighbours(label)]
        np.add.at(votes, label[near], np.exp(unit[near] @ unit[row] / 0.07))
        voted.append((votes / np.bincount(label[rest])).argmax())
    assert num_neighbours(label) == 15
    assert predicted.knn.tolist() == voted


def test_well_divided_small_classes_are_recognised():
    """By a vote of 20 of 30 videos, classes of four would never be, however well they are divided."""
    label = np.repeat(np.arange(7), [6, 4, 4, 4, 4, 4, 4])
    noise = torch.randn(len(label), 7, generator=torch.Generator().manual_seed(0))
    x = torch.eye(7)[torch.from_numpy(label)] + 0.05 * noise
    groups = np.arange(len(label))
    features = Features(x, torch.from_numpy(label), torch.arange(len(label)))
    assert (vote_of_others(features, groups)[0].numpy() == label).all()


@pytest.mark.parametrize("counts", [(50, 10), (100, 50, 3), (40, 40, 40, 2), (9, 9, 9, 9)])
def test_a_common_class_does_not_win_the_vote_by_its_size(counts):
    """Every class is found by kNN alike, if it is as near to itself as the others are."""
    label = np.repeat(np.arange(len(counts)), counts)
    rng = generator(0)
    recall = np.zeros(len(counts))
    for _ in range(5):
        x = 3 + rng.normal(0, 0.6, (len(counts), 64))[label] + rng.normal(0, 1, (len(label), 64))
        features = Features(torch.from_numpy(x).float(), torch.from_numpy(label), torch.arange(len(label)))
        actual = vote_of_others(features, np.arange(len(label)))[0].numpy()
        recall += [np.mean(actual[label == one] == one) / 5 for one in range(len(counts))]
    assert recall.min() > 0.6  # by plain votes 0 where a class is rare


def test_constant_features_favour_no_class():
    """All videos are as near: the votes of each class, divided by its videos, are alike, whatever their number."""
    label = np.repeat([0, 1], [80, 20])
    features = Features(torch.ones(100, 8), torch.from_numpy(label), torch.arange(100))
    actual = vote_of_others(features, np.arange(100))[0].numpy()
    assert np.mean([np.mean(actual[label == one] == one) for one in (0, 1)]) <= 0.5


def test_every_fold_has_videos():
    """A splitter of stratified groups may leave a fold without any."""
    groups, label = np.array([2, 1, 1, 0, 0, 2, 0, 3, 0]), np.array([0, 1, 1, 1, 1, 0, 1, 0, 1])
    folds = fold_table(groups, label)
    assert [*np.unique(folds)] == [*range(folds.max() + 1)] and len({*zip(groups, folds, strict=True)}) == 4
