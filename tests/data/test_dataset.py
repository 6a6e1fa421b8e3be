"""Views: RGB difference against a full decode, decoded frames, spans of videos, order of the crops."""

import numpy as np
import pytest

from vidssl.base.errors import DataError
from vidssl.base.keyed_generators import generator
from vidssl.base.types import VideoRecord
from vidssl.data.clip_samplers import Center, Random, Uniform
from vidssl.data.dataset import plan_views, resolve_span
from vidssl.transforms import RECIPES, Recipe, View, Window
from vidssl.transforms.color import difference_pairs, rgb_difference
from vidssl.video.reader import Video, open_video


class Whole(Recipe):
    """A recipe that returns its frames and records its calls."""

    def __init__(self, difference=0.0):
        self.difference = difference
        self.calls = []

    def __call__(self, frames, generator):
        self.calls.append(frames)
        return [View(frames, Window(0, 0, frames.shape[3], frames.shape[2]))]


def recipe(name, **settings):
    return RECIPES[name](RECIPES[name].Config(**settings))


@pytest.fixture
def path(digits):
    return digits / "videos/train/00001.mp4"


@pytest.fixture
def everything(path):
    with open_video(path) as video:
        frames = video.frames(range(24))
    return frames


def pixels(views):
    return tuple(view.frames for view in views.views)


def make_views(video, offset, meta, sampler, recipes, generators):
    planned = plan_views(video.path, meta, sampler, recipes, generators)
    return planned.make(video.frames(offset + planned.frames))


def views_of(path, sampler, recipes, seeds=None, **record):
    generators = [generator(seed) for seed in (seeds or range(len(recipes)))]
    with open_video(path) as video:
        span = resolve_span(video.meta, VideoRecord(str(path), **record))
        return pixels(make_views(video, *span, sampler, recipes, generators))


def difference_of(frames, indices, first, last):
    """Of native frames of a whole decode, whatever the clip keeps."""
    return rgb_difference(*(frames[part] for part in difference_pairs(indices, first, last)))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("reverse", [0.0, 1.0])
def test_difference_is_taken_between_native_frames(path, everything, seed, reverse):
    sampler = Random(Random.Config(frames=5, sampling_rate=3, jitter=0.3, reverse=reverse))
    (view,) = views_of(path, sampler, [Whole(difference=1.0)], [seed])
    with open_video(path) as video:
        (clip,) = sampler(video.meta, [generator(seed)])
    assert (clip.indices[0] > clip.indices[-1]) == (reverse == 1)
    assert np.array_equal(view, difference_of(everything, clip.indices, clip.first, clip.last))


def test_difference_is_drawn_for_each_view(path, everything):
    sampler = Random(Random.Config(frames=3, sampling_rate=2))
    differences = np.zeros((300, 2), bool)
    for n in range(300):
        a, b = (generator(1, n, v) for v in range(2))
        with open_video(path) as video:
            views = make_views(video, 0, video.meta, sampler, [Whole(0.2), Whole(0.5)], [a, b])
        differences[n] = [np.array_equal(view[:, 0], view[:, 1]) for view in pixels(views)]
    assert abs(differences[:, 0].mean() - 0.2) < 0.1 and abs(differences[:, 1].mean() - 0.5) < 0.12
    assert abs(np.corrcoef(differences.T)[0, 1]) < 0.24


def spy_on_frames(monkeypatch):
    asked = []
    original = Video.frames

    def frames(self, indices):
        asked.append([int(i) for i in indices])
        return original(self, indices)

    monkeypatch.setattr(Video, "frames", frames)
    return asked


def test_one_decode_gives_all_views(path, everything, monkeypatch):
    asked = spy_on_frames(monkeypatch)
    sampler = Random(Random.Config(frames=4, sampling_rate=3))
    views = views_of(path, sampler, [Whole(), Whole(), Whole()], [0, 1, 2])
    with open_video(path) as video:
        clips = sampler(video.meta, [generator(seed) for seed in (0, 1, 2)])
    assert asked == [sorted({int(i) for clip in clips for i in clip.indices})]
    for view, clip in zip(views, clips, strict=True):
        assert np.array_equal(view, everything[clip.indices])


def test_only_kept_frames_and_their_neighbours_are_decoded(path, monkeypatch):
    asked = spy_on_frames(monkeypatch)
    sampler = Uniform(Uniform.Config(frames=3, sampling_rate=8, clips=1))  # of 24 frames: 3, 11, 19
    views_of(path, sampler, [Whole(difference=1.0)])
    assert asked == [[3, 4, 11, 12, 18, 19]]
    asked.clear()
    views_of(path, sampler, [Whole(difference=0.0)])
    assert asked == [[3, 11, 19]]


