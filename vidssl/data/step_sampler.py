"""The order of the batches of a run: a function of the step alone, whatever the number of workers and processes."""

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from vidssl.errors import ConfigError
from vidssl.randomness import generator

Key = tuple[int, int]  # (epoch, index)


def keys_of_step(step: int, batch_size: int, num_records: int, seed: int) -> list[Key]:
    """Return the (epoch, index) keys of the global batch of a step.

    Epochs follow each other without a gap: a batch may span two of them, so that every record is used equally often and
    none is dropped.
    """
    epochs = (divmod(n, num_records) for n in range(step * batch_size, (step + 1) * batch_size))
    return [(epoch, int(_permutation(seed, epoch, num_records)[n])) for epoch, n in epochs]


@lru_cache(maxsize=4)
def _permutation(seed: int, epoch: int, num_records: int) -> NDArray[np.int64]:
    return generator(seed, epoch).permutation(num_records)


class StepSampler:
    """The micro-batches of one process for the steps start … stop - 1.

    Args:
        num_records: Length of the dataset.
        batch_size: Global batch size.
        micro_batch_size: Of one process.
        start: First step.
        stop: End of the steps, exclusive.
        seed: Seed of the run.
        rank: This process takes the rank-th slice of each global batch.
        world: Number of processes.

    Raises:
        ConfigError: The batch sizes do not divide, or exceed the dataset.
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
        local = self._batch_size // self._world
        for step in self._steps:
            keys = keys_of_step(step, self._batch_size, self._num_records, self._seed)
            mine = keys[self._rank * local : (self._rank + 1) * local]
            for first in range(0, local, self._micro):
                yield mine[first : first + self._micro]
