"""Loaders: batches made by worker processes."""

import logging
from collections.abc import Generator, Sequence
from dataclasses import dataclass

import numpy as np

from vidssl.data.dataset import ClipDataset
from vidssl.data.shared_decoding import file_numbers, make_samples
from vidssl.data.step_sampler import Key, StepSampler
from vidssl.errors import DataError, first_few
from vidssl.transforms.batched import grouped
from vidssl.types import Batch, DrawnOperations
from vidssl.worker_pool import ItemGuard, ordered

_log = logging.getLogger(__name__)


@dataclass
class Loader:
    """Batches, made by worker processes; a video that makes its worker hang or crash counts as broken.

    At most `dataset.replace` videos may do so, with `dataset.skip` all. The whole state of a loader is where its
    sampler starts.
    """

    dataset: ClipDataset
    batches: StepSampler | Sequence[list[Key]]  # the keys of each batch
    workers: int  # processes; with 0 this process makes the batches, and a hang or crash is not caught
    timeout: float | None = None  # seconds for one video; after that its worker is stopped and it counts as broken

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Generator[Batch, None, None]:
        lost: list[str] = []
        limit = len(self.dataset) if self.dataset.skip else self.dataset.replace

        def on_failure(item: int, reason: str) -> None:
            lost.append(f"{self.dataset.videos.records[item].path}: {reason}")
            _log.warning(lost[-1])
            if len(lost) > limit:
                raise DataError(
                    f"{first_few(lost, separator='; ')}; {len(lost)} of {len(self.dataset)} videos made a worker hang "
                    f"or crash; the limit is {limit}: correct the list or {self.dataset.remedy}"
                )

        # No variable refers to a batch, so that the consumer can free its memory.
        yield from ordered(self._stack, self.batches, self.workers, timeout=self.timeout, on_failure=on_failure)

    def _stack(self, keys: list[Key], guard: ItemGuard) -> Batch:
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
            [np.stack([clip.transpose(0, 2, 3, 1) for clip in view]) for view in clips],  # (B, T, S, S, C), contiguous
            np.array([sample.label for sample in whole], np.int64),
            np.array([sample.index for sample in whole], np.int64),
            tuple(pair for sample in samples for pair in sample.replaced),
            np.stack(boxes) if boxes else None,
            np.stack(masks) if masks else None,
            [DrawnOperations.of_arrays(*grouped(view)) for view in operations],
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
    numbers, chosen = file_numbers(dataset.videos), np.arange(len(dataset)) if rows is None else np.asarray(rows, int)
    mine = chosen[np.unique(numbers[chosen], return_inverse=True)[1] % world == rank].tolist()
    chunks = [[(0, index) for index in mine[first : first + batch_size]] for first in range(0, len(mine), batch_size)]
    return Loader(dataset, chunks, workers, timeout)
