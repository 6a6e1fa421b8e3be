"""Eq. (4) and (5) against the printed recursion, best paths against exhaustive search, tracks of known objects."""

import itertools
import math

import numpy as np
import pytest
import torch

from vidssl.base.errors import ConfigError
from vidssl.base.keyed_generators import generator
from vidssl.models import build_backbone
from vidssl.models.backbones import Backbone
from vidssl.tracking import Tracker, TrackerSettings
from vidssl.tracking.tracker import affinities, anchors, best_paths, scaled_sums

CPU = torch.device("cpu")


def draw_affinities(counts, seed=0, power=3):
    """Random ones in [0, 1], of frames that have so many regions."""
    rng = generator(seed)
    return [
        torch.from_numpy((rng.uniform(size=pair) ** power).astype(np.float32)) for pair in itertools.pairwise(counts)
    ]


def printed_recursion(affinity, i, j):
    """S(z_i^r, z_j^r') of Eq. (4) and (5) with loops over r, k and r', in float64."""
    scores = affinity[i].double().numpy()
    for end in range(i + 2, j + 1):
        step = affinity[end - 1].double().numpy()
        longer = np.zeros((scores.shape[0], step.shape[1]))
        for r in range(scores.shape[0]):
            for other in range(step.shape[1]):
                for k in range(step.shape[0]):
                    longer[r, other] += (end - i - 1) / (end - i) * scores[r, k] * step[k, other]
        scores = longer
    return scores


def test_scaled_sums_equal_the_printed_recursion():
    affinity = draw_affinities([4, 6, 3, 5, 5, 2, 4])
    seen = set()
    for sums in scaled_sums(affinity):
        for i in range(sums.end):
            values, log_scale = sums.pair(i)
            expected = printed_recursion(affinity, i, sums.end)
            np.testing.assert_allclose(values.double() * log_scale.double().exp()[:, None], expected, rtol=2e-6)
            seen.add((i, sums.end))
    assert seen == {(i, j) for j in range(1, 7) for i in range(j)}


def test_60_frames_of_300_regions_neither_overflow_nor_underflow():
    # Two groups of regions that never meet: the sums of one grow 140 times a frame, those of the other shrink.
    rng = generator(1)
    step = np.zeros((300, 300))
    step[:150, :150] = 1 - 0.1 * rng.uniform(size=(150, 150))
    step[150:, 150:] = 1e-4 * rng.uniform(size=(150, 150))
    affinity = [torch.from_numpy(step.astype(np.float32))] * 59
    exact = torch.from_numpy(step.astype(np.float32)).double()
    product = exact
    log_scale = torch.zeros(300, dtype=torch.float64)
    for sums in scaled_sums(affinity):
        if sums.end > 1:
            product = product @ exact
        largest = product.amax(dim=1)
        product, log_scale = product / largest[:, None], log_scale + largest.log()
        values, actual = sums.pair(0)
        assert bool(values.isfinite().all()) and bool(actual.isfinite().all())
        np.testing.assert_allclose(values, product, rtol=1e-4, atol=1e-7)
        np.testing.assert_allclose(actual, log_scale - math.log(sums.end), rtol=1e-5, atol=1e-4)
    assert float(actual.max()) > 88 + 100 and float(actual.min()) < -88 - 100  # float32 ends at 88


def test_regions_without_a_path_have_log_scale_minus_infinity():
    affinity = [torch.ones(2, 2), torch.tensor([[0.0], [0.0]]), torch.ones(1, 2)]
    for sums in scaled_sums(affinity):
        for i in range(sums.end):
            values, log_scale = sums.pair(i)
            alive = (i, sums.end) in {(0, 1), (2, 3)}
            assert bool((values > 0).all()) == alive and bool((log_scale > -math.inf).all()) == alive


@pytest.mark.parametrize("anchored", [False, True])
def test_best_paths_equal_exhaustive_search(anchored):
    affinity, rng = draw_affinities([3, 4, 2, 4, 3], seed=2), generator(5)
    anchor = [torch.from_numpy(rng.uniform(size=(2, n)).astype(np.float32)) for n in (4, 2, 4, 3)]
    path, score = best_paths(affinity, torch.tensor([2, 0]), anchor if anchored else None)
    for row, start in enumerate([2, 0]):
        value = {}
        for way in itertools.product([start], range(4), range(2), range(4), range(3)):
            value[way] = math.prod(float(a[way[t], way[t + 1]]) for t, a in enumerate(affinity))
            if anchored:
                value[way] *= math.prod(float(a[row, way[t + 1]]) for t, a in enumerate(anchor))
        best = max(value, key=value.__getitem__)
        assert path[row].tolist() == list(best)
        assert float(score[row]) == pytest.approx(value[best] ** (1 / 8 if anchored else 1 / 4), rel=1e-5)
    if anchored:
        assert path.tolist() != best_paths(affinity, torch.tensor([2, 0]))[0].tolist()


