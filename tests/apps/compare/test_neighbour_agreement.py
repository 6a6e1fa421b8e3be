"""Neighbours, disagreements and near copies of encoders, against loops and scikit-learn; copies also on files."""

import shutil
from collections import Counter
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
import torch
from scipy.stats import entropy
from sklearn.metrics.pairwise import cosine_similarity

import vidssl
from vidssl.apps.compare.neighbour_agreement import common_neighbours, disagreement, near_copies
from vidssl.base.errors import ConfigError, DataError
from vidssl.base.keyed_generators import generator
from vidssl.base.types import Features
from vidssl.data.recordings_and_class_folders import Groups
from vidssl.video.write import encode


def features(x, first=0):
    rows = torch.arange(first, first + len(x))
    return Features(torch.as_tensor(np.asarray(x, np.float32)), torch.full_like(rows, -1), rows)


def similar(rng, x, noise):
    return x + noise * rng.normal(size=x.shape)


def neighbours_by_loops(x, groups, k):
    similarity = cosine_similarity(x.astype(np.float64))
    found = []
    for row in range(len(x)):
        others = [other for other in range(len(x)) if groups[other] != groups[row]]
        found.append(sorted(others, key=lambda other: -similarity[row, other])[:k])
    return found


@pytest.mark.parametrize("k", [1, 10, 100])
def test_agreement_is_the_mean_overlap_of_the_neighbours(k):
    rng = generator(0, 0)
    x = [rng.normal(size=(70, 16)).astype(np.float32)]
    x += [similar(rng, x[0], noise).astype(np.float32) for noise in (0.5, 2.0)]
    groups = rng.integers(0, 25, 70) * 3  # numbers with gaps
    pairs = common_neighbours({str(n): features(each) for n, each in enumerate(x)}, groups, k)
    assert [(pair["first"], pair["second"]) for pair in pairs] == [*combinations("012", 2)]
    for pair in pairs:
        one, other = (neighbours_by_loops(x[int(pair[side])], groups, k) for side in ("first", "second"))
        common = [len({*a} & {*b}) / len(a) for a, b in zip(one, other, strict=True)]
        assert pair["fraction"] == pytest.approx(np.mean(common))
    if k < 100:
        assert pairs[0]["fraction"] > pairs[1]["fraction"] > pairs[1]["chance"]


def test_chance_is_what_random_features_have_in_common():
    rng = generator(1, 0)
    groups = np.repeat(np.arange(12), [1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 15, 15])
    means = []
    for _ in range(100):
        (pair,) = common_neighbours({name: features(rng.normal(size=(60, 30))) for name in "ab"}, groups)
        means.append(pair["fraction"])
    expected = np.mean([10 / (60 - (groups == group).sum()) for group in groups])
    assert pair["chance"] == pytest.approx(expected)
    assert np.mean(means) == pytest.approx(expected, abs=4 * np.std(means) / np.sqrt(100))


def test_few_videos_and_one_group():
    x = features(generator(2, 0).normal(size=(6, 4)))
    (pair,) = common_neighbours({"a": x, "b": x}, np.array([0, 0, 0, 0, 1, 1]))
    assert pair["fraction"] == pair["chance"] == 1  # fewer than k others: all are neighbours
    (pair,) = common_neighbours({"a": x, "b": x}, np.zeros(6, np.int64))
    assert np.isnan(pair["fraction"]) and np.isnan(pair["chance"])
    with pytest.raises(ConfigError, match="k is 0"):
        common_neighbours({"a": x, "b": x}, np.arange(6), k=0)
    with pytest.raises(DataError, match="not of the same videos"):
        common_neighbours({"a": x, "b": features(x.x, first=1)}, np.arange(6))


def margins_by_loops(predicted, labels):
    """The fraction of the votes for the label, or the most votes, minus that for the best other class."""
    margins = []
    for votes, label in zip(predicted.T, labels, strict=True):
        counts = Counter(votes.tolist())
        class_ = int(label) if label >= 0 else max(counts, key=counts.__getitem__)
        best_other = max((count for name, count in counts.items() if name != class_), default=0)
        margins.append((counts[class_] - best_other) / len(predicted))
    return margins


def test_disagreement_is_the_entropy_of_the_votes():
    predicted = generator(8, 0).integers(-1, 4, (7, 40))
    for labels in (np.full(40, -1), generator(9, 0).integers(-1, 4, 40)):
        order, entropies = disagreement(predicted, labels)
        assert entropies == pytest.approx([entropy([*Counter(votes.tolist()).values()]) for votes in predicted.T])
        keys = zip(-entropies.round(9), np.round(margins_by_loops(predicted, labels), 9), range(40), strict=True)
        assert order.tolist() == [row for *_, row in sorted(keys)]
    assert disagreement(predicted)[0].tolist() == disagreement(predicted, np.full(40, -1))[0].tolist()


def test_of_equal_votes_those_that_contradict_the_label_come_first():
    predicted = np.array([[0, 0, 0, 0, 5], [0, 0, 0, 0, 5], [0, 1, 1, 1, 5]])
    assert disagreement(predicted, np.array([0, 0, 1, 2, 4]))[0].tolist() == [3, 2, 1, 4, 0]
    assert disagreement(predicted)[0].tolist() == [1, 2, 3, 0, 4]
    order, entropies = disagreement(np.array([[2, 0, 1]]))  # one encoder does not disagree
    assert order.tolist() == [0, 1, 2] and not entropies.any()


