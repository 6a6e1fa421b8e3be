"""Operations batched in torch: parity with the recipes on the CPU, whose operations have torchvision as reference."""

from collections.abc import Sequence
from itertools import permutations

import cv2
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from vidssl.base.keyed_generators import generator
from vidssl.base.types import DrawnOperations, Frames, Operation
from vidssl.transforms import RECIPES
from vidssl.transforms.batched import BATCHED, apply_batched, grouped
from vidssl.transforms.color import cut_kernel
from vidssl.transforms.recipes import OPERATIONS, apply

DRAWN = ("weak", "strong", "strong_alpha", "strong_beta", "strong_gamma", "infomin", "train_crop")
SIZE, CLIPS, CPU = 40, 6, torch.device("cpu")
GPU = pytest.param(
    torch.device("cuda"),
    marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here")],
)


def noise(size: int = SIZE, clips: int = CLIPS, length: int = 3) -> NDArray[np.uint8]:
    return generator(0).integers(0, 256, (clips, length, size, size, 3), dtype=np.uint8)


def smooth() -> NDArray[np.uint8]:
    """Blobs of strong colour, clipped at black and white, other ones in each frame."""
    rng = generator(1)
    shape = (SIZE, SIZE)
    images = [cv2.resize(rng.uniform(-60, 320, (5, 6, 3)), shape, interpolation=cv2.INTER_CUBIC) for _ in range(18)]
    return np.stack(images).clip(0, 255).astype(np.uint8).reshape(CLIPS, 3, SIZE, SIZE, 3)


def dull() -> NDArray[np.uint8]:
    """Few values: halves, whose rounding differs most easily, are frequent."""
    return noise() // 9 + np.uint8(100)


def on_device(images: NDArray[np.uint8], clips: Sequence[Sequence[Operation]], device: torch.device) -> Tensor:
    """Apply the operations of each clip to images (B, T, S, S, C) as the loop does: a view (B, T, C, S, S)."""
    groups, members, amounts = grouped(clips)
    drawn = DrawnOperations(groups, *(torch.from_numpy(each).to(device) for each in (members, amounts)))
    return apply_batched(torch.from_numpy(images).permute(0, 1, 4, 2, 3).to(device), drawn)


def on_cpu(images: NDArray[np.uint8], clips: Sequence[Sequence[Operation]]) -> Frames:
    frames = images.transpose(0, 1, 4, 2, 3)
    return np.stack([apply(clip, operations) for clip, operations in zip(frames, clips, strict=True)])


def errors(actual: Tensor, expected: Frames) -> NDArray[np.int64]:
    assert actual.dtype == torch.uint8 and actual.shape == expected.shape
    return np.abs(actual.cpu().numpy().astype(int) - expected)


FACTORS = np.linspace(0, 2.5, 36)
AMOUNTS: dict[str, Sequence[float] | NDArray[np.float64]] = {
    "brightness": FACTORS,
    "contrast": FACTORS,
    "saturation": FACTORS,
    "hue": np.linspace(-0.5, 0.5, 121),
    "gray": [0],
    "blur": np.geomspace(0.1, 5, 60),
    "sharpness": np.linspace(0.1, 1.9, 36),
    "solarize": range(256),
    "posterize": range(9),
    "auto_contrast": [0],
    "equalize": [0],
    "rotate": np.linspace(-30, 30, 31),
    "shear_x": np.linspace(-0.3, 0.3, 31),
    "shear_y": np.linspace(-0.3, 0.3, 31),
    "translate_x": np.linspace(-0.46, 0.46, 31),
    "translate_y": np.linspace(-0.46, 0.46, 31),
    "flip": [0],
}
# Fraction of the values that may differ, by 1 of 255; of what is not here none may.
ROUNDED = {"brightness": 1e-3, "contrast": 1e-3, "blur": 1e-3, "sharpness": 1e-3, "rotate": 1e-3, "shear_x": 5e-3}
ROUNDED["shear_y"] = ROUNDED["shear_x"]


def drawn_as(name: str, amount: float) -> Operation:
    return Operation(name, float(amount), cut_kernel(23, amount) if name == "blur" else 0)


def test_every_operation_has_a_version_for_the_device() -> None:
    assert set(BATCHED) == set(OPERATIONS) == set(AMOUNTS)


@pytest.mark.parametrize("device", [CPU, GPU])
@pytest.mark.parametrize("make", [noise, dull])
@pytest.mark.parametrize("name", BATCHED)
def test_every_operation_equals_that_of_the_cpu(name: str, make, device: torch.device) -> None:
    images, amounts, differing = make(), list(AMOUNTS[name]), []
    amounts += amounts[: -len(amounts) % CLIPS] if len(amounts) >= CLIPS else amounts * (CLIPS - 1)
    for first in range(0, len(amounts) - CLIPS + 1, CLIPS):  # each clip with another amount
        clips = [[drawn_as(name, amount)] for amount in amounts[first : first + CLIPS]]
        error = errors(on_device(images, clips, device), on_cpu(images, clips))
        assert error.max() <= 1, clips
        differing.append(np.count_nonzero(error) / error.size)
    assert np.mean(differing) <= ROUNDED.get(name, 0.0)


