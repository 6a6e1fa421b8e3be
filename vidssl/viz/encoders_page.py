"""The page of a comparison of encoders, of the content of its results.json."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vidssl.viz.encoder_parts import (
    Disagreements,
    EncoderMaps,
    EncoderNeighbours,
    disagreements_content,
    maps_content,
    neighbours_content,
)
from vidssl.viz.pages import number_previews, render_page

_MEASURES = {"knn": "kNN", "R@1": "R@1", "logistic": "all labels"}
_WIDTH, _HEIGHT, _LEFT, _TOP, _RIGHT, _BOTTOM = 900, 380, 52, 40, 870, 320


def write_encoders_page(
    path: Path,
    results: Mapping[str, Any],
    title: str,
    command: str,
    curves: bytes | None = None,
    maps: EncoderMaps | None = None,
    neighbours: EncoderNeighbours | None = None,
    disagreements: Disagreements | None = None,
    left_out: Sequence[str] = (),
) -> None:
    """Write the page, with the parts that are given; `curves` is a PNG file. Each preview is embedded once."""
    parts = [part for part in (maps, neighbours, disagreements) if part is not None]
    sprites = number_previews(clip for part in parts for clip in part.previews)
    sections = [_section(section, results) for section in results["sections"]]
    render_page(
        path,
        "encoders.html",
        title=title,
        sprites=sprites,
        sections=sections,
        unlabelled=_unlabelled(results),
        facts=[_facts(name, encoder) for name, encoder in results["encoders"].items()],
        failed=results["failed"],
        near_copies=results["near_copies"],
        left_out=left_out,
        curves=curves,
        maps=None if maps is None else maps_content(maps, sprites),
        neighbours=None if neighbours is None else neighbours_content(neighbours, sprites),
        disagreements=None if disagreements is None else disagreements_content(disagreements, sprites),
        footer=_footer(results),
        command=command,
    )


def _section(section: Mapping[str, Any], results: Mapping[str, Any]) -> dict[str, Any]:
    """What is shown of the labels of one list."""
    accuracy, predicted = section["accuracy"], section["predicted"]
    order = sorted(accuracy, key=lambda name: -accuracy[name]["knn"])
    encoders = {
        name: {**results["encoders"][name], "accuracy": accuracy[name], "predicted": predicted[name]} for name in order
    }
    measures = [*accuracy[order[0]]]
    frame = {"width": _WIDTH, "height": _HEIGHT, "left": _LEFT, "right": _RIGHT, "top": _TOP, "bottom": _BOTTOM}
    return {
        "name": section["name"] if len(results["sections"]) > 1 else "",
        "verdict": section["verdict"],
        "columns": [column(measure, section) for measure in measures],
        "guessing": [section["guessing"][measure] for measure in measures],
        "rows": [_row(name, encoders[name], measures, section) for name in order],
        "classes": _classes(section, encoders, order),
        "chart": frame | _axes(encoders),
        "dots": _dots(encoders, order),
        "note": _note(section, results),
    }


def _unlabelled(results: Mapping[str, Any]) -> dict[str, Any] | None:
    """What is shown of videos without labels: sentences, the encoders, and what pairs of them have in common."""
    if "without_labels" not in results:
        return None
    return {
        "sentences": results["without_labels"]["sentences"],
        "rows": [_facts(name, encoder) for name, encoder in results["encoders"].items()],
        "pairs": sorted(results["common_neighbours"], key=lambda pair: -pair["fraction"]),
    }


def column(measure: str, section: Mapping[str, Any]) -> str:
    """Name a measure; `at most` where a class has fewer videos to learn from."""
    if measure in _MEASURES:
        return _MEASURES[measure]
    labels = int(measure.removeprefix("logistic_"))
    return f"{'at most ' if section['fewest_labels'] < labels else ''}{labels} a class"


def _row(name: str, encoder: Mapping[str, Any], measures: Sequence[str], section: Mapping[str, Any]) -> dict[str, Any]:
    difference, reason = _against_best(name, section)
    best, cheapest = section["verdict"]["best"], section["verdict"]["cheapest"]
    first = "best" if section["verdict"]["is_clear"] else "highest of the encoders"
    return _facts(name, encoder) | {
        "best": name == best,
        "note": first if name == best else "needs less, not worse by more than 5 points" if name == cheapest else "",
        "numbers": [encoder["accuracy"][measure] for measure in measures],
        "interval": _interval(section["intervals"][name]),
        "difference": difference,
        "reason": reason,
    }


def _facts(name: str, encoder: Mapping[str, Any]) -> dict[str, Any]:
    origin = encoder["checkpoint"]
    seconds, memory = encoder.get("seconds_per_video"), encoder.get("peak_megabytes")
    operations = encoder.get("gigaflops_per_video")
    return {
        "name": name,
        "floor": encoder["floor"],
        "seconds": "–" if seconds is None else f"{seconds:.2g}",
        "operations": "–" if operations is None else f"{operations:,.2g}" if operations < 100 else f"{operations:,.0f}",
        "memory": "–" if memory is None else f"{memory / 1e3:.1f} GB",
        "dimension": f"{encoder['dimension']:,}",
        "weights": "none" if not encoder["megabytes"] else f"{encoder['megabytes']:.1f} MB",
        "clips": clips_in_words(encoder["protocol"]),
        "licence": origin.get("licence", "not stated"),
        "training": ", ".join(origin.get("training") or [(encoder["overlap"] or {}).get("list", "not stated")]),
    }


def clips_in_words(protocol: Mapping[str, Any]) -> str:
    """Describe the test clips of a `protocol` of results: number, frames, span, size, and a single stream or layer."""
    clip = protocol["clip"]
    if clip["seconds"] is None:
        span = f"every {clip['sampling_rate']}. frame"
    else:
        span = "the whole video" if clip["seconds"] == "whole" else f"{clip['seconds']:.2g} s"
    part = ".".join(name for name in (protocol.get("stream"), protocol.get("layer")) if name)
    return f"{protocol['clips']} of {clip['frames']} frames, {span}, {protocol['size']}²" + (part and f", of {part}")


def _against_best(name: str, section: Mapping[str, Any]) -> tuple[str, str]:
    best = section["verdict"]["best"]
    for pair in section["pairs"]:
        if {pair["first"], pair["second"]} == {name, best}:
            sign = 1 if pair["first"] == name else -1
            interval = pair["interval"] and sorted(sign * end for end in pair["interval"])
            return _points(sign * pair["difference"]), ", ".join(
                filter(None, (_interval(interval, "+"), pair["reason"]))
            )
    return "", ""


def _interval(ends: Sequence[float] | None, sign: str = "") -> str:
    return " to ".join(_points(end, sign) for end in ends or ())


def _points(value: float, sign: str = "+") -> str:
    return f"{100 * value:{sign}.1f}".replace("-", "−")


def _classes(section: Mapping[str, Any], encoders: Mapping[str, Any], order: Sequence[str]) -> list[dict[str, Any]]:
    label, best, found = section["labels"], section["verdict"]["best"], []
    numbers = sorted({*label})
    names = dict(zip(numbers, (one["name"] for one in section["classes"]), strict=True))
    for number, one in zip(numbers, section["classes"], strict=True):
        rows = [row for row, own in enumerate(label) if own == number]
        predicted = {name: [encoders[name]["predicted"]["knn"][row] for row in rows] for name in order}
        wrong = Counter(each for each in predicted[best] if each != number)
        found.append(
            {
                **one,
                "accuracy": [sum(each == number for each in predicted[name]) / len(rows) for name in order],
                "confused": ", ".join(f"{names.get(each, '–')} {count}" for each, count in wrong.most_common(2)),
            }
        )
    return sorted(found, key=lambda each: each["accuracy"][order.index(best)])


def _timed(encoders: Mapping[str, Any]) -> list[float]:
    return [each["seconds_per_video"] for each in encoders.values() if each.get("seconds_per_video")]


def _scale(encoders: Mapping[str, Any]) -> tuple[float, float, float, float]:
    """Powers of ten of the seconds, and tens of percents, that the chart covers."""
    seconds, accuracy = _timed(encoders), [each["accuracy"]["knn"] for each in encoders.values()]
    low, high = math.floor(math.log10(min(seconds))), math.ceil(math.log10(max(seconds)))
    bottom, top = math.floor(min(accuracy) * 10) / 10, math.ceil(max(accuracy) * 10) / 10
    return low, max(high, low + 1), bottom, max(top, bottom + 0.1)


def _place(seconds: float, accuracy: float, scale: tuple[float, float, float, float]) -> tuple[float, float]:
    low, high, bottom, top = scale
    x = _LEFT + (_RIGHT - _LEFT) * (math.log10(seconds) - low) / (high - low)
    return round(x, 1), round(_BOTTOM - (_BOTTOM - _TOP) * (accuracy - bottom) / (top - bottom), 1)


def _axes(encoders: Mapping[str, Any]) -> dict[str, Any]:
    if not _timed(encoders):
        return {"x": [], "y": []}
    scale = low, high, bottom, top = _scale(encoders)
    powers = range(int(low), int(high) + 1)
    tens = [bottom + n / 10 for n in range(round((top - bottom) * 10) + 1)]
    return {
        "x": [{"at": _place(10.0**power, bottom, scale)[0], "text": f"{10.0**power:g}"} for power in powers],
        "y": [{"at": _place(10.0**low, ten, scale)[1], "text": f"{100 * ten:.0f}"} for ten in tens],
    }


def _dots(encoders: Mapping[str, Any], order: Sequence[str]) -> list[dict[str, Any]]:
    """The points of the chart; names that would lie over each other are moved."""
    found: list[dict[str, Any]] = []
    for name in order:
        seconds = encoders[name].get("seconds_per_video")
        if not seconds:
            continue
        x, y = _place(seconds, encoders[name]["accuracy"]["knn"], _scale(encoders))
        label_y = y + 5
        while any(abs(label_y - other["label_y"]) < 15 and abs(x - other["x"]) < 220 for other in found):
            label_y += 4
        anchor = "start" if x < (_LEFT + _RIGHT) / 2 else "end"
        found.append(
            {"name": name, "x": x, "y": y, "label_y": label_y, "anchor": anchor, "floor": encoders[name]["floor"]}
        )
    return found


def _note(section: Mapping[str, Any], results: Mapping[str, Any]) -> str:
    groups, k = results["groups"], section["neighbours"]
    voters = "the nearest video" if k == 1 else f"a vote of {k} neighbours, divided by the videos of their classes"
    return (
        f"{len(results['videos'])} videos of {len(section['classes'])} classes and {groups['count']} recordings, "
        f"by {groups['how']}. Each video is predicted once, with its recording left out: kNN by {voters}, the mean "
        "over classes; R@1 by the nearest video, the others by logistic regression on all labels or on so many of each "
        "class, the mean of 20 draws, as fractions of all videos. Guessing is one of the classes for kNN, the most "
        "frequent class for the others. Intervals are for these networks on new recordings, not for other training "
        "seeds; the tests behind the verdict are adjusted for the number of pairs (Holm). Seconds depend on what else "
        "the machine did: the verdict counts operations."
    )


def _footer(results: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    return f"Measured in {results['seconds']:.0f} s on {results['processor']}, {results['date'][:10]}; {versions}."
