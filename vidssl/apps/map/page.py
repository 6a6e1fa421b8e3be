"""The HTML page of a map of features: points to zoom, colour, search and select, with videos that play."""

import base64
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vidssl.base.types import VideoRecord
from vidssl.page.previews import Preview
from vidssl.page.render import render_page

THUMBNAIL = (80, 60, 6, 60)  # width and height in pixels, frames, JPEG quality
_MOST_CLASSES = 1000  # of a column; the rarer ones are one class
_SHOWN = 200  # suspects of a kind
_NUMBERED = 12  # a column of at most so many different whole numbers has classes


class MapColumn(NamedTuple):
    """What points can be coloured by: one of several classes, or a number."""

    name: str
    classes: tuple[str, ...]  # names; empty: the values are numbers
    values: Sequence[float | None]  # (N,) index of the class, or number; None: unknown


def classes_column(name: str, texts: Sequence[str], order: Sequence[str] = ()) -> MapColumn:
    """Make a column of classes of the text of each point, "" if unknown; `order` are classes to list first."""
    counts = Counter(text for text in texts if text)
    names = [text for text in order if text in counts]
    names += sorted({*counts} - {*names}) if len(counts) <= _MOST_CLASSES else []
    if len(counts) > _MOST_CLASSES:
        names = [text for text, _ in counts.most_common(_MOST_CLASSES - 1)]
        names.append(f"{len(counts) - len(names):,} other values")
    number = {text: n for n, text in enumerate(names)}
    return MapColumn(name, tuple(names), [number.get(text, len(names) - 1) if text else None for text in texts])


def map_column(name: str, texts: Sequence[str]) -> MapColumn:
    """Make a column of numbers if every text is a finite number or empty, unless they are few whole numbers.

    Up to 12 different whole numbers are classes, as any other text.
    """
    try:
        numbers = [float(text) if text.strip() else None for text in texts]
    except ValueError:
        return classes_column(name, texts)
    known = {number for number in numbers if number is not None}
    if not all(map(np.isfinite, known)):
        return classes_column(name, texts)
    if len(known) <= _NUMBERED and all(number == round(number) for number in known):
        shown = ["" if number is None else str(round(number)) for number in numbers]
        return classes_column(name, shown, [str(round(number)) for number in sorted(known)])
    return MapColumn(name, (), numbers)


def scaled_places(places: NDArray[np.floating[Any]]) -> dict[str, list[float]]:
    """Scale places (N, 2) for a page: x and y around 0, the longer side is 1, y downwards as on screens."""
    low, high = places.min(axis=0), places.max(axis=0)
    scaled = (places - (low + high) / 2) / (float((high - low).max()) or 1.0)
    return {"x": [round(float(x), 5) for x in scaled[:, 0]], "y": [round(-float(y), 5) for y in scaled[:, 1]]}


def write_map_page(
    path: Path,
    *,
    title: str,
    places: NDArray[np.floating[Any]],
    records: Sequence[VideoRecord],
    columns: Sequence[MapColumn],
    previews: Mapping[int, Preview],
    near: Sequence[Sequence[int]] = (),
    suspects: Mapping[str, Sequence[tuple[int, str]]] | None = None,
    details: Sequence[tuple[str, str]] = (),
    left_out: Sequence[str] = (),
) -> None:
    """Write a page with a point for each video, at `places` (N, 2).

    `records` have paths as in a list: the page writes lists of the points that are selected. The points can be coloured
    by each of `columns`, and those in `previews`, by their row, play. A click on a point marks and lists those that are
    nearest by features, `near`: rows for each video, nearest first, -1 for none. `suspects` are by what is suspected
    the videos to look at, each with a note; the first 200 are listed.
    """
    render_page(
        path,
        Path(__file__).with_name("map.html"),
        title=title,
        details=details,
        left_out=left_out,
        sprites={},
        points={
            **scaled_places(places),
            "rows": [[record.path, record.label, record.start, record.end] for record in records],
            "columns": [column._asdict() for column in columns],
            "near": [[row for row in rows if row >= 0] for rows in near],
            "suspects": [
                {"name": name, "rows": rows[:_SHOWN], "total": len(rows)}
                for name, rows in (suspects or {}).items()
                if rows
            ],
            "clips": {
                str(row): [clip.count, clip.width, clip.height, base64.b64encode(clip.jpeg).decode()]
                for row, clip in previews.items()
            },
        },
    )
