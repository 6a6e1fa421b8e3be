"""The page of a comparison of encoders: tables, neighbours side by side, and a list of videos to label next.

`sprites` are the numbers of the previews that the page embeds.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from vidssl.evaluation.result_files import clips_in_words
from vidssl.page.previews import Preview, number_previews
from vidssl.page.render import render_page


@dataclass(frozen=True)
class ShownVideos:
    """N videos, some of them with a preview; class 3 without a name is "class 3"."""

    names: Sequence[str]  # (N,) such as the paths in the list
    labels: Sequence[int]  # (N,) class numbers, -1: unknown
    class_names: Sequence[str] = ()  # by class number
    previews: Mapping[int, Preview] = field(default_factory=dict)  # by row

    def class_name(self, label: int) -> str:
        """Return the name of a class; "" for -1."""
        if label < 0:
            return ""
        return self.class_names[label] if label < len(self.class_names) else f"class {label}"

    def describe(self, row: int, sprites: Mapping[Preview, int]) -> dict[str, Any]:
        """Return what templates show of a video."""
        clip = self.previews.get(row)
        return {"name": self.names[row], "label": self.class_name(self.labels[row]), "sprite": clip and sprites[clip]}

    def previews_of(self, rows: Sequence[int]) -> list[Preview]:
        """Return the previews of the rows that have one."""
        return [self.previews[row] for row in rows if row in self.previews]


@dataclass(frozen=True)
class EncoderNeighbours:
    """Queries and their nearest videos by two encoders, nearest first, as rows of `videos`."""

    encoders: tuple[str, str]
    queries: Sequence[tuple[int, Sequence[int], Sequence[int]]]  # query, nearest by the first encoder, by the second
    videos: ShownVideos

    @property
    def previews(self) -> list[Preview]:
        """Those that the page embeds."""
        return self.videos.previews_of(
            [row for query, *strips in self.queries for row in (query, *strips[0], *strips[1])]
        )


def neighbours_content(neighbours: EncoderNeighbours, sprites: Mapping[Preview, int]) -> dict[str, Any]:
    """Make what `encoder_neighbours.html` shows."""
    videos, queries = neighbours.videos, []
    for query, *nearest in neighbours.queries:
        named = zip(neighbours.encoders, nearest, strict=True)
        strips = [_strip(videos, encoder, query, rows, sprites) for encoder, rows in named]
        queries.append({**videos.describe(query, sprites), "same": False, "strips": strips})
    return {
        "has_labels": any(query["label"] for query in queries),
        "has_previews": bool(neighbours.previews),
        "queries": queries,
    }


def _strip(
    videos: ShownVideos, encoder: str, query: int, nearest: Sequence[int], sprites: Mapping[Preview, int]
) -> dict[str, Any]:
    """Describe the videos that an encoder finds most similar to a query."""
    label = videos.labels[query]
    same = [label >= 0 and videos.labels[row] == label for row in nearest]
    return {
        "encoder": encoder,
        "counted": f"{sum(same)} of {len(same)} of its class" if label >= 0 else "",
        "videos": [{**videos.describe(row, sprites), "same": n} for row, n in zip(nearest, same, strict=True)],
    }


@dataclass(frozen=True)
class Disagreements:
    """Rows of `videos`, that to label first at the start, with the class that each encoder predicts."""

    videos: ShownVideos
    rows: Sequence[int]
    predicted: Mapping[str, Sequence[int]]  # class numbers of `rows` by the name of the encoder, -1: none
    entropy: Sequence[float]  # of the votes for `rows`, nats

    @property
    def previews(self) -> list[Preview]:
        """Those that the page embeds."""
        return self.videos.previews_of(self.rows)


def disagreements_content(disagreements: Disagreements, sprites: Mapping[Preview, int]) -> dict[str, Any]:
    """Make what `disagreements.html` shows."""
    videos, rows = disagreements.videos, []
    for n, (row, value) in enumerate(zip(disagreements.rows, disagreements.entropy, strict=True)):
        predicted = [videos.class_name(labels[n]) or "–" for labels in disagreements.predicted.values()]
        rows.append({**videos.describe(row, sprites), "predicted": predicted, "value": f"{value:.2f}"})
    return {
        "encoders": [*disagreements.predicted],
        "has_labels": any(row["label"] for row in rows),
        "has_previews": bool(disagreements.previews),
        "rows": rows,
    }


_MEASURES = {"knn": "kNN", "R@1": "R@1", "logistic": "all labels"}
_WIDTH, _HEIGHT, _LEFT, _TOP, _RIGHT, _BOTTOM = 900, 380, 52, 40, 870, 320


def write_encoders_page(
    path: Path,
    results: Mapping[str, Any],
    title: str,
    command: str,
    neighbours: EncoderNeighbours | None = None,
    disagreements: Disagreements | None = None,
    left_out: Sequence[str] = (),
) -> None:
    """Write the page, with the parts that are given. Each preview is embedded once."""
    parts = [part for part in (neighbours, disagreements) if part is not None]
    sprites = number_previews(clip for part in parts for clip in part.previews)
    sections = [_section(section, results) for section in results["sections"]]
    render_page(
        path,
        Path(__file__).with_name("encoders.html"),
        title=title,
        sprites=sprites,
        sections=sections,
        unlabelled=_unlabelled(results),
        facts=[_facts(name, encoder) for name, encoder in results["encoders"].items()],
        failed=results["failed"],
        near_copies=results["near_copies"],
        left_out=left_out,
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
    return {
        "name": section["name"] if len(results["sections"]) > 1 else "",
        "verdict": section["verdict"],
        "columns": [score_column(measure, section) for measure in measures],
        "guessing": [section["guessing"][measure] for measure in measures],
        "rows": [_row(name, encoders[name], measures, section) for name in order],
        "classes": _classes(section, encoders, order),
        "chart": _chart(encoders, order),
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


def score_column(measure: str, section: Mapping[str, Any]) -> str:
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
    return f"{round(100 * value, 1) + 0.0:{sign}.1f}".replace("-", "−")


def _classes(section: Mapping[str, Any], encoders: Mapping[str, Any], order: Sequence[str]) -> list[dict[str, Any]]:
    """The rows of the table of classes, those with the lowest accuracy of the best encoder first."""
    label, best, rows = np.array(section["labels"]), section["verdict"]["best"], []
    predicted = {name: np.array(encoders[name]["predicted"]["knn"]) for name in order}
    names = dict(zip(np.unique(label).tolist(), (class_["name"] for class_ in section["classes"]), strict=True))
    for number, class_ in zip(names, section["classes"], strict=True):
        of_class = label == number
        wrong = Counter(predicted[best][of_class & (predicted[best] != number)].tolist())
        confused = [f"{names.get(wrong_class, '–')} {count}" for wrong_class, count in wrong.most_common(2)]
        accuracy = [float((predicted[name][of_class] == number).mean()) for name in order]
        rows.append({**class_, "accuracy": accuracy, "confused": ", ".join(confused)})
    return sorted(rows, key=lambda row: row["accuracy"][order.index(best)])


def _chart(encoders: Mapping[str, Any], order: Sequence[str]) -> dict[str, Any]:
    """The frame, axes and points of kNN against seconds a video; names that would lie over others are moved."""
    timed = [name for name in order if encoders[name].get("seconds_per_video")]
    if not timed:
        return {"dots": []}
    powers: list[float] = [math.log10(encoders[name]["seconds_per_video"]) for name in timed]
    tenths: list[float] = [10 * encoders[name]["accuracy"]["knn"] for name in timed]
    least, low = math.floor(min(powers)), math.floor(min(tenths))
    right, high = max(math.ceil(max(powers)), least + 1), max(math.ceil(max(tenths)), low + 1)

    def x(power: float) -> float:
        return round(_LEFT + (_RIGHT - _LEFT) * (power - least) / (right - least), 1)

    def y(tenth: float) -> float:
        return round(_BOTTOM - (_BOTTOM - _TOP) * (tenth - low) / (high - low), 1)

    dots: list[dict[str, Any]] = []
    taken = [(x(power) - 6, x(power) + 6, y(tenth) + 5) for power, tenth in zip(powers, tenths, strict=True)]
    for name, at, height in zip(timed, map(x, powers), map(y, tenths), strict=True):
        anchor, wide = ("start", 8 * len(name)) if at < (_LEFT + _RIGHT) / 2 else ("end", -8 * len(name))
        start, end = sorted((at + math.copysign(10, wide), at + wide))
        heights = sorted((height + 5, *range(_TOP + 5, _BOTTOM, 5)), key=lambda y: abs(y - height - 5))
        free = (y for y in heights if not any(a < end and start < b and abs(y - c) < 15 for a, b, c in taken))
        label_y = next(free, height + 5)
        taken.append((start, end, label_y))
        dot = {"name": name, "x": at, "y": height, "label_y": label_y, "anchor": anchor}
        dots.append({**dot, "floor": encoders[name]["floor"]})
    return {
        **{"width": _WIDTH, "height": _HEIGHT, "left": _LEFT, "right": _RIGHT, "top": _TOP, "bottom": _BOTTOM},
        "dots": dots,
        "x": [{"at": x(power), "text": f"{10.0**power:g}"} for power in range(least, right + 1)],
        "y": [{"at": y(tenth), "text": str(10 * tenth)} for tenth in range(low, high + 1)],
    }


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
