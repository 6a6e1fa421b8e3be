"""Suspects of a set against what was planted in it."""

import numpy as np
import torch

from vidssl.apps.map.suspect_videos import (
    SUSPECT_NEIGHBOURS,
    find_near_duplicates,
    find_outliers,
    mean_distances,
    score_labels,
)
from vidssl.base.keyed_generators import generator
from vidssl.evaluation.leave_recording_out import same_group
from vidssl.evaluation.search import nearest


def clusters(classes=3, recordings=6, videos=4, dim=16):
    """Features around a centre for each class and recording; class and recording of each video."""
    draw = generator(0, 1).normal
    label, group = (
        np.repeat(np.arange(classes), recordings * videos),
        np.repeat(np.arange(classes * recordings), videos),
    )
    x = 4 * draw(size=(classes, dim))[label] + 0.5 * draw(size=(classes * recordings, dim))[group]
    return torch.from_numpy(x + 0.5 * draw(size=(len(label), dim))).float(), label, group


def neighbours(x):
    return nearest(x, x, min(SUSPECT_NEIGHBOURS, len(x)), same_group(np.arange(len(x))))


def test_wrong_labels_are_found_with_the_right_class():
    x, true, group = clusters()
    label, wrong = true.copy(), [5, 30, 60]
    label[wrong] = (true[wrong] + 1) % 3
    scores = score_labels(x, label, group)
    assert sorted(scores.suspects) == wrong and (scores.proposed[wrong] == true[wrong]).all()
    assert (np.abs(scores.margin) <= 1).all() and not len(score_labels(x, true, group).suspects)


def test_a_recording_whose_videos_agree_on_a_wrong_label_has_the_largest_margins():
    x, true, group = clusters()
    label, wrong = true.copy(), [20, 21, 22, 23]
    label[wrong] = 1
    scores = score_labels(x, label, group)
    assert sorted(np.argsort(-scores.margin)[:4]) == wrong and (scores.proposed[wrong] == 0).all()


def test_the_order_of_rows_and_the_numbers_of_classes_and_recordings_do_not_matter():
    x, label, group = clusters()
    label[5] = 1
    order = generator(0, 2).permutation(len(x))
    expected, found = score_labels(x, label, group), score_labels(x[order], 10 * label[order], group[order])
    np.testing.assert_allclose(found.margin, expected.margin[order], atol=0.1)  # other folds
    assert (found.proposed == 10 * expected.proposed[order]).all()


def test_videos_without_label_and_classes_of_one_recording_are_not_judged():
    x, label, group = clusters()
    label[:2], label[-4:] = -1, 7
    scores = score_labels(x, label, group)
    judged = np.isin(label, [0, 1, 2])
    assert np.isnan(scores.margin[~judged]).all() and (scores.proposed[~judged] == -1).all()
    assert np.isfinite(scores.margin[judged]).all()
    assert np.isnan(score_labels(x, np.zeros(len(x), np.int64), group).margin).all()


def test_a_far_video_is_an_outlier_and_copies_are_pairs():
    x, *_ = clusters()
    plain = {*find_outliers(neighbours(x)).tolist()}
    x[7] = -x.mean(dim=0) + 3 * torch.eye(16)[0]
    x[9] = 1.001 * x[33] + 1e-4
    near = neighbours(x)
    assert find_outliers(near)[0] == 7 and len(plain) < 4
    assert find_near_duplicates(near)[0][:2] == (9, 33)
    unit = torch.nn.functional.normalize(x.double(), dim=1)
    similarity = (unit @ unit.T).fill_diagonal_(-2)
    np.testing.assert_allclose(
        mean_distances(near), 1 - similarity.topk(SUSPECT_NEIGHBOURS).values.mean(dim=1), atol=1e-6
    )


def test_small_sets():
    one, two = neighbours(torch.ones(1, 3)), neighbours(torch.ones(2, 3))
    assert not len(find_outliers(one)) and not find_near_duplicates(one)
    assert not len(find_outliers(two)) and [pair[:2] for pair in find_near_duplicates(two)] == [(0, 1)]


def test_classes_with_fewer_videos_than_folds():
    x, label, group = clusters(classes=4, recordings=3, videos=1)
    assert np.isfinite(score_labels(x, label, group).margin).all()
