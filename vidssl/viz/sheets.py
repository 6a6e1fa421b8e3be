"""Frames side by side in one picture: to look at views, and to show retrievals on paper."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from vidssl.types import Frames

Image = NDArray[np.uint8]  # (H, W, 3) RGB 0-255


def contact_sheet(rows: Sequence[Frames], labels: Sequence[str], *, height: int = 96, gap: int = 4) -> Image:
    """Puts the frames of clips side by side, a clip a row, its label at the left.

    Args:
        rows: each (T, 3, H, W) uint8 RGB; T, H and W may differ from row to row.
        labels: one for each row; characters that are not ASCII are drawn as "?".
        height: of a frame in the sheet, pixels; the width follows.
        gap: pixels between frames, and around all.

    Returns:
        (len(rows) * (height + gap) + gap, W, 3) uint8 RGB on white.

    Raises:
        ValueError: when there are no rows, or another number of labels, or a row is no clip.
    """
    if not rows or len(rows) != len(labels):
        raise ValueError(
            f"{len(labels)} labels for {len(rows)} rows: give one for each, and at least one row"
        )
    strips = [[_resized(frame, height) for frame in _pictures(row)] for row in rows]
    texts = [label.encode("ascii", "replace").decode("ascii") for label in labels]
    font, scale = cv2.FONT_HERSHEY_SIMPLEX, 0.45
    sizes = [cv2.getTextSize(text, font, scale, 1)[0] for text in texts]
    left = max(width for width, _ in sizes)
    left += 3 * gap if left else gap
    widest = max(sum(picture.shape[1] + gap for picture in strip) for strip in strips)
    sheet = np.full((len(rows) * (height + gap) + gap, left + widest, 3), 255, np.uint8)
    for number, (strip, text, size) in enumerate(zip(strips, texts, sizes, strict=True)):
        top, x = gap + number * (height + gap), left
        cv2.putText(
            sheet, text, (gap, top + (height + size[1]) // 2), font, scale, (40, 42, 46), 1, cv2.LINE_AA
        )
        for picture in strip:
            sheet[top : top + height, x : x + picture.shape[1]] = picture
            x += picture.shape[1] + gap
    return sheet


@dataclass(frozen=True)
class Shot:
    """One video of a retrieval sheet."""

    frames: Frames  # (T, 3, H, W); the middle one is shown
    caption: str
    hit: bool | None = None  # None: neither a hit nor a miss, as a query is


def retrieval_sheet(rows: Sequence[Sequence[Shot]], *, title: str = "", dpi: int = 150) -> bytes:
    """Draws queries and their nearest videos: a query a row, hits framed green with ✓, misses red with ✗.

    Args:
        rows: each the query first, then its hits, nearest first.
        title: above all; none if empty.
        dpi: pixels for each inch; a picture is 1.3 inches wide.

    Returns:
        A PNG file.

    Raises:
        ValueError: when there are no rows, a row is empty, or a shot is no clip.
    """
    from matplotlib.figure import Figure

    if not rows or not all(rows):
        raise ValueError("a retrieval sheet needs at least one row, and a query in each row")
    middles = [[_pictures(shot.frames)[len(shot.frames) // 2] for shot in row] for row in rows]
    # All in inches. A cell is as high as the highest picture needs at the common width.
    cell, space, caption, margin, between = 1.3, 0.14, 0.26, 0.18, 0.3
    high = cell * min(1.4, max(picture.shape[0] / picture.shape[1] for row in middles for picture in row))
    columns = max(map(len, rows))
    head = 0.24 + (0.3 if title else 0.0)
    width = 2 * margin + columns * (cell + space) - space + (between - space)
    height = margin + head + len(rows) * (high + caption) + margin / 2
    figure = Figure(figsize=(width, height), facecolor="white")
    if title:
        figure.text(margin / width, 1 - 0.28 / height, title, fontsize=12, fontweight="bold", color="#1c1e22")
    for line, (shots, pictures) in enumerate(zip(rows, middles, strict=True)):
        top = margin + head + line * (high + caption)
        for column, (shot, picture) in enumerate(zip(shots, pictures, strict=True)):
            x = margin + column * (cell + space) + (between - space if column else 0.0)
            axes = figure.add_axes((x / width, 1 - (top + high) / height, cell / width, high / height))
            axes.imshow(picture, interpolation="nearest" if picture.shape[0] < 100 else "antialiased")
            axes.set_anchor("S")
            axes.set_xticks([])
            axes.set_yticks([])
            color = {True: "#14854a", False: "#c92a1e", None: "#c9ccd1"}[shot.hit]
            for spine in axes.spines.values():
                spine.set(color=color, linewidth=1.0 if shot.hit is None else 2.4)
            if line == 0:
                name = "query" if column == 0 else "nearest" if column == 1 else f"{column}."
                figure.text(x / width, 1 - (top - 0.1) / height, name, fontsize=8.5, color="#5d636c")
            mark = {True: "✓ ", False: "✗ ", None: ""}[shot.hit]
            text = mark + (shot.caption if len(shot.caption) <= 17 else shot.caption[:16] + "…")
            ink = "#1c1e22" if shot.hit is None else color
            # Not parsed as mathematics: a caption may hold a dollar sign.
            y = 1 - (top + high + 0.15) / height
            figure.text(x / width, y, text, fontsize=8, color=ink, parse_math=False)
    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=dpi, metadata={"Software": None})
    return png.getvalue()


def write_png(path: Path, image: Image) -> None:
    """Writes (H, W, 3) uint8 RGB as a PNG file.

    Raises:
        ValueError: when the image has another shape or type.
    """
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or image.size == 0:
        raise ValueError(f"an image is (H, W, 3) uint8, got {image.shape} {image.dtype}")
    done, png = cv2.imencode(".png", cv2.cvtColor(image, cv2.COLOR_RGB2BGR))
    if not done:
        raise ValueError(f"OpenCV cannot write a PNG of {image.shape[1]}x{image.shape[0]} pixels")
    path.write_bytes(png.tobytes())


def _pictures(frames: Frames) -> Frames:
    """(T, 3, H, W) as (T, H, W, 3)."""
    if frames.dtype != np.uint8 or frames.ndim != 4 or frames.shape[1] != 3 or frames.size == 0:
        raise ValueError(f"a clip is (T, 3, H, W) uint8, got {frames.shape} {frames.dtype}")
    return frames.transpose(0, 2, 3, 1)


def _resized(picture: Image, height: int) -> Image:
    """At another height; pixels stay sharp when it grows, and are averaged when it shrinks."""
    width = max(1, round(picture.shape[1] * height / picture.shape[0]))
    how = cv2.INTER_AREA if height < picture.shape[0] else cv2.INTER_NEAREST
    return cv2.resize(np.ascontiguousarray(picture), (width, height), interpolation=how).astype(
        np.uint8, copy=False
    )
