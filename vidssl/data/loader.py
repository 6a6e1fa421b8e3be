"""Loaders: batches made by worker processes, in an order that is a function of the step alone.

Samples of one file in a batch, such as the windows of a long video, have one pass of the decoder.
"""

import logging
from bisect import bisect
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import accumulate, groupby

import numpy as np
from numpy.typing import NDArray

from vidssl.base.errors import ConfigError, DataError, FramesOutOfOrderError, first_few
from vidssl.base.keyed_generators import generator
from vidssl.base.types import Batch, DrawnOperations, Sample
from vidssl.base.worker_pool import ItemGuard, ordered
from vidssl.data.dataset import ClipDataset, PlannedSample
from vidssl.data.video_list import ListPart, VideoList
from vidssl.transforms.batched import grouped
from vidssl.video.decode import Image

SampleKey = tuple[int, int]  # (epoch, index)


def keys_of_step(
    step: int, batch_size: int, num_records: int, seed: int, joined: Sequence[ListPart] = ()
) -> list[SampleKey]:
    """Return the (epoch, index) keys of the global batch of a step; no two keys of a run are equal.

    Epochs follow each other without a gap: a batch may span two of them, so that every record is used equally often and
    none is dropped. Lists that are `joined` are evenly mixed: of any number of first samples each list has its fraction
    up to (lists - 1) / 2. The epoch in a key counts the passes over the record's own list.
    """
    parts = joined or (ListPart(num_records, num_records),)
    lengths, samples = (tuple(column) for column in zip(*parts, strict=True))
    first_rows, first_samples = ([*accumulate(column, initial=0)] for column in (lengths, samples))
    order, permutations = _mixed(samples), _permutations(seed, lengths)
    keys = []
    for n in range(step * batch_size, (step + 1) * batch_size):
        epoch, position = divmod(n, len(order))
        sample = int(order[position])
        part = bisect(first_samples, sample) - 1
        list_epoch, row = divmod(epoch * samples[part] + sample - first_samples[part], lengths[part])
        keys.append((list_epoch, first_rows[part] + int(permutations[part](list_epoch)[row])))
    return keys


@lru_cache(maxsize=2)
def _mixed(samples: tuple[int, ...]) -> NDArray[np.int64]:
    """Return the order of the samples of an epoch, numbered list by list: those of each list are equally far apart."""
    return np.argsort(np.concatenate([(np.arange(count) + 0.5) / count for count in samples]), kind="stable")


@lru_cache(maxsize=2)
def _permutations(seed: int, lengths: tuple[int, ...]) -> list[Callable[[int], NDArray[np.int64]]]:
    """Return the order of each list as a function of its epoch; two are kept, as a batch may span two epochs."""
    lists = enumerate(lengths)
    return [lru_cache(maxsize=2)(partial(_permutation, seed, (n,) if n else (), length)) for n, length in lists]


def _permutation(seed: int, number: tuple[int, ...], num_records: int, epoch: int) -> NDArray[np.int64]:
    return generator(seed, epoch, *number).permutation(num_records)


