"""Recipes: Table 1 of SCE, probabilities, bytes, and configs that are refused."""

import pickle
from collections import Counter
from collections.abc import Callable
from functools import partial

import cv2
import numpy as np
import pytest
import torch
import torchvision.transforms.v2.functional as F
from numpy.typing import NDArray
from torchvision.transforms.v2 import InterpolationMode, RandAugment

from vidssl.base.errors import ConfigError, DataError
from vidssl.base.keyed_generators import generator
from vidssl.base.types import Frames, Operation
from vidssl.transforms import RECIPES, Window, color, crops, recipes
from vidssl.transforms.crops import random_box
from vidssl.transforms.recipes import apply, draw_jitter, draw_randaugment

VIEWS = ("weak", "strong", "strong_alpha", "strong_beta", "strong_gamma")

# As printed (Denize et al., 2023), "-" as 0; rows without the random crop, which is always done.
TABLE_1 = """
flip            0.5  0.5  0.5  0.5  0.5
jitter          0.   0.8  0.8  0.8  0.8
brightness      0.   0.4  0.4  0.4  0.4
contrast        0.   0.4  0.4  0.4  0.4
saturation      0.   0.4  0.2  0.2  0.2
hue             0.   0.1  0.1  0.1  0.1
gray            0.   0.2  0.2  0.2  0.2
blur            0.   0.5  1.   0.1  0.5
solarize        0.   0.   0.   0.2  0.2
"""


def clip(length: int = 2, height: int = 40, width: int = 52) -> Frames:
    rng = generator(0)
    images = [cv2.resize(rng.uniform(0, 255, (5, 6, 3)), (width, height)) for _ in range(length)]
    return np.stack(images).astype(np.uint8).transpose(0, 3, 1, 2)


def small(name: str) -> recipes.Recipe:
    recipe = RECIPES[name]
    return recipe(recipe.Config(size=24, short_side=(28, 36)) if name == "train_crop" else recipe.Config(size=24))


def test_the_names() -> None:
    assert set(RECIPES) == {*VIEWS, "infomin", "train_crop", "center_crop", "uniform_crops", "patches"}


def test_configs_at_half_strength_are_table_1_of_the_paper() -> None:
    for row in TABLE_1.strip().splitlines():
        what, *numbers = row.split()
        for name, number in zip(VIEWS, numbers, strict=True):
            config = RECIPES[name].Config(color=0.5)
            ranges = dict(zip(("brightness", "contrast", "saturation", "hue"), config.ranges, strict=True))
            value = ranges[what] if what in ranges else getattr(config, f"{what}_probability")
            assert value == float(number), (what, name)


def test_defaults_of_the_paper_and_its_code() -> None:
    for name in VIEWS:
        config = RECIPES[name].Config()
        assert (config.size, config.color, config.area, config.ratio) == (224, 1.0, (0.2, 0.766), (3 / 4, 4 / 3))
        assert (config.blur_kernel, config.sigma, config.difference) == (23, (0.1, 2.0), 0.0)
        assert RECIPES[name](RECIPES[name].Config(difference=0.2)).difference == 0.2
    finetune = RECIPES["train_crop"].Config(color=0.5)
    assert (finetune.ranges, finetune.jitter_probability) == ((0.4, 0.4, 0.4, 0.1), 0.8)
    assert small("train_crop").difference == small("center_crop").difference == small("uniform_crops").difference == 0.0


@pytest.mark.parametrize("name", [*VIEWS, "infomin", "train_crop", "center_crop", "uniform_crops"])
def test_every_recipe_keeps_the_contract(name: str) -> None:
    recipe, frames = small(name), clip()
    before = frames.copy()
    for key in range(6):
        views = recipe(frames, generator(7, key))
        assert len(views) == (3 if name == "uniform_crops" else 1)
        for view, _ in views:
            assert view.shape == (2, 3, 24, 24) and view.dtype == np.uint8
            assert view.transpose(0, 2, 3, 1).flags.c_contiguous
            assert not np.shares_memory(view, frames)
        again = pickle.loads(pickle.dumps(recipe))(frames, generator(7, key))
        assert [(view.tobytes(), window) for view, window in views] == [
            (view.tobytes(), window) for view, window in again
        ]
    assert np.array_equal(frames, before)
    drawn = [recipe(frames, generator(7, key))[0].frames.tobytes() for key in range(6)]
    assert len(set(drawn)) == (1 if name in ("center_crop", "uniform_crops") else 6)


