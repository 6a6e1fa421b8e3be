"""Moving digits: equal bytes, correct boxes, independent factors, written atomically."""

import csv
import gzip
import itertools
import json
import math
import multiprocessing
from dataclasses import replace
from pathlib import Path

import av
import cv2
import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier
from sklearn.neighbors import KNeighborsClassifier

from vidssl.base.config import bind
from vidssl.base.errors import ConfigError, DataError
from vidssl.base.keyed_generators import generator
from vidssl.base.output_folder import MARK
from vidssl.data import moving_digits
from vidssl.data.moving_digits import (
    ASYMMETRIC,
    DIGIT_PARTS,
    FAINT,
    MOTIONS,
    OPPOSITES,
    REACH,
    SEEN,
    SWELL,
    TILT,
    Factors,
    MovingDigits,
    digit_images,
    digit_track,
    draw_factors,
    ensure,
    make_glyph,
    opacity,
    part_mask,
    square_around,
    visibility,
)
from vidssl.data.video_list import read_list
from vidssl.video.reader import open_video

MNIST = Path(__file__).parents[3] / "shared" / "data" / "mnist"
SMALL = MovingDigits(train=80, test=80, size=32)
TINY = MovingDigits(train=8, test=2, size=32, frames=8)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    out = tmp_path_factory.mktemp("digits") / "set"
    assert ensure(out, SMALL)
    return out