def test_a_best_path_ends_where_no_affinity_is_left():
    affinity = [torch.tensor([[0.5, 0.2], [0.0, 0.3]]), torch.tensor([[0.0, 0.0], [0.4, 0.1]]), torch.eye(2)]
    path, score = best_paths(affinity, torch.tensor([0, 1]))
    assert path.tolist() == [[0, 1, 0, 0], [1, 1, 0, 0]]
    affinity[1][1] = 0
    path, score = best_paths(affinity, torch.tensor([0, 1]))
    assert path.tolist() == [[0, 0, -1, -1], [1, 1, -1, -1]]
    assert score.tolist() == pytest.approx([0.5, 0.3])
    _, score = best_paths([torch.zeros(1, 1)], torch.tensor([0]))
    assert score.tolist() == [0]


@pytest.mark.parametrize("center", [False, True])
def test_anchors_compare_with_the_start(center):
    rng = generator(6)
    features = [rng.normal(size=(n, 5)).astype(np.float32) for n in (3, 4, 2)]
    similarities = anchors([torch.from_numpy(x) for x in features], torch.tensor([2, 0]), center)
    mean = center * np.concatenate(features).mean(axis=0)
    assert [similarity.shape for similarity in similarities] == [(2, 4), (2, 2)]
    for t, row, k in [(1, 0, 3), (1, 1, 0), (2, 0, 1), (2, 1, 0)]:
        a, b = features[0][[2, 0][row]] - mean, features[t][k] - mean
        cosine = float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))
        assert float(similarities[t - 1][row, k]) == pytest.approx((1 + cosine) / 2, abs=1e-6)


def test_affinities_are_clipped_cosines():
    rng = generator(3)
    features = [torch.from_numpy(rng.normal(size=(n, 5)).astype(np.float32)) for n in (3, 4)]
    boxes = [torch.from_numpy(rng.uniform(0, 20, (n, 4)).astype(np.float32)) for n in (3, 4)]
    mean = np.concatenate([x.numpy() for x in features]).mean(axis=0)
    for center in (False, True):
        (plain,) = affinities(features, boxes, center, None)
        (near,) = affinities(features, boxes, center, 10.0)
        for r, k in itertools.product(range(3), range(4)):
            a, b = features[0][r].numpy() - center * mean, features[1][k].numpy() - center * mean
            cosine = max(0.0, float(a @ b / np.linalg.norm(a) / np.linalg.norm(b)))
            assert float(plain[r, k]) == pytest.approx(cosine, abs=1e-6)
            moved = np.abs(boxes[0][r].numpy() - boxes[1][k].numpy()).max()
            assert float(near[r, k]) == pytest.approx(cosine if moved <= 10 else 0, abs=1e-6)


def test_region_features_are_means_of_layer_3_and_restore_the_mode():
    torch.manual_seed(0)
    backbone = build_backbone("resnet18").train()
    before = {name: value.clone() for name, value in backbone.state_dict().items()}
    frames = generator(4).integers(0, 256, (2, 3, 64, 96), dtype=np.uint8)
    box = np.array([[32, 0, 64, 32]], np.float32)  # of frames of twice that size: one cell of 16 pixels
    features = Tracker(backbone, config(), CPU, [0.5], [0.25]).features(frames, [box, box], (128, 192))
    assert backbone.training
    assert all(torch.equal(value, before[name]) for name, value in backbone.state_dict().items())
    pixels = torch.from_numpy(frames).float().div(255).sub(0.5).div(0.25)
    with torch.no_grad():
        maps = backbone.eval().layer3(pixels.transpose(0, 1)[None])[0]  # (C, T, 4, 6)
    for t in range(2):
        torch.testing.assert_close(features[t][0], maps[:, t, 0, 1], rtol=1e-4, atol=1e-5)


class Colours(Backbone):
    """A network whose third stage is the picture itself, a cell for 4 pixels."""

    dim = 3

    def layer3(self, x):
        return torch.nn.functional.avg_pool3d(x, (1, 4, 4))


@pytest.fixture
def things():
    """A red and a blue square that change sides over a grey ground in 12 frames, and all places for a square."""
    frames = np.full((12, 3, 64, 64), 90, np.uint8)
    truth = {"red": [], "blue": []}
    for t in range(12):
        for name, x, y, channel in (("red", 4 * t, 8, 0), ("blue", 44 - 4 * t, 40, 2)):
            frames[t, :, y : y + 16, x : x + 16] = 10
            frames[t, channel, y : y + 16, x : x + 16] = 250
            truth[name].append([x, y, x + 16, y + 16])
    places = [[x, y, x + 16, y + 16] for x in range(0, 49, 4) for y in range(0, 49, 8)]
    regions = np.array(places, np.float32)
    return frames, [regions] * 12, {name: np.array(boxes, np.float32) for name, boxes in truth.items()}


def track(network, frames, boxes, chosen, starts=None):
    return Tracker(network, chosen, CPU, [0.45], [0.225]).track(frames, boxes, starts)


def config(**changed):
    return TrackerSettings(**{"min_gap": 8, "size": 64, "center": False, **changed})