@pytest.mark.parametrize("name", [*VIEWS, "infomin", "train_crop"])
def test_all_frames_of_a_clip_get_the_same(name: str) -> None:
    recipe, frames = small(name), np.repeat(clip(1), 3, axis=0)
    for key in range(20):
        view = recipe(frames, generator(8, key))[0].frames
        assert np.all(view == view[:1])


@pytest.mark.parametrize("name", [*VIEWS, "infomin", "train_crop"])
def test_probabilities_and_order(name: str) -> None:
    """Sharpness and rotation stand for RandAugment: each is one of its 14 operations, twice, and of nothing else."""
    recipe, frames, rng, draws = small(name), clip(1, 28, 28), generator(9), 2000
    assert isinstance(recipe, recipes.DrawnRecipe)
    jitter, config = ("brightness", "contrast", "saturation", "hue"), recipe.config
    ranged = [operation for operation, limit in zip(jitter, config.ranges, strict=True) if limit]
    order, counts = ["gray", "blur", "solarize", "sharpness", "rotate", "flip"], Counter[str]()
    for _ in range(draws):
        view, drawn = recipe.draw(frames, rng)
        names = [operation.name for operation in drawn]
        assert view.frames.shape == (1, 3, 24, 24)
        assert view.window is None or view.window.flipped == (names[-1:] == ["flip"])
        if name != "infomin":  # whose RandAugment has the names of the jitter too
            once = [operation for operation in order if operation in names]
            head = names[: len(names) - len(once)]
            assert names[len(head) :] == once and sorted(head) in ([], sorted(ranged))
            counts["jitter"] += bool(head)
            counts.update(set(once))
        else:
            counts["jitter"] += "hue" in names
            counts.update(operation for operation in names if operation not in jitter)
    expected = {
        "jitter": config.jitter_probability * bool(ranged),
        "gray": config.gray_probability,
        "blur": getattr(config, "blur_probability", 0.0),
        "sharpness": 2 / 14 * (name == "infomin"),
        "rotate": 2 / 14 * (name == "infomin"),
        "flip": config.flip_probability,
    }
    expected["solarize"] = getattr(config, "solarize_probability", 0.0) + expected["rotate"]
    for operation, probability in expected.items():
        spread = 4 * np.sqrt(probability * (1 - probability) / draws)
        assert abs(counts[operation] / draws - probability) <= spread, operation


def test_a_view_is_the_operations_one_after_the_other() -> None:
    config = recipes.StrongAlpha.Config(size=24, jitter_probability=1.0, gray_probability=0.0, flip_probability=1.0)
    frames, rng = clip(), generator(10)
    expected = crops.crop_resize(frames, random_box(40, 52, config.area, config.ratio, rng), 24, 24)
    rng.random()
    expected = apply(expected, draw_jitter(config.ranges, rng))
    rng.random(2)
    expected = crops.flip(color.gaussian_blur(expected, 23, rng.uniform(0.1, 2.0)))
    assert np.array_equal(recipes.StrongAlpha(config)(frames, generator(10))[0].frames, expected)


def test_infomin_is_strong_with_other_crops_and_randaugment() -> None:
    ours, strong = RECIPES["infomin"].Config().model_dump(), RECIPES["strong"].Config().model_dump()
    assert {key: value for key, value in ours.items() if value != strong[key]} == {"area": (0.2, 1.0), "operations": 2}
    assert (ours["magnitude"], ours["geometry"], strong["operations"]) == (10, True, 0)
    plain = {"jitter_probability": 0.0, "gray_probability": 0.0, "blur_probability": 0.0}
    config = recipes.InfoMin.Config(size=24, flip_probability=1.0, **plain)
    for key in range(5):
        frames, rng = clip(), generator(12, key)
        expected = crops.crop_resize(frames, random_box(40, 52, config.area, config.ratio, rng), 24, 24)
        rng.random(4)  # jitter, gray, blur, solarisation
        expected = crops.flip(apply(expected, draw_randaugment(2, 10, True, rng)))
        assert np.array_equal(recipes.InfoMin(config)(frames, generator(12, key))[0].frames, expected)


