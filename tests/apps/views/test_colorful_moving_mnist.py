"""Colorful Moving MNIST: motion, shared factors, files and lists, and what a run sees of them."""

import csv
import json
from pathlib import Path

import cv2
import numpy as np
import pytest
from scipy.stats import chi2_contingency

from vidssl import cli
from vidssl.apps.views.colorful_moving_mnist import (
    CANVAS,
    CLIP,
    EDGE,
    FACTORS,
    FREE,
    SPEED,
    TEXTURE_NAMES,
    center,
    digit_opacity,
    draw_texture,
    draw_video,
    prepare_colorful_moving_mnist,
    render,
    trajectory,
)
from vidssl.base.errors import ConfigError, DataError
from vidssl.base.keyed_generators import generator
from vidssl.base.types import VideoMeta
from vidssl.data.clip_samplers import ClipAndFrame
from vidssl.data.moving_digits import digit_images
from vidssl.data.video_list import read_list
from vidssl.data.write_lists import write_lists
from vidssl.video.reader import DecodeSettings

POOLS = [range(20 * digit, 20 * digit + 20) for digit in range(10)]
SHARES = [("digit",), ("background",), ("position",), ("digit", "position"), FACTORS]


def noise(rng):
    """Backgrounds that are never equal by chance."""
    return rng.integers(256, size=(CANVAS, CANVAS, 3), dtype=np.uint8), int(rng.integers(5))


@pytest.mark.parametrize("seed", range(2))
def test_digits_are_reflected_at_the_border(seed):
    """Against a loop that turns the velocity around at each contact, in a thousand steps a frame."""
    rng = generator(seed)
    start, heading = rng.uniform(0, FREE, size=2), rng.uniform(0, 2 * np.pi)
    actual = trajectory(start, heading, 20)
    place, velocity = start.copy(), SPEED * np.array([np.cos(heading), np.sin(heading)]) / 1000
    for frame in actual:
        np.testing.assert_allclose(frame, place, atol=0.05)
        for _ in range(1000):
            velocity = np.where((place + velocity < 0) | (place + velocity > FREE), -velocity, velocity)
            place = place + velocity
    assert pytest.approx(6.4) == SPEED and actual.min() >= 0 and actual.max() <= FREE


@pytest.mark.parametrize("share", SHARES)
def test_second_views_share_exactly_the_chosen_factors(share):
    equal = dict.fromkeys(FACTORS, 0)
    for n in range(60):
        first, referred, (second,) = draw_video(share, POOLS, noise, 20, 1, generator(0, n))
        assert len(first) == CLIP and {scene.digit_image for scene in first} == {referred.digit_image}
        path = trajectory(first[0].position, np.arctan2(*(first[1].position - first[0].position)[::-1]), 20)
        if np.hypot(*(first[1].position - first[0].position)) == pytest.approx(SPEED):  # not reflected at once
            np.testing.assert_allclose(referred.position, path[19], atol=1e-6)
        equal["digit"] += second.digit_image == referred.digit_image
        equal["background"] += np.array_equal(second.background, referred.background)
        equal["position"] += np.array_equal(second.position, referred.position)
        assert second.digit_image in POOLS[second.digit]
    for factor, count in equal.items():
        assert count == 60 if factor in share else count <= 3  # 200 images of digits: equal by chance in 1 of 200


def test_factors_that_are_not_shared_are_independent():
    pairs = [draw_video(("position",), POOLS, noise, 20, 1, generator(1, n)) for n in range(500)]
    seconds = [(referred, second) for _, referred, (second,) in pairs]
    for factor, classes in (("digit", 10), ("background_class", 5)):
        table = np.zeros((classes, classes))
        for one, other in seconds:
            table[getattr(one, factor), getattr(other, factor)] += 1
        assert chi2_contingency(table).pvalue > 0.01
    pairs = [draw_video(("digit",), POOLS, noise, 20, 1, generator(2, n)) for n in range(1000)]
    places = np.array([(*referred.position, *second.position) for _, referred, (second,) in pairs])
    assert np.abs(np.corrcoef(places.T) - np.eye(4)).max() < 0.1
    np.testing.assert_allclose(places.mean(axis=0), FREE / 2, atol=1)
    np.testing.assert_allclose(places.std(axis=0), FREE / 12**0.5, atol=0.5)  # uniform, also after ten reflections


