"""Samples of one file with one pass of the decoder: the windows of a long video, and other lists of spans."""

from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from vidssl.data.dataset import ClipDataset, PlannedSample
from vidssl.data.step_sampler import Key
from vidssl.data.video_list import VideoList
from vidssl.errors import DataError, FramesOutOfOrderError
from vidssl.types import Sample
from vidssl.video.decode import Image
from vidssl.worker_pool import ItemGuard

_TOGETHER = 64  # most rows of a file that one process gets in a row: so several processes can share a long video


def file_numbers(videos: VideoList) -> NDArray[np.int64]:
    """Number the files of a list (N,): rows that follow each other and name the same file have one number.

    After 64 such rows a new number begins. In a list that names each file once the numbers are those of the rows.
    """
    names = videos.names
    begins = np.ones(len(names), bool)
    before, length = "", 0
    for n, name in enumerate(names):
        length = length + 1 if name == before and length < _TOGETHER else 1
        begins[n] = length == 1
        before = name
    return np.cumsum(begins) - 1


def make_samples(dataset: ClipDataset, keys: Sequence[Key], guard: ItemGuard) -> list[Sample]:
    """Make the samples of keys as `dataset.sample` does; keys of one file that follow each other share a pass."""
    samples: list[Sample] = []
    for _, group in groupby(keys, key=lambda key: _file(dataset, key[1])):
        together = list(group)
        made: dict[Key, Sample] = {}
        if len(together) > 1 and not dataset.reading.changes_frames:
            with suppress(FramesOutOfOrderError):  # from now on the frames of this file are counted
                made = _one_pass(dataset, together, guard)
        # What failed there is made on its own: the error, and what it affects, are as without the common pass.
        samples += [made.get(key) or dataset.sample(key, guard) for key in together]
    return samples


def _file(dataset: ClipDataset, index: int) -> tuple[str, float | None]:
    record = dataset.videos.records[index]
    return record.path, record.fps


def _one_pass(dataset: ClipDataset, keys: Sequence[Key], guard: ItemGuard) -> dict[Key, Sample]:
    """Make samples of one file; those that cannot be made are left out.

    A sample is made when its last frame is decoded. A frame is kept until the last sample that needs it is made, so
    memory holds the frames of the samples that overlap, whatever their number.
    """
    made: dict[Key, Sample] = {}
    keys = [key for key in keys if key[1] not in guard.failed]
    if not keys:
        return made
    guard.at(keys[0][1])
    with suppress(DataError), dataset.reading.open(dataset.videos.records[keys[0][1]]) as video:
        waiting: dict[Key, PlannedSample] = {}
        for key in keys:
            guard.at(key[1])
            with suppress(DataError):
                waiting[key] = dataset.plan(key, video.meta)
        if not waiting:
            return made
        guard.at(next(iter(waiting))[1])
        users: defaultdict[int, list[Key]] = defaultdict(list)  # of each frame
        for key, planned in waiting.items():
            for number in planned.frames.tolist():
                users[number].append(key)
        lacking = {key: len(planned.frames) for key, planned in waiting.items()}
        images: dict[int, Image] = {}
        for number, image in video.fetch(np.array(sorted(users))):
            images[number] = image
            for key in list(users[number]):
                lacking[key] -= 1
                if lacking[key]:
                    continue
                guard.at(key[1])
                planned = waiting.pop(key)
                numbers = planned.frames.tolist()
                frames = np.stack([images[n] for n in numbers]).transpose(0, 3, 1, 2)
                for n in numbers:
                    users[n].remove(key)
                    if not users[n]:
                        del images[n]
                with suppress(DataError):
                    made[key] = dataset.assemble(planned, planned.views.make(frames, dataset.on_device))
                if waiting:  # what is decoded next is for the next one
                    guard.at(next(iter(waiting))[1])
    return made
