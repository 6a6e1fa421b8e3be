"""Images: corrupted frames, uniformity over training, confusion of classes, training curves, and retrieved videos."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vidssl.base.errors import DataError
from vidssl.base.types import Frames
from vidssl.page.figure_style import COLORS, INK, PALE, add_legend, new_figure, shortened, style

if TYPE_CHECKING:
    from typing import TypeGuard

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_Values = Sequence[float | None]  # None is not drawn

_VERDICTS = {True: ("✓ ", "#14854a"), False: ("✗ ", "#c92a1e"), None: ("", INK)}  # mark and colour


@dataclass(frozen=True)
class Shot:
    """A clip of a sheet."""

    frames: Frames  # (T, 3, H, W); the middle one is drawn
    caption: str = ""
    hit: bool | None = None  # whether it is classified right: framed green or red; None: not framed


def example_sheet(
    rows: Sequence[tuple[str, Sequence[Shot]]], columns: Sequence[str], cell: tuple[float, float]
) -> "Figure":
    """Draw rows of clips, each with a name, below titles of columns. `cell` is width and height of one in inches."""
    margin = 0.2 + 0.1 * max(len(name) for name, _ in rows)
    figure = new_figure(margin + cell[0] * len(columns), 0.4 + cell[1] * len(rows), padding=0.02)
    grid = figure.subplots(len(rows), len(columns), squeeze=False)
    for axes_of_row, (name, shots) in zip(grid, rows, strict=True):
        for axes, shot in zip(axes_of_row, shots, strict=True):
            mark, color = _VERDICTS[shot.hit]
            axes.imshow(shot.frames[len(shot.frames) // 2].transpose(1, 2, 0), interpolation="nearest")
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set(visible=shot.hit is not None, color=color, linewidth=2.4)
            text = mark + shortened(shot.caption, 17)
            axes.set_xlabel(text, fontsize=8, color=color, parse_math=False)  # may hold a dollar sign
        axes_of_row[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=8.5, color=INK)
    for axes, title in zip(grid[0], columns, strict=True):
        axes.set_title(title, fontsize=8.5, color=INK)
    return figure


_MAX_NAMED = len(COLORS)  # classes; of more no line has a colour and a name of its own


def class_curves(networks: Mapping[str, Sequence[Mapping[str, Any]]]) -> "Figure":
    """Draw the values of checkpoints as Zhong et al. (2022), Figure A.1.

    `networks` maps names to points, ascending by `step`, with `uniformity`, `uniformity_per_class` (class to value) and
    `distances` (class to class to value); None is not drawn. Above: uniformity, solid of all videos, dashed of each
    class. Below: the mean squared distance within the first class, solid, and of the others to it, dashed.

    Raises:
        DataError: There is no point.
    """
    if not any(networks.values()):
        raise DataError("no checkpoint was measured: there is nothing to draw")
    figure = new_figure(1.6 + 4.2 * len(networks), 6.4, padding=0.1)
    shared: list[Axes | None] = [None, None]
    for column, (name, points) in enumerate(networks.items(), start=1):
        classes = list(points[0]["uniformity_per_class"])
        first = classes[0]
        within = [point["distances"][first][first] for point in points]
        steps, of_all = [point["step"] for point in points], [point["uniformity"] for point in points]
        of_classes = {class_: [point["uniformity_per_class"][class_] for point in points] for class_ in classes}
        to_first = {class_: [point["distances"][first][class_] for point in points] for class_ in classes[1:]}
        panels = (
            (f"Uniformity: {name}", "uniformity", "all videos", of_all, of_classes),
            (f"Distance to {first}: {name}", "mean squared distance", f"within {first}", within, to_first),
        )
        for row, (title, unit, label, solid, dashed) in enumerate(panels):
            axes = figure.add_subplot(2, len(networks), row * len(networks) + column, sharey=shared[row])
            shared[row] = axes
            _draw(axes, steps, solid, label, dashed, classes)
            style(axes, title, unit, pad=8)
            axes.title.set_parse_math(False)  # names may hold dollar signs
            _number_axes(axes)
            if column == len(networks):
                add_legend(axes, loc="center left", bbox_to_anchor=(1.01, 0.5))
    return figure


def _draw(
    axes: "Axes", steps: Sequence[int], solid: _Values, label: str, dashed: Mapping[str, _Values], classes: list[str]
) -> None:
    named = len(classes) <= _MAX_NAMED
    for number, (name, values) in enumerate(dashed.items()):
        color = COLORS[classes.index(name)] if named else PALE
        text = name if named else (f"the {len(dashed)} classes" if number == 0 else "_")
        y = np.array(values, np.float64)  # nan: not drawn
        axes.plot(steps, y, color=color, linewidth=1.2, linestyle=(0, (4, 2)), label=text, marker=".", markersize=4)
    y = np.array(solid, np.float64)
    axes.plot(steps, y, color=INK, linewidth=2, label=label, marker="o", markersize=4)


_MAX_NAMES = 110  # with more classes the axes have no names
_MAX_COUNTS = 15  # with more classes the cells have no counts


def confusion_matrix(counts: NDArray[np.int64], names: Sequence[str]) -> "Figure":
    """Draw counts by class (rows) and predicted class (columns), coloured by fraction of the row.

    Args:
        counts: (C, C + 1); the last column counts videos without a prediction and is drawn unless it is empty.
        names: Of the classes.
    """
    if not counts[:, -1].any():
        counts = counts[:, :-1]
    columns = [*names, "none"][: counts.shape[1]]
    fractions = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    side = float(np.clip(0.11 * len(names), 3.2, 12.0)) + 1.6
    figure = new_figure(side + 0.8, side)
    axes = figure.add_subplot()
    image = axes.imshow(fractions, cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
    for axis, words in ((axes.xaxis, columns), (axes.yaxis, names)):
        labels = [shortened(word, 24) for word in words] if len(names) <= _MAX_NAMES else []
        axis.set_ticks(range(len(labels)), labels, parse_math=False)  # names may hold dollar signs
    axes.tick_params(labelsize=float(np.clip(230 / len(names), 4.5, 10)), colors=INK, length=0)
    axes.tick_params(axis="x", rotation=90 if len(names) > 5 else 0)
    axes.set_xlabel("predicted", fontsize=10, color=INK)
    axes.set_ylabel("class", fontsize=10, color=INK)
    axes.spines[:].set_color(PALE)
    if len(names) <= _MAX_COUNTS:
        for row, column in np.argwhere(counts):
            color = "white" if fractions[row, column] > 0.55 else INK
            axes.text(column, row, str(counts[row, column]), ha="center", va="center", color=color, fontsize=10)
    bar = figure.colorbar(image, ax=axes, shrink=0.8, format=lambda fraction, _: f"{100 * fraction:.0f} %")
    bar.set_label("fraction of the class's videos", fontsize=9, color=INK)
    bar.ax.tick_params(labelsize=8.5, colors=INK, length=2)
    bar.outline.set_visible(False)
    return figure


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
        {"positive_similarity": "positive", "negative_similarity": "negatives ± std"},
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
        _draw_curves(figure.add_subplot(rows, columns, number), panel, metrics)
    return figure


def _series(metrics: Sequence[Mapping[str, float]], key: str) -> dict[float, float]:
    """Step -> value, sorted by step."""
    numbers = ((line.get("step"), line.get(key)) for line in metrics)
    values = {step: value for step, value in numbers if _can_be_drawn(step) and _can_be_drawn(value)}
    return dict(sorted(values.items()))


def _can_be_drawn(number: object) -> "TypeGuard[float]":
    return isinstance(number, int | float) and not abs(number) > _LARGEST


def _draw_curves(axes: "Axes", panel: _Panel, metrics: Sequence[Mapping[str, float]]) -> None:
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
    _number_axes(axes)
    if len(axes.lines) > 1:
        low, high = axes.get_ylim()
        axes.set_ylim(low, high + 0.2 * (high - low))  # for the legend above the lines
        add_legend(axes, loc="upper left", ncol=2, columnspacing=1, handlelength=1.2)


def _number_axes(axes: "Axes") -> None:
    """Number steps and values, such that no two ticks have the same label."""
    from matplotlib.ticker import MaxNLocator, ScalarFormatter

    axes.set_xlabel("step", fontsize=9, color=INK)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=4, integer=True, min_n_ticks=1))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
    axes.yaxis.set_major_formatter(ScalarFormatter(useOffset=False))
