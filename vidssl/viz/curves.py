"""Training curves: small panels in one figure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from vidssl.errors import DataError
from vidssl.viz.figure import COLORS, INK, add_legend, new_figure, style

if TYPE_CHECKING:
    from typing import TypeGuard

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class _Panel:
    title: str
    unit: str
    lines: Mapping[str, str]  # key in metrics.jsonl -> name in the legend
    scale: float = 1.0


_PANELS = (
    _Panel("Loss", "loss", {"loss": "loss"}),
    _Panel(
        "Similarity of query and key",
        "cosine similarity",
        {"positive_similarity": "positive", "negative_similarity": "negatives, mean ± std"},
    ),
    _Panel("Effective rank of the keys", "dimensions", {"key_rank": "rank"}),
    _Panel("Learning rate", "learning rate", {"lr": "lr"}),
    _Panel(
        "Retrieval while training", "accuracy (%)", {"knn": "kNN", "R@1": "R@1", "majority": "majority"}, scale=100.0
    ),
    _Panel("Uniformity loss", "nats (lower: more uniform)", {"uniformity_loss": "loss"}),
)
_LARGEST = 1e300  # matplotlib fails at the ends of float64
_SPREADS = {"negative_similarity": "negative_spread"}  # key -> that of its standard deviation, drawn as a band


def training_curves(metrics: Sequence[Mapping[str, float]], columns: int = 3) -> "Figure":
    """Draw the lines of metrics.jsonl, at most `columns` panels side by side.

    Of two lines with one step the later counts: a resumed run writes some steps twice.

    Raises:
        DataError: No line has a value to draw.
    """
    panels = [panel for panel in _PANELS if any(_series(metrics, key) for key in panel.lines)]
    if not panels:
        raise DataError(f"no loss or other quantity to draw in {len(metrics)} lines of metrics")
    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    figure = new_figure(11 * columns / 3, 2.75 * rows, padding=0.12)
    for number, panel in enumerate(panels, start=1):
        _draw(figure.add_subplot(rows, columns, number), panel, metrics)
    return figure


def _series(metrics: Sequence[Mapping[str, float]], key: str) -> dict[float, float]:
    """Step -> value, sorted by step."""
    numbers = ((line.get("step"), line.get(key)) for line in metrics)
    found = {step: value for step, value in numbers if _can_be_drawn(step) and _can_be_drawn(value)}
    return dict(sorted(found.items()))


def _can_be_drawn(number: object) -> "TypeGuard[float]":
    return isinstance(number, int | float) and not abs(number) > _LARGEST


def _draw(axes: "Axes", panel: _Panel, metrics: Sequence[Mapping[str, float]]) -> None:
    from matplotlib.ticker import MaxNLocator

    for color, (key, name) in zip(COLORS, panel.lines.items(), strict=False):
        series = _series(metrics, key)
        if not series:
            continue
        steps, values = np.array(list(series)), panel.scale * np.array(list(series.values()))
        marker = "o" if len(series) <= 12 else ""
        axes.plot(steps, values, color=color, linewidth=1.5, label=name, marker=marker, markersize=4)
        if key in _SPREADS:
            spreads = _series(metrics, _SPREADS[key])
            spread = np.array([spreads.get(step, np.nan) for step in series])
            axes.fill_between(steps, values - spread, values + spread, color=color, alpha=0.18, linewidth=0)
    style(axes, panel.title, panel.unit, pad=8)
    axes.set_xlabel("step", fontsize=9, color=INK)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
    axes.yaxis.set_major_formatter("{x:.6g}")
    if len(axes.lines) > 1:
        low, high = axes.get_ylim()
        axes.set_ylim(low, high + 0.2 * (high - low))  # for the legend above the lines
        add_legend(axes, loc="upper left", ncol=2)
