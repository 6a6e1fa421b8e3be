"""What varies in a video of moving digits: factors, the motion of the digit and the motion of the camera."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MOTIONS = ("straight", "circle", "zigzag", "bounce", "rock", "pulse", "stop_and_go", "shuttle")
# Each one happens once in a video; the second of a pair is the first one reversed.
OPPOSITES = (("accelerate", "decelerate"), ("grow", "shrink"), ("fade_in", "fade_out"))
ASYMMETRIC = tuple(motion for pair in OPPOSITES for motion in pair)
COLOURS = {
    "white": (255, 255, 255),
    "yellow": (255, 240, 60),
    "cyan": (90, 250, 255),
    "green": (130, 255, 110),
    "pink": (255, 170, 225),
    "orange": (255, 190, 80),
}
TEXTURES = 4
TEXTURE_EDGE = 8  # canvas edges
REACH = 0.34  # the center of the digit stays within 0.5 ± REACH of the canvas
TILT, SWELL = np.radians(50), 0.25  # largest tilt from upright, largest change of scale
FAINT = 0.2  # opacity at the start of fade_in


@dataclass(frozen=True)
class Factors:
    """Everything that is drawn for one video. Lengths are in canvas edges, fractions in [0, 1)."""

    motion: str
    digit: int
    digit_image: int  # number of the image in its source
    texture: int
    colour: str
    heading: float  # fraction of a turn
    turn: int  # 1 or -1: direction of rotation
    period: float  # frames
    phase: float  # of the motion, at frame 0
    tilt: float  # phase of the tilt, which changes in `rock` only
    swell: float  # phase of the scale, which changes in `pulse` only
    start_x: float  # fraction of the range that the motion leaves free
    start_y: float
    pan: float  # heading of the camera, fraction of a turn
    sway: float  # phase of the oscillation of that heading
    view_x: float  # of the camera at frame 0
    view_y: float


def draw_factors(motion: str, digit: int, images: Sequence[int], rng: np.random.Generator) -> Factors:
    """Draw every factor for every motion, so that none of them reveals the motion."""
    names = ("heading", "phase", "tilt", "swell", "start_x", "start_y", "pan", "sway", "view_x", "view_y")
    uniform = dict(zip(names, rng.uniform(size=10).tolist(), strict=True))
    uniform["view_x"] *= TEXTURE_EDGE
    uniform["view_y"] *= TEXTURE_EDGE
    return Factors(
        motion,
        digit,
        digit_image=images[int(rng.integers(len(images)))],
        texture=int(rng.integers(TEXTURES)),
        colour=list(COLOURS)[rng.integers(len(COLOURS))],
        turn=int(rng.choice([-1, 1])),
        period=float(rng.uniform(12, 18)),
        **uniform,
    )


def track(factors: Factors, frames: int) -> NDArray[np.float64]:
    """Path of the digit (T, 4): x and y of its center in canvas edges, tilt in radians, scale.

    Each motion repeats around a fixed position: two clips of a video show it in the same part of the canvas. Those of
    `ASYMMETRIC` happen once, over the whole video.
    """
    t = np.arange(frames)
    once = _once(factors.motion, frames)
    cycle = t / factors.period + factors.phase  # fast; the slow motions take three times as long
    slow = t / (3 * factors.period) + factors.phase
    along = np.array([np.cos(2 * np.pi * factors.heading), np.sin(2 * np.pi * factors.heading)])
    across = np.array([-along[1], along[0]]) * factors.turn
    tilt, swell = np.full(frames, factors.tilt), np.full(frames, factors.swell)
    wave = 2 * np.pi * cycle
    moved = np.zeros((frames, 2))
    match factors.motion:
        case "straight":
            moved = 0.26 * _triangle(slow)[:, None] * along
        case "stop_and_go":  # the path of `straight` in four quick steps, standing still most of the time
            steps = np.floor(4 * slow) + np.minimum((4 * slow % 1) / 0.3, 1)
            moved = 0.26 * _triangle(steps / 4)[:, None] * along
        case "zigzag":
            moved = 0.24 * _triangle(slow)[:, None] * along + 0.14 * _triangle(cycle)[:, None] * across
        case "circle":
            moved = 0.2 * (np.cos(wave)[:, None] * along + np.sin(wave)[:, None] * across)
        case "shuttle":
            moved = 0.24 * np.sin(wave)[:, None] * along
        case "bounce":
            moved = np.column_stack([np.zeros(frames), 0.22 - 0.44 * 4 * (cycle % 1) * (1 - cycle % 1)])
        case "rock":
            tilt = cycle + factors.tilt
        case "pulse":
            swell = cycle + factors.swell
        case "accelerate" | "decelerate":  # from rest; of the reversed motion the heading is as random
            moved = 0.26 * (2 * once**2 - 1)[:, None] * along
    free = REACH - np.abs(moved).max(axis=0)  # range that the motion leaves for its position
    position = 0.5 + free * (2 * np.array([factors.start_x, factors.start_y]) - 1)
    angle = TILT * np.sin(2 * np.pi * tilt)
    scale = 2 * once - 1 if factors.motion in ("grow", "shrink") else np.sin(2 * np.pi * swell)
    return np.column_stack([position + moved, angle, 1 + SWELL * scale])


def visibility(factors: Factors, frames: int) -> NDArray[np.float64]:
    """Opacity of the digit (T,): 1, but for those that fade."""
    if factors.motion not in ("fade_in", "fade_out"):
        return np.ones(frames)
    return FAINT + (1 - FAINT) * _once(factors.motion, frames)


def _once(motion: str, frames: int) -> NDArray[np.float64]:
    """Progress of a motion (T,) from 0 to 1 over the video, or back for the reversed ones."""
    progress = np.arange(frames) / max(frames - 1, 1)
    return progress[::-1] if motion in {second for _, second in OPPOSITES} else progress


def _triangle(cycle: NDArray[np.float64]) -> NDArray[np.float64]:
    """Triangle wave from -1 to 1 and back, once per cycle."""
    return 1 - 4 * np.abs(cycle % 1 - 0.5)


def camera(factors: Factors, frames: int) -> NDArray[np.float64]:
    """Position of the camera on the texture (T, 2), canvas edges."""
    t = np.arange(frames)
    # A constant pan would distinguish the videos: two clips have its direction in common as little as the background.
    heading = 2 * np.pi * (factors.pan + 0.5 * np.sin(2 * np.pi * (t / 36 + factors.sway)))
    steps = 0.05 * np.column_stack([np.cos(heading), np.sin(heading)])
    return np.array([factors.view_x, factors.view_y]) + np.cumsum(steps, axis=0)
