"""Colorful Moving MNIST: digits that move over a still background (Tian et al., 2020, "Good Views", section B.4).

Positions are those of the upper left corner of the digit's image, x and y in pixels, from 0 to FREE.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import cv2
import numpy as np
from numpy.typing import NDArray

from vidssl.data.synthetic.digit_images import Floats, Pixels, make_glyph

FACTORS = ("digit", "background", "position")
CANVAS, EDGE = 64, 28  # sides of a frame and of the digit's image, pixels
FREE = CANVAS - EDGE
SPEED = 0.1 * CANVAS  # pixels a frame
CLIP = 10  # frames of the first view
TEXTURES = ("stripes", "checks", "dots", "rings", "clouds", "waves")
TEXTURE_EDGE = 96  # as the images of STL-10

Background = tuple[Pixels, int]  # an image (CANVAS, CANVAS, 3) and its class
Draw = Callable[[np.random.Generator], Background]


@dataclass(frozen=True)
class Scene:
    """The factors of one frame."""

    digit: int
    digit_image: int  # number of the image in its source
    background: Pixels
    background_class: int
    position: NDArray[np.float64]  # (2,)


def draw_video(
    share: Collection[str],
    pools: Sequence[Sequence[int]],
    background: Draw,
    reference: int,
    second_views: int,
    rng: np.random.Generator,
) -> tuple[list[Scene], Scene, list[Scene]]:
    """Draw the first view, the frame that the second view refers to, and second views.

    `pools` are the image numbers of each digit, `reference` is the number of the frame, counted from 1. A second view
    has the factors of `share` in common with it and draws the others anew. The first view and what is drawn anew do
    not depend on `share`.
    """

    def scene() -> Scene:
        digit = int(rng.integers(len(pools)))
        image = int(rng.choice(pools[digit]))
        return Scene(digit, image, *background(rng), rng.uniform(0, FREE, size=2))

    first, heading = scene(), rng.uniform(0, 2 * np.pi)
    path = trajectory(first.position, heading, max(reference, CLIP))
    frames = [replace(first, position=place) for place in path]
    referred = frames[reference - 1]
    seconds = []
    for _ in range(second_views):
        other = scene()
        digit, ground, place = (referred if factor in share else other for factor in FACTORS)
        seconds.append(
            Scene(digit.digit, digit.digit_image, ground.background, ground.background_class, place.position)
        )
    return frames[:CLIP], referred, seconds


def trajectory(start: NDArray[np.float64], heading: float, frames: int) -> NDArray[np.float64]:
    """Return the positions (T, 2) of a digit that starts at (2,) towards `heading` (radians), reflected at borders."""
    straight = start + SPEED * np.arange(frames)[:, None] * np.array([np.cos(heading), np.sin(heading)])
    return np.asarray(FREE - np.abs(straight % (2 * FREE) - FREE))


def center(scene: Scene) -> tuple[int, int]:
    """Return the center of the digit's image, x and y in pixels; positions are rounded to pixels."""
    x, y = np.rint(scene.position).astype(int).tolist()
    return x + EDGE // 2, y + EDGE // 2


def render(scene: Scene, digit: Floats) -> Pixels:
    """Render a frame (CANVAS, CANVAS, 3): the digit (EDGE, EDGE), an opacity, in white over the background."""
    frame = scene.background.copy()
    x, y = np.rint(scene.position).astype(int)
    under = frame[y : y + EDGE, x : x + EDGE]
    under[:] = np.rint(under + digit[..., None] * (255 - under.astype(np.float32)))
    return frame


def digit_opacity(pixels: NDArray[np.float64]) -> Floats:
    """Return the image of a digit (0 to 1) as an opacity (EDGE, EDGE): MNIST's as it is, one of 8x8 sharpened."""
    if len(pixels) == EDGE:
        return np.asarray(pixels, np.float32)
    return np.asarray(cv2.resize(make_glyph(pixels), (EDGE, EDGE), interpolation=cv2.INTER_AREA), np.float32)


def random_crop(image: Pixels, rng: np.random.Generator) -> Pixels:
    """Cut a random square of the canvas's side from an image (H, W, 3)."""
    top, left = (int(rng.integers(side - CANVAS, endpoint=True)) for side in image.shape[:2])
    return image[top : top + CANVAS, left : left + CANVAS]


def draw_texture(rng: np.random.Generator) -> Background:
    """Draw a crop of a texture in two random colours; the class is its kind, an index of `TEXTURES`."""
    kind = int(rng.integers(len(TEXTURES)))
    angle, phase, period = rng.uniform(0, 2 * np.pi), rng.uniform(0, 2 * np.pi, size=2), rng.uniform(8, 16)
    y, x = np.mgrid[:TEXTURE_EDGE, :TEXTURE_EDGE]
    u, v = x * np.cos(angle) + y * np.sin(angle), y * np.cos(angle) - x * np.sin(angle)
    along, across = np.sin(2 * np.pi * u / period + phase[0]), np.sin(2 * np.pi * v / period + phase[1])
    match TEXTURES[kind]:
        case "stripes":
            value = np.sign(along)
        case "checks":
            value = np.sign(along * across)
        case "dots":
            value = np.sign(along + across - 1)
        case "rings":
            middle = rng.uniform(0, TEXTURE_EDGE, size=2)
            value = np.sign(np.sin(2 * np.pi * np.hypot(x - middle[0], y - middle[1]) / period))
        case "clouds":
            coarse = rng.normal(size=(12, 12))
            value = np.clip(cv2.resize(coarse, (TEXTURE_EDGE, TEXTURE_EDGE), interpolation=cv2.INTER_CUBIC), -1, 1)
        case _:  # waves
            value = np.sin(2 * np.pi * u / period + 2 * across)
    dark, bright = rng.uniform(0, 100, size=3), rng.uniform(80, 200, size=3)  # the digit is brighter than both
    image = dark + (value[..., None] + 1) / 2 * (bright - dark)
    return random_crop(np.rint(image).astype(np.uint8), rng), kind