# Near copies ------------------------------------------------------------------------------------------------


def drawn(seed, noise=0.1):
    """Layout and motion of 60 videos in 6 places, of which the last 5 are copies of the first 5."""
    rng = generator(seed, 0)
    layout = np.repeat(rng.normal(size=(6, 20)), 10, axis=0) + 0.3 * rng.normal(size=(60, 20)) + 2
    motion = rng.normal(size=(60, 20)) + 1
    for x in (layout, motion):
        x[55:] = x[:5] + noise * rng.normal(size=(5, 20)) * x.std()
    return layout, motion


def pairs_by_loops(layout, motion, groups):
    cosines = [cosine_similarity(x - x.mean(axis=0)) for x in (layout, motion)]
    distance = 1 - (cosines[0] + cosines[1]) / 2
    count = len(layout)
    reach = [sorted(distance[n, m] for m in range(count) if groups[m] != groups[n])[:10][-1] for n in range(count)]
    near = [
        (distance[n, m], n, m)
        for n in range(count)
        for m in range(n + 1, count)
        if groups[n] != groups[m] and distance[n, m] <= 0.25 * min(reach[n], reach[m])
    ]
    return [(n, m) for _, n, m in sorted(near)]


@pytest.mark.parametrize("noise", [0.05, 0.3, 0.8])
def test_near_copies_by_loops(noise):
    layout, motion = drawn(0, noise)
    groups = np.array([*range(54), 53, *range(54, 59)])  # rows 53 and 54 are of one group
    found = near_copies(features(layout), features(motion), groups)
    assert found == pairs_by_loops(layout, motion, groups)
    if noise == 0.05:
        assert sorted(found) == [(n, 55 + n) for n in range(5)]
        joined = Groups(groups, "names").joined(found, "names and near copies")
        assert joined.number.max() + 1 == 54 and (joined.number[:5] == joined.number[55:]).all()


def test_videos_of_one_group_are_not_named():
    layout, motion = drawn(1, 0.01)
    groups = np.array([*range(55), *range(5)])
    assert near_copies(features(layout), features(motion), groups) == pairs_by_loops(layout, motion, groups) == []


def test_the_background_alone_is_no_copy():
    """Videos of one place with other motion, even if their layout is the same."""
    layout, motion = drawn(2)
    motion[55:] = generator(3, 0).normal(size=(5, 20)) + 1
    layout[55:] = layout[:5]
    assert near_copies(features(layout), features(motion), np.arange(60)) == []


def test_many_equal_videos():
    """More of them than neighbours that are looked at."""
    rng = generator(4, 0)
    x = np.concatenate([rng.normal(size=(30, 40)), np.tile(rng.normal(size=40), (15, 1))])
    found = near_copies(features(x), features(x), np.arange(45))
    number = Groups(np.arange(45), "").joined(found, "").number
    assert len({*number[30:]}) == 1 and len({*number}) == 31


def test_few_videos():
    rng = generator(5, 0)
    x = rng.normal(size=(3, 8))
    for count, groups in ((1, [0]), (2, [0, 1]), (2, [0, 0]), (3, [0, 1, 1])):
        one = features(x[:count])
        assert near_copies(one, one, np.array(groups)) == []
    x[2] = x[0] + 0.01
    assert near_copies(features(x), features(x), np.arange(3)) == [(0, 2)]
    with pytest.raises(DataError, match="not of the same videos"):
        near_copies(features(x), features(x, first=1), np.arange(3))
    with pytest.raises(DataError, match="not finite"):
        near_copies(features(x), features(np.full((3, 2), np.inf)), np.arange(3))


def test_files_that_were_encoded_again(digits, tmp_path):
    """Worse, with fewer frames, shorter, or without the edge: found among other videos of moving digits."""
    files = sorted(digits.rglob("*.mp4"))[:24]
    changes = [
        lambda frames: (frames, 25, 38),
        lambda frames: (frames[::2], Fraction(25, 2), 23),
        lambda frames: (frames[2:], 25, 23),
        lambda frames: (frames[:, 1:-1, 1:-1], 25, 23),
    ]
    for n, file in enumerate(files):
        shutil.copy(file, tmp_path / f"{n:02}.mp4")
    for n in range(8):
        with vidssl.open_video(files[n]) as video:
            frames = video.frames(range(video.meta.num_frames)).transpose(0, 2, 3, 1)
            frames, rate, crf = changes[n % 4](frames)
            encode(tmp_path / f"copy{n:02}.mp4", frames, rate, options={"crf": str(crf)}, container="mp4")
    layout, motion = (
        vidssl.extract(f"floor:{name}", tmp_path, workers=0, device="cpu", progress=False)
        for name in ("thumbnails", "differences")
    )
    found = near_copies(layout, motion, np.arange(32))
    assert {*found} <= {(n, 24 + n) for n in range(8)}
    assert len(found) >= 6, sorted(found)
