"""The course of a training as small panels in one picture."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from vidssl.errors import DataError

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


_BLUE, _ORANGE, _INK = "#2a5bc7", "#c2570c", "#33373d"
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
        "right answers (%)",
        (_Line("knn", "kNN", _BLUE, scale=100.0), _Line("R@1", "R@1", _ORANGE, scale=100.0)),
    ),
    _Panel("Uniformity loss", "nats (lower: more uniform)", (_Line("uniformity_loss", "loss", _BLUE),)),
)


def training_curves(metrics: Sequence[Mapping[str, float]], *, dpi: int = 150) -> bytes:
    """Draws the lines of metrics.jsonl.

    Args:
        metrics: each with "step", and any of "loss", "positive_similarity", "negative_similarity",
            "negative_spread", "key_rank", "lr", "knn", "R@1" (fractions), "uniformity_loss". A panel without data
            is left out. Of two lines with one step the later counts: a resumed run writes some steps twice.
        dpi: pixels for each inch; the picture is up to 11 inches wide.

    Returns:
        A PNG file.

    Raises:
        DataError: when no line has anything to draw.
    """
    png = io.BytesIO()
    curves_figure(metrics).savefig(png, format="png", dpi=dpi, metadata={"Software": None})
    return png.getvalue()


def curves_figure(metrics: Sequence[Mapping[str, float]]) -> "Figure":
    """The figure that `training_curves` writes; its axes are the panels.

    Raises:
        DataError: when no line has anything to draw.
    """
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    panels = [panel for panel in _PANELS if any(_series(metrics, line.key) for line in panel.lines)]
    if not panels:
        raise DataError(
            f"{len(metrics)} lines of metrics hold no loss or other quantity to draw; train first"
        )
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    # A Figure of its own, not pyplot's: nothing is left behind in a process that draws many.
    layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12)
    figure = Figure(figsize=(11 * columns / 3, 2.75 * rows), layout=layout, facecolor="white")
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, panel in zip(grid, panels, strict=False):
        _draw(axes, panel, metrics)
    for axes in grid[len(panels) :]:
        axes.remove()
    return figure


def _series(metrics: Sequence[Mapping[str, float]], key: str) -> dict[float, float]:
    """Step -> value, in the order of the steps."""
    found = {line["step"]: line[key] for line in metrics if "step" in line and line.get(key) is not None}
    return dict(sorted(found.items()))


def _draw(axes: "Axes", panel: _Panel, metrics: Sequence[Mapping[str, float]]) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    for line in panel.lines:
        series = _series(metrics, line.key)
        steps, values = np.array(list(series)), line.scale * np.array(list(series.values()))
        if not series:
            continue
        few = len(series) <= 12  # a handful of evaluations: each of them is worth a dot
        axes.plot(
            steps,
            values,
            color=line.color,
            linewidth=1.5,
            label=line.name,
            marker="o" if few else "",
            markersize=4,
        )
        if spreads := _series(metrics, line.spread):
            spread = line.scale * np.array([spreads.get(step, np.nan) for step in series])
            axes.fill_between(
                steps, values - spread, values + spread, color=line.color, alpha=0.18, linewidth=0
            )
    axes.set_title(panel.title, loc="left", fontsize=10.5, color=_INK, fontweight="bold", pad=8)
    axes.set_xlabel("step", fontsize=9, color=_INK)
    axes.set_ylabel(panel.unit, fontsize=9, color=_INK)
    axes.tick_params(labelsize=8.5, colors=_INK, length=3)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.6g}"))
    axes.grid(axis="y", color="#e6e7e9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#b9bdc3")
    if len(axes.lines) > 1:
        low, high = axes.get_ylim()
        axes.set_ylim(low, high + 0.2 * (high - low))  # room for the legend above the lines
        axes.legend(fontsize=8.5, frameon=False, labelcolor=_INK, loc="upper left", ncol=2)
