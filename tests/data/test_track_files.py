"""Patch pairs: which tracks can be drawn, their boxes in the views, and the fallback without a track."""

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from vidssl.base.errors import ConfigError, DataError
from vidssl.base.keyed_generators import generator
from vidssl.base.types import Tracks, VideoRecord
from vidssl.data.clip_samplers import Random, TrackedPair
from vidssl.data.dataset import ClipDataset
from vidssl.data.loader import Loader
from vidssl.data.track_files import read_tracks, sample_track, tracks_file, write_tracks
from vidssl.data.video_list import read_list
from vidssl.data.write_lists import write_lists
from vidssl.transforms import RECIPES, Window

HEIGHT, WIDTH, FRAMES, SIDE = 72, 96, 48, 16  # of the videos here, and of the square that moves in them


def corner(frame, start=0):
    """Left and top of the square in a frame: it moves along, and down."""
    return 10 + frame + start, 8 + frame // 2


def square_tracks(start=0):
    """One track with the square's box in each frame."""
    corners = np.array([corner(frame, start) for frame in range(FRAMES)], np.float32)
    boxes = np.concatenate([corners, corners + SIDE], axis=1)
    return Tracks(np.arange(FRAMES), boxes, np.ones(FRAMES, np.float32), np.zeros(FRAMES, np.int64))


@pytest.fixture(scope="module")
def moving(tmp_path_factory, write_video):
    """A list of six videos of a bright square on black, and the folder of their tracks."""
    root = tmp_path_factory.mktemp("moving")
    for n in range(6):
        frames = np.zeros((FRAMES, HEIGHT, WIDTH, 3), np.uint8)
        for frame, image in enumerate(frames):
            x, y = corner(frame, 4 * n)
            image[y : y + SIDE, x : x + SIDE] = 250
        write_video(root / f"{n}.mp4", frames)
        path = tracks_file(root / "found", f"{n}.mp4", VideoRecord(f"{n}.mp4"))
        write_tracks(path, square_tracks(4 * n), {"by": "hand"})
    write_lists(root / "lists", root, {"train": [(f"{n}.mp4", n) for n in range(6)]}, ())
    return root


def tracked_set(root, seed=0, tracks="found", **settings):
    sampler = TrackedPair(TrackedPair.Config(frames=1, sampling_rate=1, min_gap=20, untracked="pair"))
    recipes = [RECIPES["weak"](RECIPES["weak"].Config(size=size, area=(0.5, 1.0), **settings)) for size in (32, 48)]
    return ClipDataset(read_list(root / "lists/train.csv"), sampler, recipes, seed, replace=2, tracks=root / tracks)


def test_the_box_of_each_view_holds_the_square(moving):
    dataset, whole = tracked_set(moving), 0
    for epoch in range(5):
        for index in range(6):
            sample = dataset[epoch, index]
            assert sample.boxes.shape == (2, 4) and sample.boxes.dtype == np.float32
            if np.array_equal(sample.boxes, [(0, 0, 32, 32), (0, 0, 48, 48)]):
                whole += 1
                continue
            for view, box in zip(sample.views, sample.boxes, strict=True):
                gray, size = view[0, 0].astype(float), view.shape[-1]
                rows, columns = np.mgrid[:size, :size] + 0.5
                inner = (columns > box[0] + 2) & (columns < box[2] - 2) & (rows > box[1] + 2) & (rows < box[3] - 2)
                outer = (columns < box[0] - 3) | (columns > box[2] + 3) | (rows < box[1] - 3) | (rows > box[3] + 3)
                assert inner.any() and gray[inner].mean() > 220
                assert outer.any() and gray[outer].mean() < 20
    assert whole < 15  # a crop of both views must miss the square for that


def test_the_box_belongs_to_the_frame_in_the_middle_of_the_clip(moving):
    """Clips of 9 frames, in which the square moves 8 pixels: only the middle frame fits its box well."""
    sampler = TrackedPair(TrackedPair.Config(frames=9, sampling_rate=1, min_gap=12))
    recipe = RECIPES["center_crop"](RECIPES["center_crop"].Config(size=HEIGHT))
    dataset = ClipDataset(read_list(moving / "lists/train.csv"), sampler, [recipe] * 2, tracks=moving / "found")
    seen = 0
    for epoch in range(6):
        sample = dataset[epoch, 0]
        for view, box in zip(sample.views, sample.boxes.round().astype(int), strict=True):
            if box[2] - box[0] == SIDE:  # neither cut off nor the whole view
                means = [image[0, box[1] : box[3], box[0] : box[2]].mean() for image in view]
                assert int(np.argmax(means)) == 4 and means[4] > 235 > means[0]
                seen += 1
    assert seen > 4


