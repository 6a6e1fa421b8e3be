"""Whether tested videos are in the gallery or in the list that the network was trained on: errors, warnings, counts."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from vidssl.base import distributed
from vidssl.base.command_line_and_notices import log_once
from vidssl.base.config import Tree
from vidssl.base.errors import DataError, how_many
from vidssl.base.types import VideoRecord
from vidssl.data.allowed_paths import RealPath
from vidssl.data.find_same_videos import Overlap, find_overlap
from vidssl.data.list_identity import identify
from vidssl.data.video_list import VideoList

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainingVideos:
    """The list that a network was trained on, as far as it is known."""

    name: str  # its file, or several
    videos: VideoList | None = None
    reason: str = ""  # why there are no `videos`
    fingerprint: str | None = None  # of the list when the network was trained; None: not known
    data: Tree | None = None  # of its files then, as in `identify`

    @property
    def changed(self) -> bool | None:
        """Whether the list has other rows now; None if it is not known: exported weights have no fingerprint."""
        if self.videos is None or self.fingerprint is None:
            return None
        return self.fingerprint != self.videos.fingerprint


def check_disjoint(train: VideoList, query: VideoList, learner: str) -> None:
    """Raise a DataError if a tested video, or a span that overlaps it, is in the training list of the `learner`.

    Files are compared by path and by content. All processes call this together: the main one reads the files.
    """
    distributed.on_main(partial(_check_disjoint, train, query, learner))


def _check_disjoint(train: VideoList, query: VideoList, learner: str) -> None:
    overlap = find_overlap(query, train, by_name=identify(query)["copies"] != identify(train)["copies"])
    pairs = torch.cat([overlap.same, overlap.copies])
    if len(pairs):
        n, row = pairs[0].tolist()
        shared = f"{len(torch.unique(pairs[:, 0]))} videos of {query.path} are in {train.path} too"
        first = repr(query.names[n]) + ("" if len(overlap.same) else f" (there {train.names[row]!r}, a copy)")
        remedy = f"{learner} would be tested on training videos; use disjoint lists"
        raise DataError(f"{shared}, the first {first}: {remedy}")


def measure_overlap(query: VideoList, gallery: VideoList | None, training: Callable[[], TrainingVideos] | None) -> Tree:
    """Count the tested videos that are in the gallery, and those that are in the list of the training.

    This is `overlap` in `results.json`; docs/result_files.md describes it. `training` reads the list that the network
    was trained on; None: it is untrained. All processes call this together.
    """
    return distributed.on_main(partial(_count_overlaps, query, gallery, training))


def _count_overlaps(query: VideoList, gallery: VideoList | None, training: Callable[[], TrainingVideos] | None) -> Tree:
    return {
        "gallery": None if gallery is None else describe_overlap(query, gallery, find_overlap(query, gallery)),
        "training": None if training is None else _describe_training(query, training()),
    }


def describe_overlap(query: VideoList, gallery: VideoList, overlap: Overlap) -> Tree:
    """Describe the overlap of a tested list with a gallery, as plain data.

    In a search within one list a video does not count for itself, only for its copies.
    """
    pairs = overlap.copies if overlap.one_list else torch.cat([overlap.same, overlap.copies])
    return {"list": str(gallery.path), "one_list": overlap.one_list, **_counts(query, gallery, overlap, pairs)}


def _describe_training(query: VideoList, training: TrainingVideos) -> Tree:
    known = {"list": training.name, "fingerprint": training.fingerprint}
    if training.videos is None:
        return {**known, "not_checked": training.reason}
    other_kind = training.data is not None and training.data["copies"] != identify(query)["copies"]
    # A network may be tested on its own training list: there a video counts under its own name.
    overlap = replace(find_overlap(query, training.videos, by_name=other_kind), one_list=False)
    counts = _counts(query, training.videos, overlap, torch.cat([overlap.same, overlap.copies]))
    return {**known, "changed": training.changed, **counts}


def _counts(query: VideoList, videos: VideoList, overlap: Overlap, pairs: Tensor) -> Tree:
    shared, same = {*pairs[:, 0].tolist()}, {*overlap.same[:, 0].tolist()}
    groups = {n: group for n, group in overlap.groups.items() if n not in shared}
    return {
        "tested": len(query),
        "videos": len(shared),
        "copies": len({*overlap.copies[:, 0].tolist()} - (set() if overlap.one_list else same)),
        "groups": len({*groups.values()}),
        "group_videos": len(groups),
        "missing": overlap.missing,
        "first": [query.names[int(pairs[0, 0])], videos.names[int(pairs[0, 1])]] if len(pairs) else None,
    }


def count_equal_features(
    query: Tensor, gallery: Tensor, query_records: Sequence[VideoRecord], gallery_records: Sequence[VideoRecord]
) -> int:
    """Count the queries (Q, D) whose features are bit by bit those of a gallery row (N, D) of another file.

    They may be copies in another container, whose bytes differ, or the network returns the same for all videos.
    """
    real_path = RealPath()
    files: dict[bytes, list[str]] = {}  # two different files of each feature are enough
    for row, record in zip(gallery.numpy(), gallery_records, strict=True):
        known = files.setdefault(row.tobytes(), [])
        if len(known) < 2 and (file := real_path(record.path)) not in known:
            known.append(file)
    return sum(
        any(file != real_path(record.path) for file in files.get(row.tobytes(), ()))
        for row, record in zip(query.numpy(), query_records, strict=True)
    )


def report_overlap(overlap: Tree, query: object, *, measured: bool = True, remedy: str = "use disjoint lists") -> None:
    """Log what `measure_overlap` has counted for the list `query`; called on the main process.

    Videos that are shared are warnings. So are shared recordings, unless the search is within one list or nothing is
    `measured`: then they are information, as is a list that could not be compared.
    """
    gallery, training = overlap["gallery"], overlap["training"]
    both = gallery and training and gallery["list"] == training["list"] and not gallery["one_list"]
    if gallery and not both:
        where = "this list" if gallery["one_list"] else f"the gallery {gallery['list']}"
        _report(gallery, query, where, measured, remedy)
    if training and "not_checked" in training:
        text = f"{query} was not compared with the list that the network was trained on, {training['list']}"
        log_once(_log, logging.INFO, f"{text}: {training['not_checked']}")
    elif training:
        where = f"{'the gallery and ' if both else ''}the list that the network was trained on, {training['list']}"
        _report(training, query, where + ", which has changed since," * bool(training["changed"]), measured, "")
        if training["missing"]:
            text = f"{training['missing']} files of {training['list']}, which the network was trained on, are not there"
            log_once(_log, logging.INFO, f"{text}: {query} was compared with them by path only")


def _report(counts: Tree, query: object, where: str, measured: bool, remedy: str) -> None:
    one_list, ending = counts.get("one_list", False), f"; {remedy}" if remedy else ""
    if counts["videos"]:
        text = f"{counts['videos']} of {counts['tested']} videos of {query} are in {where}"
        text += " under another name" if one_list else f" too ({counts['copies']} under another name)"
        log_once(_log, logging.WARNING, f"{text}, the first: {' = '.join(counts['first'])}{ending}")
    if counts["group_videos"]:
        level = logging.WARNING if measured and not one_list else logging.INFO
        text = f"{counts['group_videos']} of {how_many(counts['tested'], 'video')} of {query} are of "
        text += how_many(counts["groups"], "recording")
        what = "has more than one video" if one_list else "has other videos"
        advice = "" if level == logging.INFO else "; split lists by recording"
        log_once(_log, level, f"{text} (v_…_gNN_… in their names) of which {where} {what}{advice}")


def report_equal_features(overlap: Tree, query: object, remedy: str = "") -> None:
    """Log how many tested videos have the features of a gallery video of another path, if these are not the copies."""
    counts = overlap["gallery"]
    if counts and (equal := counts.get("equal_features", 0)) > counts["copies"]:
        text = f"{equal} of {counts['tested']} videos of {query} have bit by bit the features of a video of another"
        where = f"path in {counts['list']}, {counts['copies']} of them as copies of its file"
        log_once(_log, logging.WARNING, f"{text} {where}{f'; {remedy}' if remedy else ''}")
