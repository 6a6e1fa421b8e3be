"""Confusion matrices as images."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vidssl.viz.figure import INK, PALE, new_figure, shortened

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