@dataclass(frozen=True)
class StepSampler:
    """The micro-batches of one process for the steps start … stop - 1: a batch sampler."""

    num_records: int
    batch_size: int  # global
    micro_batch_size: int  # of one process
    start: int
    stop: int
    seed: int
    rank: int = 0  # takes the rank-th slice of each global batch
    world: int = 1  # number of processes
    joined: tuple[ListPart, ...] = ()  # the lists that the records are of; empty: one list

    def __post_init__(self) -> None:
        size, world, micro = self.batch_size, self.world, self.micro_batch_size
        if size > self.num_records:
            most = f"batch_size={self.num_records} at most"
            raise ConfigError(f"batch_size {size} is more than the {self.num_records} records of the list: {most}")
        for number, part in enumerate(self.joined):
            taken = size * part.samples / sum(joined.samples for joined in self.joined)
            if taken > part.records:
                limit = f"a list of {part.records}: lower its weight or the batch size"
                raise ConfigError(f"batch_size {size} has {taken:.1f} videos of data.train.{number}, {limit}")
        if size % (world * micro):
            raise ConfigError(f"batch_size {size} is not a multiple of {world} processes x micro_batch_size {micro}")

    def __len__(self) -> int:
        return (self.stop - self.start) * (self.batch_size // self.world // self.micro_batch_size)

    def __iter__(self) -> Iterator[list[SampleKey]]:
        local = self.batch_size // self.world
        for step in range(self.start, self.stop):
            keys = keys_of_step(step, self.batch_size, self.num_records, self.seed, self.joined)
            mine = keys[self.rank * local : (self.rank + 1) * local]
            for first in range(0, local, self.micro_batch_size):
                yield mine[first : first + self.micro_batch_size]


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


def make_samples(dataset: ClipDataset, keys: Sequence[SampleKey], guard: ItemGuard) -> list[Sample]:
    """Make the samples of keys as `dataset.sample` does; keys of one file that follow each other share a pass."""
    samples: list[Sample] = []
    for _, group in groupby(keys, key=lambda key: _file(dataset, key[1])):
        together = list(group)
        shared: dict[SampleKey, Sample] = {}
        if len(together) > 1 and not dataset.reading.changes_frames:
            with suppress(FramesOutOfOrderError):  # from now on the frames of this file are counted
                shared = _one_pass(dataset, together, guard)
        # What failed there is made on its own: the error, and what it affects, are as without the common pass.
        samples += [shared.get(key) or dataset.sample(key, guard) for key in together]
    return samples


def _file(dataset: ClipDataset, index: int) -> tuple[str, float | None]:
    record = dataset.videos.records[index]
    return record.path, record.fps


def _one_pass(dataset: ClipDataset, keys: Sequence[SampleKey], guard: ItemGuard) -> dict[SampleKey, Sample]:
    """Make samples of one file; those that cannot be made are left out.

    A sample is made when its last frame is decoded. A frame is kept until the last sample that needs it is made, so
    memory holds the frames of the samples that overlap, whatever their number.
    """
    samples: dict[SampleKey, Sample] = {}
    keys = [key for key in keys if key[1] not in guard.failed]
    if not keys:
        return samples
    guard.at(keys[0][1])
    with suppress(DataError), dataset.reading.open(dataset.videos.records[keys[0][1]]) as video:
        waiting: dict[SampleKey, PlannedSample] = {}
        for key in keys:
            guard.at(key[1])
            with suppress(DataError):
                waiting[key] = dataset.plan(key, video.meta)
        if not waiting:
            return samples
        guard.at(next(iter(waiting))[1])
        users: defaultdict[int, list[SampleKey]] = defaultdict(list)  # of each frame
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
                    samples[key] = dataset.assemble(planned, planned.views.make(frames, dataset.on_device))
                if waiting:  # what is decoded next is for the next one
                    guard.at(next(iter(waiting))[1])
    return samples


_log = logging.getLogger(__name__)


@dataclass
class Loader:
    """Batches, made by worker processes; a video that makes its worker hang or crash counts as broken.

    At most `dataset.replace` videos may do so, with `dataset.skip` all. The whole state of a loader is where its
    sampler starts.
    """

    dataset: ClipDataset
    batches: StepSampler | Sequence[list[SampleKey]]  # the keys of each batch
    workers: int  # processes; with 0 this process makes the batches, and a hang or crash is not caught
    timeout: float | None = None  # seconds for one video; after that its worker is stopped and it counts as broken

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Generator[Batch, None, None]:
        on_failure = partial(self._add_lost, [])
        # No variable refers to a batch, so that the consumer can free its memory.
        yield from ordered(self._stack, self.batches, self.workers, timeout=self.timeout, on_failure=on_failure)

    def _add_lost(self, lost: list[str], item: int, reason: str) -> None:
        """Note a video that made a worker hang or crash; a DataError if they are too many."""
        lost.append(f"{self.dataset.videos.records[item].path}: {reason}")
        _log.warning(lost[-1])
        limit = len(self.dataset) if self.dataset.skip else self.dataset.replace
        if len(lost) > limit:
            counts = f"{len(lost)} of {len(self.dataset)} videos made a worker hang or crash; the limit is {limit}"
            raise DataError(f"{first_few(lost, separator='; ')}; {counts}: correct the list or {self.dataset.remedy}")

    def _stack(self, keys: list[SampleKey], guard: ItemGuard) -> Batch:
        """Make the samples of a batch, and stack them."""
        # Each as `dataset.sample` makes it; rows of one file that follow each other share a decode.
        samples = make_samples(self.dataset, keys, guard)
        whole = [sample for sample in samples if sample.views]
        clips = zip(*(sample.views for sample in whole), strict=True)
        # All samples of a dataset have boxes, or none; likewise masks.
        boxes = [sample.boxes for sample in whole if sample.boxes is not None]
        masks = [sample.mask for sample in whole if sample.mask is not None]
        operations = zip(*(sample.operations for sample in whole), strict=True)
        return Batch.of_arrays(
            tuple(np.stack([clip.transpose(0, 2, 3, 1) for clip in view]) for view in clips),  # contiguous
            np.array([sample.label for sample in whole], np.int64),
            np.array([sample.index for sample in whole], np.int64),
            tuple(pair for sample in samples for pair in sample.replaced),
            np.stack(boxes) if boxes else None,
            np.stack(masks) if masks else None,
            tuple(DrawnOperations.of_arrays(*grouped(view)) for view in operations),
        )


def eval_loader(
    dataset: ClipDataset,
    batch_size: int,
    workers: int,
    rank: int = 0,
    world: int = 1,
    timeout: float | None = None,
    rows: Sequence[int] | None = None,
) -> Loader:
    """Make a loader for evaluation: this process's part of the videos, exactly once and in order.

    That is every world-th video; up to 64 rows of one file that follow each other stay together (`file_numbers`).
    With `rows` only these rows of the list are divided among the processes.
    """
    divided = np.arange(len(dataset)) if rows is None else np.asarray(rows, int)
    numbers = np.unique(file_numbers(dataset.videos)[divided], return_inverse=True)[1]
    mine = divided[numbers % world == rank].tolist()
    chunks = [[(0, index) for index in mine[first : first + batch_size]] for first in range(0, len(mine), batch_size)]
    return Loader(dataset, chunks, workers, timeout)
