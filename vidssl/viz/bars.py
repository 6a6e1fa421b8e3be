"""Numbers of several networks side by side: groups of bars."""

import io
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vidssl.errors import DataError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_INK, _PALE = "#33373d", "#b9bdc3"
_COLORS = ("#2a5bc7", "#c2570c", "#2b8a5a", "#8a4fb5", "#b3262e", "#0e8fa3", "#8a7a1f", "#6b7078")
_WRITTEN = 40  # bars at most whose values are written above them
_HIGH = 1.4  # a level that is so many times the highest bar is told, not drawn: the bars would be flat


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
    """Draw one group of bars for each name, in it one bar for each series.

    Args:
        groups: Names, from left to right.
        series: For each name in the legend its values, one a group, at least 0; None: nothing is drawn.
        title: Of the picture.
        unit: Of the values.
        levels: Values that a dashed line marks, by what they mean.
        apart: Groups that stand in a paler tone behind a gap: what others are compared with.
        dpi: Pixels for each inch.

    Returns:
        A PNG file.

    Raises:
        DataError: There is nothing to draw.
    """
    figure = bars_figure(groups, series, title=title, unit=unit, levels=levels, apart=apart)
    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=dpi, metadata={"Software": None})
    return png.getvalue()


def bars_figure(
    groups: Sequence[str],
    series: Mapping[str, Sequence[float | None]],
    *,
    title: str,
    unit: str,
    levels: Mapping[str, float] | None = None,
    apart: Collection[str] = (),
) -> "Figure":
    """Make the figure that `grouped_bars` writes."""
    from matplotlib.colors import to_rgb
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.patches import Patch
    from matplotlib.ticker import MaxNLocator

    found = [value for values in series.values() for value in values if value is not None]
    if not found:
        raise DataError("there is no number to draw")
    highest = max(*found, 1e-9)
    inches = max(6.4, 1.6 + len(groups) * (0.3 + 0.27 * len(series)))
    figure = Figure(figsize=(inches, 3.7), layout=ConstrainedLayoutEngine(), facecolor="white")
    axes = figure.add_subplot()
    centres = _centres(groups, apart)
    width = 0.8 / len(series)
    for number, values in enumerate(series.values()):
        places = centres + (number - (len(series) - 1) / 2) * width
        full = to_rgb(_COLORS[number % len(_COLORS)])
        pale = tuple(0.5 + value / 2 for value in full)
        colors = [pale if name in apart else full for name in groups]
        heights = [np.nan if value is None else value for value in values]
        axes.bar(places, heights, width * 0.92, color=colors)
        for x, value in zip(places, values, strict=True):
            if value is not None and len(series) * len(groups) <= _WRITTEN:
                size = 7.5 if len(series) > 1 else 8.5
                axes.text(x, value + 0.012 * highest, f"{value:.2f}", ha="center", fontsize=size, color=_INK)
    shown = {meaning: level for meaning, level in (levels or {}).items() if level <= _HIGH * highest}
    axes.set_xlim(centres[0] - 0.55, centres[-1] + 0.55)
    axes.set_ylim(0, 1.12 * max(highest, *shown.values(), 0))
    _draw_levels(axes, levels or {}, shown)
    axes.set_title(title, loc="left", fontsize=10.5, color=_INK, fontweight="bold", pad=24)
    names = [name.replace("$", r"\$") for name in groups]  # a name is no formula
    axes.set_xticks(centres, names)
    axes.set_ylabel(unit, fontsize=9, color=_INK)
    axes.tick_params(labelsize=8.5, colors=_INK, length=3)
    axes.tick_params(axis="x", length=0)
    if max(map(len, names)) > 9 * (0.3 + 0.27 * len(series)):
        for label in axes.get_xticklabels():
            label.set(rotation=30, rotation_mode="anchor", ha="right")
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10]))
    axes.grid(axis="y", color="#e6e7e9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(_PALE)
    axes.legend(
        handles=[Patch(color=_COLORS[n % len(_COLORS)], label=name) for n, name in enumerate(series)],
        fontsize=8.5,
        frameon=False,
        labelcolor=_INK,
        loc="lower left",
        bbox_to_anchor=(-0.01, 0.99),
        ncol=min(len(series), 6),
        handlelength=1.2,
        handleheight=0.9,
        columnspacing=1.4,
    )
    return figure


def _centres(groups: Sequence[str], apart: Collection[str]) -> NDArray[np.float64]:
    """Where groups stand: 1 from each other, and further where one that is apart meets one that is not."""
    steps = [1.35 if (one in apart) != (other in apart) else 1.0 for one, other in pairwise(groups)]
    return np.cumsum([0.0, *steps])


def _draw_levels(axes: "Axes", levels: Mapping[str, float], shown: Mapping[str, float]) -> None:
    for meaning, level in shown.items():
        axes.axhline(level, color=_INK, linewidth=0.9, linestyle=(0, (4, 3)), zorder=3)
        axes.annotate(
            meaning,
            (1, level),
            xytext=(4, 0),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            fontsize=8.5,
            color=_INK,
            va="center",
        )
    above = [
        f"{' '.join(meaning.split())}: {level:.4g}, above the picture"
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
        color=_INK,
        ha="right",
    )