def contents(folder):
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != MARK]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def table(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def decode(path, count=None):
    with av.open(str(path)) as container:
        frames = itertools.islice(container.decode(video=0), count)
        return np.stack([frame.to_ndarray(format="rgb24") for frame in frames])


def many_factors(count, seed=0):
    """Factors of many videos, without rendering any."""
    return [draw_factors(MOTIONS[i % 8], 0, [0], generator(seed, 1, i)) for i in range(count)]


def accuracy(model, x, y):
    half = len(x) // 2
    return model.fit(x[:half], y[:half]).score(x[half:], y[half:])


def test_equal_settings_give_equal_bytes(tmp_path):
    ensure(tmp_path / "a" / "set", TINY)
    ensure(tmp_path / "b" / "set", TINY)
    first, second = contents(tmp_path / "a" / "set"), contents(tmp_path / "b" / "set")
    for name in ("motion/root.txt", "digit/root.txt", "colour/root.txt"):  # these hold the path of the set
        assert first.pop(name).decode() == f"{tmp_path}/a/set\n"
        assert second.pop(name).decode() == f"{tmp_path}/b/set\n"
    assert first == second
    ensure(tmp_path / "c", MovingDigits(train=8, test=2, size=32, frames=8, seed=1))
    assert contents(tmp_path / "c")["videos/train/00000.mp4"] != first["videos/train/00000.mp4"]


def test_lists_can_be_read_and_are_balanced(made):
    for split in ("train", "test"):
        motion, digit = (read_list(made / name / f"{split}.csv") for name in ("motion", "digit"))
        assert motion.classes == MOTIONS
        assert digit.classes == tuple("0123456789")
        assert motion.names == digit.names
        assert all(Path(record.path).is_file() for record in motion.records)
        pairs = {(m.label, d.label) for m, d in zip(motion.records, digit.records, strict=True)}
        assert len(pairs) == 80  # each motion with each digit, once


def test_splits_share_no_digit_image(made):
    images = {"train": set(), "test": set()}
    for row in table(made / "factors.csv"):
        images[row["path"].split("/")[1]].add(row["digit_image"])
    assert len(images["train"]) > 60
    assert len(images["test"]) > 40
    assert not images["train"] & images["test"]


def test_boxes_hold_the_digit(made):
    """In decoded frames the digit's bright colour is in the box, reaches its edges, and is nowhere else."""
    colours = {row["path"]: row["colour"] for row in table(made / "factors.csv")}
    boxes = table(made / "boxes.csv")
    assert len(boxes) == 160 * 48
    videos = {}
    for box in boxes[:: 48 * 4 + 5]:
        path, t = box["path"], int(box["frame"])
        videos.setdefault(path, decode(made / path))
        frame = videos[path][t].astype(float)
        bright = frame.max(axis=2) > 185
        x1, y1, x2, y2 = (int(box[name]) for name in ("x1", "y1", "x2", "y2"))
        assert 0 <= x1 < x2 <= 32
        assert 0 <= y1 < y2 <= 32
        rows, columns = np.nonzero(bright)
        assert len(rows) > 5, (path, t, colours[path])
        assert y1 <= rows.min() <= y1 + 3, (path, t)
        assert y2 - 4 <= rows.max() < y2, (path, t)
        assert x1 <= columns.min() <= x1 + 3, (path, t)
        assert x2 - 4 <= columns.max() < x2, (path, t)


def test_a_single_frame_does_not_predict_the_motion():
    """Place, tilt and scale of one frame are all that depends on the motion; chance is 0.125."""
    videos = many_factors(3200)
    state = np.stack([digit_track(factors, 48)[24] for factors in videos])
    state = (state - state.mean(0)) / state.std(0)
    label = np.arange(len(videos)) % 8
    assert accuracy(KNeighborsClassifier(25), state, label) < 0.2
    assert accuracy(RandomForestClassifier(20, max_depth=8, random_state=0), state, label) < 0.2


def test_sixteen_frames_predict_the_motion():
    """The same classifier on the movement within 16 frames; place and direction of view are taken out."""
    videos = many_factors(1600)
    tracks = np.stack([digit_track(factors, 48)[16:32] for factors in videos])
    speed = np.diff(tracks, axis=1)
    length = np.hypot(speed[..., 0], speed[..., 1])
    turn = np.abs(np.diff(np.unwrap(np.arctan2(speed[..., 1], speed[..., 0])), axis=1))
    spread = np.abs(speed).mean(axis=1)
    movement = np.concatenate([np.sort(length), np.sort(turn), spread, speed[..., 0].std(1)[:, None]], axis=1)
    label = np.arange(len(videos)) % 8
    assert accuracy(RandomForestClassifier(40, random_state=0), movement, label) > 0.9


@pytest.mark.parametrize("motion", MOTIONS)
def test_digit_stays_on_the_canvas(motion):
    for factors in many_factors(100):
        state = digit_track(Factors(**{**vars(factors), "motion": motion}), 48)
        assert np.all(np.abs(state[:, :2] - 0.5) <= REACH + 1e-9)
        assert np.all(np.abs(state[:, 2]) <= TILT + 1e-9)
        assert np.all(np.abs(state[:, 3] - 1) <= SWELL + 1e-9)


def test_second_call_does_nothing(tmp_path):
    out = tmp_path / "set"
    assert ensure(out, TINY)
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    assert not ensure(out, TINY)
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


def test_other_settings_are_refused(tmp_path):
    ensure(tmp_path / "set", TINY)
    with pytest.raises(DataError, match=r"seed is 0, requested 5.*choose another folder"):
        ensure(tmp_path / "set", MovingDigits(train=8, test=2, size=32, frames=8, seed=5))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("mine")
    with pytest.raises(DataError, match=r"has no settings\.json of moving digits"):
        ensure(tmp_path / "other", TINY)
    assert (tmp_path / "other" / "thesis.txt").read_text() == "mine"


def test_interrupted_run_leaves_nothing(tmp_path, monkeypatch):
    write, calls = moving_digits._write_video, []

    def stop(*args):
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        write(*args)

    monkeypatch.setattr(moving_digits, "_write_video", stop)
    with pytest.raises(KeyboardInterrupt):
        ensure(tmp_path / "set", TINY)
    assert list(tmp_path.iterdir()) == []


def _ensure(out, barrier, results):
    barrier.wait()
    results.put(ensure(out, TINY))


def test_two_processes_at_once(tmp_path):
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(2), context.Queue()
    workers = [context.Process(target=_ensure, args=(tmp_path / "set", barrier, results)) for _ in range(2)]
    for worker in workers:
        worker.start()
    made = [results.get(timeout=60) for _ in workers]
    for worker in workers:
        worker.join()
    assert sum(made) >= 1
    assert [path.name for path in tmp_path.iterdir()] == ["set"]
    assert not ensure(tmp_path / "set", TINY)


@pytest.mark.parametrize("wrong", [{"size": 33}, {"size": 8}, {"train": 0}, {"frames": 0}, {"seed": -1}])
def test_impossible_settings(wrong):
    with pytest.raises(ConfigError, match=f"{next(iter(wrong))}: Input should be"):
        bind(MovingDigits, wrong, "a test")


@pytest.mark.skipif(not MNIST.exists(), reason=f"needs the MNIST test digits in {MNIST}")
def test_mnist_files(tmp_path):
    settings = MovingDigits(train=8, test=8, size=32, frames=8, mnist=MNIST)
    ensure(tmp_path / "set", settings)
    rows = table(tmp_path / "set" / "factors.csv")
    labels = np.frombuffer(gzip.decompress((MNIST / "t10k-labels-idx1-ubyte.gz").read_bytes())[8:], np.uint8)
    assert all(labels[int(row["digit_image"])] == int(row["digit"]) for row in rows)
    assert json.loads((tmp_path / "set" / "settings.json").read_text())["mnist"] == str(MNIST.resolve())

    raw = tmp_path / "raw"
    raw.mkdir()
    for packed in MNIST.glob("t10k-*.gz"):
        (raw / packed.stem).write_bytes(gzip.decompress(packed.read_bytes()))
    ensure(tmp_path / "again", MovingDigits(train=8, test=8, size=32, frames=8, mnist=raw))
    name = "videos/test/00003.mp4"
    assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "set" / name).read_bytes()


