"""Batches in an order that is a function of the step alone, on any number of workers and processes."""

from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Sampler

from vidssl.data.dataset import ClipDataset
from vidssl.errors import ConfigError, VidsslError
from vidssl.randomness import generator
from vidssl.types import Batch, Frames, Sample

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


class StepSampler(Sampler[list[Key]]):
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


def train_loader(dataset: ClipDataset, sampler: StepSampler, workers: int) -> DataLoader[Batch]:
    """Make the loader of a run; its whole state is the step that the sampler starts from."""
    return _loader(dataset, sampler, workers)


def eval_loader(
    dataset: ClipDataset, batch_size: int, workers: int, rank: int = 0, world: int = 1
) -> DataLoader[Batch]:
    """Make a loader that gives each video exactly once, in order: this process's every world-th video."""
    mine = range(rank, len(dataset), world)
    chunks = [
        [(0, index) for index in mine[first : first + batch_size]]
        for first in range(0, len(mine), batch_size)
    ]
    return _loader(dataset, chunks, workers)


def _loader(
    dataset: ClipDataset, batches: Sampler[list[Key]] | Sequence[list[Key]], workers: int
) -> DataLoader[Batch]:
    return _Loader(
        _Carrying(dataset),  # type: ignore[arg-type]  # keys are (epoch, index), which the stubs do not know
        batch_sampler=batches,
        num_workers=workers,
        collate_fn=_collate,
        pin_memory=False,
        prefetch_factor=4 if workers else None,
        worker_init_fn=_one_thread,
        # Fork: workers share the list and the settings, and start at once. They never touch the device.
        multiprocessing_context="fork" if workers else None,
        generator=torch.Generator(),  # else the loader draws its seed from the global state, which resume restores
    )


class _Carrying:
    """Carries a user's error out of a worker as a value: raised there, torch would wrap it in a traceback."""

    def __init__(self, dataset: ClipDataset) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitems__(self, keys: Sequence[Key]) -> list[Sample] | VidsslError:
        try:
            return [self._dataset[key] for key in keys]
        except VidsslError as error:
            return error


class _Loader(DataLoader[Batch]):
    """Raises the error that a worker carried, when its batch has its turn."""

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]  # an iterator is all that is used
        for batch in super().__iter__():
            if isinstance(batch, VidsslError):
                raise batch
            yield batch


def _collate(samples: Sequence[Sample] | VidsslError) -> Batch | VidsslError:
    return samples if isinstance(samples, VidsslError) else collate(samples)


def _one_thread(worker: int) -> None:
    torch.set_num_threads(1)


def collate(samples: Sequence[Sample]) -> Batch:
    """Stack samples; views stay uint8 and channels last in memory."""
    views = tuple(_stack([sample.views[n] for sample in samples]) for n in range(len(samples[0].views)))
    return Batch(
        views,
        torch.tensor([sample.label for sample in samples]),
        torch.tensor([sample.index for sample in samples]),
        tuple(pair for sample in samples for pair in sample.replaced),
    )


def _stack(clips: Sequence[Frames]) -> Tensor:
    pixels = np.stack([clip.transpose(0, 2, 3, 1) for clip in clips])  # (B, T, H, W, C), contiguous
    return torch.from_numpy(pixels).permute(0, 1, 4, 2, 3)


def to_device(batch: Batch, device: torch.device, mean: Sequence[float], std: Sequence[float]) -> Batch:
    """Move a batch of uint8 views (B, T, C, S, S) to the device and make them what networks take.

    This is the one place where pixels become float, are normalised with the `mean` and `std` of [0, 1]
    values, and change to (B, C, T, S, S); in memory they are `channels_last_3d` without a copy.
    """
    # (C,), one value or one for each channel
    shift = torch.tensor(mean, device=device).view(1, -1, 1, 1, 1)
    scale = torch.tensor(std, device=device).view(1, -1, 1, 1, 1)
    views = tuple(
        (view.to(device, non_blocking=True).permute(0, 2, 1, 3, 4).float() / 255 - shift) / scale
        for view in batch.views
    )
    return Batch(views, batch.label.to(device), batch.index.to(device), batch.replaced)
