"""Measure a network: extract the features of lists once, then run every protocol on them."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vidssl.base import distributed
from vidssl.base.command_line_and_notices import log_once
from vidssl.base.config import build
from vidssl.base.errors import ConfigError, DataError, first_few
from vidssl.base.progress import progress
from vidssl.base.types import Features
from vidssl.data.find_same_videos import own_rows
from vidssl.data.video_list import VideoList
from vidssl.evaluation.features import Classifier, Extract, TestClips, extract_features
from vidssl.evaluation.metrics import level_of, majority
from vidssl.evaluation.protocols import PROTOCOLS, EvaluationProtocol, Measured
from vidssl.evaluation.train_test_overlap import check_disjoint, count_equal_features
from vidssl.models.backbones import Backbone

_Protocols = Mapping[str, EvaluationProtocol]  # by name

_log = logging.getLogger(__name__)


def check_measurable(
    protocols: _Protocols, gallery: VideoList | None, query: VideoList, classes: int, cells: int = 1
) -> None:
    """Check that protocols can measure a network with `classes` (0: no classifier), before features are extracted.

    `cells` are the positions of the feature maps that the features consist of; 1: vectors.

    Raises:
        ConfigError: A protocol needs a gallery, a classifier or feature maps, and there are none or they do not fit.
        DataError: The lists have different classes or lack labels, or a protocol would train on tested videos.
    """
    needed = max(len(query.classes), int(query.labels.max()) + 1)
    for name, protocol in protocols.items():
        if protocol.probabilities and (needed > classes or len(query.classes) not in (0, classes)):
            raise ConfigError(
                f"protocol {name} needs a classifier of {needed} classes for {query.path}, and this network has "
                f"{f'one of {classes}' if classes else 'none'}: train one with the method supervised, or use knn"
            )
        if protocol.maps and cells == 1:
            remedy = 'give a layer and a grid, for example layer="layer4" and grid=4'
            raise ConfigError(f"protocol {name} needs feature maps, and these features are vectors: {remedy}")
        if protocol.gallery and gallery is None:
            raise ConfigError(f"protocol {name} compares with training videos: give their list, train_list=FILE")
        for videos in (gallery, query):
            if videos is not None and protocol.labels:
                _check_labels(name, protocol, videos)
    if gallery is None:
        return
    check_classes(gallery, query)
    by_class = [name for name, kind in protocols.items() if kind.gallery and kind.labels and not kind.several]
    _report_unseen(by_class, gallery, query)
    for protocol in protocols.values():
        protocol.check_lists(gallery, query)
    learning = {name: protocol for name, protocol in protocols.items() if protocol.learns}
    if learning:
        check_disjoint(gallery, query, ", ".join(learning))
    for protocol in learning.values():
        protocol.check(torch.from_numpy(gallery.targets if protocol.several else gallery.labels))


def _check_labels(name: str, protocol: EvaluationProtocol, videos: VideoList) -> None:
    several = videos.records[0].label_set is not None
    if several and not protocol.several:
        raise DataError(f"protocol {name} needs one label per row, and {videos.path} has several: use multilabel_svm")
    if protocol.several and not several:
        raise DataError(f"protocol {name} needs several labels per row; {videos.path} has no column labels: use svm")
    if reason := without_labels(videos):
        raise DataError(f"protocol {name} needs labels, and {reason}: label them, or leave these rows out")


def without_labels(videos: VideoList) -> str:
    """Say how many videos lack their label, in a list with one a row; empty: none."""
    count = int((videos.labels < 0).sum()) if videos.targets is None else 0
    return f"{count} of {len(videos)} videos of {videos.path} have none" if count else ""


def _report_unseen(names: Sequence[str], gallery: VideoList, query: VideoList) -> None:
    """Log how many tested videos are of classes of which there is no training video."""
    lacking = ~np.isin(query.labels, gallery.labels)
    if names and lacking.any():
        classes = [query.class_name(label) for label in np.unique(query.labels[lacking]).tolist()]
        text = f"{int(lacking.sum())} of {len(query)} videos of {query.path} cannot be right by {', '.join(names)}"
        what = f"{len(classes)} class{'es' * (len(classes) > 1)} without videos in {gallery.path}"
        log_once(_log, logging.WARNING, f"{text}: they are of {what} ({first_few(classes)})")


def check_classes(gallery: VideoList, query: VideoList) -> None:
    """Raise a DataError if two lists with labels have different classes."""
    labelled = [(videos.labels >= 0).any() or videos.targets is not None for videos in (gallery, query)]
    if gallery.classes != query.classes and all(labelled):
        raise DataError(
            f"{gallery.path} and {query.path} have different classes.txt ({len(gallery.classes)} and "
            f"{len(query.classes)} classes): a label must mean the same in both; for neighbours alone "
            'labels="none"'
        )
    if gallery.targets is not None and query.targets is not None:
        counts = gallery.targets.shape[1], query.targets.shape[1]
        if counts[0] != counts[1]:
            lists = f"{gallery.path} and {query.path} have labels of {counts[0]} and {counts[1]} classes"
            raise DataError(f"{lists}: write the names of all classes to classes.txt beside each")


def check_class_names(videos: VideoList, names: Sequence[str], where: str) -> None:
    """Raise a DataError if a class of a list has another name than `where`; without names on one side all is fine."""
    for n, (name, known) in enumerate(zip(videos.classes, names, strict=False)):
        if name != known:
            raise DataError(f"label {n} is {name!r} in {videos.path} and was {known!r} {where}: test on the same data")


@dataclass(frozen=True)
class ListMeasurement:
    """The results of all protocols."""

    by_protocol: Mapping[str, Measured]
    gallery: VideoList | None  # the training videos that could be read; None if no protocol needs them
    query: VideoList  # the tested videos that could be read
    missing_gallery: tuple[tuple[str, str], ...]  # path and reason of those that could not
    missing_query: tuple[tuple[str, str], ...]
    rows: tuple[int, ...]  # of the tested list, that could be read
    equal_features: int  # tested videos with the features of a training video of another path, bit by bit

    @property
    def of_protocols(self) -> dict[str, float]:
        """The numbers of all protocols, by name."""
        return {name: number for measured in self.by_protocol.values() for name, number in measured.numbers.items()}

    @property
    def numbers(self) -> dict[str, float]:
        """All numbers by name, and what the most frequent class reaches of the accuracies among them."""
        numbers = self.of_protocols
        levels = {*map(level_of, numbers)}
        most_frequent = majority(torch.from_numpy(self.query.labels))
        return numbers | {name: value for name, value in most_frequent.items() if name in levels}

    @property
    def per_video(self) -> dict[str, list[Any]]:
        """The numbers that are means over videos: their values of each, and the `rows` of the tested list."""
        of_videos = [measured.per_video.items() for measured in self.by_protocol.values()]
        return {"rows": [*self.rows], **{name: x.double().tolist() for pairs in of_videos for name, x in pairs}}


def _checked(protocol: EvaluationProtocol, gallery: Features, query: Features, exclude: Tensor) -> Measured:
    """Apply a protocol; a ConfigError if it returns something else than `Measured`, as a plug-in may."""
    measured: Any = protocol(gallery, query, exclude)
    if not isinstance(measured, Measured):
        wrong = f"{type(measured).__name__}, not `Measured`"
    elif not all(isinstance(number, int | float) for number in measured.numbers.values()):
        wrong = f"numbers that are no float: {measured.numbers!s:.100}"
    elif measured.predicted is not None and measured.predicted.shape != query.label.shape:
        wrong = f"predicted {tuple(measured.predicted.shape)}, not one class of each query {tuple(query.label.shape)}"
    else:
        return measured
    raise ConfigError(f"protocol {type(protocol).__name__} returns {wrong}: see docs/extend.md")


def apply_protocols(
    protocols: _Protocols,
    gallery: Features | None,
    query: Features,
    exclude: Tensor,
    probabilities: Features | None = None,
) -> dict[str, Measured]:
    """Apply protocols to features, without a gallery to those of the queries; `probabilities` are the classifier's."""
    measured = {}
    for name, protocol in progress(protocols.items(), title="measure", unit="protocol", leave=False):
        tested = probabilities if protocol.probabilities and probabilities is not None else query
        measured[name] = _checked(protocol, query if gallery is None else gallery, tested, exclude)
    return measured


