"""What corruptions do: one frame with each of them in each severity."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from vidssl.errors import DataError
from vidssl.types import Frames
from vidssl.viz.figure import INK, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SIDE = 0.62  # inches of a frame


def example_sheet(clean: Frames, corrupted: Mapping[str, Sequence[Frames]], columns: Sequence[str]) -> "Figure":
    """Draw the middle frame of a clip (T, 3, S, S), and a row of its versions for each corruption.

    `columns` are the severities. No corruption is a DataError.
    """
    if not corrupted:
        raise DataError("no corruption changes single frames: there is nothing to draw")
    middle = len(clean) // 2
    rows = {name.replace("_", " "): [clean, *versions] for name, versions in corrupted.items()}
    figure = new_figure(1.6 + _SIDE * (1 + len(columns)), 0.4 + _SIDE * len(rows), padding=0.02)
    grid = figure.subplots(len(rows), 1 + len(columns), squeeze=False)
    for axes_of_row, (name, versions) in zip(grid, rows.items(), strict=True):
        for axes, frames in zip(axes_of_row, versions, strict=True):
            axes.imshow(frames[middle].transpose(1, 2, 0), interpolation="nearest")
            axes.set_xticks([])
            axes.set_yticks([])
            axes.spines[:].set_visible(False)
        axes_of_row[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=8.5, color=INK)
    for axes, title in zip(grid[0], ["clean", *columns], strict=True):
        axes.set_title(title, fontsize=8.5, color=INK)
    return figure
