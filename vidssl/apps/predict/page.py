"""The page of a prediction: how far it can be trusted, what was predicted, and on what people should look."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from vidssl.apps.predict.moments import NONE
from vidssl.base.config import Tree
from vidssl.data.video_list import rows_by
from vidssl.page.previews import number_previews, of_middles, preview
from vidssl.page.render import address_from, render_page

_CERTAIN, _OTHERS = 6, 12  # clips of a class; uncertain ones, and those of none
# Of classes on the timelines: lightness and chroma are equal, so that no class stands out.
_HUES = 47  # degrees from a class to the next


def write_prediction_page(
    path: Path, results: Tree, rows: Sequence[Tree], asked: Sequence[int], doubts: Sequence[Tree]
) -> None:
    """Write the page; `rows` are those of predictions.csv with their records, and `asked` of them is to be labelled.

    `doubts` are rows of examples whose labels are to be checked.
    """
    names = [name for name in results["predicted"] if name != NONE]
    sections: list[tuple[str, str, Sequence[Tree]]] = []
    for name in names:
        of_class = sorted((row for row in rows if row["class"] == name), key=lambda row: -row["confidence"])
        about = "the most certain first" if name in results["trust"]["measured"] else "not measured"
        sections.append((name, f"{len(of_class):,} predicted, {about}", of_class[:_CERTAIN]))
    unlike = sorted((row for row in rows if row["class"] == NONE), key=lambda row: -row["distance"])
    of_doubts = f"{len(doubts):,}, the most doubtful first; {results['labels_judged']}"
    of_asked = f"uncertain, and unlike each other; all are in {results['to_label']}"
    sections += [
        ("Labels to check", of_doubts, doubts[:_OTHERS]),
        ("To label next", of_asked, [rows[n] for n in asked[:_OTHERS]]),
        ("None of these", f"{len(unlike):,} are unlike all examples, the least like first", unlike[:_OTHERS]),
    ]
    records = list(dict.fromkeys(row["record"] for *_, shown in sections for row in shown))
    clips = dict(zip(records, of_middles(records, preview), strict=True))
    clips = {record: clip for record, clip in clips.items() if not isinstance(clip, str)}
    render_page(
        path,
        Path(__file__).with_name("predictions.html"),
        title=f"Predictions of {len(names)} classes",
        results=results,
        sections=sections,
        clips=clips,
        link_of=partial(_link, path.parent),
        timelines=_timelines(rows) if results["windows"] else [],
        colours={name: f"oklch(0.72 0.13 {(n * _HUES + 20) % 360})" for n, name in enumerate(names)},
        unlike=NONE,
        sprites=number_previews(clips.values()),
        left_out=[gap["reason"] or gap["path"] for gap in results["missing"]],
    )


def _link(folder: Path, row: Mapping[str, Any]) -> str:
    """The address of a moment from the page, from which browsers play it; empty for what no browser can open."""
    file = address_from(folder, row["record"].path)
    return file and (file if row["end"] is None else f"{file}#t={row['start'] or 0},{row['end']}")


def _timelines(rows: Sequence[Tree]) -> list[Tree]:
    """Return for each file its moments, and its length in seconds."""
    lines = []
    for numbers in rows_by(row["path"] for row in rows).values():
        if parts := [rows[n] for n in numbers if rows[n]["end"] is not None]:
            lines.append({"path": parts[0]["path"], "length": max(row["end"] for row in parts), "parts": parts})
    return lines