def test_tracks_change_no_view(moving):
    """Boxes have their own generator: with a sampler that ignores tracks, views are bit-identical."""
    videos = read_list(moving / "lists/train.csv")
    sampler = Random(Random.Config(frames=3, sampling_rate=4))
    recipes = [RECIPES["strong"](RECIPES["strong"].Config(size=24, difference=0.5)) for _ in range(2)]
    with_tracks = ClipDataset(videos, sampler, recipes, tracks=moving / "found")
    without = ClipDataset(videos, sampler, recipes)
    for epoch in range(3):
        for index in range(6):
            one, other = with_tracks[epoch, index], without[epoch, index]
            assert other.boxes is None and one.boxes is not None
            assert all(np.array_equal(a, b) for a, b in zip(one.views, other.views, strict=True))


def test_missing_tracks_stop_the_run(moving, tmp_path):
    """Unlike a broken video, which is replaced."""
    with pytest.raises(ConfigError) as caught:
        tracked_set(moving, tracks="nowhere")[0, 0]
    path = moving / "nowhere/tracks/0.mp4.npz"
    assert str(caught.value) == (f"{path}: no tracks: make them with vidssl track, or remove the video from the list")
    path = tracks_file(moving / "damaged", "0.mp4", VideoRecord("0.mp4"))
    path.parent.mkdir(parents=True)
    path.write_bytes(b"no tracks")
    with pytest.raises(ConfigError, match="is not a file of tracks"):
        tracked_set(moving, tracks="damaged")[0, 0]
    for workers in (0, 1):
        loader = Loader(tracked_set(moving, tracks="nowhere"), [[(0, 0), (0, 1)]], workers)
        with pytest.raises(ConfigError, match="no tracks: make them"):
            list(loader)


def test_tracks_of_frames_of_another_size_or_of_a_longer_video(moving):
    tracks = square_tracks()
    last = int(tracks.frames.max()) + 1
    for name, changed, message in (
        ("large", {"boxes": 2 * tracks.boxes}, r"and 146x94, the video has \d+ frames of 96x72: make them again"),
        ("long", {"frames": tracks.frames + 1}, rf"to frame {last} and \w+, the video has {last} frames of \w+: make"),
    ):
        write_tracks(tracks_file(moving / name, "0.mp4", VideoRecord("0.mp4")), replace(tracks, **changed), {})
        with pytest.raises(ConfigError, match=message):
            tracked_set(moving, tracks=name)[0, 0]


# sample_track ------------------------------------------------------------------------------------------------


def tracks_of(*rows):
    """Tracks from rows (track, frame, x1, y1, x2, y2)."""
    table = np.array(rows, np.float64).reshape(-1, 6)
    return Tracks(
        table[:, 1].astype(np.int64),
        table[:, 2:].astype(np.float32),
        np.ones(len(table), np.float32),
        table[:, 0].astype(np.int64),
    )


LEFT, RIGHT = Window(0, 0, 60, 80), Window(40, 0, 60, 80, True)  # of frames of 100 x 80
BOTH = tracks_of(
    (0, 3, 20, 10, 50, 40), (0, 9, 50, 20, 90, 60),  # seen by both views
    (1, 3, 0, 0, 30, 80), (1, 9, 70, 0, 100, 80),  # the same
    (2, 3, 20, 10, 50, 40), (2, 8, 50, 20, 90, 60),  # not in frame 9
    (3, 3, 70, 10, 90, 40), (3, 9, 70, 10, 90, 40),  # outside of the first view
    (4, 3, 20, 10, 50, 40), (4, 9, 0, 10, 50, 40),  # a fifth of it in the second view
    (5, 3, 20, 10, 25, 40), (5, 9, 50, 20, 90, 60),  # 5 of 60 pixels wide: less than an eighth
)  # fmt: skip


def test_only_tracks_visible_in_all_views_are_drawn():
    draws = [sample_track(BOTH, (3, 9), (LEFT, RIGHT), (60, 30), generator(6, n)) for n in range(2000)]
    counts = Counter(boxes.tobytes() for boxes in draws)
    first = np.array([[20, 7.5, 50, 30], [5, 7.5, 25, 22.5]], np.float32)
    second = np.array([[0, 0, 30, 60], [0, 0, 15, 30]], np.float32)
    assert set(counts) == {first.tobytes(), second.tobytes()}
    assert abs(counts[first.tobytes()] - 1000) < 4 * np.sqrt(500)


def test_the_fraction_that_must_be_visible():
    def found(visible):
        drawn = [sample_track(BOTH, (3, 9), (LEFT, RIGHT), (60, 30), generator(6, n), visible) for n in range(60)]
        return len({boxes.tobytes() for boxes in drawn})

    assert (found(0.5), found(0.21), found(0.19)) == (2, 2, 3)


