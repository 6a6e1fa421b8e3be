"""Which lists can be measured by what, and which of their rows are one video."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from vidssl.data.paths import RealPath
from vidssl.data.video_list import VideoList
from vidssl.errors import ConfigError, DataError
from vidssl.evaluation.protocols import EvaluationProtocol
from vidssl.types import VideoRecord


def check_measurable(
    protocols: Mapping[str, EvaluationProtocol], gallery: VideoList | None, query: VideoList, classes: int
) -> None:
    """See whether protocols can measure a network on lists, before hours of work that would be in vain.

    Args:
        protocols: By name.
        gallery: The list of training videos, if there is one.
        query: The list that is tested.
        classes: How many the network's own classifier has; 0: there is no classifier.

    Raises:
        ConfigError: A protocol needs a gallery or a classifier and there is none, or the classifier does not fit.
        DataError: The lists have other classes or lack labels, or queries are in the list that is learned from.
    """
    asking = [name for name, protocol in protocols.items() if protocol.probabilities]
    if asking and not classes:
        raise ConfigError(
            f"protocol {asking[0]} needs a classifier, and this network has none: it is there after training by the "
            "method supervised; knn, svm, lowshot and retrieval need none"
        )
    if asking and query.classes and len(query.classes) != classes:
        raise ConfigError(
            f"{query.path} has {len(query.classes)} classes, the network's classifier {classes}: test on the data set "
            "that it was trained on"
        )
    highest = int(query.labels.max())
    if asking and highest >= classes:
        raise ConfigError(
            f"{query.path} has labels up to {highest}, the network's classifier {classes} classes, from 0"
        )
    check_lists(protocols, gallery, query)


def check_names(videos: VideoList, names: Sequence[str], there: str) -> None:
    """See whether the labels of a list mean what a classifier has learned by them.

    Args:
        videos: The list that is tested.
        names: Of the classes that were learned; none where they had none.
        there: Where these are from, for the message.

    Raises:
        DataError: A class has another name.
    """
    if len(videos.classes) != len(names):
        return  # there are no names on one side; that there are too few or too many `check_measurable` tells
    for n, (here, learned) in enumerate(zip(videos.classes, names, strict=True)):
        if here != learned:
            raise DataError(
                f"label {n} is {here!r} in {videos.path} and was {learned!r} {there}: test on lists of the same data "
                "set"
            )


def check_lists(
    protocols: Mapping[str, EvaluationProtocol], gallery: VideoList | None, query: VideoList
) -> None:
    """See whether lists can be measured, before hours of work that would be in vain.

    Raises:
        ConfigError: A protocol needs a gallery and there is none.
        DataError: The lists have other classes or lack labels, or queries are in the list that is learned from.
    """
    for name, protocol in protocols.items():
        if protocol.gallery and gallery is None:
            raise ConfigError(f"protocol {name} compares with training videos: name their list too")
        for videos in (gallery, query):
            if protocol.labels and videos is not None and (videos.labels < 0).any():
                raise DataError(f"protocol {name} needs labels, and videos of {videos.path} have none")
    if gallery is None:
        return
    check_classes(gallery, query)
    learning = [name for name, protocol in protocols.items() if protocol.learns]
    if learning:
        check_apart(gallery, query, ", ".join(learning))
    for name in learning:
        protocols[name].check(torch.from_numpy(gallery.labels))


def check_classes(gallery: VideoList, query: VideoList) -> None:
    """See whether two lists mean the same by their labels.

    Raises:
        DataError: They name different classes.
    """
    if gallery.classes == query.classes:
        return
    place = next(
        (n for n, pair in enumerate(zip(gallery.classes, query.classes, strict=False)) if pair[0] != pair[1]),
        min(len(gallery.classes), len(query.classes)),
    )
    raise DataError(
        f"{gallery.path} and {query.path} have different classes.txt ({len(gallery.classes)} and "
        f"{len(query.classes)} classes, {place} is the first that differs): a label must mean the same in both"
    )


def check_apart(learned: VideoList, query: VideoList, learner: str) -> None:
    """See whether no query is in the list that is learned from.

    Args:
        learned: What is learned from.
        query: The list that is tested.
        learner: Who learns, for the message.

    Raises:
        DataError: A query is, or shares time with one of its spans.
    """
    own = own_rows(learned, query)
    if len(own):
        raise DataError(
            f"{len(set(own[:, 0].tolist()))} videos of {query.path} are in {learned.path} too, the first "
            f"{query.names[int(own[0, 0])]!r}: {learner} would have seen the answers; use disjoint lists"
        )


def own_rows(gallery: VideoList, query: VideoList) -> Tensor:
    """Find each query in the gallery: (P, 2) pairs of a query row and a gallery row. A video must not find itself.

    That is every span of the same file, under whatever links it has, that shares time with the query's; other spans of
    the file do count.
    """
    real_path = RealPath()

    def file(record: VideoRecord) -> str:
        return real_path(record.path) or record.path  # links that form a loop lead nowhere

    rows: dict[str, list[int]] = {}
    for n, record in enumerate(gallery.records):
        rows.setdefault(file(record), []).append(n)
    pairs = [
        (n, row)
        for n, record in enumerate(query.records)
        for row in rows.get(file(record), ())
        if _share_time(record, gallery.records[row])
    ]
    return torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2)


def _share_time(one: VideoRecord, other: VideoRecord) -> bool:
    start = max(one.start or 0.0, other.start or 0.0)
    return all(record.end is None or start < record.end for record in (one, other))
