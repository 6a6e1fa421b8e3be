"""What the page of a comparison shows of single videos: maps, neighbours side by side, a list to label next."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vidssl.analysis.layout_2d import UMAP_NEEDS, has_umap, layout, turned_onto
from vidssl.api.format_results import write_csv
from vidssl.config import Tree
from vidssl.data.preview_frames import middle_frames
from vidssl.data.video_list import VideoList
from vidssl.errors import VidsslError
from vidssl.evaluation.without_labels import Agreement, Disagreement, disagreement, most_changed
from vidssl.types import Features
from vidssl.viz.disagreements import Disagreements
from vidssl.viz.encoder_maps import EncoderMaps
from vidssl.viz.encoder_neighbours import EncoderNeighbours
from vidssl.viz.pages import Preview, preview
from vidssl.viz.shown_videos import ShownVideos

DISAGREEMENTS = "disagreements.csv"
_QUERIES, _NEIGHBOURS, _LISTED, _PREVIEWS = 8, 5, 20, 100  # shown on the page


def page_parts(
    results: Tree,
    videos: VideoList,
    rows: NDArray[np.int64],
    features: Sequence[Features],
    agreements: Sequence[Agreement],
    out: Path,
) -> dict[str, Any]:
    """Make the parts, by the arguments of `write_encoders_page`, and write the list to label next.

    Args:
        results: Those of the comparison; classes are those of the first section.
        videos: The list.
        rows: (N,) those of the list that are compared.
        features: Of the encoders, in the order of the results.
        agreements: Of their pairs.
        out: Folder for the list.
    """
    names = [*results["encoders"]]
    section = next(iter(results["sections"]), None)
    label = np.full(len(rows), -1) if section is None else np.array(section["labels"])
    first, second = _two(results, names, section)
    changed = most_changed(_between(agreements, first, second), _QUERIES)
    queries = []
    for each in changed:  # an agreement is of the encoder that comes first in the results
        strips = (each.first, each.second) if first < second else (each.second, each.first)
        queries.append((each.row, strips[0][:_NEIGHBOURS], strips[1][:_NEIGHBOURS]))
    listed = None if section is None else _disagreements(results, names, section, label)
    wanted = [row for query, *both in queries for row in (query, *both[0], *both[1])]
    if listed is not None:
        wanted += listed.order[:_LISTED].tolist()
    spread = np.linspace(0, len(rows) - 1, min(len(rows), _PREVIEWS)).round().astype(int)
    shown = ShownVideos(
        [str(videos.names[row]) for row in rows],
        label.tolist(),
        [videos.class_name(number) for number in range(int(label.max()) + 1)],
        _previews(videos, rows, [*wanted, *spread.tolist()]),
    )
    parts: dict[str, Any] = {"neighbours": EncoderNeighbours((names[first], names[second]), queries, shown)}
    kind = "umap" if has_umap() and len(rows) >= UMAP_NEEDS else "pca"
    order = [first, second, *(n for n in range(len(names)) if n not in (first, second))]
    places = {names[n]: layout(features[n].x.numpy(), kind) for n in order}
    turned = {name: turned_onto(each, places[names[first]]) for name, each in places.items()}
    parts["maps"] = EncoderMaps(turned, shown)
    if section is not None and listed is not None:
        parts["disagreements"] = _list_to_label(section, listed, shown, out)
    return parts


def _two(results: Tree, names: Sequence[str], section: Tree | None) -> tuple[int, int]:
    """Choose the two encoders whose neighbours are shown: the best and the next one, or the first two; no floors."""
    order = [*range(len(names))]
    if section is not None:
        order.sort(key=lambda n: -section["accuracy"][names[n]]["knn"])
    order.sort(key=lambda n: bool(results["encoders"][names[n]]["floor"]))
    return order[0], order[1]


def _between(agreements: Sequence[Agreement], first: int, second: int) -> Agreement:
    return next(each for each in agreements if {each.first, each.second} == {first, second})


def _disagreements(results: Tree, names: Sequence[str], section: Tree, label: NDArray[np.int64]) -> Disagreement | None:
    """Order the videos on which the encoders that are no floors disagree; None: there is one."""
    asked = [name for name in names if not results["encoders"][name]["floor"]]
    if len(asked) < 2:
        return None
    found = disagreement(np.array([section["predicted"][name]["knn"] for name in asked]), label)
    order = found.order[found.entropy[found.order] > 1e-9]
    return Disagreement(order, found.entropy, found.margin)


def _list_to_label(section: Tree, listed: Disagreement, shown: ShownVideos, out: Path) -> Disagreements | None:
    predicted = {name: each["knn"] for name, each in section["predicted"].items()}
    lines = [
        [shown.names[row], shown.class_name(shown.labels[row]), f"{listed.entropy[row]:.4f}"]
        + [shown.class_name(classes[row]) for classes in predicted.values()]
        for row in listed.order
    ]
    write_csv(out / DISAGREEMENTS, ["path", "label", "entropy", *predicted], lines)
    rows = listed.order[:_LISTED].tolist()
    if not rows:
        return None
    of_rows = {name: [classes[row] for row in rows] for name, classes in predicted.items()}
    return Disagreements(shown, rows, of_rows, "entropy", listed.entropy[rows].tolist())


def _previews(videos: VideoList, rows: NDArray[np.int64], wanted: Iterable[int]) -> dict[int, Preview]:
    made = {}
    for row in sorted({*wanted}):
        with suppress(VidsslError):  # a video that cannot be read again has no preview
            made[row] = preview(middle_frames(videos.records[int(rows[row])]))
    return made
