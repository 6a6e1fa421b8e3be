"""Colour spaces of clips (B, 3, T, H, W) with RGB in [0, 1]; each channel is scaled to about [-1, 1].

The values before scaling are those of `skimage.color`: ITU-R BT.601 for YUV and YDbDr, D65 for Lab.
"""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

Space = Literal["rgb", "yuv", "ydbdr", "hsv", "lab"]

_YUV = ((0.299, 0.587, 0.114), (-0.14714119, -0.28886916, 0.43601035), (0.61497538, -0.51496512, -0.10001026))
_YDBDR = ((0.299, 0.587, 0.114), (-0.45, -0.883, 1.333), (-1.333, 1.116, 0.217))
_XYZ = ((0.412453, 0.357580, 0.180423), (0.212671, 0.715160, 0.072169), (0.019334, 0.119193, 0.950227))
_WHITE = (0.95047, 1.0, 1.08883)  # D65, 2 degrees


def _multiply(matrix: tuple[tuple[float, ...], ...], x: Tensor) -> Tensor:
    return torch.einsum("dc,bcthw->bdthw", x.new_tensor(matrix), x)


def _scaled(x: Tensor, centre: tuple[float, ...], half: tuple[float, ...]) -> Tensor:
    """Map centre - half … centre + half to [-1, 1], for each channel."""
    middle, width = (x.new_tensor(values).view(3, 1, 1, 1) for values in (centre, half))
    return (x - middle) / width


def rgb(x: Tensor) -> Tensor:
    """Return red, green, blue."""
    return 2 * x - 1


def yuv(x: Tensor) -> Tensor:
    """Return luma and the two differences of colour of PAL."""
    return _scaled(_multiply(_YUV, x), (0.5, 0.0, 0.0), (0.5, 0.436, 0.615))


def ydbdr(x: Tensor) -> Tensor:
    """Return luma and the two differences of colour of SECAM."""
    return _scaled(_multiply(_YDBDR, x), (0.5, 0.0, 0.0), (0.5, 1.333, 1.333))


def hsv(x: Tensor) -> Tensor:
    """Return hue, saturation and value; the hue is a number in [0, 1), red is 0."""
    high, largest = x.max(dim=1)
    chroma = high - x.amin(dim=1)
    red, green, blue = x.unbind(dim=1)
    safe = torch.where(chroma > 0, chroma, 1.0)
    sixths = torch.stack([(green - blue) / safe, 2 + (blue - red) / safe, 4 + (red - green) / safe])
    hue = sixths.gather(0, largest[None])[0] / 6 % 1.0
    saturation = chroma / torch.where(high > 0, high, 1.0)
    return 2 * torch.stack([hue, saturation, high], dim=1) - 1


def lab(x: Tensor) -> Tensor:
    """Return lightness, and the axes green to red and blue to yellow, of CIE Lab."""
    linear = torch.where(x > 0.04045, ((x + 0.055) / 1.055).clamp(min=0) ** 2.4, x / 12.92)
    relative = _multiply(_XYZ, linear) / x.new_tensor(_WHITE).view(3, 1, 1, 1)
    f = torch.where(relative > 0.008856, relative.clamp(min=1e-6) ** (1 / 3), 7.787 * relative + 16 / 116)
    fx, fy, fz = f.unbind(dim=1)
    values = torch.stack([116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)], dim=1)
    return _scaled(values, (50.0, 0.0, 0.0), (50.0, 128.0, 128.0))


SPACES: dict[str, Callable[[Tensor], Tensor]] = {"rgb": rgb, "yuv": yuv, "ydbdr": ydbdr, "hsv": hsv, "lab": lab}