def test_broken_mnist_is_named(tmp_path):
    with pytest.raises(DataError, match="t10k-images-idx3-ubyte"):
        ensure(tmp_path / "set", MovingDigits(mnist=tmp_path))
    (tmp_path / "t10k-images-idx3-ubyte").write_bytes(b"no digits here")
    with pytest.raises(DataError, match="not an idx file"):
        ensure(tmp_path / "set", MovingDigits(mnist=tmp_path))
    assert not (tmp_path / "set").exists()


# Masks of parts

MASKED = MovingDigits(train=80, test=20, size=32, frames=8, masks=True)


@pytest.fixture(scope="module")
def masked(tmp_path_factory):
    out = tmp_path_factory.mktemp("masked") / "set"
    assert ensure(out, MASKED)
    return out


def test_masks_change_nothing_else(masked, tmp_path):
    """A set with masks serves who wants none."""
    plain = MovingDigits(**{**MASKED.model_dump(), "masks": False})
    ensure(tmp_path / "set", plain)
    without = contents(tmp_path / "set")
    extra = contents(masked)
    for name, content in without.items():
        if not name.endswith(("root.txt", "settings.json")):
            assert extra[name] == content, name
    assert {name.split("/")[0] for name in extra.keys() - without.keys()} == {"parts", "masks"}
    assert not ensure(masked, plain) and not ensure(masked, MASKED)
    with pytest.raises(DataError, match="masks is False, requested True"):
        ensure(tmp_path / "set", MASKED)


def test_crops_show_the_digit_of_the_middle_frame(masked):
    """The parts begin and end where the digit's box does, and the crop is that of the frame."""
    boxes = {(box["path"], int(box["frame"])): box for box in table(masked / "boxes.csv")}
    crops = read_list(masked / "parts" / "train.csv")
    digits = read_list(masked / "digit" / "train.csv")
    assert len(crops) == 80 and crops.classes == tuple("0123456789")
    for n, (crop, digit) in enumerate(zip(crops.records, digits.records, strict=True)):
        assert crop.label == digit.label
        name = f"videos/train/{n:05d}.mp4"
        box = tuple(int(boxes[name, 4][side]) for side in ("x1", "y1", "x2", "y2"))
        left, top, side = square_around(box, 32)
        with open_video(crop.path) as video:
            pixels = video.frames([0])[0].transpose(1, 2, 0)
        mask = cv2.imread(crop.mask, cv2.IMREAD_UNCHANGED)
        assert pixels.shape == (side, side, 3) and set(np.unique(mask)) == {0, 1, 2}
        rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
        actual = (left + columns[0], top + rows[0], left + columns[-1] + 1, top + rows[-1] + 1)
        assert actual == box
        if n % 8 == 0:  # the video is compressed, the crop is not
            frame = decode(masked / name)[4][top : top + side, left : left + side].astype(float)
            assert np.abs((frame - pixels).mean(axis=2)).mean() < 8  # colours are stored at half the size
            assert pixels[mask > 0].max(axis=1).mean() > pixels[mask == 0].max(axis=1).mean() + 60


@pytest.mark.parametrize("box", [(0, 0, 6, 20), (10, 12, 30, 32), (5, 5, 6, 6), (0, 0, 32, 32)])
def test_the_square_holds_the_box_and_stays_on_the_canvas(box):
    left, top, side = square_around(box, 32)
    assert 0 <= left <= box[0] and box[2] <= left + side <= 32
    assert 0 <= top <= box[1] and box[3] <= top + side <= 32
    assert side >= min(32, max(box[2] - box[0], box[3] - box[1]) + 2)


