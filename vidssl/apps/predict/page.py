"""The page of a prediction: how far it can be trusted, what was predicted, and on what people should look."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from vidssl.apps.predict.moments import NONE
from vidssl.base.config import Tree
from vidssl.data.video_list import rows_by
from vidssl.page.previews import number_previews, of_middles, preview
from vidssl.page.render import render_page

_CERTAIN, _OTHERS = 6, 12  # clips of a class; uncertain ones, and those of none
# Of classes on the timelines: lightness and chroma are equal, so that no class stands out.
_HUES = 47  # degrees from a class to the next


def write_prediction_page(path: Path, results: Tree, rows: Sequence[Tree], asked: Sequence[int]) -> None:
    """Write the page; `rows` are those of predictions.csv with their records, and `asked` of them is to be labelled."""
    names = [name for name in results["predicted"] if name != NONE]
    sections: dict[str, tuple[str, list[Tree]]] = {}
    for name in names:
        of_class = sorted((row for row in rows if row["class"] == name), key=lambda row: -row["confidence"])
        about = "the most certain first" if name in results["trust"]["measured"] else "not measured"
        sections[name] = f"{len(of_class):,} predicted, {about}", of_class[:_CERTAIN]
    unlike = sorted((row for row in rows if row["class"] == NONE), key=lambda row: -row["distance"])
    about = f"uncertain, and unlike each other; all are in {results['to_label']}"
    sections["To label next"] = about, [rows[n] for n in asked[:_OTHERS]]
    sections["None of these"] = f"{len(unlike):,} are unlike all examples, the least like first", unlike[:_OTHERS]
    records = list(dict.fromkeys(row["record"] for _, shown in sections.values() for row in shown))
    clips = dict(zip(records, of_middles(records, preview), strict=True))
    clips = {record: clip for record, clip in clips.items() if not isinstance(clip, str)}
    render_page(
        path,
        Path(__file__).with_name("predictions.html"),
        title=f"Predictions of {len(names)} classes",
        results=results,
        sections=[
            (
                title,
                about,
                [{**row, "clip": clips.get(row["record"]), "link": _link(row, path.parent)} for row in shown],
            )
            for title, (about, shown) in sections.items()
            if shown
        ],
        timelines=_timelines(rows, path.parent) if results["windows"] else [],
        colours={name: f"oklch(0.72 0.13 {(n * _HUES + 20) % 360})" for n, name in enumerate(names)},
        unlike=NONE,
        sprites=number_previews(clips.values()),
        left_out=[gap["reason"] or gap["path"] for gap in results["missing"]],
    )


def _link(row: Mapping[str, object], folder: Path) -> str:
    """The address of a moment from the page, from which browsers play it; empty for what no browser can open."""
    if not os.path.lexists(str(row["file"])):
        return ""
    file = quote(os.fsencode(os.path.relpath(str(row["file"]), folder)))
    return file if row["end"] is None else f"{file}#t={row['start'] or 0},{row['end']}"


def _timelines(rows: Sequence[Tree], folder: Path) -> list[Tree]:
    """Return for each file its moments, as parts of its length in percent."""
    lines = []
    for numbers in rows_by(row["path"] for row in rows).values():
        of_file = [rows[n] for n in numbers if rows[n]["end"] is not None]
        if of_file:
            length = max(row["end"] for row in of_file)
            parts = [
                {**row, "link": _link(row, folder), "left": 100 * (row["start"] or 0) / length,
                 "width": 100 * (row["end"] - (row["start"] or 0)) / length}
                for row in of_file
            ]  # fmt: skip
            lines.append({"path": of_file[0]["path"], "length": length, "parts": parts})
    return lines
