"""Numbers of several networks side by side: groups of bars."""

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from vidssl.errors import DataError
from vidssl.viz.figure import COLORS, INK, add_legend, new_figure, style

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
    levels: Mapping[str, float],
    apart: Collection[str],
) -> "Figure":
    """Draw one group of bars for each name, with one bar for each series.

    `series` maps legends to values of all groups; None is no bar. `levels` maps meanings to values of dashed lines. The
    groups in `apart`, such as reference values, are drawn paler and behind a gap. No values at all are a DataError.
    """
    from matplotlib.colors import to_rgb
    from matplotlib.patches import Patch
    from matplotlib.ticker import MaxNLocator

    heights = np.array(list(series.values()), np.float64)  # nan: no bar
    if np.isnan(heights).all():
        raise DataError("no values to draw")
    highest = max(float(np.nanmax(heights)), 1e-9)
    inches = 0.3 + 0.27 * len(series)  # of a group
    figure = new_figure(max(6.4, 1.6 + len(groups) * inches), 3.7)
    axes = figure.add_subplot()
    centres = np.cumsum([0.0, *(1.35 if (a in apart) != (b in apart) else 1.0 for a, b in pairwise(groups))])
    width = 0.8 / len(series)
    for number, values in enumerate(heights):
        full = np.array(to_rgb(COLORS[number % len(COLORS)]))
        colors = [(1 + full) / 2 if name in apart else full for name in groups]
        bars = axes.bar(centres + (number - (len(series) - 1) / 2) * width, values, width * 0.92, color=colors)
        if heights.size <= _MAX_VALUES:
            axes.bar_label(bars, fmt="%.2f", padding=2, fontsize=7.5 if len(series) > 1 else 8.5, color=INK)
    axes.set_xlim(centres[0] - 0.55, centres[-1] + 0.55)
    _draw_levels(axes, levels, highest)
    style(axes, title, unit, pad=24)
    axes.set_xticks(centres, groups, parse_math=False)  # names may hold dollar signs
    axes.tick_params(axis="x", length=0)
    if max(map(len, groups)) > 9 * inches:
        for label in axes.get_xticklabels():
            label.set(rotation=30, rotation_mode="anchor", ha="right")
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10]))
    patches = [Patch(color=COLORS[n % len(COLORS)], label=name) for n, name in enumerate(series)]
    add_legend(axes, handles=patches, loc="lower left", bbox_to_anchor=(-0.01, 0.99), ncol=min(len(series), 6))
    return figure


def _draw_levels(axes: "Axes", levels: Mapping[str, float], highest: float) -> None:
    """Draw levels as dashed lines with their meaning; those far above the bars as text."""
    drawn = {meaning: level for meaning, level in levels.items() if level <= _MAX_LEVEL * highest}
    axes.set_ylim(0, 1.12 * max([highest, *drawn.values()]))
    for meaning, level in drawn.items():
        axes.axhline(level, color=INK, linewidth=0.9, linestyle=(0, (4, 3)), zorder=3)
        place = axes.get_yaxis_transform()  # x: fraction of the axes
        axes.text(1.01, level, meaning, transform=place, fontsize=8.5, color=INK, va="center")
    above = [f"{' '.join(m.split())}: {level:.4g}, above the chart" for m, level in levels.items() if m not in drawn]
    axes.text(1, 1.03, "; ".join(above), transform=axes.transAxes, fontsize=8.5, color=INK, ha="right")