@pytest.mark.parametrize(
    ("start", "end", "first", "last"),
    [(None, None, 0, 23), (0.2, None, 5, 23), (None, 0.6, 0, 14), (0.2, 0.6, 5, 14), (0.4, 1.5, 10, 23)],
)
def test_spans_of_a_video(path, everything, monkeypatch, start, end, first, last):
    """25 frames a second: 0.2 s is frame 5, and the end is not included."""
    asked = spy_on_frames(monkeypatch)
    record = VideoRecord(str(path), 0, start, end)
    sampler = Uniform(Uniform.Config(frames=5, sampling_rate=2, clips=2))
    with open_video(path) as video:
        views = pixels(make_views(video, *resolve_span(video.meta, record), sampler, [Whole()], [generator(0)]))
    assert np.array_equal(views[0], everything[first : first + 9 : 2])
    assert np.array_equal(views[1], everything[last - 8 : last + 1 : 2])
    asked.clear()
    random = Random(Random.Config(frames=5, sampling_rate=1))
    for seed in range(60):
        with open_video(path) as video:
            make_views(video, *resolve_span(video.meta, record), random, [Whole()], [generator(seed)])
    assert (min(map(min, asked)), max(map(max, asked))) == (first, last)


def test_a_span_shorter_than_the_clip(path, everything):
    record = {"start": 0.4, "end": 0.52}  # frames 10, 11, 12
    loop = Random(Random.Config(frames=5, sampling_rate=1, short_video="loop"))
    (view,) = views_of(path, loop, [Whole()], **record)
    assert np.array_equal(view, everything[[10, 11, 12, 10, 11]])
    (view,) = views_of(path, loop, [Whole(difference=1.0)], **record)
    assert np.array_equal(view, difference_of(everything, np.array([10, 11, 12, 10, 11]), 10, 12))
    with pytest.raises(DataError, match="the video has 3"):
        views_of(path, Random(Random.Config(frames=5, sampling_rate=1, short_video="error")), [Whole()], **record)


@pytest.mark.parametrize(
    ("start", "end"), [(5.0, 6.0), (0.96, None), (400.0, None), (0.9, 1.1), (None, 2.0), (0.0, 24.0)]
)
def test_a_span_with_less_than_half_in_the_file_is_refused(path, start, end):
    """It ends at 0.96 s: numbers of frames or milliseconds for seconds, or a truncated file; nothing is repeated."""
    span = f"{start or 0:g}-{'' if end is None else f'{end:g}'} s"
    said = f"{path}: most of the row's span, {span}, lies outside the file, which is 0.96 s long: .*vidssl check"
    with pytest.raises(DataError, match=said):
        views_of(path, Center(Center.Config(frames=2, sampling_rate=1)), [Whole()], start=start, end=end)


@pytest.mark.parametrize(
    ("start", "end", "first", "last"),
    [(0.95, None, 23, 23), (0.945, 0.9599, 23, 23), (0.4, 0.41, 10, 10), (0.9, 1.0, 22, 23), (0.1, 1.8, 2, 23)],
)
def test_a_span_is_clipped_to_the_file_and_has_at_least_one_frame(path, start, end, first, last):
    with open_video(path) as video:
        offset, part = resolve_span(video.meta, VideoRecord(str(path), 0, start, end))
    assert (offset, offset + part.num_frames - 1) == (first, last)


def test_three_crops_of_each_clip_in_order(tmp_path, write_video):
    """Images of 90 x 30 whose thirds are 60, 120 and 180 bright, and get brighter by one each frame."""
    frames = np.repeat(np.repeat([[60, 120, 180]], 30, axis=1)[:, :, None], 3, axis=2).astype(np.uint8)
    video = np.stack([np.broadcast_to(frames + 3 * t, (30, 90, 3)) for t in range(16)])
    path = write_video(tmp_path / "wide.mp4", video, gop=1)
    sampler = Uniform(Uniform.Config(frames=2, sampling_rate=3, clips=3))
    views = views_of(path, sampler, [recipe("uniform_crops", size=30)])
    assert len(views) == 9 and all(view.shape == (2, 3, 30, 30) for view in views)
    starts = [0, 6, 12]
    expected = [[60 + 60 * crop + 3 * (start + kept) for kept in (0, 3)] for start in starts for crop in range(3)]
    actual = [view[:, :, 10:20, 10:20].mean(axis=(1, 2, 3)) for view in views]
    assert np.abs(np.array(actual) - np.array(expected)).max() < 1.5


def test_one_recipe_serves_all_clips_and_recipes_keep_their_clips(path, everything):
    sampler = Uniform(Uniform.Config(frames=2, sampling_rate=1, clips=3))
    each = Whole()
    views = views_of(path, sampler, [each])
    assert len(each.calls) == len(views) == 3
    recipes = [Whole(), Whole(), Whole()]
    views_of(path, sampler, recipes)
    for one, start in zip(recipes, (0, 11, 22), strict=True):
        assert len(one.calls) == 1 and np.array_equal(one.calls[0], everything[start : start + 2])
