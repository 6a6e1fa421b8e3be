"""Uniformity and distances of classes over training: one column of panels for each network."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vidssl.errors import DataError
from vidssl.viz.figure import COLORS, INK, PALE, add_legend, new_figure, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
        panels = (
            (f"Uniformity: {name}", "uniformity", "all videos", [point["uniformity"] for point in points]),
            (f"Distance to {first}: {name}", "mean squared distance", f"within {first}", within),
        )
        for row, (title, unit, label, solid) in enumerate(panels):
            axes = figure.add_subplot(2, len(networks), row * len(networks) + column, sharey=shared[row])
            shared[row] = axes
            dashed = {
                other: [
                    point["uniformity_per_class"][other] if row == 0 else point["distances"][first][other]
                    for point in points
                ]
                for other in (classes if row == 0 else classes[1:])
            }
            _draw(axes, [point["step"] for point in points], solid, label, dashed, classes)
            style(axes, title, unit, pad=8)
            axes.title.set_parse_math(False)  # names may hold dollar signs
            axes.set_xlabel("step", fontsize=9, color=INK)
            axes.xaxis.set_major_formatter("{x:,.0f}")
            if column == len(networks):
                add_legend(axes, loc="center left", bbox_to_anchor=(1.01, 0.5))
    return figure


def _draw(
    axes: "Axes",
    steps: Sequence[int],
    solid: Sequence[float | None],
    label: str,
    dashed: Mapping[str, Sequence[float | None]],
    classes: Sequence[str],
) -> None:
    named = len(classes) <= _MAX_NAMED
    for number, (name, values) in enumerate(dashed.items()):
        color = COLORS[classes.index(name)] if named else PALE
        text = name if named else (f"the {len(dashed)} classes" if number == 0 else "_")
        found = [float("nan") if value is None else value for value in values]
        axes.plot(steps, found, color=color, linewidth=1.2, linestyle=(0, (4, 2)), label=text, marker=".", markersize=4)
    found = [float("nan") if value is None else value for value in solid]
    axes.plot(steps, found, color=INK, linewidth=2, label=label, marker="o", markersize=4)