def test_randaugment_is_optional_and_draws_nothing_when_off() -> None:
    for name in VIEWS:
        recipe, frames = RECIPES[name], clip()
        off, on = (recipe(recipe.Config(size=24, operations=n, magnitude=30)) for n in (0, 3))
        magnitude = recipe(recipe.Config(size=24, magnitude=7, geometry=False))
        pairs = [(off(frames, generator(13, k))[0], on(frames, generator(13, k))[0]) for k in range(10)]
        assert sum(not np.array_equal(a.frames, b.frames) for a, b in pairs) >= 8
        for key, (view, _) in enumerate(pairs):
            ignored = magnitude(frames, generator(13, key))[0]
            assert np.array_equal(view.frames, ignored.frames) and view.window == ignored.window


def test_test_crops_use_their_short_side() -> None:
    frames = clip()  # 40 x 52
    expected = crops.uniform_crops(frames, 30, 3, 36)
    for name, settings, views in (("uniform_crops", {"crops": 3}, expected), ("center_crop", {}, expected[1:2])):
        recipe = RECIPES[name](RECIPES[name].Config(size=30, short_side=36, **settings))
        for view, cropped in zip(recipe(frames, generator(0)), views, strict=True):
            assert np.array_equal(view.frames, cropped.frames) and view.window == cropped.window


def test_train_crop_pads_before_cropping() -> None:
    config = recipes.TrainCrop.Config(size=40, short_side=(40, 40), padding=4, flip_probability=0.0)
    frames = clip()
    for key in range(5):
        rng = generator(17, key)
        rng.integers(40, 40, endpoint=True)
        expected = crops.random_crop(frames, 40, rng, 4)
        (view,) = recipes.TrainCrop(config)(frames, generator(17, key))
        assert np.array_equal(view.frames, expected.frames) and view.window == expected.window


