"""The order of the batches of a run: a function of the step alone, whatever the number of workers and processes."""

from collections.abc import Iterator
from dataclasses import dataclass
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

    def __post_init__(self) -> None:
        size, world, micro = self.batch_size, self.world, self.micro_batch_size
        if size > self.num_records:
            raise ConfigError(f"batch_size {size} is more than the {self.num_records} records of the list: lower it")
        if size % (world * micro):
            raise ConfigError(f"batch_size {size} is not a multiple of {world} processes x micro_batch_size {micro}")

    def __len__(self) -> int:
        return (self.stop - self.start) * (self.batch_size // self.world // self.micro_batch_size)

    def __iter__(self) -> Iterator[list[Key]]:
        local = self.batch_size // self.world
        for step in range(self.start, self.stop):
            keys = keys_of_step(step, self.batch_size, self.num_records, self.seed)
            mine = keys[self.rank * local : (self.rank + 1) * local]
            for first in range(0, local, self.micro_batch_size):
                yield mine[first : first + self.micro_batch_size]
