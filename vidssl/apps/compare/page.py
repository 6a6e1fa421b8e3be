"""The page of a comparison of encoders: the verdict, tables with intervals, and a list of videos to label next."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from vidssl.base.config import Tree
from vidssl.evaluation.result_files import clips_in_words
from vidssl.page.previews import Preview, number_previews
from vidssl.page.render import render_page


def write_encoders_page(
    path: Path,
    results: Tree,
    title: str,
    command: str,
    disputed: Sequence[Tree] = (),
    previews: Mapping[int, Preview] | None = None,
) -> None:
    """Write the page of results as in results.json.

    `disputed` are the videos to label next, as `disputed_row`; `previews` those of some of them, by `row`.
    """
    order = by_accuracy(results["sections"][0]) if results["sections"] else results["encoders"]
    render_page(
        path,
        Path(__file__).with_name("encoders.html"),
        title=title,
        command=command,
        results=results,
        sections=[_section(section, results) for section in results["sections"]],
        encoders=[_describe(name, results["encoders"][name]) for name in order],
        disputed=disputed,
        previews=previews or {},
        sprites=number_previews((previews or {}).values()),
        left_out=[gap["reason"] or gap["path"] for gap in results["missing"]],
    )


def _class_names(section: Tree) -> dict[int, str]:
    """Return the names of the classes of a section by their numbers."""
    numbers = sorted({*section["labels"]})
    return dict(zip(numbers, (class_["name"] for class_ in section["classes"]), strict=True))


def by_accuracy(section: Tree) -> list[str]:
    """Return the names of the encoders of a section by their primary number, the highest first."""
    return sorted(section["accuracy"], key=lambda name: -section["accuracy"][name]["knn"])


def score_column(measure: str, section: Tree) -> str:
    """Name a measure; `at most` where a class has fewer videos to learn from."""
    if not measure.startswith("logistic_"):
        return {"knn": f"kNN, k = {section['neighbours']}", "chosen": "predict"}.get(measure, measure)
    labels = int(measure.removeprefix("logistic_"))
    return f"{'at most ' if section['fewest_labels'] < labels else ''}{labels} per class"


def _section(section: Tree, results: Tree) -> Tree:
    """What is shown of the labels of one list, beside its results: encoders in order, the best first."""
    order = by_accuracy(section)
    measures = [*section["guessing"]]
    return section | {
        "measures": measures,
        "columns": [score_column(measure, section) for measure in measures],
        "rows": [_describe(name, results["encoders"][name]) | _against_best(name, section) for name in order],
        "classes": _classes(section, order),
    }


def _describe(name: str, encoder: Tree) -> Tree:
    """What is shown of an encoder, whatever the labels; `–`: it is not known."""
    origin, operations = encoder["checkpoint"], encoder["gigaflops_per_video"]
    seconds, memory = encoder.get("seconds_per_video"), encoder.get("peak_megabytes")
    return encoder | {
        "name": name,
        "seconds": "–" if seconds is None else f"{seconds:.2g}",
        "operations": "–" if operations is None else f"{operations:,.2g}" if operations < 100 else f"{operations:,.0f}",
        "memory": "–" if memory is None else f"{memory / 1e3:.1f} GB",
        "clips": clips_in_words(encoder["protocol"]),
        "training": ", ".join(origin.get("training") or [(encoder["overlap"] or {}).get("list", "not stated")]),
    }


def _against_best(name: str, section: Tree) -> Tree:
    """Return the difference of an encoder to the best one with its interval, turned around if the best is the first."""
    best = section["verdict"]["best"]
    for pair in section["pairs"]:
        if {pair["first"], pair["second"]} == {name, best}:
            sign = 1 if pair["first"] == name else -1
            interval = pair["interval"] and sorted(sign * end for end in pair["interval"])
            return {"difference": sign * pair["difference"], "interval": interval, "reason": pair["reason"]}
    return {"difference": None, "interval": None, "reason": None}


def _classes(section: Tree, order: Sequence[str]) -> list[Tree]:
    """The rows of the table of classes, those with the lowest accuracy of the best encoder first."""
    label, best, names = np.array(section["labels"]), section["verdict"]["best"], _class_names(section)
    predicted = {name: np.array(section["predicted"][name]["knn"]) for name in order}
    rows = []
    for number, class_ in zip(names, section["classes"], strict=True):
        of_class = label == number
        wrong = Counter(predicted[best][of_class & (predicted[best] != number)].tolist())
        confused = [f"{names.get(wrong_class, '–')} {count}" for wrong_class, count in wrong.most_common(2)]
        accuracy = {encoder: float((predicted[encoder][of_class] == number).mean()) for encoder in order}
        rows.append({**class_, "accuracy": accuracy, "confused": ", ".join(confused)})
    return sorted(rows, key=lambda row: row["accuracy"][best])


def disputed_row(row: int, entropy: float, results: Tree) -> Tree:
    """Describe a video of the first section, and what each encoder predicts; `entropy` is that of their votes."""
    section = results["sections"][0]
    names = _class_names(section)
    predicted = [names.get(classes["knn"][row], "") for classes in section["predicted"].values()]
    label = names[section["labels"][row]]
    name = results["videos"][section["rows"][row]]
    return {"row": row, "name": name, "label": label, "predicted": predicted, "entropy": entropy}
