"""The HTML page of Grad-CAM: videos and the maps of several networks, playing."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vidssl.viz.pages import Preview, number_previews, render_page


@dataclass(frozen=True)
class CamCell:
    """What one network sees in a video."""

    network: str
    lines: tuple[str, ...]  # the score, and numbers
    clips: tuple[tuple[str, Preview], ...]  # caption and preview of each map
    file: str  # of the overlay, relative to the page


@dataclass(frozen=True)
class CamRow:
    """One video and its maps."""

    video: Preview
    name: str
    label: str  # name of its class, or nothing
    cells: tuple[CamCell, ...]  # one for each network


def write_cam_page(
    path: Path,
    *,
    title: str,
    table: Sequence[Sequence[str]],
    details: Sequence[tuple[str, str]],
    rows: Sequence[CamRow],
    left_out: Sequence[str] = (),
) -> None:
    """Write the page; the first row of `table` is its header. `left_out` are videos that cannot be read, and why."""
    sprites = number_previews(previews_of(rows))
    render_page(
        path, "gradcam.html", title=title, table=table, details=details, rows=rows, sprites=sprites, left_out=left_out
    )


def previews_of(rows: Sequence[CamRow]) -> list[Preview]:
    """Return all previews of rows."""
    return [clip for row in rows for clip in (row.video, *(clip for cell in row.cells for _, clip in cell.clips))]
