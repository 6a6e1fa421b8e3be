"""Crops of objects with their true and their predicted parts, side by side."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_INK, _FAINT = "#33373d", "#5d636c"
_GROUND = (0.91, 0.92, 0.935)  # part 0
_UNCOUNTED = (1.0, 1.0, 1.0)
_NAMED = 24  # characters of a part's name


@dataclass(frozen=True)
class PartCrop:
    """One crop, and which part is where in it."""

    image: NDArray[np.uint8]  # (S, S, 3) RGB
    truth: NDArray[np.int64]  # (S, S) numbers of parts; 255: not counted
    predicted: NDArray[np.int64]  # (S, S)
    caption: str


def parts_picture(crops: Sequence[PartCrop], names: Sequence[str], *, dpi: int = 150) -> bytes:
    """Draw crops, a column each: the crop, its true parts, the predicted ones; below, what the colours mean.

    Args:
        crops: At least one.
        names: Of the parts; those that are seen in a crop are explained.
        dpi: Pixels for each inch.

    Returns:
        A PNG file.
    """
    png = io.BytesIO()
    parts_figure(crops, names).savefig(png, format="png", dpi=dpi, metadata={"Software": None})
    return png.getvalue()


def parts_figure(crops: Sequence[PartCrop], names: Sequence[str]) -> "Figure":
    """Make the figure that `parts_picture` writes: three axes a crop, from top to bottom.

    Raises:
        ValueError: There is no crop.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    if not crops:
        raise ValueError("a picture of parts needs at least one crop")
    colours = _colours(len(names))
    seen = np.unique(np.concatenate([np.concatenate([c.truth.ravel(), c.predicted.ravel()]) for c in crops]))
    named = [(names[n], colours[n]) for n in seen if n < len(names)]
    named += [("not counted", _UNCOUNTED)] if seen[-1] >= len(names) else []
    # All in inches.
    cell, space, left, head, margin = 1.05, 0.07, 0.85, 0.3, 0.15
    width = left + len(crops) * (cell + space) + margin
    columns = max(1, int((width - margin) / 1.5))
    foot = 0.2 + 0.18 * -(-len(named) // columns)
    height = head + 3 * (cell + space) + foot
    figure = Figure(figsize=(width, height), facecolor="white")
    for line, word in enumerate(("crop", "parts", "predicted")):
        top = head + line * (cell + space)
        figure.text(
            (left - 0.12) / width,
            1 - (top + cell / 2) / height,
            word,
            ha="right",
            va="center",
            fontsize=9,
            color=_FAINT,
        )
        for column, crop in enumerate(crops):
            x = left + column * (cell + space)
            axes = figure.add_axes((x / width, 1 - (top + cell) / height, cell / width, cell / height))
            picture = (
                crop.image if line == 0 else _painted(crop.truth if line == 1 else crop.predicted, colours)
            )
            axes.imshow(picture, interpolation="nearest" if len(picture) < 100 else "antialiased")
            axes.set_xticks([])
            axes.set_yticks([])
            for spine in axes.spines.values():
                spine.set(color="#c9ccd1", linewidth=0.8)
            if line == 0:  # a name is data, no formula
                text = crop.caption if len(crop.caption) <= 14 else f"{crop.caption[:13]}…"
                axes.set_title(text, fontsize=8.5, color=_INK, pad=4, parse_math=False)
    patches = [
        Patch(facecolor=colour, edgecolor="#b9bdc3", linewidth=0.6, label=name[:_NAMED].replace("$", r"\$"))
        for name, colour in named
    ]
    figure.legend(
        handles=patches,
        loc="upper left",
        bbox_to_anchor=(left / width, (foot - 0.08) / height),
        ncols=min(columns, len(patches)),
        frameon=False,
        fontsize=8.5,
        labelcolor=_INK,
        handlelength=1.1,
        handleheight=1.0,
        borderpad=0.1,
        borderaxespad=0.0,
        columnspacing=1.4,
    )
    return figure


def _colours(parts: int) -> list[tuple[float, float, float]]:
    """One colour a part: gray for the background, then those that are told apart best, then paler ones."""
    from matplotlib import colormaps
    from matplotlib.colors import to_rgb

    table = [to_rgb(colormaps["tab20"](n)) for n in range(20)]
    order = [*range(0, 20, 2), *range(1, 20, 2)]
    order = [n for n in order if n not in (14, 15)]  # its grays
    return [_GROUND, *(table[order[n % len(order)]] for n in range(parts - 1))]


def _painted(
    numbers: NDArray[np.int64], colours: Sequence[tuple[float, float, float]]
) -> NDArray[np.float64]:
    """Part numbers (S, S) as colours (S, S, 3)."""
    table = np.array([*colours, _UNCOUNTED])
    return np.asarray(table[np.minimum(numbers, len(colours))], np.float64)
