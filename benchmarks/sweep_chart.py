"""A sweep over one setting: the bound I_NCE and accuracies over its values, and accuracy over I_NCE."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from vidssl.base.errors import DataError
from vidssl.page.figure_style import COLORS, INK, add_legend, new_figure, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BOUND = "I_NCE"  # the series in nats; all others are accuracies in percent


def sweep_chart(knob: str, values: Sequence[float], measured: Mapping[str, Sequence[Sequence[float]]]) -> "Figure":
    """Draw the series of a sweep over the values of a setting, whose meaning `knob` is the label of the x axis.

    `measured` has for each series the numbers of all seeds at each value: a small dot each, and a line through their
    means. A series without a number is left out. In the last panel the value is beside the highest
    of its points.

    Raises:
        DataError: No series has a number.
    """
    series = {name: [np.array(each) for each in rows] for name, rows in measured.items() if any(map(len, rows))}
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
        _draw(figure.add_subplot(1, panels, number), "Accuracy", "accuracy (%)", knob, at, accuracies)
    if bound is not None and accuracies:
        _draw_path(figure.add_subplot(1, panels, panels), at, bound, accuracies)
    return figure


def _draw(
    axes: "Axes", title: str, unit: str, knob: str, at: np.ndarray, series: Mapping[str, Sequence[np.ndarray]]
) -> None:
    for name, rows in series.items():
        color = _color(name)
        for x, row in zip(at, rows, strict=True):
            axes.plot(np.full(len(row), x), row, "o", color=color, markersize=3, alpha=0.45)
        axes.plot(at, _means(rows), color=color, linewidth=1.5, marker="o", markersize=4.5, label=name)
    style(axes, title, unit, pad=8)
    if at.min() > 0 and at.max() / at.min() > 10:
        axes.set_xscale("log")
    axes.set_xticks(at, [f"{x:g}" for x in at])
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
        axes.plot(x, y, color=_color(name), linewidth=1.2, marker="o", markersize=4.5, label=name)
        highest = np.fmax(highest, y)
    for value, across, up in zip(at, x, highest, strict=True):  # the points of all series lie below each other
        axes.annotate(f"{value:g}", (across, up), (4, 4), textcoords="offset points", fontsize=7.5, color=INK)
    style(axes, f"Accuracy over {BOUND}", "accuracy (%)", pad=8)
    axes.set_xlabel(f"{BOUND} (nats), numbers: value", fontsize=9, color=INK)
    axes.margins(0.12)


def _means(rows: Sequence[np.ndarray]) -> np.ndarray:
    return np.array([row.mean() if len(row) else np.nan for row in rows])


def _color(name: str) -> str:
    return COLORS[{BOUND: 2, "kNN": 0, "linear": 1}.get(name, 3)]
