"""Corruptions over their severities: their numbers as tables of colours, and one frame with each of them."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from vidssl.errors import DataError
from vidssl.types import Frames
from vidssl.viz.figure import INK, new_figure, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MAX_TITLE = 28  # letters above a table
_SIDE = 0.62  # inches of a frame


def severity_map(
    rows: Mapping[str, Sequence[str]],
    columns: Sequence[str],
    panels: Mapping[str, tuple[float, Mapping[str, Sequence[float]]]],
    title: str,
) -> "Figure":
    """Draw a table for each panel, with a row for each corruption and a column for each severity, in percent.

    `rows` maps groups to their corruptions. A panel has the number of clean videos, which is the darkest colour, and
    for each corruption its numbers, fractions. No panel or no row is a DataError.
    """
    names = [name for members in rows.values() for name in members]
    if not panels or not names:
        raise DataError("no corruption was measured: there is nothing to draw")
    width = 0.52 * len(columns) + 0.35
    figure = new_figure(2.6 + (width + 0.25) * len(panels), 1.3 + 0.235 * (len(names) + 0.4 * len(rows)))
    figure.suptitle(title, fontsize=10.5, color=INK, fontweight="bold", x=0.012, ha="left")
    all_axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    places, at = {}, 0.0
    for members in rows.values():
        for name in members:
            places[name] = at
            at += 1
        at += 0.4  # between groups
    for axes, (label, (clean, numbers)) in zip(all_axes, panels.items(), strict=True):
        _draw(axes, columns, clean, numbers, places)
        axes.set_title(f"{shortened(label, _MAX_TITLE)}\nclean {100 * clean:.1f}", fontsize=9, color=INK)
        axes.title.set_parse_math(False)  # names may hold dollar signs
        axes.set_ylim(at - 0.6, -0.7)
    all_axes[0].set_yticks(list(places.values()), [name.replace("_", " ") for name in places], fontsize=8.5)
    all_axes[0].tick_params(axis="y", colors=INK)
    return figure


def _draw(
    axes: "Axes",
    columns: Sequence[str],
    clean: float,
    numbers: Mapping[str, Sequence[float]],
    places: Mapping[str, float],
) -> None:
    from matplotlib import colormaps
    from matplotlib.patches import Rectangle

    colors = colormaps["Blues"]
    for name, values in numbers.items():
        for column, value in enumerate(values):
            # Not all of the map, so that the text can be read on each colour.
            depth = 0.75 * float(np.clip(value / clean if clean > 0 else 0, 0, 1))
            axes.add_patch(Rectangle((column - 0.5, places[name] - 0.5), 1, 1, color=colors(depth), linewidth=0))
            ink = "white" if depth > 0.55 else INK
            axes.text(column, places[name], f"{100 * value:.1f}", fontsize=8, color=ink, ha="center", va="center")
    axes.set_xlim(-0.5, len(columns) - 0.5)
    axes.set_xticks(range(len(columns)), columns, fontsize=8.5)
    axes.tick_params(axis="x", colors=INK, top=False)
    axes.tick_params(length=0)
    axes.set_xlabel("severity", fontsize=9, color=INK)
    axes.spines[:].set_visible(False)


def example_sheet(clean: Frames, corrupted: Mapping[str, Sequence[Frames]], columns: Sequence[str]) -> "Figure":
    """Draw the middle frame of a clip (T, 3, S, S), and a row of its versions for each corruption.

    `columns` are the severities. No corruption is a DataError.
    """
    if not corrupted:
        raise DataError("no corruption changes single frames: there is nothing to draw")
    middle = len(clean) // 2
    rows = {name.replace("_", " "): [clean, *versions] for name, versions in corrupted.items()}
    figure = new_figure(1.6 + _SIDE * (1 + len(columns)), 0.4 + _SIDE * len(rows), padding=0.02)
    grid = figure.subplots(len(rows), 1 + len(columns), squeeze=False)
    for axes_of_row, (name, versions) in zip(grid, rows.items(), strict=True):
        for axes, frames in zip(axes_of_row, versions, strict=True):
            axes.imshow(frames[middle].transpose(1, 2, 0), interpolation="nearest")
            axes.set_xticks([])
            axes.set_yticks([])
            axes.spines[:].set_visible(False)
        axes_of_row[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=8.5, color=INK)
    for axes, title in zip(grid[0], ["clean", *columns], strict=True):
        axes.set_title(title, fontsize=8.5, color=INK)
    return figure
