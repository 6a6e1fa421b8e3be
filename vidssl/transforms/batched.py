"""The operations of recipes for many clips at once, in torch on any device: `data.augment: device`.

Images are uint8 (n, T, H, W, 3), amounts float64 (n, 1, 1, 1, 1): the drawn one of each clip. Every operation rounds to
uint8 and computes as OpenCV does on the CPU, so that no value differs by more than 1 of 255. Nothing here waits for a
GPU: what the host must know, such as the size of a kernel, it knows from the draws.
"""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vidssl.base.types import DrawnOperations, Operation, OperationGroups
from vidssl.transforms.invariance_changes import GRAY

_LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601, as in `color`
_FIXED = 1024  # OpenCV mixes the channels of uint8 pixels with weights of 10 bits


def grouped(clips: Sequence[Sequence[Operation]]) -> tuple[OperationGroups, NDArray[np.int64], NDArray[np.float64]]:
    """Order the operations of B clips into few groups of one operation each, and return what `DrawnOperations` holds.

    The operations of a clip keep their order. Next is always the operation of which the largest part can be done.
    """
    waiting = [deque(operations) for operations in clips]
    remaining = Counter((operation.name, operation.kernel) for operations in clips for operation in operations)
    groups: list[tuple[str, int, int]] = []
    members: list[int] = []
    amounts: list[float] = []
    while any(waiting):
        ready: dict[tuple[str, int], list[int]] = {}
        for number, queue in enumerate(waiting):
            if queue:
                ready.setdefault((queue[0].name, queue[0].kernel), []).append(number)
        key, group = max(ready.items(), key=lambda item: len(item[1]) / remaining[item[0]])
        remaining[key] -= len(group)
        groups.append((*key, len(group)))
        members += group
        amounts += [waiting[number].popleft().amount for number in group]
    return tuple(groups), np.array(members, np.int64), np.array(amounts, np.float64)


def apply_batched(view: Tensor, operations: DrawnOperations) -> Tensor:
    """Apply drawn operations to a view (B, T, 3, S, S) uint8 of a batch: a new tensor, channels last in memory."""
    images = view.permute(0, 1, 3, 4, 2).clone(memory_format=torch.contiguous_format)
    start = 0
    for name, kernel, size in operations.groups:
        clips, amounts = operations.clips[start : start + size], operations.amounts[start : start + size]
        changed = BATCHED[name](images.index_select(0, clips), amounts.view(-1, 1, 1, 1, 1), kernel)
        images.index_copy_(0, clips, changed)
        start += size
    return images.permute(0, 1, 4, 2, 3)


def _rounded(values: Tensor) -> Tensor:
    """Round and clip float values to uint8."""
    return values.round_().clamp_(0, 255).to(torch.uint8)


def _brightness(images: Tensor, factor: Tensor, kernel: int) -> Tensor:
    return _rounded(images * factor.float())


def _contrast(images: Tensor, factor: Tensor, kernel: int) -> Tensor:
    # Whole numbers add up to the same sum in any order.
    red, green, blue = images.sum((2, 3), keepdim=True, dtype=torch.int64).double().unbind(-1)
    mean = (_LUMA[0] * red + _LUMA[1] * green + _LUMA[2] * blue)[..., None] / (images.shape[2] * images.shape[3])
    return _rounded(images * factor.float() + ((1 - factor) * mean).float())