@pytest.mark.parametrize("seed", range(3))
def test_drawn_tracks_against_a_loop(seed):
    rng = generator(7, seed)
    rows = []
    for track in range(40):
        for frame in rng.choice(6, rng.integers(1, 5), replace=False):
            x, y, w, h = rng.uniform((0, 0, 4, 4), (80, 60, 50, 50))
            rows.append((track, frame, x, y, min(x + w, 100), min(y + h, 80)))
    rng.shuffle(rows)
    frames, windows, sizes = (1, 4, 2), (LEFT, RIGHT, Window(10, 5, 70, 70)), (32, 48, 24)
    fit = []
    for track in range(40):
        boxes = []
        for frame, window, size in zip(frames, windows, sizes, strict=True):
            for number, at, *box in rows:
                if (number, at) == (track, frame):
                    low = max(box[0], window.x), max(box[1], window.y)
                    high = min(box[2], window.x + window.w), min(box[3], window.y + window.h)
                    w, h = high[0] - low[0], high[1] - low[1]
                    whole = (box[2] - box[0]) * (box[3] - box[1])
                    large = w / window.w >= 1 / 8 and h / window.h >= 1 / 8
                    if w > 0 and h > 0 and w * h >= 0.5 * whole and large:
                        x1, x2 = (size * (x - window.x) / window.w for x in (low[0], high[0]))
                        if window.flipped:
                            x1, x2 = size - x2, size - x1
                        y1, y2 = (size * (y - window.y) / window.h for y in (low[1], high[1]))
                        boxes.append((x1, y1, x2, y2))
        if len(boxes) == 3:
            fit.append(np.array(boxes))
    drawn = [sample_track(tracks_of(*rows), frames, windows, sizes, generator(8, seed, n)) for n in range(100)]
    unique = {boxes.tobytes(): boxes for boxes in drawn}
    assert len(unique) == max(len(fit), 1)
    if fit:
        for boxes in unique.values():
            assert min(np.abs(boxes - expected).max() for expected in fit) < 1e-4
    else:
        assert np.array_equal(drawn[0], [(0, 0, size, size) for size in sizes])


# Files -------------------------------------------------------------------------------------------------------


def test_files_of_tracks_are_read_back(tmp_path):
    path = tmp_path / "deep" / "a.npz"
    write_tracks(path, BOTH, {"min_gap": 40, "size": [1, 2]})
    actual, made_with = read_tracks(path)
    assert made_with == json.loads('{"min_gap": 40, "size": [1, 2]}')
    for name in ("frames", "boxes", "scores", "track"):
        one, other = getattr(actual, name), getattr(BOTH, name)
        assert np.array_equal(one, other) and one.dtype == other.dtype
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DataError, match="not a file of tracks"):
        read_tracks(path)


@pytest.mark.parametrize(
    ("name", "start", "end", "expected"),
    [
        ("a/b.mp4", None, None, "tracks/a/b.mp4.npz"),
        ("a/b.mp4", 2.0, 4.5, "tracks/a/b.mp4@2.000-4.500.npz"),
        ("a/b.mp4", None, 4.5, "tracks/a/b.mp4@0.000-4.500.npz"),
        ("a/b.mp4", 2.0, None, "tracks/a/b.mp4@2.000-end.npz"),
        ("../x/./b.mp4", None, None, "tracks/x/b.mp4.npz"),
        ("/x/b.mp4", None, None, "tracks/x/b.mp4.npz"),
    ],
)
def test_names_of_files_of_tracks(tmp_path, name, start, end, expected):
    assert tracks_file(tmp_path, name, VideoRecord(name, start=start, end=end)) == tmp_path / expected


def test_tracks_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="12 frames"):
        replace(BOTH, scores=np.ones(11, np.float32))


@pytest.mark.parametrize(
    ("frame", "box"),
    [(0, (5, 5, 5, 9)), (0, (5, 9, 8, 5)), (0, (np.nan, 1, 4, 4)), (0, (1, 1, np.inf, 4)), (-1, (1, 1, 4, 4))],
)
def test_invalid_rows_of_tracks_are_refused(frame, box, tmp_path):
    path = tmp_path / "a.npz"
    one = {"scores": np.ones(1, np.float32), "track": np.zeros(1, np.int32), "made_with": np.array("{}")}
    np.savez(path, frames=np.array([frame]), boxes=np.array([box], np.float32), **one)
    with pytest.raises(DataError, match=r"a.npz is not a file of tracks .*a box has no area, or is not finite"):
        read_tracks(path)