def need_gallery(names: Sequence[str] | None) -> bool:
    """Whether one of the protocols may compare with a gallery: the default ones, None, do; plug-ins may be unknown."""
    return names is None or any(name not in PROTOCOLS or PROTOCOLS[name].gallery for name in names)


def need_labels(names: Sequence[str] | None) -> bool:
    """Whether one of the protocols needs labels: the default ones, None, do; plug-ins that are unknown do not."""
    return names is None or any(name in PROTOCOLS and PROTOCOLS[name].labels for name in names)


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
    lists = [videos for videos in (gallery, query) if videos is not None]
    labelled = all((videos.labels >= 0).all() for videos in lists)
    names = ["accuracy"] if classifies and labelled else []
    if gallery is not None:
        names += ["retrieval", "knn", "uniformity"] if labelled else ["uniformity"]
    if not names:
        needs = "accuracy needs a classifier and labels, the others training videos"
        remedy = "train_list=LIST, of a run evaluate.gallery"
        raise ConfigError(f"no protocol can measure {query.path}: {needs} ({remedy})")
    return {name: PROTOCOLS[name](PROTOCOLS[name].Config()) for name in names}


def measure(
    backbone: Backbone,
    protocols: _Protocols,
    gallery: VideoList | None,
    query: VideoList,
    test: TestClips,
    device: torch.device,
    classify: Classifier | None = None,
    classes: int = 0,
    check: Callable[[], None] = lambda: None,
    extract: Extract = extract_features,
) -> ListMeasurement:
    """Run all protocols on a network; each video is decoded once.

    The gallery is not read if no protocol needs it. `classify` is the network's own classifier of `classes`. The main
    process computes the numbers, and all return them. Errors are those of `check_measurable` and `extract`.
    """
    check_measurable(protocols, gallery, query, classes, test.cells)
    encoder = test.encoder(backbone)
    classifier = classify if any(protocol.probabilities for protocol in protocols.values()) else None
    reverse = any(protocol.reverse for protocol in protocols.values())
    g, galleries = None, None
    if gallery is not None and any(protocol.gallery for protocol in protocols.values()):
        g = extract(encoder, gallery, test, device, "gallery", check=check, reverse=reverse)
        galleries = gallery.rows(g.index.tolist())
    both = extract(encoder, query, test, device, "queries", check=check, classify=classifier, reverse=reverse)
    q, probabilities = (replace(both, x=x) for x in (both.x[:, : encoder.dim], both.x[:, encoder.dim :]))
    queries = query.rows(q.index.tolist())

    measured = distributed.on_main(
        lambda: apply_protocols(protocols, g, q, own_rows(galleries or queries, queries), probabilities)
    )
    equal, rows = 0, tuple(q.index.tolist())
    if g is not None and galleries is not None:
        records = queries.records, galleries.records
        equal = distributed.on_main(partial(count_equal_features, q.x, g.x, *records))
    return ListMeasurement(measured, galleries, queries, g.missing if g else (), q.missing, rows, equal)