def test_train_crop_scales_the_short_side_between_both_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    monkeypatch.setattr(crops, "short_side", lambda frames, size: sizes.append(size) or frames)
    recipe = recipes.TrainCrop(recipes.TrainCrop.Config(size=20, short_side=(25, 28)))
    for key in range(200):
        recipe(clip(1), generator(11, key))
    assert set(sizes) == {25, 26, 27, 28}


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("weak", {"size": 0}, "greater than or equal to 1"),
        ("weak", {"area": (0.5, 0.2)}, "0 < low <= high"),
        ("weak", {"area": (0.5, 1.2)}, "less than or equal to 1"),
        ("weak", {"ratio": (0.0, 1.0)}, "0 < low <= high"),
        ("strong", {"jitter_probability": 1.1}, "less than or equal to 1"),
        ("strong", {"difference": -0.1}, "greater than or equal to 0"),
        ("strong", {"blur_kernel": 4}, "odd"),
        ("strong", {"sigma": (0.0, 1.0)}, "0 < low <= high"),
        ("strong", {"color": 3.0}, "more than 0.5"),
        ("strong", {"jitter": (-0.1, 0.0, 0.0, 0.0)}, "greater than or equal to 0"),
        ("strong", {"colour": 1.0}, "unknown key"),
        ("infomin", {"operations": -1}, "greater than or equal to 0"),
        ("infomin", {"magnitude": 31}, "less than or equal to 30"),
        ("train_crop", {"size": 300}, "size 300 or more"),
        ("train_crop", {"short_side": (320, 256)}, "must rise"),
        ("train_crop", {"size": 32, "short_side": (23, 32), "padding": 4}, "start at size 32"),
        ("center_crop", {"size": 224, "short_side": 223}, "short_side 223 is less than size 224"),
        ("uniform_crops", {"size": 224, "short_side": 223}, "short_side 223 is less than size 224"),
    ],
)
def test_invalid_configs_are_refused(name: str, values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RECIPES[name].Config(**values)


# Two patches at a distance, against slices of the frames ------------------------------------------------------


def frames(height=40, width=50):
    rows, columns = np.mgrid[:height, :width]
    image = np.stack([rows, columns, np.zeros_like(rows)], axis=-1).astype(np.uint8)  # each pixel holds its position
    return np.stack([image, image]).transpose(0, 3, 1, 2)


def patches(size, distance):
    recipe = RECIPES["patches"]
    return recipe(recipe.Config(size=size, distance=distance))


@pytest.mark.parametrize(("size", "distance"), [(8, 0), (8, 5), (16, 24), (10, 30)])
def test_the_second_patch_is_the_distance_from_the_first(size, distance):
    source, places = frames(), set()
    for key in range(60):
        views = patches(size, distance)(source, generator(3, key))
        corners = [view.frames[0, :2, 0, 0].astype(int) for view in views]
        np.testing.assert_array_equal(corners[1] - corners[0], [distance, distance])
        for (y, x), view in zip(corners, views, strict=True):
            np.testing.assert_array_equal(view.frames, source[:, :, y : y + size, x : x + size])
            assert view.window == Window(x, y, size, size) and not np.shares_memory(view.frames, source)
            assert view.frames.transpose(0, 2, 3, 1).flags.c_contiguous
        places.add(tuple(corners[0].tolist()))
    limit = np.array([40, 50]) - size - distance
    low, high = np.min([*places], axis=0), np.max([*places], axis=0)
    assert (low >= 0).all() and (high <= limit).all()
    assert (high - low >= 0.7 * limit).all()  # all over the frame


def test_frames_that_are_too_small_are_refused():
    with pytest.raises(DataError, match=r"distance 25 needs frames of 41x41, got 50x40"):
        patches(16, 25)(frames(), generator(0))


# RandAugment --------------------------------------------------------------------------------------------------


def _change(frames: Frames, level: float, draw: Callable[[float], list[Operation]]) -> Frames:
    return apply(frames, draw(level))


OURS = {name: partial(_change, draw=draw) for name, draw in (recipes.COLOR | recipes.GEOMETRY).items()}
RIM = 100


def noise() -> Frames:
    return generator(0).integers(0, 256, (2, 40, 52, 3), dtype=np.uint8).transpose(0, 3, 1, 2)


def reference(frames: Frames, name: str, magnitude: int, sign: int) -> NDArray[np.uint8]:
    """What torchvision's RandAugment makes of a clip by the magnitude, had it drawn this operation and sign."""
    theirs, x = RandAugment(), torch.from_numpy(np.ascontiguousarray(frames))
    (length, _, height, width), title = frames.shape, name.title().replace("_", "")
    strengths, signed = theirs._AUGMENTATION_SPACE[title]
    values = strengths(31, height, width)
    strength = 0.0 if values is None else values[magnitude].item() * (sign if signed else 1)
    y = x_ = 0
    if name in ("auto_contrast", "equalize"):
        x = x.transpose(0, 1).reshape(3, length * height, width)  # one tall image of all frames
    elif name == "solarize":
        strength = round(255 * strength, 3) / 255  # in float32 204.00001, which would spare 204
    elif name in recipes.GEOMETRY:
        # In a wide gray rim: at its own edges torchvision mixes with black before it fills them.
        x = F.pad(x, [RIM] * 4, fill=128)
        y = x_ = RIM
        if name.startswith("shear"):  # about the corner of the rim: whole pixels further, then
            away = round(RIM * strength)
            y, x_ = (y - away, x_) if name.endswith("y") else (y, x_ - away)
    out = theirs._apply_image_or_video_transform(
        x, title, strength, interpolation=InterpolationMode.BILINEAR, fill={torch.Tensor: 128}
    )
    if name in ("auto_contrast", "equalize"):
        out = out.reshape(3, length, height, width).transpose(0, 1)
    return out[..., y : y + height, x_ : x_ + width].numpy()


# Largest and mean difference, of 255; of what is not here 0.
LIMITS = {
    "auto_contrast": (1, 0.6),
    "brightness": (1, 0.6),
    "color": (2, 1.0),
    "contrast": (2, 1.1),
    "sharpness": (1, 0.6),
    "rotate": (1, 0.02),
    "shear_x": (1, 0.07),
    "shear_y": (1, 0.07),
}


@pytest.mark.parametrize("make", [noise, clip])
@pytest.mark.parametrize("name", OURS)
def test_every_operation_equals_torchvisions(name: str, make: Callable[[], Frames]) -> None:
    frames = make()
    before = frames.copy()
    largest, mean = 0, 0.0
    for magnitude in range(0, 31, 3):
        for sign in (-1, 1):
            out = OURS[name](frames, sign * magnitude / 30)
            assert out.shape == frames.shape and out.dtype == np.uint8
            assert out.transpose(0, 2, 3, 1).flags.c_contiguous
            error = np.abs(out.astype(int) - reference(frames, name, magnitude, sign))
            largest, mean = max(largest, int(error.max())), max(mean, float(error.mean()))
    assert np.array_equal(frames, before)
    limits = LIMITS.get(name, (0, 0.0))
    assert largest <= limits[0] and mean <= limits[1]


def test_the_names_are_those_of_torchvision() -> None:
    theirs = {name.lower() for name in RandAugment._AUGMENTATION_SPACE}
    assert {name.replace("_", "") for name in OURS} == theirs and len(OURS) == 14


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, float]]:
    """Name and level of each draw, in order, also of the identity."""
    draws: list[tuple[str, float]] = []
    for table in (recipes.COLOR, recipes.GEOMETRY):
        for name in table:

            def note(level: float, name: str = name) -> list[Operation]:
                draws.append((name, level))
                return []

            monkeypatch.setitem(table, name, note)
    return draws


