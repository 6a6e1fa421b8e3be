"""Who is taken for what: a confusion matrix as a picture."""

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_INK = "#33373d"
_NAMED = 110  # classes at most that are named at the sides
_COUNTED = 15  # classes at most whose counts are written into the cells


def confusion_picture(counts: NDArray[np.int64], names: Sequence[str], *, dpi: int = 120) -> bytes:
    """Draw counts by class (rows) and predicted class (columns); each row is coloured by its shares.

    Args:
        counts: (C, C + 1); the last column, for videos without a prediction, is drawn where one is counted.
        names: Of the classes.
        dpi: Pixels for each inch.

    Returns:
        A PNG file.
    """
    png = io.BytesIO()
    confusion_figure(counts, names).savefig(png, format="png", dpi=dpi, metadata={"Software": None})
    return png.getvalue()


def confusion_figure(counts: NDArray[np.int64], names: Sequence[str]) -> "Figure":
    """Make the figure that `confusion_picture` writes; its first axes hold the matrix."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    if not counts[:, -1].any():
        counts = counts[:, :-1]
    columns = [*names, "none"][: counts.shape[1]]
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    named = len(names) <= _NAMED
    font = float(np.clip(230 / max(len(names), 1), 4.5, 10))
    side = float(np.clip(0.11 * len(names), 3.2, 12.0)) + 1.6
    figure = Figure(figsize=(side + 0.8, side), layout=ConstrainedLayoutEngine(), facecolor="white")
    axes = figure.add_subplot()
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
    for axis, words in ((axes.xaxis, columns), (axes.yaxis, names)):
        axis.set_ticks(range(len(words)) if named else [], [_short(word) for word in words] if named else [])
    axes.tick_params(labelsize=font, colors=_INK, length=0)
    axes.tick_params(axis="x", rotation=90 if len(names) > 5 else 0)
    axes.set_xlabel("predicted", fontsize=10, color=_INK)
    axes.set_ylabel("class", fontsize=10, color=_INK)
    for spine in axes.spines.values():
        spine.set_color("#b9bdc3")
    if len(names) <= _COUNTED:
        for row, column in np.ndindex(*counts.shape):
            if counts[row, column]:
                color = "white" if shares[row, column] > 0.55 else _INK
                axes.text(
                    column, row, str(counts[row, column]), ha="center", va="center", color=color, fontsize=10
                )
    bar = figure.colorbar(image, ax=axes, shrink=0.8, format=lambda share, _: f"{100 * share:.0f} %")
    bar.set_label("share of the class's videos", fontsize=9, color=_INK)
    bar.ax.tick_params(labelsize=8.5, colors=_INK, length=2)
    bar.outline.set_visible(False)
    return figure


def _short(name: str, limit: int = 24) -> str:
    # A name is data, no formula: matplotlib would set what stands between two dollars.
    name = name.replace("$", r"\$")
    return name if len(name) <= limit else f"{name[: limit - 1]}…"
