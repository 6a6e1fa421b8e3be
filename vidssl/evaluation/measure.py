"""Measure a network: check that lists fit, extract their features once, then run every protocol on them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from vidssl import distributed
from vidssl.config import build
from vidssl.data.list_paths import RealPath
from vidssl.data.video_list import VideoList
from vidssl.errors import ConfigError, DataError
from vidssl.evaluation.features import Classifier, TestClips, extract
from vidssl.evaluation.protocols import PROTOCOLS, EvaluationProtocol, Measured
from vidssl.models.backbones import Backbone
from vidssl.types import VideoRecord


@dataclass(frozen=True)
class Measurement:
    """The results of all protocols."""

    found: Mapping[str, Measured]  # by name of the protocol
    gallery: VideoList | None  # the training videos that could be read; None if no protocol needs them
    query: VideoList  # the tested videos that could be read
    missing_gallery: tuple[tuple[str, str], ...]  # path and reason of those that could not
    missing_query: tuple[tuple[str, str], ...]

    @property
    def numbers(self) -> dict[str, float]:
        """All numbers by name."""
        return {name: value for measured in self.found.values() for name, value in measured.numbers.items()}


def chosen_protocols(
    choices: Sequence[Any] | None, classifies: bool, gallery: VideoList | None, query: VideoList
) -> dict[str, EvaluationProtocol]:
    """Build protocols from their bound configs, or those that fit the network and its lists.

    Without `choices` these are accuracy if the network `classifies`, and retrieval, kNN and uniformity if there is a
    gallery; without labels only uniformity. No protocol, or one twice, is a ConfigError.
    """
    if choices is not None:
        names = [choice.name for choice in choices]
        if len({*names}) < len(names):
            raise ConfigError(f"protocol {max(names, key=names.count)} is given twice: give each protocol once")
        return {choice.name: build(PROTOCOLS, choice) for choice in choices}
    labelled = all((videos.labels >= 0).all() for videos in (gallery, query) if videos is not None)
    names = ["accuracy"] if classifies and labelled else []
    if gallery is not None:
        names += ["retrieval", "knn", "uniformity"] if labelled else ["uniformity"]
    if not names:
        raise ConfigError(
            f"no protocol can measure {query.path}: accuracy needs a classifier and labels, the others training videos "
            "(--train-list, or evaluate.gallery)"
        )
    return {name: PROTOCOLS[name](PROTOCOLS[name].Config()) for name in names}


def measure(
    backbone: Backbone,
    protocols: Mapping[str, EvaluationProtocol],
    gallery: VideoList | None,
    query: VideoList,
    test: TestClips,
    device: torch.device,
    classify: Classifier | None = None,
    classes: int = 0,
    check: Callable[[], None] = lambda: None,
) -> Measurement:
    """Run all protocols on a network; each video is decoded once.

    The gallery is not read if no protocol needs it. `classify` is the network's own classifier of `classes`. The main
    process computes the numbers, and all return them. Errors are those of `check_measurable` and `extract`.
    """
    check_measurable(protocols, gallery, query, classes)
    asking = any(protocol.probabilities for protocol in protocols.values())
    g, galleries = None, None
    if gallery is not None and any(protocol.gallery for protocol in protocols.values()):
        g = extract(backbone, gallery, test, device, "gallery", check=check)
        galleries = gallery.rows(g.index.tolist())
    both = extract(backbone, query, test, device, "queries", check=check, classify=classify if asking else None)
    q, probabilities = (replace(both, x=x) for x in (both.x[:, : backbone.dim], both.x[:, backbone.dim :]))
    queries = query.rows(q.index.tolist())

    def compute() -> dict[str, Measured]:
        own = own_rows(galleries or queries, queries)
        return {
            name: protocol(q if g is None else g, probabilities if protocol.probabilities else q, own)
            for name, protocol in protocols.items()
        }

    return Measurement(distributed.on_main(compute), galleries, queries, g.missing if g else (), q.missing)


def check_measurable(
    protocols: Mapping[str, EvaluationProtocol], gallery: VideoList | None, query: VideoList, classes: int
) -> None:
    """Check that protocols can measure a network with `classes` (0: no classifier), before features are extracted.

    Raises:
        ConfigError: A protocol needs a gallery or a classifier, and there is none or it does not fit.
        DataError: The lists have different classes or lack labels, or a protocol would train on tested videos.
    """
    needed = max(len(query.classes), int(query.labels.max()) + 1)
    for name, protocol in protocols.items():
        if protocol.probabilities and (needed > classes or len(query.classes) not in (0, classes)):
            raise ConfigError(
                f"protocol {name} needs a classifier of {needed} classes for {query.path}, and this network has "
                f"{f'one of {classes}' if classes else 'none'}: train one with the method supervised, or use knn"
            )
        if protocol.gallery and gallery is None:
            raise ConfigError(f"protocol {name} compares with training videos: give their list too")
        for videos in (gallery, query):
            if protocol.labels and videos is not None and (videos.labels < 0).any():
                raise DataError(f"protocol {name} needs labels, and videos of {videos.path} have none")
    if gallery is None:
        return
    check_classes(gallery, query)
    learning = {name: protocol for name, protocol in protocols.items() if protocol.learns}
    if learning:
        check_disjoint(gallery, query, ", ".join(learning))
    for protocol in learning.values():
        protocol.check(torch.from_numpy(gallery.labels))


def check_classes(gallery: VideoList, query: VideoList) -> None:
    """Raise a DataError if two lists have different classes."""
    if gallery.classes != query.classes:
        raise DataError(
            f"{gallery.path} and {query.path} have different classes.txt ({len(gallery.classes)} and "
            f"{len(query.classes)} classes): a label must mean the same in both"
        )


def check_names(videos: VideoList, names: Sequence[str], where: str) -> None:
    """Raise a DataError if a class of a list has another name than `where`; without names on one side all is fine."""
    for n, (name, other) in enumerate(zip(videos.classes, names, strict=False)):
        if name != other:
            raise DataError(f"label {n} is {name!r} in {videos.path} and was {other!r} {where}: test on the same data")


def check_disjoint(train: VideoList, query: VideoList, learner: str) -> None:
    """Raise a DataError if a tested video, or a span that overlaps it, is in the training list of the `learner`."""
    own = own_rows(train, query)
    if len(own):
        raise DataError(
            f"{len(set(own[:, 0].tolist()))} videos of {query.path} are in {train.path} too, the first "
            f"{query.names[int(own[0, 0])]!r}: {learner} would be tested on training videos; use disjoint lists"
        )


def own_rows(gallery: VideoList, query: VideoList) -> Tensor:
    """Return pairs (P, 2) of a query row and a gallery row that show the same video, which a query must not find.

    Those are spans of the same file, after following links, that overlap; spans of a file that do not overlap count as
    different videos.
    """
    real_path = RealPath()
    rows: dict[str | None, list[int]] = {}
    for n, record in enumerate(gallery.records):
        rows.setdefault(real_path(record.path), []).append(n)
    pairs = [
        (n, row)
        for n, record in enumerate(query.records)
        for row in rows.get(real_path(record.path), ())
        if _overlap(record, gallery.records[row])
    ]
    return torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2)


def _overlap(one: VideoRecord, other: VideoRecord) -> bool:
    start = max(one.start or 0.0, other.start or 0.0)
    return all(record.end is None or start < record.end for record in (one, other))
