"""Retrieval results as one image, for print."""

from collections.abc import Sequence
from dataclasses import dataclass

from vidssl.types import Frames
from vidssl.viz.figure import png, shortened


@dataclass(frozen=True)
class Shot:
    """One video of a retrieval sheet."""

    frames: Frames  # (T, 3, H, W); the middle one is drawn
    caption: str
    hit: bool | None = None  # None: unknown, or a query


def retrieval_sheet(rows: Sequence[Sequence[Shot]], *, title: str = "", dpi: int = 150) -> bytes:
    """Draw a row for each query with its nearest videos; hits are framed green (✓), misses red (✗). Returns a PNG file.

    Args:
        rows: Each the query first, then the videos found, nearest first.
        title: Above all rows; empty: none.
        dpi: Pixels per inch; an image is 1.3 inches wide.

    Raises:
        ValueError: There are no rows, or a row is empty.
    """
    from matplotlib.figure import Figure

    if not rows or not all(rows):
        raise ValueError("a retrieval sheet needs at least one row, and a query in each row")
    middles = [[shot.frames[len(shot.frames) // 2].transpose(1, 2, 0) for shot in row] for row in rows]
    # Sizes are in inches. A cell is as high as the highest image needs at the common width.
    cell, space, caption, margin, between = 1.3, 0.14, 0.26, 0.18, 0.3
    high = cell * min(1.4, max(image.shape[0] / image.shape[1] for row in middles for image in row))
    columns = max(map(len, rows))
    head = 0.24 + (0.3 if title else 0.0)
    width = 2 * margin + columns * (cell + space) - space + (between - space)
    height = margin + head + len(rows) * (high + caption) + margin / 2
    figure = Figure(figsize=(width, height), facecolor="white")
    if title:
        figure.text(margin / width, 1 - 0.28 / height, title, fontsize=12, fontweight="bold", color="#1c1e22")
    for line, (shots, images) in enumerate(zip(rows, middles, strict=True)):
        top = margin + head + line * (high + caption)
        for column, (shot, image) in enumerate(zip(shots, images, strict=True)):
            x = margin + column * (cell + space) + (between - space if column else 0.0)
            axes = figure.add_axes((x / width, 1 - (top + high) / height, cell / width, high / height))
            axes.imshow(image, interpolation="nearest" if image.shape[0] < 100 else "antialiased")
            axes.set_anchor("S")
            axes.set(xticks=[], yticks=[])
            color = {True: "#14854a", False: "#c92a1e", None: "#c9ccd1"}[shot.hit]
            for spine in axes.spines.values():
                spine.set(color=color, linewidth=1.0 if shot.hit is None else 2.4)
            if line == 0:
                name = "query" if column == 0 else "nearest" if column == 1 else f"{column}."
                figure.text(x / width, 1 - (top - 0.1) / height, name, fontsize=8.5, color="#5d636c")
            mark = {True: "✓ ", False: "✗ ", None: ""}[shot.hit]
            text = mark + shortened(shot.caption, 17)
            ink = "#1c1e22" if shot.hit is None else color
            y = 1 - (top + high + 0.15) / height
            figure.text(x / width, y, text, fontsize=8, color=ink, parse_math=False)  # may hold a dollar sign
    return png(figure, dpi)