def test_parts_turn_with_the_digit():
    """Upright, the upper half is above; tilted, each part is the upright one turned about the centre."""
    images, pools = digit_images(None)
    assert DIGIT_PARTS == ("background", "upper half", "lower half")
    for digit in range(10):
        glyph = make_glyph(images[pools["train"][digit][0]])
        zoom = 0.8 * 128 / len(glyph)
        masks = {}
        for tilt in (0.0, 0.6, np.pi):
            turn = zoom * np.array([[np.cos(tilt), -np.sin(tilt)], [np.sin(tilt), np.cos(tilt)]])
            masks[tilt] = part_mask(glyph, turn, 0.5, 0.5, 64)
            np.testing.assert_array_equal(masks[tilt] > 0, opacity(glyph, turn, 0.5, 0.5, 64) > SEEN)
        upper, lower = (np.argwhere(masks[0.0] == part) for part in (1, 2))
        assert len(upper) > 50 and len(lower) > 50
        assert upper[:, 0].max() <= lower[:, 0].min()  # a line between them, or through a row
        tall = np.flatnonzero(masks[0.0].any(axis=1))
        assert abs(lower[:, 0].min() - (tall[0] + tall[-1] + 1) / 2) <= 1  # in the middle
        centre = 31.5
        for part, points in ((1, upper), (2, lower)):
            y, x = points.mean(axis=0) - centre
            for tilt in (0.6, np.pi):
                turned = np.argwhere(masks[tilt] == part).mean(axis=0) - centre
                expected = (np.sin(tilt) * x + np.cos(tilt) * y, np.cos(tilt) * x - np.sin(tilt) * y)
                np.testing.assert_allclose(turned, expected, atol=1)  # of 28 pixels


def test_opposite_motions_are_each_other_reversed():
    """Path, scale and opacity; with the same other factors, so that no single frame tells the two apart."""
    for n, pair in enumerate(OPPOSITES):
        one = draw_factors(pair[0], 3, [0], generator(0, 1, n))
        other = replace(one, motion=pair[1])
        forward, backward = (np.column_stack([digit_track(f, 40), visibility(f, 40)]) for f in (one, other))
        assert np.allclose(forward, backward[::-1], atol=1e-12) and not np.allclose(forward, backward)
        assert np.abs(forward[:, :2] - 0.5).max() <= REACH + 1e-9


def test_what_changes_in_an_asymmetric_motion():
    actual = {m: draw_factors(m, 3, [0], generator(0, 1, n)) for n, m in enumerate(ASYMMETRIC)}
    speed = np.linalg.norm(np.diff(digit_track(actual["accelerate"], 40)[:, :2], axis=0), axis=1)
    assert (np.diff(speed) > 0).all() and speed[0] < speed[-1] / 10
    assert np.allclose(digit_track(actual["grow"], 40)[:, 3], 1 + SWELL * np.linspace(-1, 1, 40))
    assert np.allclose(visibility(actual["fade_in"], 40), np.linspace(FAINT, 1, 40))
    for name, factors in actual.items():
        path = digit_track(factors, 40)
        still = {"accelerate": 0, "decelerate": 0}.get(name, 1)
        assert (np.ptp(path[:, :2], axis=0).max() < 1e-12) == still and np.ptp(path[:, 2]) == 0
    assert all((visibility(factors, 9) == 1).all() for factors in many_factors(8))


def test_the_asymmetric_set(tmp_path):
    settings = MovingDigits(train=60, test=6, size=32, frames=8, motions="asymmetric")
    assert ensure(tmp_path / "set", settings) and not ensure(tmp_path / "set", settings)
    rows = table(tmp_path / "set/factors.csv")[:60]
    assert len({(row["motion"], row["digit"]) for row in rows}) == math.lcm(6, 10) * 2 == 60
    assert (tmp_path / "set/pairs.csv").read_text().splitlines() == [",".join(pair) for pair in OPPOSITES]
    videos, forward = (read_list(tmp_path / f"set/{name}/train.csv") for name in ("motion", "forward"))
    assert videos.classes == forward.classes == ASYMMETRIC
    assert np.bincount(videos.labels).tolist() == [10] * 6
    assert {forward.classes[n] for n in forward.labels} == {one for one, _ in OPPOSITES} and len(forward) == 30
    # The digit is faint in the first frame of fade_in: its brightest pixels are darker than in the last one.
    path = tmp_path / "set" / next(row["path"] for row in rows if row["motion"] == "fade_in")
    frames = decode(path)
    assert np.percentile(frames[0], 99) + 60 < np.percentile(frames[-1], 99)
    with pytest.raises(DataError, match="motions is asymmetric"):
        ensure(tmp_path / "set", MovingDigits(train=60, test=6, size=32, frames=8))
