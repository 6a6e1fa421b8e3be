"""Near copies, against loops and scikit-learn, and on files that were encoded again."""

import shutil
from fractions import Fraction

import numpy as np
import pytest
import torch
from sklearn.metrics.pairwise import cosine_similarity

import vidssl
from vidssl.apps.compare.neighbour_agreement import near_copies
from vidssl.base.errors import DataError
from vidssl.base.keyed_generators import generator
from vidssl.base.types import Features
from vidssl.data.recordings_and_class_folders import Groups
from vidssl.video.write import encode


def features(x, first=0):
    rows = torch.arange(first, first + len(x))
    return Features(torch.as_tensor(np.asarray(x, np.float32)), torch.full_like(rows, -1), rows)


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
    files = sorted(digits.rglob("*.mp4"))[:40]
    changes = [
        lambda frames: (frames, 25, 38),
        lambda frames: (frames[::2], Fraction(25, 2), 23),
        lambda frames: (frames[2:], 25, 23),
        lambda frames: (frames[:, 1:-1, 1:-1], 25, 23),
    ]
    for n, file in enumerate(files):
        shutil.copy(file, tmp_path / f"{n:02}.mp4")
    for n in range(12):
        with vidssl.open_video(files[n]) as video:
            frames = video.frames(range(video.meta.num_frames)).transpose(0, 2, 3, 1)
            frames, rate, crf = changes[n % 4](frames)
            encode(tmp_path / f"copy{n:02}.mp4", frames, rate, options={"crf": str(crf)}, container="mp4")
    layout, motion = (
        vidssl.extract(f"floor:{name}", tmp_path, workers=0, device="cpu", progress=False)
        for name in ("thumbnails", "differences")
    )
    found = near_copies(layout, motion, np.arange(52))
    assert {*found} <= {(n, 40 + n) for n in range(12)}
    assert len(found) >= 9, sorted(found)