def _mixed(images: Tensor, matrix: Tensor) -> Tensor:
    """Multiply every pixel by the matrix (n, 3, 3) of its clip."""
    weights = (matrix.float() * _FIXED).round()
    red, green, blue = images.float().unbind(-1)
    # Exact: sums of whole numbers below 2^24.
    channels = [
        (red * row[:, 0] + green * row[:, 1] + blue * row[:, 2] + _FIXED // 2).div_(_FIXED).floor_()
        for row in weights[..., None, None, None].unbind(1)
    ]
    return _rounded(torch.stack(channels, -1))


def _saturation(images: Tensor, factor: Tensor, kernel: int) -> Tensor:
    factor = factor.view(-1, 1)
    columns = [(1 - factor) * luma + factor * (_arange(3, images) == n) for n, luma in enumerate(_LUMA)]
    return _mixed(images, torch.stack(columns, -1))


def _gray(images: Tensor, amount: Tensor, kernel: int) -> Tensor:
    return _saturation(images, torch.zeros_like(amount), kernel)


def _hue(images: Tensor, shift: Tensor, kernel: int) -> Tensor:
    """Rotate the hue by the formula of `color.adjust_hue`."""
    thirds = (3 * shift).round()
    rest = 6 * shift - 2 * thirds
    row = torch.stack([2 - rest.abs(), -rest, rest], -1).view(-1, 1, 3).expand(-1, 3, 3)
    turn = (_arange(3, images) - _arange(3, images)[:, None] + thirds.long().view(-1, 1, 1)) % 3
    half = _mixed(images, row.gather(-1, turn) / 2)
    low, high = images.amin(-1, keepdim=True), images.amax(-1, keepdim=True)
    middle = images.sum(-1, keepdim=True, dtype=torch.int16) - low - high
    turned = _rounded(2 * half.float() + middle * (rest.abs() - 1).float())
    return turned.clamp(low, high)


def _solarize(images: Tensor, threshold: Tensor, kernel: int) -> Tensor:
    return torch.where(images >= threshold.short(), 255 - images, images)


def _posterize(images: Tensor, bits: Tensor, kernel: int) -> Tensor:
    return images & (256 - 2 ** (8 - bits)).short().bitwise_and_(255).to(torch.uint8)


def _histogram(images: Tensor) -> tuple[Tensor, Tensor]:
    """Count the values of each channel of each clip: (n, 3, 256); and return the values (n, 3, T H W)."""
    values = images.movedim(-1, 1).flatten(2).long()
    channels = values.shape[0] * 3
    bins = values + 256 * _arange(channels, images).view(-1, 3, 1)
    counts = torch.zeros(channels * 256, dtype=torch.int64, device=images.device)
    counts.scatter_add_(0, bins.flatten(), torch.ones_like(counts[:1]).expand(bins.numel()))
    return counts.view(-1, 3, 256), values


def _replaced(values: Tensor, tables: Tensor, like: Tensor) -> Tensor:
    """Replace values (n, 3, T H W) by those of tables (n, 3, 256); images of the shape of `like`."""
    replaced = tables.clamp(0, 255).to(torch.uint8).gather(-1, values)
    return replaced.view(-1, 3, *like.shape[1:-1]).movedim(1, -1)


def _auto_contrast(images: Tensor, amount: Tensor, kernel: int) -> Tensor:
    values = images.movedim(-1, 1).flatten(2).long()
    low, high = values.amin(-1, keepdim=True).double(), values.amax(-1, keepdim=True).double()
    levels = _arange(256, images).double()
    # torch divides a plain number by multiplying it with the reciprocal, which rounds differently.
    stretched = ((levels - low) * (torch.full_like(low, 255) / (high - low).clamp(1))).round()
    return _replaced(values, torch.where(high > low, stretched, levels), images)


def _equalize(images: Tensor, amount: Tensor, kernel: int) -> Tensor:
    counts, values = _histogram(images)
    largest = counts.gather(-1, values.amax(-1, keepdim=True))
    step = (counts.sum(-1, keepdim=True) - largest) // 255
    below = counts.cumsum(-1) - counts
    flat = (below + step // 2) // step.clamp(1)
    return _replaced(values, torch.where(step > 0, flat, _arange(256, images)), images)


def _sharpness(images: Tensor, factor: Tensor, kernel: int) -> Tensor:
    height, width = images.shape[2:4]
    if min(height, width) < 3:
        return images
    values, inner = images.float(), images[:, :, 1:-1, 1:-1].float()
    around = sum((values[:, :, y : height - 2 + y, x : width - 2 + x] for y in range(3) for x in range(3)), 4 * inner)
    images[:, :, 1:-1, 1:-1] = _rounded(around * ((1 - factor) / 13).float() + inner * factor.float())
    return images


def _blur(images: Tensor, sigma: Tensor, kernel: int) -> Tensor:
    reach = kernel // 2
    weights = [(-0.5 * (n / sigma) ** 2).exp() for n in range(reach + 1)]
    total = weights[0] + 2 * sum(weights[1:])
    near, *far = ((weight / total).float() for weight in weights)
    values = images.float()
    for axis in (3, 2):
        size = values.shape[axis]
        # Reflected at the border pixel, as often as needed.
        period = max(2 * (size - 1), 1)
        places = torch.arange(-reach, size + reach, device=images.device).abs() % period
        padded = values.index_select(axis, torch.minimum(places, period - places))
        part = partial(padded.narrow, axis, length=size)
        values = near * part(start=reach)
        for n, weight in enumerate(far, start=1):
            values += weight * (part(start=reach - n) + part(start=reach + n))
    return _rounded(values)


def _warped(images: Tensor, matrix: Tensor) -> Tensor:
    """Apply an affine map (n, 2, 3) from results to sources, bilinear; outside of the source is gray."""
    height, width = images.shape[2:4]
    x, y = _arange(width, images), _arange(height, images)[:, None]
    # OpenCV rounds the product with y to float32, and not the one with x.
    rows = matrix.float()[..., None, None].unbind(1)
    across, down = ((row[:, 0].double() * x + (row[:, 1] * y + row[:, 2])).float() for row in rows)
    column, row = across.floor(), down.floor()
    right, lower = (across - column)[:, None, ..., None], (down - row)[:, None, ..., None]
    above = _between(_pixels(images, column, row), _pixels(images, column + 1, row), right)
    below = _between(_pixels(images, column, row + 1), _pixels(images, column + 1, row + 1), right)
    return _rounded(_between(above, below, lower))


def _pixels(images: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Look up the pixels at places (n, H, W) in all frames: float images; gray outside of the source."""
    height, width = images.shape[2:4]
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    places = (y.clamp(0, height - 1) * width + x.clamp(0, width - 1)).long()
    pixels = images.flatten(2, 3)
    pixels = pixels.gather(2, places.flatten(1)[:, None, :, None].expand(*pixels.shape)).view_as(images)
    return pixels.masked_fill(~inside[:, None, ..., None], GRAY).float()


def _between(a: Tensor, b: Tensor, weight: Tensor) -> Tensor:
    return a + weight * (b - a)


def _rotate(images: Tensor, degrees: Tensor, kernel: int) -> Tensor:
    height, width = images.shape[2:4]
    x, y = (width - 1) / 2, (height - 1) / 2
    cosine, sine = degrees.flatten().deg2rad().cos(), degrees.flatten().deg2rad().sin()
    rows = [cosine, -sine, x - cosine * x + sine * y, sine, cosine, y - sine * x - cosine * y]
    return _warped(images, torch.stack(rows, -1).view(-1, 2, 3))


def _shifted(images: Tensor, shift: Tensor, slope: Tensor, axis: int) -> Tensor:
    """Move each row (`axis` 0) or column (1) by a number of pixels (n,), and by `slope` (n,) times its own number."""
    ones, zeros = torch.ones_like(shift), torch.zeros_like(shift)
    rows = [ones, slope, shift, zeros, ones, zeros] if axis == 0 else [ones, zeros, zeros, slope, ones, shift]
    return _warped(images, torch.stack(rows, -1).view(-1, 2, 3))


def _shear(images: Tensor, amount: Tensor, kernel: int, axis: int) -> Tensor:
    amount = amount.flatten()
    return _shifted(images, amount / 2, amount, axis)


def _translate(images: Tensor, fraction: Tensor, kernel: int, axis: int) -> Tensor:
    away = -(fraction.flatten() * images.shape[3 - axis]).trunc()
    return _shifted(images, away, torch.zeros_like(away), axis)


def _flip(images: Tensor, amount: Tensor, kernel: int) -> Tensor:
    return images.flip(3)


def _arange(size: int, like: Tensor) -> Tensor:
    return torch.arange(size, device=like.device)


# Of each name in `recipes.OPERATIONS`: a function of images, amounts and kernel. It may change the images.
BATCHED: dict[str, Callable[[Tensor, Tensor, int], Tensor]] = {
    "brightness": _brightness,
    "contrast": _contrast,
    "saturation": _saturation,
    "hue": _hue,
    "gray": _gray,
    "blur": _blur,
    "sharpness": _sharpness,
    "solarize": _solarize,
    "posterize": _posterize,
    "auto_contrast": _auto_contrast,
    "equalize": _equalize,
    "rotate": _rotate,
    "shear_x": partial(_shear, axis=0),
    "shear_y": partial(_shear, axis=1),
    "translate_x": partial(_translate, axis=0),
    "translate_y": partial(_translate, axis=1),
    "flip": _flip,
}
