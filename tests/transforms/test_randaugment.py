"""RandAugment: each operation at each strength against torchvision's, and the random draws."""

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

from vidssl.base.keyed_generators import generator
from vidssl.base.types import Frames, Operation
from vidssl.transforms import recipes as module
from vidssl.transforms.recipes import apply, draw_randaugment


def _change(frames: Frames, level: float, draw: Callable[[float], list[Operation]]) -> Frames:
    return apply(frames, draw(level))


OURS = {name: partial(_change, draw=draw) for name, draw in (module.COLOR | module.GEOMETRY).items()}
RIM = 100


def noise() -> Frames:
    return generator(0).integers(0, 256, (2, 40, 52, 3), dtype=np.uint8).transpose(0, 3, 1, 2)


def smooth() -> Frames:
    rng = generator(1)
    blobs = [cv2.resize(rng.uniform(0, 255, (5, 6, 3)), (52, 40)) for _ in range(2)]
    return np.stack(blobs).astype(np.uint8).transpose(0, 3, 1, 2)


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
    elif name in module.GEOMETRY:
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


@pytest.mark.parametrize("make", [noise, smooth])
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


def test_magnitude_0_is_the_identity_for_operations_with_a_strength() -> None:
    frames = smooth() // 2  # solarisation inverts 255 even by 0
    for name, change in OURS.items():
        same = np.abs(change(frames, 0.0).astype(int) - frames).max() <= 1
        assert same == (name not in ("auto_contrast", "equalize")), name


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, float]]:
    """Name and level of each draw, in order, also of the identity."""
    draws: list[tuple[str, float]] = []
    for table in (module.COLOR, module.GEOMETRY):
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
    names = set(OURS) if geometry else set(module.COLOR)
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
    one, other = generator(16), generator(16)
    draw_randaugment(3, 30, True, one, 1.0)
    for _ in range(3):  # which operation, and its sign
        other.integers(14)
        other.choice((-1, 1))
    assert one.random() == other.random()


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
