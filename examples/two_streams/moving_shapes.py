"""Render videos of textured shapes and jointed figures that move over textures, and a list of them to train on.

    python examples/two_streams/moving_shapes.py data/moving_shapes --count 800 --seed 0
    vidssl train --cfg studies/small_motion/two_streams data.train=data/moving_shapes/train.csv

Nothing real is shown. All motion is smooth in time: drifts, swings, strokes and pulses of shapes, limbs and camera.
"""

import argparse
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.random import Generator

from vidssl.video.write import encode

SIDE, FRAMES, FPS = 80, 60, 25
DRAWN = 2 * SIDE  # side of the drawing, which is averaged to SIDE
SECONDS = np.arange(FRAMES) / FPS
Array = np.ndarray[Any, Any]


def noise(random: Generator, size: int, octaves: list[tuple[int, float]]) -> Array:
    """Draw smooth noise (size, size): a sum of grids, each with the cells and amplitude in `octaves`."""
    total = np.zeros((size, size), np.float32)
    for cells, amplitude in octaves:
        grid = random.normal(size=(cells + 4, cells + 4)).astype(np.float32)
        total += amplitude * cv2.resize(grid, (size, size), interpolation=cv2.INTER_CUBIC)
    return total


def texture(random: Generator, size: int) -> Array:
    """Draw a texture (size, size, 3) in two colours: clouds, waves, checks, cells or a slope."""
    kind = random.integers(6)
    y, x = np.mgrid[:size, :size].astype(np.float32) / size
    angle = random.uniform(0, 2 * np.pi)
    u, v = x * np.cos(angle) + y * np.sin(angle), y * np.cos(angle) - x * np.sin(angle)
    if kind == 0:
        field = noise(random, size, [(4, 0.6), (8, 0.35), (16, 0.2), (48, 0.12)])
    elif kind == 1:
        field = np.sin(2 * np.pi * u * random.uniform(4, 20) + noise(random, size, [(4, 1.5)]))
    elif kind == 2:
        columns, rows = (np.sin(2 * np.pi * axis * random.uniform(3, 10)) for axis in (u, v))
        field = np.sign(columns * rows)
    elif kind == 3:
        points = random.uniform(0, 1, (int(random.integers(8, 40)), 2))
        distance = (x[..., None] - points[:, 0]) ** 2 + (y[..., None] - points[:, 1]) ** 2
        field = random.normal(size=len(points))[distance.argmin(-1)].astype(np.float32)
    elif kind == 4:
        field = 2 * (u + v) + noise(random, size, [(6, 0.3), (32, 0.1)])
    else:
        field = noise(random, size, [(3, 1.0), (24, 0.25)])
    field = (field - field.mean()) / (field.std() + 1e-6)
    colours = random.uniform(0, 255, (2, 3))
    contrast = (colours[1] - colours[0]) / 2 * random.uniform(0.3, 1)
    grain = noise(random, size, [(8, 1.0), (64, 0.6)])[..., None] * random.uniform(0, 12)
    image = colours.mean(axis=0) + field[..., None] * contrast * 0.6 + grain
    if random.random() < 0.6:  # still rectangles, as rooms have
        for _ in range(random.integers(1, 6)):
            left, top = random.integers(0, size, 2)
            width, height = random.integers(size // 12, size // 2, 2)
            part = image[top : top + height, left : left + width]
            part[:] = part * random.uniform(0.2, 0.8) + random.uniform(0, 160, 3)
    return np.clip(image, 0, 255).astype(np.float32)


def motion(random: Generator, amplitude: float, slowest: float = 0.3, fastest: float = 2.5) -> Array:
    """Draw a motion (FRAMES,): a drift, a swing of `slowest` to `fastest` Hz, a stroke, or a pulse."""
    kind = random.integers(4)
    start, end = SECONDS[0], SECONDS[-1]
    if kind == 0:
        return amplitude * random.uniform(-1, 1) * (SECONDS - SECONDS.mean()) / (end - start) * 2
    if kind == 1:
        amplitude *= random.uniform(0.3, 1)
        rate = random.uniform(slowest, fastest)
        return amplitude * np.sin(2 * np.pi * rate * SECONDS + random.uniform(0, 2 * np.pi))
    middle = random.uniform(start, end)
    if kind == 2:
        width = random.uniform(0.1, 0.5)
        return amplitude * random.uniform(-1, 1) * np.tanh((SECONDS - middle) / width)
    width = random.uniform(0.15, 0.6)
    return amplitude * random.uniform(-1, 1) * np.exp(-(((SECONDS - middle) / width) ** 2))


def sometimes(random: Generator, change: Array, probability: float) -> Array:
    """Return the change, or none."""
    return change * (random.random() < probability)


def outline(random: Generator) -> Array:
    """Draw an outline (points, 2) of about unit size: a polygon, a blob or an ellipse."""
    kind = random.integers(3)
    if kind == 0:
        corners = int(random.integers(3, 9))
        angles, radii = np.sort(random.uniform(0, 2 * np.pi, corners)), random.uniform(0.5, 1, corners)
    else:
        angles = np.linspace(0, 2 * np.pi, 48 if kind == 1 else 40, endpoint=False)
        radii = np.ones(len(angles))
    if kind == 1:
        for harmonic in range(2, 6):
            height = random.normal() * 0.25 / harmonic
            radii += height * np.cos(harmonic * angles + random.uniform(0, 6.28))
        radii /= radii.max()
    return np.stack([radii * np.cos(angles), radii * np.sin(angles) * random.uniform(0.4, 1)], axis=1)


@dataclass
class MovingObject:
    """What moves: a shape, or a figure with arms and legs of two parts each."""

    x: Array  # (FRAMES,) place, as a fraction of the side
    y: Array
    size: Array  # (FRAMES,) likewise
    angle: Array  # (FRAMES,) radians
    colour: Array  # (3,)
    texture: Array | None
    outline: Array
    limbs: list[list[Array]]  # angles of the parts of both arms and both legs, each (FRAMES,); none of a shape
    skin: Array | None = None  # (3,)
    trousers: Array | None = None


def new_object(random: Generator) -> MovingObject:
    """Draw what moves, and how."""
    is_figure = random.random() < 0.5
    x = random.uniform(0.2, 0.8) + sometimes(random, motion(random, 0.3, 0.2, 1.5), 0.7)
    y = random.uniform(0.3, 0.7) + sometimes(random, motion(random, 0.2, 0.2, 1.5), 0.5)
    size = random.uniform(0.08, 0.3) * np.exp(sometimes(random, motion(random, 0.35), 0.3))
    angle = random.uniform(-0.4, 0.4) + sometimes(random, motion(random, 1.5), 0.5)
    colour = random.uniform(0, 255, 3)
    pattern = texture(random, DRAWN) if random.random() < 0.5 else None
    mover = MovingObject(x, y, size, angle, colour, pattern, outline(random), [])
    if is_figure:
        mover.size = random.uniform(0.25, 0.6) * np.exp(sometimes(random, motion(random, 0.2), 0.2))
        mover.angle = sometimes(random, motion(random, 0.2), 0.4)
        mover.limbs = [
            [random.uniform(-1, 1) * 1.2 + sometimes(random, motion(random, 1.2), 0.75) for _ in range(2)]
            for _ in range(4)
        ]
        mover.skin, mover.trousers = random.uniform(60, 230, 3), random.uniform(0, 255, 3)
    return mover


def paint(image: Array, mask: Array, colour: Array) -> Array:
    """Paint a colour (3,) or a texture (H, W, 3) where a mask (H, W) is, 0 to 255."""
    alpha = mask[..., None].astype(np.float32) / 255
    return np.asarray(image * (1 - alpha) + alpha * colour)


def pixel(point: Array) -> tuple[int, int]:
    """Round a point to pixels."""
    return int(np.rint(point[0])), int(np.rint(point[1]))


def paint_figure(image: Array, mover: MovingObject, frame: int, position: Array, turn: Array) -> Array:
    """Paint a figure: legs, body, head, arms."""
    size, angle = mover.size[frame] * DRAWN, mover.angle[frame]

    def line(start: Array, end: Array, width: float) -> Array:
        mask = np.zeros((DRAWN, DRAWN), np.uint8)
        return cv2.line(mask, pixel(start), pixel(end), 255, max(1, int(width * size)), cv2.LINE_AA)

    def at(x: float, y: float) -> Array:
        return position + turn @ np.array((x, y)) * size

    def part(start: Array, direction: float, length: float) -> Array:
        return start + size * length * np.array([math.cos(direction), math.sin(direction)])

    arms, legs = [], []
    for number, (upper, lower) in enumerate(mover.limbs):
        arm, side = number < 2, -1 if number % 2 else 1
        root = at(side * 0.16, -0.2) if arm else at(side * 0.08, 0.35)
        reach, length = (1.0, 0.3) if arm else (0.4, 0.36)
        upper_angle = np.pi / 2 - side * (0.5 if arm else 0.15) + reach * upper[frame] * side * -1 + angle
        joint = part(root, upper_angle, length)
        end = part(joint, upper_angle + reach * lower[frame], length)
        if arm:
            arms += [(line(root, joint, 0.11), mover.colour), (line(joint, end, 0.09), mover.skin)]
        else:
            legs += [(line(root, joint, 0.14), mover.trousers), (line(joint, end, 0.12), mover.trousers)]
    body = line(at(0, -0.25), at(0, 0.35), 0.34)
    head = np.zeros((DRAWN, DRAWN), np.uint8)
    cv2.circle(head, pixel(at(0, -0.48)), max(1, int(0.14 * size)), 255, -1, cv2.LINE_AA)
    for mask, colour in [*legs, (body, mover.colour), (head, mover.skin), *arms]:
        image = paint(image, mask, np.asarray(colour))
    return image


def paint_shape(image: Array, mover: MovingObject, frame: int, position: Array, turn: Array) -> Array:
    """Paint a shape in its colour or texture."""
    mask = np.zeros((DRAWN, DRAWN), np.uint8)
    corners = np.rint(mover.outline @ turn.T * mover.size[frame] * DRAWN + position).astype(np.int32)
    cv2.fillPoly(mask, [corners], 255, cv2.LINE_AA)
    return paint(image, mask, mover.colour if mover.texture is None else mover.texture)


def render(seed: int, number: int) -> Array:
    """Render a video (FRAMES, SIDE, SIDE, 3), uint8 RGB."""
    random = np.random.default_rng([seed, number])  # noqa: TID251 - numbers of an example, not of training
    background, camera = texture(random, 3 * SIDE), random.integers(4)
    zoom, x, y = np.ones(FRAMES), np.zeros(FRAMES), np.zeros(FRAMES)
    if camera == 1:  # pan
        x, y = motion(random, 0.25), motion(random, 0.15)
    if camera == 2:  # zoom
        zoom, x = np.exp(motion(random, 0.2)), motion(random, 0.1)
    if camera == 3:  # a hand that shakes
        x, y = (0.006 * np.cumsum(random.normal(size=FRAMES)) for _ in range(2))
    objects = [new_object(random) for _ in range(random.integers(1, 4))]
    light, grain = 1 + sometimes(random, motion(random, 0.1), 0.3), random.uniform(0, 5)
    frames = np.empty((FRAMES, SIDE, SIDE, 3), np.uint8)
    for n in range(FRAMES):
        scale, centre = 1 / (2 * zoom[n]), 1.5 * SIDE - SIDE / (2 * zoom[n])
        view = np.array([[scale, 0, centre + x[n] * SIDE], [0, scale, centre + y[n] * SIDE]], np.float32)
        flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
        image = cv2.warpAffine(background, view, (DRAWN, DRAWN), flags=flags, borderMode=cv2.BORDER_REFLECT)
        for mover in objects:
            position = np.array([(mover.x[n] - x[n] * 0.5) * DRAWN, (mover.y[n] - y[n] * 0.5) * DRAWN])
            cos, sin = math.cos(mover.angle[n]), math.sin(mover.angle[n])
            turn = np.array([[cos, -sin], [sin, cos]])
            image = (paint_figure if mover.limbs else paint_shape)(image, mover, n, position, turn)
        small = cv2.resize(image.astype(np.float32), (SIDE, SIDE), interpolation=cv2.INTER_AREA)
        frames[n] = np.clip(small * light[n] + random.normal(size=(SIDE, SIDE, 1)) * grain, 0, 255)
    return frames


def main() -> None:
    """Render the videos and write the list."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder for videos/, train.csv and root.txt; new")
    parser.add_argument("--count", type=int, default=800, help="videos (default 800: 6 minutes on one core)")
    parser.add_argument("--seed", type=int, default=0)
    parsed = parser.parse_args()
    (parsed.out / "videos").mkdir(parents=True)  # FileExistsError: nothing is replaced
    names = [f"videos/{number:05d}.mp4" for number in range(parsed.count)]
    options = {"preset": "veryfast", "crf": "16", "g": "12"}
    for number, name in enumerate(names):
        encode(parsed.out / name, render(parsed.seed, number), FPS, options=options)
    (parsed.out / "train.csv").write_text("\n".join(["path", *names]) + "\n", encoding="utf-8")
    (parsed.out / "root.txt").write_text(f"{parsed.out.resolve()}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