def test_a_frame_is_the_digit_in_white_over_the_background():
    images, pools = digit_images(None)
    first, _, _ = draw_video(("digit",), pools["train"], draw_texture, 20, 1, generator(0))
    scene, digit = first[0], digit_opacity(images[first[0].digit_image])
    frame, (x, y) = render(scene, digit), center(scene)
    expected = scene.background.astype(float)
    for row in range(EDGE):
        for column in range(EDGE):
            pixel = expected[y - EDGE // 2 + row, x - EDGE // 2 + column]
            pixel += float(digit[row, column]) * (255 - pixel)
    assert digit.max() == 1 and np.abs(frame - expected).max() <= 0.51
    assert np.abs(np.array([x, y]) - EDGE // 2 - scene.position).max() <= 0.5


@pytest.fixture(scope="module")
def rendered(tmp_path_factory):
    out = tmp_path_factory.mktemp("colorful") / "set"
    prepare_colorful_moving_mnist(out, share=("digit",), train=12, test=6, second_views=3)
    return out


@pytest.mark.parametrize("split", ["train", "test"])
def test_frames_are_exact_after_decoding(rendered, split):
    images, pools = digit_images(None)
    for n, record in enumerate(read_list(rendered / "pairs" / f"{split}.csv").records):
        rng = generator(0, ("train", "test").index(split), n)
        first, _, seconds = draw_video(("digit",), pools[split], draw_texture, 20, 3, rng)
        expected = [render(scene, digit_opacity(images[scene.digit_image])) for scene in (*first, *seconds)]
        with DecodeSettings().open(record) as video:
            assert video.meta == VideoMeta(CLIP + 3, 10.0, CANVAS, CANVAS)
            np.testing.assert_array_equal(video.frames(np.arange(CLIP + 3)), np.transpose(expected, (0, 3, 1, 2)))


def test_lists_and_factors_agree(rendered):
    with open(rendered / "factors.csv", newline="") as file:
        rows = {(row["path"], int(row["frame"])): row for row in csv.DictReader(file)}
    assert len(rows) == 18 * 13
    for split, count in (("train", 12), ("test", 6)):
        digits, grounds = (read_list(rendered / name / f"{split}.csv") for name in ("digit", "background"))
        assert len(digits) == count and digits.classes == tuple("0123456789") and grounds.classes == TEXTURE_NAMES
        assert {**digits.columns, **grounds.columns}.keys() == {"x", "y"}
        for name in "xy":
            np.testing.assert_array_equal(digits.columns[name], grounds.columns[name])
        for n, name in enumerate(digits.names):
            whole = [rows[name, frame] for frame in range(13)]
            assert {int(row["digit"]) for row in whole} == {digits.records[n].label}  # also of the second views
            assert {int(row["background"]) for row in whole[:CLIP]} == {grounds.records[n].label}
            assert digits.records[n].end == 1.0 and len({(row["x"], row["y"]) for row in whole}) > 10


def test_backgrounds_from_lists_of_images(tmp_path):
    rows = []
    for n in range(4):
        image = np.full((96, 80, 3), 40 * n, np.uint8)
        cv2.imwrite(str(tmp_path / f"{n}.png"), image)
        rows.append((f"{n}.png", n % 2))
    write_lists(tmp_path / "lists", tmp_path, {"train": rows[:2], "test": rows[2:]}, ("dark", "bright"))
    prepare_colorful_moving_mnist(
        tmp_path / "set", share=("background",), train=6, test=4, backgrounds=tmp_path / "lists", reference=3
    )
    for split, levels in (("train", (0, 40)), ("test", (80, 120))):
        videos = read_list(tmp_path / "set" / "background" / f"{split}.csv")
        assert videos.classes == ("dark", "bright")
        for record in videos.records:
            with DecodeSettings().open(record) as video:
                frames = video.frames(np.arange(14))
            assert (np.median(frames, axis=(1, 2, 3)) == levels[record.label]).all()  # of both views
    cv2.imwrite(str(tmp_path / "0.png"), np.zeros((60, 96, 3), np.uint8))
    with pytest.raises(DataError, match="96x60, less than the canvas of 64x64"):
        prepare_colorful_moving_mnist(
            tmp_path / "other", share=("digit",), train=20, backgrounds=tmp_path / "lists", test=1
        )
    assert not (tmp_path / "other").exists()
    write_lists(tmp_path / "lists", tmp_path, {"test": [("2.png", -1)]}, ("dark", "bright"))
    with pytest.raises(DataError, match="backgrounds need labels"):
        prepare_colorful_moving_mnist(tmp_path / "other", share=("digit",), backgrounds=tmp_path / "lists")


def test_errors(rendered, tmp_path):
    with pytest.raises(DataError, match="exists: choose another folder"):
        prepare_colorful_moving_mnist(rendered, share=("digit",))
    with pytest.raises(ConfigError, match="share is empty: name at least one of digit, background, position"):
        prepare_colorful_moving_mnist(tmp_path / "set", share=())
    with pytest.raises(ConfigError, match="second views 0"):
        prepare_colorful_moving_mnist(tmp_path / "set", share=("digit",), second_views=0)


def test_the_sampler_draws_all_frames_after_the_clip():
    sampler = ClipAndFrame(ClipAndFrame.Config(frames=4, sampling_rate=3))
    video, drawn = VideoMeta(14, 10.0, 64, 64), set()
    for n in range(80):
        clip, frame = sampler(video, [generator(0, n, view) for view in range(2)])
        assert clip.indices.tolist() == [0, 3, 6, 9] and (clip.first, clip.last) == (0, 9)
        drawn.update(frame.indices.tolist())
    assert drawn == {10, 11, 12, 13}
    with pytest.raises(DataError, match="need 11 frames, the video has 10"):
        sampler(VideoMeta(10, 10.0, 64, 64), [generator(0)] * 2)
    with pytest.raises(ConfigError, match="needs 2 recipes"):
        sampler(video, [generator(0)])


def test_a_run_trains_on_the_pairs_and_localises(rendered, tmp_path):
    config = Path(__file__).parents[3] / "configs" / "studies" / "views" / "colorful_small.yaml"
    lists = [f"data.train={rendered}/pairs/train.csv", f"evaluate.gallery={rendered}/digit/train.csv"]
    lists += [f"evaluate.query={rendered}/digit/test.csv", "evaluate.protocols=[{name: localization}]"]
    small = ["steps=2", "batch_size=8", "log_every=1", "evaluate.every=2", "device=cpu", f"output={tmp_path / 'run'}"]
    cli.run("train", ["--cfg", str(config), "--quiet", *lists, *small])
    logged = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    columns = [read_list(rendered / "digit" / f"{split}.csv").columns for split in ("train", "test")]
    positions = [np.stack([each["x"], each["y"]], axis=1) for each in columns]
    constant = np.hypot(*(positions[1] - positions[0].mean(axis=0)).T).mean()
    (measured,) = (line for line in logged if "localization_error" in line)
    assert measured["mean_position_error"] == pytest.approx(constant)
    assert 0 < measured["localization_error"] < 64
    assert all(np.isfinite(line["loss"]) and line["i_nce"] <= np.log(15) for line in logged if "loss" in line)
