"""Moving digits: a data set of small MP4 files for demos and tests, with one class for each motion.

A digit moves over a large texture on which a camera pans. Motion, digit, colour, texture, start and speed are drawn
independently, and the textures are shared by all videos: two clips of a video share the moving digit but not its
background, and a single frame reveals almost nothing about the motion. Tilt and scale have the same distribution in
videos where they change (`rock`, `pulse`) and where they do not.
"""

import gzip
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Literal

import cv2
import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from vidssl.base.atomic import creating_folder, csv_text, write_json, write_whole
from vidssl.base.config import Settings, config_differences
from vidssl.base.errors import DataError
from vidssl.base.keyed_generators import generator
from vidssl.base.progress import progress
from vidssl.base.safe_parse import read_json
from vidssl.base.types import VideoRecord
from vidssl.data.write_lists import write_lists
from vidssl.video.write import encode

DigitFloats = NDArray[np.float32]
Pixels = NDArray[np.uint8]


def make_glyph(pixels: NDArray[np.float64]) -> DigitFloats:
    """Turn the image of a digit (0 to 1) into a sharp opacity (56, 56), with the margin of MNIST."""
    inner = 40 if len(pixels) == 8 else 56  # the 8x8 digits have no margin
    large = cv2.resize(pixels.astype(np.float32), (inner, inner), interpolation=cv2.INTER_CUBIC)
    padded = np.pad(large, (56 - inner) // 2)
    return np.asarray(np.clip((padded - 0.3) / 0.3, 0, 1), np.float32)


def digit_images(mnist: Path | None) -> tuple[NDArray[np.float64], dict[str, list[list[int]]]]:
    """Return images (N, E, E) in [0, 1], and the image numbers for each split and digit; the splits are disjoint."""
    if mnist is None:
        from sklearn.datasets import load_digits  # takes a second, and is needed here only

        images, labels = load_digits(return_X_y=True)
        images = images.reshape(-1, 8, 8) / 16
    else:
        names = [name for name in ("train", "t10k") if list(mnist.glob(f"{name}-images-idx3-ubyte*"))] or ["t10k"]
        images = np.concatenate([_read_idx(mnist / f"{name}-images-idx3-ubyte") for name in names]) / 255
        labels = np.concatenate([_read_idx(mnist / f"{name}-labels-idx1-ubyte") for name in names])
        if images.shape[1:] != (28, 28) or len(images) != len(labels):
            raise DataError(f"{mnist}: {len(labels)} labels for images {images.shape}; MNIST has N labels, (N, 28, 28)")
    pools: dict[str, list[list[int]]] = {"train": [], "test": []}
    for digit in range(10):
        numbers = np.flatnonzero(labels == digit).tolist()
        cut = 4 * len(numbers) // 5  # the last fifth is for testing; in MNIST these are other writers
        if cut == 0 or cut == len(numbers):
            raise DataError(f"{mnist}: {len(numbers)} images of the digit {digit}, need at least 2")
        pools["train"].append(numbers[:cut])
        pools["test"].append(numbers[cut:])
    return images, pools


def _read_idx(path: Path) -> Pixels:
    """Read an array of the idx format, raw or .gz: two zero bytes, type, number of axes, their lengths, values."""
    try:
        packed = path.with_name(f"{path.name}.gz")
        content = path.read_bytes() if path.exists() else gzip.decompress(packed.read_bytes())
        if content[:3] != b"\x00\x00\x08":
            raise ValueError("not an idx file of bytes")
        axes = content[3]
        shape = np.frombuffer(content, ">u4", axes, offset=4)
        return np.frombuffer(content, np.uint8, offset=4 + 4 * axes).reshape(shape)
    except (OSError, EOFError, ValueError, IndexError) as error:
        raise DataError(f"{path}: cannot be read as MNIST ({error})") from None


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


def digit_track(factors: Factors, frames: int) -> NDArray[np.float64]:
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


DIGITS = tuple("0123456789")
SETS = {"periodic": MOTIONS, "asymmetric": ASYMMETRIC}
DIGITS_FORMAT = 1  # version of the rendered set: raise it when the pixels change
DIGIT_PARTS = ("background", "upper half", "lower half")
SEEN = 0.25  # opacity above which a pixel belongs to the digit
GLYPH = 0.44  # edge of an unscaled digit's image, margin included, in canvas edges
CROP_MARGIN = 0.1  # of a crop of the digit, on each side, relative to the longer side of its box

DigitBox = tuple[int, int, int, int]  # xyxy, pixels, far edges exclusive


class MovingDigits(Settings):
    """What is rendered. Equal settings give byte-equal videos on one machine."""

    # Multiples of 80 have each motion with each digit equally often, of the asymmetric ones multiples of 60.
    train: int = Field(default=640, ge=1)
    test: int = Field(default=160, ge=0)
    frames: int = Field(default=48, ge=1)  # per video; a motion repeats every 12 to 54
    fps: int = Field(default=25, ge=1)
    size: int = Field(default=64, ge=16, multiple_of=2)  # pixels; the codec needs even numbers
    seed: int = Field(default=0, ge=0)
    mnist: Path | None = None  # folder with idx files, raw or .gz; None: the 8x8 digits of scikit-learn
    motions: Literal["periodic", "asymmetric"] = "periodic"  # asymmetric: other forward than reversed
    # Also write the mask of the digit in each frame, under `masks/`, and crops of it with part masks, under `parts/`.
    masks: bool = False


def ensure(out: Path, settings: MovingDigits) -> bool:
    """Render the set into a folder, unless it is there already; return whether this call rendered it.

    The folder is created atomically, also when several processes call this at once. A set with masks also serves for
    settings without.

    Raises:
        DataError: The folder holds something else, or a set of other settings, or MNIST cannot be read.
    """
    out = out.resolve()
    if _is_there(out, settings):
        return False
    try:
        with creating_folder(out) as folder:
            _render(folder, out, settings)
    except OSError:
        if _is_there(out, settings):  # another process was faster
            return False
        raise
    return True


def _is_there(out: Path, settings: MovingDigits) -> bool:
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return False
    try:
        written = dict(read_json(out / "settings.json"))
    except (OSError, ValueError, TypeError):
        raise DataError(f"{out} has no settings.json of moving digits: choose another folder") from None
    requested = _describe(settings)
    if not settings.masks:
        requested["masks"] = written.get("masks")  # the videos are the same
    changes = [f"{key} is {old}, requested {new}" for key, old, new in config_differences(written, requested)]
    if changes:
        raise DataError(f"{out} has moving digits of other settings ({', '.join(changes)}): choose another folder")
    return True


def _describe(settings: MovingDigits) -> dict[str, object]:
    mnist = None if settings.mnist is None else str(settings.mnist.resolve())
    return {"format": DIGITS_FORMAT, **settings.model_dump(include={*MovingDigits.model_fields}), "mnist": mnist}


def _render(folder: Path, out: Path, settings: MovingDigits) -> None:
    """Write the whole set into `folder`, with `out` as the path in its files."""
    images, pools = digit_images(settings.mnist)
    motions = SETS[settings.motions]
    labels = {"motion": motions, "digit": DIGITS, "colour": tuple(COLOURS)}  # the classes of each list
    turn = math.lcm(len(motions), len(DIGITS))
    textures = [_texture(settings.size, generator(settings.seed, 0, k)) for k in range(TEXTURES)]
    factor_rows: list[tuple[object, ...]] = [("path", *(field.name for field in fields(Factors)))]
    box_rows: list[tuple[object, ...]] = [("path", "frame", "x1", "y1", "x2", "y2")]
    lists: dict[str, dict[str, list[VideoRecord]]] = defaultdict(lambda: defaultdict(list))
    bar = progress(title="moving digits", unit="video", total=settings.train + settings.test, leave=False)
    for number, (split, count) in enumerate([("train", settings.train), ("test", settings.test)], start=1):
        for kind in ("videos", "masks/videos", "parts") if settings.masks else ("videos",):
            (folder / kind / split).mkdir(parents=True)
        for i in range(count):
            path = f"videos/{split}/{i:05d}.mp4"
            # 80 (60) consecutive videos have each pair once: half of them the pairs of equal parity, then the others.
            motion, digit = motions[i % len(motions)], (i + i // turn) % 10
            factors = draw_factors(motion, digit, pools[split][digit], generator(settings.seed, number, i))
            glyph = make_glyph(images[factors.digit_image])
            frames, seen = _render_video(factors, glyph, textures, settings)
            boxes = [_box(mask) for mask in seen]
            _write_video(folder / path, frames, settings.fps)
            for name, classes in labels.items():
                lists[name][split].append(VideoRecord(path, classes.index(str(getattr(factors, name)))))
            if any(motion == first for first, _ in OPPOSITES):
                lists["forward"][split].append(VideoRecord(path, motions.index(motion)))
            if settings.masks:
                white = np.repeat(np.uint8(255) * seen[..., None], 3, axis=3)
                _write_video(folder / f"masks/{path}", white, settings.fps, crf=0)
                crop = _write_crop(folder, f"parts/{split}/{i:05d}", factors, glyph, frames, boxes)
                lists["parts"][split].append(crop)
            factor_rows.append((path, *astuple(factors)))
            box_rows.extend((path, t, *box) for t, box in enumerate(boxes))
            bar.update()
    bar.close()
    for name, splits in lists.items():
        write_lists(folder / name, out, splits, motions if name == "forward" else labels.get(name, DIGITS))
    if settings.masks:
        (folder / "parts" / "parts.txt").write_text("".join(f"{name}\n" for name in DIGIT_PARTS), encoding="utf-8")
    tables: dict[str, Sequence[tuple[object, ...]]] = {"factors.csv": factor_rows, "boxes.csv": box_rows}
    if settings.motions == "asymmetric":
        tables["pairs.csv"] = OPPOSITES
    for file_name, rows in tables.items():
        write_whole(folder / file_name, csv_text(rows).encode())
    write_json(folder / "settings.json", _describe(settings))


def _render_video(
    factors: Factors, glyph: DigitFloats, textures: Sequence[DigitFloats], settings: MovingDigits
) -> tuple[Pixels, NDArray[np.bool_]]:
    """Render the frames (T, S, S, 3) of one video, and the mask of the digit in each (T, S, S)."""
    size = settings.size
    colour = np.array(COLOURS[factors.colour], np.float32)
    frames = np.empty((settings.frames, size, size, 3), np.uint8)
    seen = np.empty((settings.frames, size, size), bool)
    courses = (course(factors, settings.frames) for course in (digit_track, camera, visibility))
    for t, ((x, y, tilt, scale), view, visible) in enumerate(zip(*courses, strict=True)):
        shift = np.column_stack([np.eye(2), size * view])
        backward = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
        texture = textures[factors.texture]
        ground = cv2.warpAffine(texture, shift, (size, size), flags=backward, borderMode=cv2.BORDER_WRAP)
        alpha = opacity(glyph, rotation(tilt, scale, size, len(glyph)), x, y, size)
        # A dark rim keeps the digit legible where the texture is as bright.
        rim = cv2.GaussianBlur(cv2.dilate(alpha, np.ones((3, 3), np.uint8)), (3, 3), 0)
        dark = ground * (1 - float(0.7 * visible) * rim[..., None])
        frames[t] = np.rint(dark + float(visible) * alpha[..., None] * (colour - dark))
        seen[t] = alpha > SEEN
    return frames, seen


def _box(mask: NDArray[np.bool_]) -> DigitBox:
    """Return the smallest box of a mask (S, S)."""
    x, y, w, h = cv2.boundingRect(mask.astype(np.uint8))
    return x, y, x + w, y + h


def _texture(size: int, rng: np.random.Generator) -> DigitFloats:
    """Make a periodic texture (E, E, 3), E = TEXTURE_EDGE canvases: dim hills and valleys of all hues."""
    noise = partial(_noise, rng, TEXTURE_EDGE * size)
    bumps = np.clip(0.5 + 0.45 * noise(8) + 0.25 * noise(16) + 0.15 * noise(64), 0, 1)
    grain = np.clip(1 + 0.15 * noise(64) + 0.1 * noise(128), 0.5, 1.4)  # makes the pan visible everywhere
    # Every texture has all hues: a single hue would distinguish the videos.
    hue = (360 * rng.uniform() + 150 * noise(12)) % 360
    saturation = np.clip(0.55 + 0.15 * noise(16), 0.2, 0.9)
    hsv = np.stack([hue, saturation, np.clip((0.12 + 0.25 * bumps) * grain, 0, 1)], axis=-1)
    return np.asarray(255 * cv2.cvtColor(hsv.astype(np.float32), cv2.COLOR_HSV2RGB), np.float32)


def _noise(rng: np.random.Generator, edge: int, cells: int) -> DigitFloats:
    """Draw smooth periodic noise (E, E) around 0, with `cells` bumps along an edge."""
    grid = np.pad(rng.normal(size=(cells, cells)).astype(np.float32), 2, mode="wrap")
    large = cv2.resize(grid, None, fx=edge / cells, fy=edge / cells, interpolation=cv2.INTER_CUBIC)
    skip = round(2 * edge / cells)
    return np.asarray(large[skip : skip + edge, skip : skip + edge], np.float32)


def _write_video(path: Path, frames: Pixels, fps: int, crf: int = 18) -> None:
    """Write frames (T, S, S, 3) RGB as H.264 in MP4, lossless with a `crf` of 0; equal frames give equal bytes."""
    # With its macroblock tree, x264 wrote other bytes for equal frames in about one of ten of these videos.
    exact = {"x264-params": "mbtree=0:cpu-independent=1"}
    options = {"preset": "veryfast", "crf": str(crf), "g": "12", **exact}
    encode(str(path), frames, fps, options=options, container="mp4", exact=True)


def _write_crop(
    folder: Path, name: str, factors: Factors, glyph: DigitFloats, frames: Pixels, boxes: Sequence[DigitBox]
) -> VideoRecord:
    """Write a crop of the digit in the middle frame and its part mask, and return the row of the list."""
    t, size = len(frames) // 2, frames.shape[1]
    x, y, tilt, scale = digit_track(factors, len(frames))[t]
    parts = part_mask(glyph, rotation(tilt, scale, size, len(glyph)), x, y, size)
    left, top, side = square_around(boxes[t], size)
    here = np.s_[top : top + side, left : left + side]
    for file, pixels in ((f"{name}.png", frames[t][here][..., ::-1]), (f"{name}_parts.png", parts[here])):
        (folder / file).write_bytes(cv2.imencode(".png", pixels)[1].tobytes())
    return VideoRecord(f"{name}.png", factors.digit, mask=f"{name}_parts.png")


def square_around(box: DigitBox, size: int) -> tuple[int, int, int]:
    """Return left, top and side of a square around a box with a margin, shifted into the canvas."""
    x1, y1, x2, y2 = box
    longer = max(x2 - x1, y2 - y1)
    side = min(longer + 2 * max(1, round(CROP_MARGIN * longer)), size)
    left, top = (min(max((low + high - side) // 2, 0), size - side) for low, high in ((x1, x2), (y1, y2)))
    return left, top, side


def opacity(glyph: DigitFloats, turn: NDArray[np.float64], x: float, y: float, size: int) -> DigitFloats:
    """Draw a glyph with its center at (x, y) canvas edges, turned by `rotation`; return its opacity (S, S)."""
    double = 2 * size  # drawn at twice the size for smooth edges
    move = np.array([x, y]) * double - turn @ np.full(2, len(glyph) / 2)
    large = cv2.warpAffine(glyph, np.column_stack([turn, move]), (double, double), flags=cv2.INTER_LINEAR)
    return np.asarray(cv2.resize(large, (size, size), interpolation=cv2.INTER_AREA), np.float32)


def part_mask(glyph: DigitFloats, turn: NDArray[np.float64], x: float, y: float, size: int) -> Pixels:
    """Return the part of each pixel (S, S) of a canvas as an index of `PARTS`; the halves rotate with the glyph."""
    inked = np.flatnonzero(glyph.max(axis=1) > 0.5)
    middle = (int(inked[0]) + int(inked[-1]) + 1) // 2
    is_upper = np.arange(len(glyph))[:, None] < middle
    halves = (np.where(half, glyph, np.float32(0)) for half in (is_upper, ~is_upper))
    upper, lower = (opacity(half, turn, x, y, size) for half in halves)
    return np.where(opacity(glyph, turn, x, y, size) > SEEN, np.where(upper >= lower, 1, 2), 0).astype(np.uint8)


def rotation(tilt: float, scale: float, size: int, edge: int) -> NDArray[np.float64]:
    """Rotation and zoom (2, 2) from a glyph of `edge` pixels to a canvas of twice `size`."""
    zoom = scale * GLYPH * (2 * size) / edge
    return zoom * np.array([[np.cos(tilt), -np.sin(tilt)], [np.sin(tilt), np.cos(tilt)]])
