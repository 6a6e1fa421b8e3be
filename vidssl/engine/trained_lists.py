"""The lists that a run trains on, and those that a checkpoint was trained on."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vidssl.data.box_list import read_boxes
from vidssl.data.subset import choose
from vidssl.data.video_list import VideoList, join_lists, read_list
from vidssl.engine.config_schema import AnyRun, Run
from vidssl.errors import VidsslError
from vidssl.evaluation.overlap import TrainingVideos


def read_lists(run: Run) -> list[VideoList]:
    """Read the lists that a run trains on, each with the `subset` that is used of it."""
    lists = [read_list(each.list, each.root or run.data.root, run.data.allow_external) for each in run.data.lists]
    return lists if run.data.subset is None else [choose(videos, run.data.subset) for videos in lists]


def join(run: Run, lists: Sequence[VideoList]) -> VideoList:
    """Join the lists of `read_lists` to the one that a run trains on."""
    return join_lists(lists, [each.weight for each in run.data.lists])


def trained_on(run: AnyRun, content: dict[str, Any]) -> TrainingVideos:
    """Return the list that a checkpoint of this content was trained on, if it is still there."""
    if isinstance(run, Run):
        paths = [each.list for each in run.data.lists]
    else:
        paths = [run.data.train] if isinstance(run.data.train, str) else [*run.data.train]
    name, known = " and ".join(paths), (content.get("fingerprint"), content.get("data"))
    # Neither a pipe that a checkpoint might name, nor an error in a folder that may not be entered.
    if not all(os.path.isfile(path) for path in paths):  # noqa: PTH113
        return TrainingVideos(name, None, "its list is not there", *known)
    try:
        if isinstance(run, Run):
            videos = join(run, read_lists(run))
        else:
            videos = read_boxes([Path(path) for path in paths], run.data.root).images_with_objects()
    except (VidsslError, OSError) as error:
        return TrainingVideos(name, None, f"its list cannot be used: {error}", *known)
    return TrainingVideos(name, videos, "", *known)
