"""Numbers of several networks side by side: groups of bars."""

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vidssl.errors import DataError
from vidssl.viz.figure import COLORS, INK, new_figure, png, style, without_math

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MAX_VALUES = 40  # with more bars no values are written above them
_MAX_LEVEL = 1.4  # times the highest bar; a higher level is written as text, since drawing it would flatten the bars


def grouped_bars(
    groups: Sequence[str],
    series: Mapping[str, Sequence[float | None]],
    *,
    title: str,
    unit: str,
    levels: Mapping[str, float] | None = None,
    apart: Collection[str] = (),
    dpi: int = 150,
) -> bytes:
    """Draw one group of bars for each name, with one bar for each series; returns a PNG file.

    Args:
        groups: Names, from left to right.
        series: Legend -> values, one for each group, at least 0; None: no bar.
        title: Of the figure.
        unit: Of the values.
        levels: Meaning -> value of dashed lines.
        apart: Groups drawn paler and behind a gap, such as reference values.
        dpi: Pixels per inch.

    Raises:
        DataError: There are no values.
    """
    return png(bars_figure(groups, series, title=title, unit=unit, levels=levels, apart=apart), dpi)


def bars_figure(
    groups: Sequence[str],
    series: Mapping[str, Sequence[float | None]],
    *,
    title: str,
    unit: str,
    levels: Mapping[str, float] | None = None,
    apart: Collection[str] = (),
) -> "Figure":
    """Make the figure of `grouped_bars`."""
    from matplotlib.colors import to_rgb
    from matplotlib.patches import Patch
    from matplotlib.ticker import MaxNLocator

    found = [value for values in series.values() for value in values if value is not None]
    if not found:
        raise DataError("no values to draw")
    highest = max(*found, 1e-9)
    inches = max(6.4, 1.6 + len(groups) * (0.3 + 0.27 * len(series)))
    figure = new_figure(inches, 3.7)
    axes = figure.add_subplot()
    centres = _centres(groups, apart)
    width = 0.8 / len(series)
    for number, values in enumerate(series.values()):
        places = centres + (number - (len(series) - 1) / 2) * width
        full = to_rgb(COLORS[number % len(COLORS)])
        pale = tuple(0.5 + value / 2 for value in full)
        colors = [pale if name in apart else full for name in groups]
        heights = [np.nan if value is None else value for value in values]
        axes.bar(places, heights, width * 0.92, color=colors)
        for x, value in zip(places, values, strict=True):
            if value is not None and len(series) * len(groups) <= _MAX_VALUES:
                size = 7.5 if len(series) > 1 else 8.5
                axes.text(x, value + 0.012 * highest, f"{value:.2f}", ha="center", fontsize=size, color=INK)
    shown = {meaning: level for meaning, level in (levels or {}).items() if level <= _MAX_LEVEL * highest}
    axes.set_xlim(centres[0] - 0.55, centres[-1] + 0.55)
    axes.set_ylim(0, 1.12 * max(highest, *shown.values(), 0))
    _draw_levels(axes, levels or {}, shown)
    style(axes, title, unit, pad=24)
    names = [without_math(name) for name in groups]
    axes.set_xticks(centres, names)
    axes.tick_params(axis="x", length=0)
    if max(map(len, names)) > 9 * (0.3 + 0.27 * len(series)):
        for label in axes.get_xticklabels():
            label.set(rotation=30, rotation_mode="anchor", ha="right")
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10]))
    axes.legend(
        handles=[Patch(color=COLORS[n % len(COLORS)], label=name) for n, name in enumerate(series)],
        fontsize=8.5,
        frameon=False,
        labelcolor=INK,
        loc="lower left",
        bbox_to_anchor=(-0.01, 0.99),
        ncol=min(len(series), 6),
        handlelength=1.2,
        handleheight=0.9,
        columnspacing=1.4,
    )
    return figure


def _centres(groups: Sequence[str], apart: Collection[str]) -> NDArray[np.float64]:
    """Positions of the groups: 1 apart, with a gap around those in `apart`."""
    steps = [1.35 if (one in apart) != (other in apart) else 1.0 for one, other in pairwise(groups)]
    return np.cumsum([0.0, *steps])


def _draw_levels(axes: "Axes", levels: Mapping[str, float], shown: Mapping[str, float]) -> None:
    for meaning, level in shown.items():
        axes.axhline(level, color=INK, linewidth=0.9, linestyle=(0, (4, 3)), zorder=3)
        axes.annotate(
            meaning,
            (1, level),
            xytext=(4, 0),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            fontsize=8.5,
            color=INK,
            va="center",
        )
    above = [
        f"{' '.join(meaning.split())}: {level:.4g}, above the chart"
        for meaning, level in levels.items()
        if meaning not in shown
    ]
    axes.annotate(
        "; ".join(above),
        (1, 1),
        xytext=(0, 8),
        xycoords="axes fraction",
        textcoords="offset points",
        fontsize=8.5,
        color=INK,
        ha="right",
    )
