"""Moving digits: a data set of small MP4 files for demos and tests, with one class for each motion.

A digit moves over a large texture on which a camera pans. Motion, digit, colour, texture, start and speed are drawn
independently, and the textures are shared by all videos: two clips of a video share the moving digit but not its
background, and a single frame reveals almost nothing about the motion. Tilt and scale have the same distribution in
videos where they change (`rock`, `pulse`) and where they do not.
"""

import csv
import json
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import astuple, fields
from pathlib import Path
from typing import Literal

import cv2
import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from vidssl.atomic import creating_folder
from vidssl.config import Settings, differences
from vidssl.data.synthetic.digit_factors import (
    ASYMMETRIC,
    COLOURS,
    MOTIONS,
    OPPOSITES,
    TEXTURE_EDGE,
    TEXTURES,
    Factors,
    camera,
    draw_factors,
    track,
    visibility,
)
from vidssl.data.synthetic.digit_images import Floats, Pixels, digit_images, make_glyph
from vidssl.data.write_lists import write_lists
from vidssl.errors import DataError
from vidssl.keyed_generators import generator
from vidssl.progress import progress
from vidssl.types import VideoRecord
from vidssl.untrusted_files import read_json
from vidssl.video.write import encode

DIGITS = tuple("0123456789")
SETS = {"periodic": MOTIONS, "asymmetric": ASYMMETRIC}
FORMAT = 1  # version of the rendered set: raise it when the pixels change
PARTS = ("background", "upper half", "lower half")
SEEN = 0.25  # opacity above which a pixel belongs to the digit
GLYPH = 0.44  # edge of an unscaled digit's image, margin included, in canvas edges
MARGIN = 0.1  # of a crop of the digit, on each side, relative to the longer side of its box

Box = tuple[int, int, int, int]  # xyxy, pixels, far edges exclusive


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
        found = dict(read_json(out / "settings.json"))
    except (OSError, ValueError, TypeError):
        raise DataError(
            f"{out} is not a set of moving digits (settings.json is missing or unreadable): choose another folder"
        ) from None
    if not settings.masks:
        found.pop("masks", None)  # the videos are the same
    other = [f"{key} is {old}, requested {new}" for key, old, new in differences(found, _describe(settings))]
    if other:
        raise DataError(f"{out} has moving digits of other settings ({', '.join(other)}): choose another folder")
    return True


def _describe(settings: MovingDigits) -> dict[str, object]:
    mnist = None if settings.mnist is None else str(settings.mnist.resolve())
    # Keys that older sets lack are left out where they have the default.
    older = {"masks"} if not settings.masks else set()
    older |= {"motions"} if settings.motions == "periodic" else set()
    described = set(MovingDigits.model_fields) - older
    return {"format": FORMAT, **settings.model_dump(include=described), "mnist": mnist}