@pytest.mark.parametrize("name", ["red", "blue"])
def test_a_given_box_is_followed_to_the_object(things, name):
    frames, boxes, truth = things
    start = truth[name][:1]
    tracks = track(Colours(), frames, boxes, config(variant="best"), start)
    assert tracks.frames.tolist() == list(range(12)) and set(tracks.track) == {0}
    np.testing.assert_array_equal(tracks.boxes, truth[name])
    assert 0.8 < tracks.scores[0] <= 1


def test_a_given_box_need_not_be_a_proposal(things):
    frames, boxes, truth = things
    start = truth["red"][:1] + np.arange(4)
    tracks = track(Colours(), frames, boxes, config(variant="best"), start.astype(np.float32))
    np.testing.assert_array_equal(tracks.boxes[0], start[0])
    assert np.abs(tracks.boxes - truth["red"]).max() <= 8  # it lies as it was given: not quite on the thing


def test_an_anchored_path_does_not_drift():
    """From 0 over 40 degrees to 75, which is nearer to 40 than the start is, or back to 0."""
    frames = np.zeros((3, 3, 64, 64), np.uint8)
    for t, left, angle in ((0, 0, 0), (0, 32, 0), (1, 0, 40), (1, 32, 40), (2, 0, 75), (2, 32, 0)):
        direction = np.array([math.cos(math.radians(angle)), math.sin(math.radians(angle)), 0])
        pixel = 255 * (0.45 + 0.225 * direction)  # of which normalised features are the direction
        frames[t, :, :, left : left + 32] = pixel.round()[:, None, None]
    sides = np.array([[0, 0, 32, 64], [32, 0, 64, 64]], np.float32)
    for anchor, end in ((False, sides[0]), (True, sides[1])):
        chosen = config(variant="best", min_gap=2, max_step=None, anchor=anchor)
        np.testing.assert_array_equal(track(Colours(), frames, [sides] * 3, chosen, sides[:1]).boxes[-1], end)


@pytest.mark.parametrize("overlap", [None, 0.5])
def test_sums_keep_distant_pairs_of_the_same_object(things, overlap):
    frames, boxes, _ = things
    chosen = config(variant="sum", top=4, overlap=overlap, max_step=None)
    tracks = track(Colours(), frames, boxes, chosen)
    first, last = tracks.frames[::2], tracks.frames[1::2]
    assert np.array_equal(tracks.track[::2], tracks.track[1::2])
    expected = {(i, j) for i in range(12) for j in range(i + 8, 12)}
    assert set(zip(first.tolist(), last.tolist(), strict=True)) == expected
    assert max(np.sum((first == i) & (last == j)) for i, j in expected) <= 4
    assert tracks.scores.min() >= 0.5 and tracks.scores.max() == pytest.approx(1)
    colour = np.array(
        [
            frames[t, :, int(y1) : int(y2), int(x1) : int(x2)].mean(axis=(1, 2))
            for t, (x1, y1, x2, y2) in zip(tracks.frames, tracks.boxes, strict=True)
        ]
    )
    assert np.abs(colour[::2] - colour[1::2]).max() < 30


def test_the_best_paths_are_kept_without_duplicates(things):
    frames, boxes, _ = things
    tracks = track(Colours(), frames, boxes, config(variant="best", top=3, threshold=0.9))
    numbers = np.unique(tracks.track)
    assert 1 <= len(numbers) <= 3
    scores = [tracks.scores[tracks.track == n][0] for n in numbers]
    assert scores == sorted(scores, reverse=True) and min(scores) >= 0.9
    ends = [tuple(tracks.boxes[tracks.track == n][-1]) for n in numbers]
    assert len(set(ends)) == len(ends)


@pytest.mark.parametrize("variant", ["best", "sum"])
def test_a_video_shorter_than_the_gap_has_no_tracks(things, variant):
    frames, boxes, _ = things
    for count, gap in ((6, 8), (1, 1)):
        tracks = track(Colours(), frames[:count], boxes[:count], config(variant=variant, min_gap=gap))
        assert len(tracks.frames) == 0


def test_every_nth_frame_keeps_the_numbers_of_frames(things):
    frames, boxes, _ = things
    tracks = track(Colours(), frames[::2], boxes[::2], config(variant="sum", stride=2, max_step=None))
    assert set(zip(tracks.frames[::2].tolist(), tracks.frames[1::2].tolist(), strict=True)) == {
        (0, 8),
        (0, 10),
        (2, 10),
    }


@pytest.mark.parametrize(("frames", "stride", "gap", "reach"), [(24, 1, 24, 23), (60, 7, 57, 56)])
def test_min_gap_beyond_a_chunk_is_refused(frames, stride, gap, reach):
    with pytest.raises(ConfigError, match=f"{frames} frames in steps of {stride} reach {reach} frames far"):
        TrackerSettings(frames=frames, stride=stride, min_gap=gap)
    TrackerSettings(frames=frames, stride=stride, min_gap=reach)
