"""The lists that a run trains on, and those that a checkpoint was trained on."""

import logging
import os
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from vidssl.base import distributed
from vidssl.base.errors import ConfigError, DataError, VidsslError, naming
from vidssl.data.find_same_videos import own_rows
from vidssl.data.moving_digits import ensure
from vidssl.data.video_list import VideoList, choose_subset, join_lists, read_list
from vidssl.engine.run_config import Run
from vidssl.evaluation.measure import check_classes
from vidssl.evaluation.train_test_overlap import TrainingVideos
from vidssl.video.reader import state_of_video

_log = logging.getLogger(__name__)
_FEW = 200  # videos: see docs/which.md


def training_list(run: Run) -> VideoList:
    """Read the lists that a run trains on, rendering moving digits first if they are configured and missing."""
    digits = run.data.moving_digits
    if digits is not None:
        distributed.on_main(lambda: ensure(Path(digits.out), digits))
    with naming("data.train"):
        lists = read_lists(run)
    kind, method = run.objective
    needs_labels = kind.needs_labels or kind.classifies
    if len(lists) > 1:
        _check_several(lists, needs_labels)
    videos = join(run, lists)
    unlabelled = int((videos.labels < 0).sum())
    if unlabelled and needs_labels:
        without = f"{unlabelled} of {len(videos)} videos of {videos.path} have none (-1)"
        remedy = "set data.train to a labelled list, or choose another method"
        raise ConfigError(f"{run.method_in_words} needs labels, but {without}: {remedy}")
    classes, key = getattr(method, "classes", None), "method." * (1 if method is run.method else 2) + "classes"
    if not kind.classifies and classes is not None and videos.labels.max() >= classes:
        raise ConfigError(f"{key} is {classes}, and {videos.path} has label {videos.labels.max()}: raise it")
    if kind.classifies:
        assert classes is not None
        count = len(videos.classes) or int(videos.labels.max()) + 1
        if count > classes or (videos.classes and count != classes):
            raise ConfigError(f"{key} is {classes}, and {videos.path} has {count} classes: set {key}={count}")
    return videos


def _check_several(lists: list[VideoList], needs_labels: bool) -> None:
    """Raise a DataError if lists cannot be trained on together."""
    for first, second in combinations(lists, 2):
        if needs_labels:
            check_classes(first, second)
        if len(pairs := own_rows(first, second)):
            count, name = len({*pairs[:, 0].tolist()}), second.names[int(pairs[0, 0])]
            remedy = "keep each in one list; the weight of a list uses its videos more often"
            raise DataError(f"{count} videos of {second.path} are in {first.path} too, the first {name!r}: {remedy}")
    for videos in lists:  # `max_broken` may allow that a short one is missing
        if not any(state_of_video(record.path) for record in videos.records):
            remedy = "set the folder of this list, data.train=[{list: …, root: FOLDER}, …]"
            raise DataError(f"none of the videos of {videos.path} are in {videos.root}: {remedy}")


def warn_of_few(run: Run, videos: VideoList) -> None:
    """Warn if there are too few videos for pre-training to gain from; not of rendered digits, which are a demo."""
    kind, count = run.objective[0], len(videos)
    learns_alone = not (kind.needs_labels or kind.classifies) and run.init is None
    if learns_alone and count < _FEW and run.data.moving_digits is None and distributed.is_main():
        _log.warning(
            "%d videos are few: with fewer than %d, pre-training was no better than the untrained network, except for "
            "motions before one background; add some, start from trained weights, or train with labels",
            count,
            _FEW,
        )


def read_lists(run: Run) -> list[VideoList]:
    """Read the lists that a run trains on, each with the `subset` that is used of it."""
    where = run.data
    lists = [read_list(entry.list, entry.root or where.root, where.allow_external) for entry in where.train_lists]
    return lists if where.subset is None else [choose_subset(videos, where.subset) for videos in lists]


def join(run: Run, lists: Sequence[VideoList]) -> VideoList:
    """Join the lists of `read_lists` to the one that a run trains on."""
    return join_lists(lists, [entry.weight for entry in run.data.train_lists])


def trained_on(run: Run, content: dict[str, Any]) -> TrainingVideos:
    """Return the list that a checkpoint of this content was trained on, if it is still there."""
    return known_lists([entry.list for entry in run.data.train_lists], lambda: join(run, read_lists(run)), content)


def known_lists(paths: Sequence[str], read: Callable[[], VideoList], content: dict[str, Any]) -> TrainingVideos:
    """Return what `read` makes of the lists that a checkpoint of this content was trained on, if they are still there.

    `read` may raise a VidsslError: then they cannot be used.
    """
    name, known = " and ".join(paths), (content.get("fingerprint"), content.get("data"))
    # Neither a pipe that a checkpoint might name, nor an error in a folder that may not be entered.
    if not all(os.path.isfile(path) for path in paths):  # noqa: PTH113
        return TrainingVideos(name, None, "its list is not there", *known)
    try:
        videos = read()
    except (VidsslError, OSError) as error:
        return TrainingVideos(name, None, f"its list cannot be used: {error}", *known)
    return TrainingVideos(name, videos, "", *known)
