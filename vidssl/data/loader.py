"""Loaders: batches made by worker processes, and their way to the device."""

import logging
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vidssl import distributed
from vidssl.data.dataset import ClipDataset, first_few
from vidssl.data.step_sampler import Key, StepSampler
from vidssl.errors import DataError
from vidssl.types import Batch, Sample
from vidssl.workers import ItemGuard, ordered

_log = logging.getLogger(__name__)


def train_loader(
    dataset: ClipDataset, sampler: StepSampler, workers: int, timeout: float | None = None, prefetch: int = 2
) -> "Loader":
    """Make the loader of a run; its whole state is the step that the sampler starts from.

    At most `dataset.replace` videos may make a worker hang or crash.
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
    """Make a loader for evaluation: this process's videos, every world-th one, exactly once and in order."""
    mine = range(rank, len(dataset), world)
    chunks = [[(0, index) for index in mine[first : first + batch_size]] for first in range(0, len(mine), batch_size)]
    return Loader(dataset, chunks, workers, timeout, len(dataset) if dataset.skip else 0, prefetch)


@dataclass
class Loader:
    """Batches, made by worker processes; a video that makes its worker hang or crash counts as broken."""

    dataset: ClipDataset
    batches: StepSampler | Sequence[list[Key]]  # the keys of each batch
    workers: int  # processes; with 0 this process makes the batches, and a hang or crash is not caught
    timeout: float | None = None  # seconds for one video; after that its worker is stopped and it counts as broken
    max_lost: int = 0  # videos that may make their worker hang or crash; one more is an error
    prefetch: int = 2  # batches that each worker prefetches; their order does not depend on it
    _logged: bool = field(default=False, init=False)

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Generator[Batch, None, None]:
        lost: list[str] = []
        begun: deque[list[Key]] = deque(maxlen=self.workers * self.prefetch)  # batches in flight

        def keys() -> Iterator[list[Key]]:
            for batch in self.batches:
                begun.append(batch)
                yield batch

        def on_failure(item: int, reason: str) -> None:
            num_records = len(self.dataset)
            lost.append(f"{self.dataset.videos.records[item].path}: {reason}")
            # The batch has this record, or one shortly before it that this one replaces.
            batch = min(begun, key=lambda keys: min((item - index) % num_records for _, index in keys))
            _log.warning("%s; it was read for the batch of the records %s", lost[-1], [n for _, n in batch])
            if len(lost) > self.max_lost:
                raise DataError(
                    f"{first_few(lost)}; {len(lost)} of {num_records} videos made a worker hang or crash; the limit is "
                    f"{self.max_lost}: correct the list or raise data.max_broken (evaluation: --allow-missing)"
                )

        # No local variable refers to a batch, so that the consumer can free its memory.
        yield from map(
            self._counted,
            ordered(self._make, keys(), self.workers, timeout=self.timeout, ahead=self.prefetch, on_failure=on_failure),
        )

    def _make(self, keys: list[Key], guard: ItemGuard) -> "_Stacked":
        if self.workers:
            torch.set_num_threads(1)  # workers share the cores already
        return _stack([self.dataset.sample(key, guard) for key in keys])

    def _counted(self, stacked: "_Stacked") -> Batch:
        """Make a batch; with the first one, log the memory of all prefetched batches."""
        if self.workers and stacked.views and not self._logged and distributed.is_main():
            self._logged = True
            masks = 0 if stacked.mask is None else stacked.mask.nbytes
            each = (sum(view.nbytes for view in stacked.views) + masks) / 1e6
            _log.info(
                "prefetched batches use up to %s MB per process: %d data.workers x %d data.prefetch x %s MB per batch",
                f"{self.workers * self.prefetch * each:,.0f}",
                self.workers,
                self.prefetch,
                f"{each:,.1f}",
            )
        return _batch(stacked)


@dataclass(frozen=True)
class _Stacked:
    """A batch as arrays, as workers send it."""

    views: list[NDArray[np.uint8]]  # each (B, T, S, S, C)
    label: list[int]
    index: list[int]
    replaced: tuple[tuple[str, str], ...]
    boxes: NDArray[np.float32] | None  # (B, views, 4)
    mask: NDArray[np.uint8] | None  # (B, S, S)


def collate(samples: Sequence[Sample]) -> Batch:
    """Stack samples to a batch of uint8 views, channels last in memory. Samples without views are left out."""
    return _batch(_stack(samples))


def _stack(samples: Sequence[Sample]) -> _Stacked:
    whole = [sample for sample in samples if sample.views]
    clips = zip(*(sample.views for sample in whole), strict=True)
    # All samples of a dataset have boxes, or none; likewise masks.
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
    """Yield the batches of a loader on a device, as `to_device` does; without `mean` the views stay uint8.

    On a GPU each batch is copied, as uint8 from pinned memory on a separate stream, while the previous one is used.
    """

    def move(batch: Batch) -> Batch:
        return _transfer(batch, device) if mean is None else to_device(batch, device, mean, std)

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
                    coming = move(_map_tensors(Tensor.pin_memory, raw))
            if before is not None:
                torch.cuda.current_stream(device).wait_event(arrived)
                for tensor in (*before.views, before.label, before.index, before.boxes, before.mask):
                    if tensor is not None:
                        tensor.record_stream(torch.cuda.current_stream(device))
                yield before
            before, arrived = coming, side.record_event()


def to_device(batch: Batch, device: torch.device, mean: Sequence[float], std: Sequence[float]) -> Batch:
    """Move a batch to the device and normalise its views to float (B, C, T, S, S); masks become int64."""
    moved = _transfer(batch, device)
    return replace(moved, views=tuple(normalised(view, mean, std) for view in moved.views))


def _transfer(batch: Batch, device: torch.device) -> Batch:
    moved = _map_tensors(lambda tensor: tensor.to(device, non_blocking=True), batch)
    return moved if moved.mask is None else replace(moved, mask=moved.mask.long())


def _map_tensors(function: Callable[[Tensor], Tensor], batch: Batch) -> Batch:
    """Apply a function to all tensors of a batch."""
    return Batch(
        tuple(map(function, batch.views)),
        function(batch.label),
        function(batch.index),
        batch.replaced,
        None if batch.boxes is None else function(batch.boxes),
        None if batch.mask is None else function(batch.mask),
    )


def normalised(view: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Convert a uint8 view (B, T, C, S, S) to normalised float (B, C, T, S, S), `channels_last_3d` in memory.

    Args:
        view: The view.
        mean: (C,) or (1,), of values in [0, 1].
        std: Likewise.
    """
    shift = torch.tensor(mean, device=view.device).view(1, -1, 1, 1, 1)
    scale = torch.tensor(std, device=view.device).view(1, -1, 1, 1, 1)
    return (view.permute(0, 2, 1, 3, 4).float() / 255 - shift) / scale