def _render(folder: Path, out: Path, settings: MovingDigits) -> None:
    """Write the whole set into `folder`, with `out` as the path in its files."""
    images, pools = digit_images(settings.mnist)
    motions = SETS[settings.motions]
    labels = {"motion": motions, "digit": DIGITS, "colour": tuple(COLOURS)}  # the classes of each list
    turn = math.lcm(len(motions), len(DIGITS))
    textures = [_texture(settings.size, generator(settings.seed, 0, k)) for k in range(TEXTURES)]
    factors: list[tuple[object, ...]] = [("path", *(field.name for field in fields(Factors)))]
    boxes: list[tuple[object, ...]] = [("path", "frame", "x1", "y1", "x2", "y2")]
    lists: dict[str, dict[str, list[VideoRecord]]] = defaultdict(lambda: defaultdict(list))
    bar = progress(title="moving digits", unit="video", total=settings.train + settings.test, leave=False)
    for number, (split, count) in enumerate([("train", settings.train), ("test", settings.test)], start=1):
        for kind in ("videos", "masks/videos", "parts") if settings.masks else ("videos",):
            (folder / kind / split).mkdir(parents=True)
        for i in range(count):
            path = f"videos/{split}/{i:05d}.mp4"
            # 80 (60) consecutive videos have each pair once: half of them the pairs of equal parity, then the others.
            motion, digit = motions[i % len(motions)], (i + i // turn) % 10
            drawn = draw_factors(motion, digit, pools[split][digit], generator(settings.seed, number, i))
            glyph = make_glyph(images[drawn.digit_image])
            frames, seen = _render_video(drawn, glyph, textures, settings)
            found = [_box(mask) for mask in seen]
            _write_video(folder / path, frames, settings.fps)
            for name, classes in labels.items():
                lists[name][split].append(VideoRecord(path, classes.index(str(getattr(drawn, name)))))
            if any(motion == first for first, _ in OPPOSITES):
                lists["forward"][split].append(VideoRecord(path, motions.index(motion)))
            if settings.masks:
                white = np.repeat(np.uint8(255) * seen[..., None], 3, axis=3)
                _write_video(folder / f"masks/{path}", white, settings.fps, crf=0)
                lists["parts"][split].append(_write_crop(folder, f"parts/{split}/{i:05d}", drawn, glyph, frames, found))
            factors.append((path, *astuple(drawn)))
            boxes.extend((path, t, *box) for t, box in enumerate(found))
            bar.update()
    bar.close()
    for name, splits in lists.items():
        write_lists(folder / name, out, splits, motions if name == "forward" else labels.get(name, DIGITS))
    if settings.motions == "asymmetric":
        (folder / "pairs.csv").write_text("".join(f"{one},{other}\n" for one, other in OPPOSITES), encoding="utf-8")
    if settings.masks:
        (folder / "parts" / "parts.txt").write_text("".join(f"{name}\n" for name in PARTS), encoding="utf-8")
    for file_name, rows in {"factors.csv": factors, "boxes.csv": boxes}.items():
        with (folder / file_name).open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows(rows)
    (folder / "settings.json").write_text(json.dumps(_describe(settings), indent=2) + "\n", encoding="utf-8")


def _render_video(
    factors: Factors, glyph: Floats, textures: Sequence[Floats], settings: MovingDigits
) -> tuple[Pixels, NDArray[np.bool_]]:
    """Render the frames (T, S, S, 3) of one video, and the mask of the digit in each (T, S, S)."""
    size = settings.size
    colour = np.array(COLOURS[factors.colour], np.float32)
    frames = np.empty((settings.frames, size, size, 3), np.uint8)
    seen = np.empty((settings.frames, size, size), bool)
    each = (motion(factors, settings.frames) for motion in (track, camera, visibility))
    for t, ((x, y, tilt, scale), view, visible) in enumerate(zip(*each, strict=True)):
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


def _box(mask: NDArray[np.bool_]) -> Box:
    """Return the smallest box of a mask (S, S)."""
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1


def _texture(size: int, rng: np.random.Generator) -> Floats:
    """Make a periodic texture (E, E, 3), E = TEXTURE_EDGE canvases: dim hills and valleys of all hues."""
    edge = TEXTURE_EDGE * size

    def noise(cells: int) -> Floats:
        """Smooth periodic noise around 0, with `cells` bumps along an edge."""
        grid = np.pad(rng.normal(size=(cells, cells)).astype(np.float32), 2, mode="wrap")
        large = cv2.resize(grid, None, fx=edge / cells, fy=edge / cells, interpolation=cv2.INTER_CUBIC)
        skip = round(2 * edge / cells)
        return np.asarray(large[skip : skip + edge, skip : skip + edge], np.float32)

    bumps = np.clip(0.5 + 0.45 * noise(8) + 0.25 * noise(16) + 0.15 * noise(64), 0, 1)
    grain = np.clip(1 + 0.15 * noise(64) + 0.1 * noise(128), 0.5, 1.4)  # makes the pan visible everywhere
    # Every texture has all hues: a single hue would distinguish the videos.
    hue = (360 * rng.uniform() + 150 * noise(12)) % 360
    saturation = np.clip(0.55 + 0.15 * noise(16), 0.2, 0.9)
    hsv = np.stack([hue, saturation, np.clip((0.12 + 0.25 * bumps) * grain, 0, 1)], axis=-1)
    return np.asarray(255 * cv2.cvtColor(hsv.astype(np.float32), cv2.COLOR_HSV2RGB), np.float32)


def _write_video(path: Path, frames: Pixels, fps: int, crf: int = 18) -> None:
    """Write frames (T, S, S, 3) RGB as H.264 in MP4, lossless with a `crf` of 0; equal frames give equal bytes."""
    # With its macroblock tree, x264 wrote other bytes for equal frames in about one of ten of these videos.
    exact = {"x264-params": "mbtree=0:cpu-independent=1"}
    options = {"preset": "veryfast", "crf": str(crf), "g": "12", **exact}
    encode(str(path), frames, fps, options=options, container="mp4", exact=True)


def _write_crop(
    folder: Path, name: str, factors: Factors, glyph: Floats, frames: Pixels, boxes: Sequence[Box]
) -> VideoRecord:
    """Write a crop of the digit in the middle frame and its part mask, and return the row of the list."""
    t, size = len(frames) // 2, frames.shape[1]
    x, y, tilt, scale = track(factors, len(frames))[t]
    parts = part_mask(glyph, rotation(tilt, scale, size, len(glyph)), x, y, size)
    left, top, side = square_around(boxes[t], size)
    here = np.s_[top : top + side, left : left + side]
    for file, pixels in ((f"{name}.png", frames[t][here][..., ::-1]), (f"{name}_parts.png", parts[here])):
        (folder / file).write_bytes(cv2.imencode(".png", pixels)[1].tobytes())
    return VideoRecord(f"{name}.png", factors.digit, mask=f"{name}_parts.png")


def square_around(box: Box, size: int) -> tuple[int, int, int]:
    """Return left, top and side of a square around a box with a margin, shifted into the canvas."""
    x1, y1, x2, y2 = box
    longer = max(x2 - x1, y2 - y1)
    side = min(longer + 2 * max(1, round(MARGIN * longer)), size)
    left, top = (min(max((low + high - side) // 2, 0), size - side) for low, high in ((x1, x2), (y1, y2)))
    return left, top, side


def opacity(glyph: Floats, turn: NDArray[np.float64], x: float, y: float, size: int) -> Floats:
    """Draw a glyph with its center at (x, y) canvas edges, turned by `rotation`; return its opacity (S, S)."""
    double = 2 * size  # drawn at twice the size for smooth edges
    move = np.array([x, y]) * double - turn @ np.full(2, len(glyph) / 2)
    large = cv2.warpAffine(glyph, np.column_stack([turn, move]), (double, double), flags=cv2.INTER_LINEAR)
    return np.asarray(cv2.resize(large, (size, size), interpolation=cv2.INTER_AREA), np.float32)


def part_mask(glyph: Floats, turn: NDArray[np.float64], x: float, y: float, size: int) -> Pixels:
    """Return the part of each pixel (S, S) of a canvas as an index of `PARTS`; the halves rotate with the glyph."""
    inked = np.flatnonzero(glyph.max(axis=1) > 0.5)
    middle = (int(inked[0]) + int(inked[-1]) + 1) // 2
    rows = np.arange(len(glyph))[:, None]
    upper, lower = (
        opacity(np.where(half, glyph, np.float32(0)), turn, x, y, size) for half in (rows < middle, rows >= middle)
    )
    return np.where(opacity(glyph, turn, x, y, size) > SEEN, np.where(upper >= lower, 1, 2), 0).astype(np.uint8)


def rotation(tilt: float, scale: float, size: int, edge: int) -> NDArray[np.float64]:
    """Rotation and zoom (2, 2) from a glyph of `edge` pixels to a canvas of twice `size`."""
    zoom = scale * GLYPH * (2 * size) / edge
    return zoom * np.array([[np.cos(tilt), -np.sin(tilt)], [np.sin(tilt), np.cos(tilt)]])