def test_groups_hold_every_operation_once_in_the_order_of_its_clip() -> None:
    rng, names = generator(3), ["hue", "gray", "blur", "flip"]
    clips = [
        [
            Operation(names[n], float(rng.random()), int(n == 2) * int(rng.choice((3, 5))))
            for n in rng.integers(4, size=rng.integers(6))
        ]
        for _ in range(30)
    ]
    groups, members, amounts = grouped(clips)
    rebuilt: list[list[Operation]] = [[] for _ in clips]
    rows = iter(zip(members.tolist(), amounts.tolist(), strict=True))
    for name, kernel, size in groups:
        group = [next(rows) for _ in range(size)]
        assert size and len({clip for clip, _ in group}) == size  # a clip is in a group at most once
        for clip, amount in group:
            rebuilt[clip].append(Operation(name, amount, kernel))
    assert rebuilt == clips and next(rows, None) is None


def test_a_batch_needs_few_groups() -> None:
    """The shortest sequence that contains all orders of four operations has length 12."""
    orders = [[Operation(name) for name in order] for order in permutations(("a", "b", "c", "d"))]
    assert len(grouped(orders)[0]) <= 14
    recipe = RECIPES["strong_beta"](RECIPES["strong_beta"].Config(size=8))
    drawn = [recipe.draw(noise(20, 1, 1)[0].transpose(0, 3, 1, 2), generator(4, key))[1] for key in range(64)]
    slots = {(n, operation.name, operation.kernel) for clip in drawn for n, operation in enumerate(clip)}
    assert len(grouped(drawn)[0]) < 0.7 * len(slots)  # fewer than by position


@pytest.mark.parametrize("device", [CPU, GPU])
def test_a_clip_does_not_depend_on_the_others(device: torch.device) -> None:
    """Bit by bit, whatever the size of its groups: so micro-batches and processes change nothing."""
    recipe = RECIPES["infomin"](RECIPES["infomin"].Config(size=SIZE, operations=4, magnitude=20))
    images = noise()
    clips = [recipe.draw(images[0].transpose(0, 3, 1, 2), generator(5, key))[1] for key in range(CLIPS)]
    before = images.copy()
    together = on_device(images, clips, device)
    assert np.array_equal(images, before)
    assert together.permute(0, 1, 3, 4, 2).is_contiguous()  # channels last, as the loader's
    for n in range(CLIPS):
        assert torch.equal(on_device(images[n : n + 1], clips[n : n + 1], device)[0], together[n])


@pytest.mark.parametrize("device", [CPU, GPU])
@pytest.mark.parametrize("name", DRAWN)
def test_whole_recipes_equal_those_of_the_cpu(name: str, device: torch.device) -> None:
    kind = RECIPES[name]
    special = {"short_side": (28, 36), "color": 0.5, "gray_probability": 0.2} if name == "train_crop" else {}
    recipe = kind(kind.Config(size=24, **special))
    frames, keys = smooth()[0].transpose(0, 3, 1, 2), range(200)
    expected, crops, drawn = [], [], []
    for key in keys:
        of_views, of_draws = generator(6, key), generator(6, key)
        (view,) = recipe(frames, of_views)
        crop, operations = recipe.draw(frames, of_draws)
        assert of_views.random() == of_draws.random() and view.window == crop.window  # the same draws
        expected.append(view.frames)
        crops.append(crop.frames.transpose(0, 2, 3, 1))
        drawn.append(operations)
    error = errors(on_device(np.stack(crops), drawn, device), np.stack(expected))
    assert np.count_nonzero(error) <= 1e-3 * error.size
    # Equalisation and the like spread values that differ by 1.
    assert np.count_nonzero(error > 2) <= (1e-5 * error.size if name == "infomin" else 0)
    lengths = {len(operations) for operations in drawn}
    assert lengths == {0, 1} if name == "weak" else len(lengths) > 3


@pytest.mark.parametrize("name", BATCHED)
def test_no_operation_reads_from_the_device(name: str) -> None:
    """Tensors without data: what the host would read, or copy to the device on its own, is an error."""
    operations = [[drawn_as(name, amount)] for amount in (0.3, 0.4, 0.3)]
    groups, clips, amounts = grouped(operations)
    meta = DrawnOperations(groups, *(torch.from_numpy(each).to("meta") for each in (clips, amounts)))
    view = torch.empty(3, 2, 3, 16, 16, dtype=torch.uint8, device="meta")
    assert apply_batched(view, meta).shape == view.shape


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here")
def test_no_operation_waits_for_a_gpu() -> None:
    """Also in deterministic mode, in which some operations of torch raise an error."""
    clips = [[drawn_as(name, AMOUNTS[name][-1])] for name in BATCHED]
    images, device = noise(clips=len(clips)), torch.device("cuda")
    groups, members, amounts = grouped(clips)
    drawn = DrawnOperations(groups, *(torch.from_numpy(column).to(device) for column in (members, amounts)))
    view = torch.from_numpy(images).permute(0, 1, 4, 2, 3).to(device)
    for deterministic in (False, True):
        torch.use_deterministic_algorithms(deterministic)
        torch.cuda.set_sync_debug_mode("error")
        try:
            apply_batched(view, drawn)
        finally:
            torch.cuda.set_sync_debug_mode("default")
            torch.use_deterministic_algorithms(False)


def test_groups_and_tensors_must_fit() -> None:
    one = torch.zeros(1, dtype=torch.int64)
    with pytest.raises(ValueError, match="1 clips and 2 amounts for groups of 2"):
        DrawnOperations((("hue", 0, 2),), one, torch.zeros(2))
