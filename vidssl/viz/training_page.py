"""The page of a finished training: its curves, what kNN gained, and the commands that come next."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vidssl.viz.pages import render_page

_DENSITY = 1.6  # pixels of the chart per pixel of the page


def write_training_page(
    path: Path,
    *,
    title: str,
    details: Sequence[tuple[str, str]],
    loss: Mapping[str, Mapping[str, Any]],
    rows: Sequence[tuple[str, float]],
    sentences: Sequence[str],
    curves: bytes,
    column: bytes,
    commands: Sequence[Sequence[str]],
    folder: str,
) -> None:
    """Write the page.

    `loss` has step and loss of the first and the last line; `rows` are names and kNN accuracies (fractions), none if
    nothing was measured, which a sentence then says. `commands` are pairs of what a command does and the command, to be
    run in `folder`. `curves` and `column` are PNG files, with the panels side by side, and below each other for narrow
    windows.
    """
    render_page(
        path,
        "training.html",
        title=title,
        details=details,
        loss=loss,
        rows=rows,
        sentences=[sentence[0].upper() + sentence[1:] for sentence in sentences],
        curves=curves,
        column=column,
        commands=commands,
        folder=folder,
        width=_width(curves),
        narrow=_width(column),
        sprites={},
    )


def _width(image: bytes) -> int:
    """Width on the page; the PNG's header states its pixels."""
    return round(int.from_bytes(image[16:20], "big") / _DENSITY)
