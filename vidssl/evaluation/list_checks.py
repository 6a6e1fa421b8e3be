"""Checks that lists fit protocols and each other."""

import logging
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from vidssl.data.video_list import VideoList
from vidssl.errors import ConfigError, DataError, first_few
from vidssl.evaluation.protocols import EvaluationProtocol
from vidssl.evaluation.train_test_overlap import check_disjoint
from vidssl.running_command import log_once

_log = logging.getLogger(__name__)


def check_measurable(
    protocols: Mapping[str, EvaluationProtocol],
    gallery: VideoList | None,
    query: VideoList,
    classes: int,
    cells: int = 1,
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
            raise ConfigError(
                f"protocol {name} needs feature maps, and these features are vectors: give a layer and a grid, for "
                'example layer="layer4" and grid=4'
            )
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
        raise DataError(f"protocol {name} needs one label a row, and {videos.path} has several: use multilabel_svm")
    if protocol.several and not several:
        raise DataError(f"protocol {name} needs several labels a row, and {videos.path} has no column labels: use svm")
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
            f"{len(query.classes)} classes): a label must mean the same in both"
        )
    if gallery.targets is not None and query.targets is not None:
        counts = gallery.targets.shape[1], query.targets.shape[1]
        if counts[0] != counts[1]:
            raise DataError(
                f"{gallery.path} and {query.path} have labels of {counts[0]} and {counts[1]} classes: write the names "
                "of all classes to classes.txt beside each"
            )


def check_names(videos: VideoList, names: Sequence[str], where: str) -> None:
    """Raise a DataError if a class of a list has another name than `where`; without names on one side all is fine."""
    for n, (name, other) in enumerate(zip(videos.classes, names, strict=False)):
        if name != other:
            raise DataError(f"label {n} is {name!r} in {videos.path} and was {other!r} {where}: test on the same data")