@pytest.mark.parametrize("geometry", [True, False])
def test_operations_and_signs_are_drawn_uniformly(drawn: list[tuple[str, float]], geometry: bool) -> None:
    rng, draws = generator(2), 4200
    for _ in range(draws // 3):
        draw_randaugment(3, 12, geometry, rng)
    assert len(drawn) == draws
    names = set(OURS) if geometry else set(recipes.COLOR)
    expected = draws / (2 * len(names))
    counts = Counter(drawn)
    assert set(counts) == {(name, level) for name in names for level in (-0.4, 0.4)}
    assert all(abs(count - expected) < 4.5 * np.sqrt(expected) for count in counts.values())
    # The draws of one clip do not depend on each other.
    same = sum(drawn[n][0] == drawn[n + 1][0] for n in range(0, draws, 3))
    share = 1 / len(names)
    assert abs(same - draws / 3 * share) < 4.5 * np.sqrt(draws / 3 * share)


def test_zero_operations_draw_nothing(drawn: list[tuple[str, float]]) -> None:
    assert draw_randaugment(0, 30, True, generator(3)) == [] and not drawn
    draw_randaugment(40, 30, True, generator(3))
    assert len(drawn) == 40 and {abs(level) for _, level in drawn} == {1.0}


def test_each_operation_is_applied_with_its_probability(drawn: list[tuple[str, float]]) -> None:
    """As in PyContrast, where each of two operations is done with probability 0.5; 1 draws no number for it."""
    rng = generator(14)
    for _ in range(1000):
        draw_randaugment(2, 30, True, rng, 0.5)
    assert abs(len(drawn) - 1000) < 4.5 * np.sqrt(500)
    before = len(drawn)
    assert draw_randaugment(5, 30, True, generator(15), 0.0) == [] and len(drawn) == before
    rng, by_hand = generator(16), generator(16)
    draw_randaugment(3, 30, True, rng, 1.0)
    for _ in range(3):  # which operation, and its sign
        by_hand.integers(14)
        by_hand.choice((-1, 1))
    assert rng.random() == by_hand.random()


def test_a_clip_is_the_result_of_its_draws() -> None:
    """With the draws repeated by hand: which operation, then its sign."""
    frames, names = noise(), list(OURS)
    for key in range(20):
        rng, expected = generator(5, key), frames
        for _ in range(2):
            name = names[rng.integers(14)]
            expected = OURS[name](expected, rng.choice((-1, 1)) * 20 / 30)
        assert np.array_equal(apply(frames, draw_randaugment(2, 20, True, generator(5, key))), expected)


@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 9), (2, 2), (5, 40)])
def test_small_frames(height: int, width: int) -> None:
    frames = noise()[:, :, :height, :width]
    for name, change in OURS.items():
        out = change(frames, -1.0)
        assert out.shape == frames.shape, name
