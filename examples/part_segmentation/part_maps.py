"""Crops of objects with their true and predicted parts, drawn as one PNG."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_INK, _FAINT = "#33373d", "#5d636c"
_BACKGROUND = (0.91, 0.92, 0.935)  # part 0
_IGNORED = (1.0, 1.0, 1.0)  # pixels that are not counted
_MAX_NAME = 24  # characters of a part's name in the legend


@dataclass(frozen=True)
class PartCrop:
    """One crop and its part maps."""

    image: NDArray[np.uint8]  # (S, S, 3) RGB
    truth: NDArray[np.int64]  # (S, S), 255: not counted
    predicted: NDArray[np.int64]  # (S, S)
    caption: str


def draw_parts(crops: Sequence[PartCrop], names: Sequence[str], *, dpi: int = 150) -> bytes:
    """Draw a column for each crop (image, true parts, predicted parts) and a legend; returns a PNG file.

    Args:
        crops: At least one.
        names: Of the parts; the legend has those that appear in a crop.
        dpi: Pixels per inch.
    """
    png = io.BytesIO()
    parts_figure(crops, names).savefig(png, format="png", dpi=dpi, metadata={"Software": None})
    return png.getvalue()


def parts_figure(crops: Sequence[PartCrop], names: Sequence[str]) -> "Figure":
    """The figure of `draw_parts`: three axes for each crop, row by row."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    colours = _colours(len(names))
    part_numbers = np.unique(np.concatenate([np.concatenate([c.truth.ravel(), c.predicted.ravel()]) for c in crops]))
    legend = [(names[n], colours[n]) for n in part_numbers if n < len(names)]
    legend += [("not counted", _IGNORED)] if part_numbers[-1] >= len(names) else []
    # Sizes are in inches.
    cell, space, left, head, margin = 1.05, 0.07, 0.85, 0.3, 0.15
    width = left + len(crops) * (cell + space) + margin
    columns = max(1, int((width - margin) / 1.5))
    foot = 0.2 + 0.18 * -(-len(legend) // columns)
    height = head + 3 * (cell + space) + foot
    figure = Figure(figsize=(width, height), facecolor="white")
    for line, word in enumerate(("crop", "parts", "predicted")):
        top = head + line * (cell + space)
        x, y = (left - 0.12) / width, 1 - (top + cell / 2) / height
        figure.text(x, y, word, ha="right", va="center", fontsize=9, color=_FAINT)
        for column, crop in enumerate(crops):
            x = left + column * (cell + space)
            axes = figure.add_axes((x / width, 1 - (top + cell) / height, cell / width, cell / height))
            pixels = (crop.image, _colored(crop.truth, colours), _colored(crop.predicted, colours))[line]
            axes.imshow(pixels, interpolation="nearest" if len(pixels) < 100 else "antialiased")
            axes.set(xticks=[], yticks=[])
            for spine in axes.spines.values():
                spine.set(color="#c9ccd1", linewidth=0.8)
            if line == 0:  # no math: a name may hold a dollar sign
                text = crop.caption if len(crop.caption) <= 14 else f"{crop.caption[:13]}…"
                axes.set_title(text, fontsize=8.5, color=_INK, pad=4, parse_math=False)
    patches = [
        Patch(facecolor=colour, edgecolor="#b9bdc3", linewidth=0.6, label=name[:_MAX_NAME].replace("$", r"\$"))
        for name, colour in legend
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
    """One colour for each part: gray for the background, then the strong and the pale ones of tab20."""
    from matplotlib import colormaps
    from matplotlib.colors import to_rgb

    table = [to_rgb(colormaps["tab20"](n)) for n in range(20)]
    order = [*range(0, 20, 2), *range(1, 20, 2)]
    order = [n for n in order if n not in (14, 15)]  # its grays
    return [_BACKGROUND, *(table[order[n % len(order)]] for n in range(parts - 1))]


def _colored(numbers: NDArray[np.int64], colours: Sequence[tuple[float, float, float]]) -> NDArray[np.float64]:
    """Colours (S, S, 3) of part numbers (S, S)."""
    table = np.array([*colours, _IGNORED])
    return np.asarray(table[np.minimum(numbers, len(colours))], np.float64)
