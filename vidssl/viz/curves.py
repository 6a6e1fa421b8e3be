"""Training curves: small panels in one image."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from vidssl.errors import DataError
from vidssl.viz.figure import COLORS, INK, new_figure, png, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class _Line:
    key: str  # of a line of metrics.jsonl
    name: str  # in the legend
    color: str
    spread: str = ""  # key of a standard deviation, drawn as a band
    scale: float = 1.0


@dataclass(frozen=True)
class _Panel:
    title: str
    unit: str
    lines: tuple[_Line, ...]


_BLUE, _ORANGE = COLORS[:2]
_PANELS = (
    _Panel("Loss", "loss", (_Line("loss", "loss", _BLUE),)),
    _Panel(
        "Similarity of query and key",
        "cosine similarity",
        (
            _Line("positive_similarity", "positive", _BLUE),
            _Line("negative_similarity", "negatives, mean ± std", _ORANGE, spread="negative_spread"),
        ),
    ),
    _Panel("Effective rank of the keys", "dimensions", (_Line("key_rank", "rank", _BLUE),)),
    _Panel("Learning rate", "learning rate", (_Line("lr", "lr", _BLUE),)),
    _Panel(
        "Retrieval while training",
        "accuracy (%)",
        (_Line("knn", "kNN", _BLUE, scale=100.0), _Line("R@1", "R@1", _ORANGE, scale=100.0)),
    ),
    _Panel("Uniformity loss", "nats (lower: more uniform)", (_Line("uniformity_loss", "loss", _BLUE),)),
)


def training_curves(metrics: Sequence[Mapping[str, float]], *, dpi: int = 150) -> bytes:
    """Draw the lines of metrics.jsonl; returns a PNG file.

    Args:
        metrics: Each with "step", and any of "loss", "positive_similarity", "negative_similarity",
            "negative_spread", "key_rank", "lr", "knn", "R@1" (fractions), "uniformity_loss". A panel without data is
            left out. Of two lines with one step the later counts: a resumed run writes some steps twice.
        dpi: Pixels per inch; the image is up to 11 inches wide.

    Raises:
        DataError: No line has a value to draw.
    """
    return png(curves_figure(metrics), dpi)


def curves_figure(metrics: Sequence[Mapping[str, float]]) -> "Figure":
    """Make the figure of `training_curves`; its axes are the panels."""
    panels = [panel for panel in _PANELS if any(_series(metrics, line.key) for line in panel.lines)]
    if not panels:
        raise DataError(f"no loss or other quantity to draw in {len(metrics)} lines of metrics")
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure = new_figure(11 * columns / 3, 2.75 * rows, padding=0.12)
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, panel in zip(grid, panels, strict=False):
        _draw(axes, panel, metrics)
    for axes in grid[len(panels) :]:
        axes.remove()
    return figure


def _series(metrics: Sequence[Mapping[str, float]], key: str) -> dict[float, float]:
    """Step -> value, sorted by step."""
    found = {line["step"]: line[key] for line in metrics if "step" in line and line.get(key) is not None}
    return dict(sorted(found.items()))


def _draw(axes: "Axes", panel: _Panel, metrics: Sequence[Mapping[str, float]]) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    for line in panel.lines:
        series = _series(metrics, line.key)
        steps, values = np.array(list(series)), line.scale * np.array(list(series.values()))
        if not series:
            continue
        marker = "o" if len(series) <= 12 else ""
        axes.plot(steps, values, color=line.color, linewidth=1.5, label=line.name, marker=marker, markersize=4)
        if spreads := _series(metrics, line.spread):
            spread = line.scale * np.array([spreads.get(step, np.nan) for step in series])
            axes.fill_between(steps, values - spread, values + spread, color=line.color, alpha=0.18, linewidth=0)
    style(axes, panel.title, panel.unit, pad=8)
    axes.set_xlabel("step", fontsize=9, color=INK)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.6g}"))
    if len(axes.lines) > 1:
        low, high = axes.get_ylim()
        axes.set_ylim(low, high + 0.2 * (high - low))  # for the legend above the lines
        axes.legend(fontsize=8.5, frameon=False, labelcolor=INK, loc="upper left", ncol=2)
