"""The page of a prediction: how far it can be trusted, what was predicted, and on what people should look."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from vidssl.apps.predict.moments import NONE, Moment
from vidssl.base.config import Tree
from vidssl.data.video_list import rows_by
from vidssl.page.previews import number_previews, of_middles, preview
from vidssl.page.render import render_page

_CERTAIN, _OTHERS = 6, 12  # clips of a class; uncertain ones, and those of none
# Of classes on the timelines: lightness and chroma are equal, so that no class stands out.
_HUES = 47  # degrees from a class to the next


def write_prediction_page(
    path: Path, results: Tree, moments: Sequence[Moment], asked: Sequence[Moment], rows: Sequence[Tree], rule: str
) -> None:
    """Write the page; `rows` are those of predictions.csv, of each moment, and `asked` the moments to label next."""
    names = [name for name in results["predicted"] if name != NONE]
    row_of = {id(moment): row for moment, row in zip(moments, rows, strict=True)}
    sections: dict[str, tuple[str, list[Moment]]] = {}
    for name in names:
        of_class = sorted((moment for moment in moments if moment.label == name), key=lambda moment: -moment.confidence)
        sections[name] = f"{len(of_class):,} predicted, the most certain first", of_class[:_CERTAIN]
    none = sorted((moment for moment in moments if moment.label == NONE), key=lambda moment: -moment.distance)
    sections["To label next"] = (
        f"uncertain, and unlike each other; all are in {results['to_label']}",
        [*asked[:_OTHERS]],
    )
    sections["None of these"] = f"{len(none):,} are unlike all examples, the least like first", none[:_OTHERS]
    shown = {id(moment): moment for _, of_section in sections.values() for moment in of_section}
    clips = of_middles([moment.record for moment in shown.values()], preview)
    previews = {key: clip for key, clip in zip(shown, clips, strict=True) if not isinstance(clip, str)}
    colour = {name: f"oklch(0.72 0.13 {(n * _HUES + 20) % 360})" for n, name in enumerate(names)}
    render_page(
        path,
        Path(__file__).with_name("predictions.html"),
        title=f"Predictions by {len(names)} classes",
        results=results,
        rule=rule,
        per_class=results["trust"]["per_class"],
        sections=[
            (
                title,
                about,
                [_card(moment, row_of[id(moment)], path.parent, previews.get(id(moment))) for moment in part],
            )
            for title, (about, part) in sections.items()
            if part
        ],
        timelines=_timelines(rows, path.parent) if results["windows"] else [],
        colours=colour,
        unlike=NONE,
        sprites=number_previews(previews.values()),
        left_out=[gap["reason"] or gap["path"] for gap in results["missing"]],
    )


def _card(moment: Moment, row: Mapping[str, object], folder: Path, clip: object) -> Tree:
    return {**row, "first": moment.first, "clip": clip, "link": _link(row, folder)}


def _link(row: Mapping[str, object], folder: Path) -> str:
    """The address of a moment from the page, from which browsers play it."""
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
