"""Batches in an order that is a function of the step alone, on any number of workers and processes."""

import logging
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vidssl import distributed
from vidssl.data.dataset import ClipDataset, first_few
from vidssl.errors import ConfigError, DataError
from vidssl.randomness import generator
from vidssl.types import Batch, Sample
from vidssl.workers import ItemGuard, ordered

_log = logging.getLogger(__name__)

Key = tuple[int, int]  # (epoch, index)


def keys_of_step(step: int, batch_size: int, num_records: int, seed: int) -> list[Key]:
    """List the (epoch, index) keys of the global batch of a step.

    Epochs follow one another without a gap: a batch may end one and begin the next, so that every record is
    used equally often and none is dropped.
    """
    places = range(step * batch_size, (step + 1) * batch_size)
    return [
        (p // num_records, int(_order(seed, p // num_records, num_records)[p % num_records])) for p in places
    ]


@lru_cache(maxsize=4)
def _order(seed: int, epoch: int, num_records: int) -> NDArray[np.int64]:
    return generator(seed, epoch).permutation(num_records)


class StepSampler:
    """The micro-batches of one process for the steps start … stop - 1.

    Args:
        num_records: Length of the data set.
        batch_size: Global.
        micro_batch_size: Of one process.
        start: First step.
        stop: The step before which it ends.
        seed: Of the run.
        rank: This process takes the rank-th slice of each global batch.
        world: Number of processes.
    """

    def __init__(
        self,
        num_records: int,
        batch_size: int,
        micro_batch_size: int,
        start: int,
        stop: int,
        seed: int,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        if batch_size > num_records:
            raise ConfigError(
                f"batch_size {batch_size} is more than the {num_records} records of the list: lower it"
            )
        if batch_size % world:
            raise ConfigError(f"batch_size {batch_size} is not a multiple of {world} processes")
        if batch_size % (world * micro_batch_size):
            raise ConfigError(
                f"batch_size {batch_size} is not a multiple of {world} processes x micro_batch_size {micro_batch_size}"
            )
        self._num_records, self._batch_size, self._micro = num_records, batch_size, micro_batch_size
        self._steps, self._seed, self._rank, self._world = range(start, stop), seed, rank, world

    def __len__(self) -> int:
        return len(self._steps) * (self._batch_size // self._world // self._micro)

    def __iter__(self) -> Iterator[list[Key]]:
        share = self._batch_size // self._world
        for step in self._steps:
            keys = keys_of_step(step, self._batch_size, self._num_records, self._seed)
            mine = keys[self._rank * share : (self._rank + 1) * share]
            for first in range(0, share, self._micro):
                yield mine[first : first + self._micro]


def train_loader(
    dataset: ClipDataset,
    sampler: StepSampler,
    workers: int,
    timeout: float | None = None,
    prefetch: int = 2,
) -> "Loader":
    """Make the loader of a run; its whole state is the step that the sampler starts from.

    As many videos may hang or kill a worker as the data set replaces.
    """
    return Loader(dataset, sampler, workers, timeout, dataset.replace, prefetch)


def eval_loader(
    dataset: ClipDataset,
    batch_size: int,
    workers: int,
    rank: int = 0,
    world: int = 1,
    timeout: float | None = None,
    prefetch: int = 2,
) -> "Loader":
    """Make a loader that gives each video exactly once, in order: this process's every world-th video."""
    mine = range(rank, len(dataset), world)
    chunks = [
        [(0, index) for index in mine[first : first + batch_size]]
        for first in range(0, len(mine), batch_size)
    ]
    return Loader(dataset, chunks, workers, timeout, len(dataset) if dataset.skip else 0, prefetch)


class Loader:
    """Batches, made by worker processes that survive the videos they read.

    Args:
        dataset: Of the samples.
        batches: The keys of each batch.
        workers: Processes; with 0 this one makes the batches, and neither hangs nor crashes are survived.
        timeout: Seconds that one video may take before its worker is stopped and it counts as broken.
        max_lost: Videos that may hang or kill their worker; one more is an error.
        prefetch: Batches that each worker prefetches. Which batches they are does not depend on it.
    """

    def __init__(
        self,
        dataset: ClipDataset,
        batches: StepSampler | Sequence[list[Key]],
        workers: int,
        timeout: float | None = None,
        max_lost: int = 0,
        prefetch: int = 2,
    ) -> None:
        self.batches = batches
        self.workers, self.prefetch = workers, prefetch
        self._dataset, self._timeout, self._max_lost = dataset, timeout, max_lost
        self._logged = False

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Generator[Batch, None, None]:
        lost: list[str] = []
        # Batches in flight.
        begun: deque[list[Key]] = deque(maxlen=self.workers * self.prefetch)

        def keys() -> Iterator[list[Key]]:
            for batch in self.batches:
                begun.append(batch)
                yield batch

        def on_failure(item: int, reason: str) -> None:
            num_records = len(self._dataset)
            lost.append(f"{self._dataset.videos.records[item].path}: {reason}")
            # The batch asked for this record, or for one shortly before it whose place it takes.
            batch = min(begun, key=lambda keys: min((item - index) % num_records for _, index in keys))
            _log.warning("%s; it was read for the batch of the records %s", lost[-1], [n for _, n in batch])
            if len(lost) > self._max_lost:
                raise DataError(
                    f"{first_few(lost)}; {len(lost)} of {num_records} videos hung or ended a worker; the "
                    f"limit is {self._max_lost}: correct the list or raise data.max_broken "
                    "(evaluation: --allow-missing)"
                )

        # No name here holds a batch: its memory is the consumer's to free.
        yield from map(
            self._counted,
            ordered(
                self._make,
                keys(),
                self.workers,
                timeout=self._timeout,
                ahead=self.prefetch,
                on_failure=on_failure,
            ),
        )

    def _make(self, keys: list[Key], guard: ItemGuard) -> "_Stacked":
        if self.workers:
            torch.set_num_threads(1)  # in a worker: they share the cores already
        return _stack([self._dataset.sample(key, guard) for key in keys])

    def _counted(self, stacked: "_Stacked") -> Batch:
        """Make a batch; of the first one log the memory that all take which workers have made in advance."""
        if self.workers and stacked.views and not self._logged and distributed.is_main():
            self._logged = True
            masks = 0 if stacked.mask is None else stacked.mask.nbytes
            each = (sum(view.nbytes for view in stacked.views) + masks) / 1e6
            _log.info(
                "the loader holds up to %s MB in each process: %d data.workers x %d data.prefetch x %s MB a batch",
                f"{self.workers * self.prefetch * each:,.0f}",
                self.workers,
                self.prefetch,
                f"{each:,.1f}",
            )
        return _batch(stacked)


@dataclass(frozen=True)
class _Stacked:
    """What a worker sends."""

    views: list[NDArray[np.uint8]]  # each (B, T, S, S, C)
    label: list[int]
    index: list[int]
    replaced: tuple[tuple[str, str], ...]
    boxes: NDArray[np.float32] | None  # (B, views, 4)
    mask: NDArray[np.uint8] | None  # (B, S, S)


def collate(samples: Sequence[Sample]) -> Batch:
    """Stack samples; views stay uint8 and channels last in memory. Samples without views are left out."""
    return _batch(_stack(samples))


def _stack(samples: Sequence[Sample]) -> _Stacked:
    whole = [sample for sample in samples if sample.views]
    clips = zip(*(sample.views for sample in whole), strict=True)
    # All samples of a data set have them, or none has.
    boxes = [sample.boxes for sample in whole if sample.boxes is not None]
    masks = [sample.mask for sample in whole if sample.mask is not None]
    return _Stacked(
        [np.stack([clip.transpose(0, 2, 3, 1) for clip in view]) for view in clips],  # contiguous
        [sample.label for sample in whole],
        [sample.index for sample in whole],
        tuple(pair for sample in samples for pair in sample.replaced),
        np.stack(boxes) if boxes else None,
        np.stack(masks) if masks else None,
    )


def _batch(stacked: _Stacked) -> Batch:
    return Batch(
        tuple(torch.from_numpy(view).permute(0, 1, 4, 2, 3) for view in stacked.views),
        torch.tensor(stacked.label, dtype=torch.int64),
        torch.tensor(stacked.index, dtype=torch.int64),
        stacked.replaced,
        None if stacked.boxes is None else torch.from_numpy(stacked.boxes),
        None if stacked.mask is None else torch.from_numpy(stacked.mask),
    )


def on_device(
    loader: Loader, device: torch.device, mean: Sequence[float] | None = None, std: Sequence[float] = (1.0,)
) -> Generator[Batch, None, None]:
    """Yield the batches of a loader as `to_device` makes them; without `mean` their views stay uint8 (`transfer`).

    On a GPU a batch travels, as uint8 from pinned memory and on a stream of its own, while the one before it is
    computed on.
    """

    def move(batch: Batch) -> Batch:
        return transfer(batch, device) if mean is None else to_device(batch, device, mean, std)

    with closing(iter(loader)) as batches:
        if device.type != "cuda":
            yield from map(move, batches)
            return
        side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        before: Batch | None = None
        arrived = side.record_event()
        for last in chain(batches, [None]):
            raw: Batch | None = last
            coming: Batch | None = None
            if raw is not None:
                with torch.cuda.stream(side):
                    coming = move(_pinned(raw))
            if before is not None:
                torch.cuda.current_stream(device).wait_event(arrived)
                for tensor in (*before.views, before.label, before.index, before.boxes, before.mask):
                    if tensor is not None:
                        tensor.record_stream(torch.cuda.current_stream(device))
                yield before
            before, arrived = coming, side.record_event()


def _pinned(batch: Batch) -> Batch:
    """The same batch where a GPU can fetch it from while the processor goes on."""
    return Batch(
        tuple(view.pin_memory() for view in batch.views),
        batch.label.pin_memory(),
        batch.index.pin_memory(),
        batch.replaced,
        None if batch.boxes is None else batch.boxes.pin_memory(),
        None if batch.mask is None else batch.mask.pin_memory(),
    )


def to_device(batch: Batch, device: torch.device, mean: Sequence[float], std: Sequence[float]) -> Batch:
    """Move a batch to the device and make its uint8 views (B, T, C, S, S) what networks take; masks become int64."""
    moved = transfer(batch, device)
    return replace(moved, views=tuple(normalised(view, mean, std) for view in moved.views))


def transfer(batch: Batch, device: torch.device) -> Batch:
    """Move a batch to the device; its views stay uint8 (B, T, C, S, S), masks become int64."""
    label, index = (x.to(device, non_blocking=True) for x in (batch.label, batch.index))
    boxes = None if batch.boxes is None else batch.boxes.to(device, non_blocking=True)
    mask = None if batch.mask is None else batch.mask.to(device, non_blocking=True).long()
    views = tuple(view.to(device, non_blocking=True) for view in batch.views)
    return Batch(views, label, index, batch.replaced, boxes, mask)


def normalised(view: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Make what networks take of a uint8 view (B, T, C, S, S): float (B, C, T, S, S), normalised.

    This is the one place where pixels become float, are normalised with the `mean` and `std` of [0, 1] values, and
    change their order; in memory the result is `channels_last_3d` without a copy.
    """
    # (C,), one value or one for each channel
    shift = torch.tensor(mean, device=view.device).view(1, -1, 1, 1, 1)
    scale = torch.tensor(std, device=view.device).view(1, -1, 1, 1, 1)
    return (view.permute(0, 2, 1, 3, 4).float() / 255 - shift) / scale
