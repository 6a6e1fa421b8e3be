"""A sweep over one setting: the bound I_NCE and accuracies over its values, and accuracy over I_NCE."""

from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np

from vidssl.base.errors import DataError
from vidssl.page.figure_style import COLORS, INK, add_legend, new_figure, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BOUND = "I_NCE"  # the series in nats; all others are accuracies in percent


def sweep_chart(
    knob: str, values: Sequence[float], measured: Mapping[str, Sequence[Sequence[float]]], dots: str
) -> "Figure":
    """Draw the series of a sweep over the values of a setting, whose meaning `knob` is the label of the x axis.

    `measured` has for each series the numbers of all runs at each value: a small dot each, and a line through their
    means; `dots` says below the panels which runs these are. Values that are neither evenly spaced nor evenly by
    factors are drawn at equal distances, joined by a dashed line. A series without a number is left out. In the last
    panel a dotted line follows the values, each beside the highest of its points.

    Raises:
        DataError: No series has a number.
    """
    series = {name: [np.array(numbers) for numbers in rows] for name, rows in measured.items() if any(map(len, rows))}
    if not series:
        raise DataError(f"nothing was measured in the sweep over {knob}")
    order = np.argsort(values)
    at = np.array(values, np.float64)[order]
    sorted_series = {name: [rows[n] for n in order] for name, rows in series.items()}
    accuracies = {name: rows for name, rows in sorted_series.items() if name != BOUND}
    bound = sorted_series.get(BOUND)
    panels = (bound is not None) + bool(accuracies) + (bound is not None and bool(accuracies))
    figure = new_figure(3.9 * panels, 3.3, padding=0.12)
    number = 0
    if bound is not None:
        number += 1
        _draw(figure.add_subplot(1, panels, number), "Shared information", f"{BOUND} (nats)", knob, at, {BOUND: bound})
    if accuracies:
        number += 1
        title, unit = _axis_of(accuracies)
        _draw(figure.add_subplot(1, panels, number), title, unit, knob, at, accuracies)
    if bound is not None and accuracies:
        _draw_path(figure.add_subplot(1, panels, panels), at, bound, accuracies)
    caption = fill(f"small dots: {dots}; large dots: their means", 55 * panels)
    figure.supxlabel(caption, x=0.01, ha="left", fontsize=8, color=INK)
    return figure


def _axis_of(accuracies: Mapping[str, object]) -> tuple[str, str]:
    """Return title and unit of an axis: the name of the only accuracy, or of all."""
    name = next(iter(accuracies)) if len(accuracies) == 1 else ""
    return name or "Accuracy", f"{name or 'accuracy'} (%)"


def _is_even(at: np.ndarray) -> bool:
    gaps = np.diff(at)
    return len(gaps) < 2 or bool(gaps.max() <= 2.5 * gaps.min())


def _draw(
    axes: "Axes", title: str, unit: str, knob: str, at: np.ndarray, series: Mapping[str, Sequence[np.ndarray]]
) -> None:
    positions, line = at, "-"
    by_factors = at.min() > 0 and _is_even(np.log(at)) and not _is_even(at)
    if not by_factors and not _is_even(at):
        positions, line, knob = np.arange(len(at)), "--", f"{knob} (not to scale)"
    for name, rows in series.items():
        color = _color(name)
        for x, row in zip(positions, rows, strict=True):
            axes.plot(np.full(len(row), x), row, "o", color=color, markersize=3, alpha=0.45)
        axes.plot(
            positions, _means(rows), color=color, linewidth=1.5, linestyle=line, marker="o", markersize=5, label=name
        )
    style(axes, title, unit, pad=8)
    if by_factors:
        axes.set_xscale("log")
    axes.set_xticks(positions, [f"{x:g}" for x in at])
    axes.minorticks_off()
    axes.set_xlabel(knob, fontsize=9, color=INK)
    if len(series) > 1:
        add_legend(axes, loc="best")


def _draw_path(
    axes: "Axes", at: np.ndarray, bound: Sequence[np.ndarray], accuracies: Mapping[str, Sequence[np.ndarray]]
) -> None:
    x, highest = _means(bound), np.full(len(at), np.nan)
    for name, rows in accuracies.items():
        y = _means(rows)
        axes.plot(x, y, color=_color(name), linewidth=1.2, linestyle=":", marker="o", markersize=5, label=name)
        highest = np.fmax(highest, y)
    for value, across, up in zip(at, x, highest, strict=True):  # the points of all series lie below each other
        axes.annotate(f"{value:g}", (across, up), (4, 4), textcoords="offset points", fontsize=7.5, color=INK)
    title, unit = _axis_of(accuracies)
    style(axes, f"{title} over {BOUND}", unit, pad=8)
    axes.set_xlabel(f"{BOUND} (nats), numbers: value", fontsize=9, color=INK)
    axes.margins(0.12)


def _means(rows: Sequence[np.ndarray]) -> np.ndarray:
    return np.array([row.mean() if len(row) else np.nan for row in rows])


def _color(name: str) -> str:
    return COLORS[{BOUND: 2, "kNN": 0, "linear": 1}.get(name, 3)]
