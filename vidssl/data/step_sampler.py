"""The order of the batches of a run: a function of the step alone, whatever the number of workers and processes."""

from bisect import bisect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from vidssl.data.video_list import Part
from vidssl.errors import ConfigError
from vidssl.keyed_generators import generator

Key = tuple[int, int]  # (epoch, index)


def keys_of_step(step: int, batch_size: int, num_records: int, seed: int, joined: Sequence[Part] = ()) -> list[Key]:
    """Return the (epoch, index) keys of the global batch of a step; no two keys of a run are equal.

    Epochs follow each other without a gap: a batch may span two of them, so that every record is used equally often and
    none is dropped. Lists that are `joined` are evenly mixed: of any number of first samples each list has its fraction
    up to (lists - 1) / 2. The epoch in a key counts the passes over the record's own list.
    """
    parts = joined or (Part(num_records, num_records),)
    lengths, samples = (tuple(column) for column in zip(*parts, strict=True))
    first, before = ([*accumulate(column, initial=0)] for column in (lengths, samples))
    order, permutations = _mixed(samples), _permutations(seed, lengths)
    keys = []
    for n in range(step * batch_size, (step + 1) * batch_size):
        epoch, place = divmod(n, len(order))
        sample = int(order[place])
        part = bisect(before, sample) - 1
        own_epoch, row = divmod(epoch * samples[part] + sample - before[part], lengths[part])
        keys.append((own_epoch, first[part] + int(permutations[part](own_epoch)[row])))
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
    joined: tuple[Part, ...] = ()  # the lists that the records are of; empty: one list

    def __post_init__(self) -> None:
        size, world, micro = self.batch_size, self.world, self.micro_batch_size
        if size > self.num_records:
            most = f"batch_size={self.num_records} at most"
            raise ConfigError(f"batch_size {size} is more than the {self.num_records} records of the list: {most}")
        for number, part in enumerate(self.joined):
            taken = size * part.samples / sum(each.samples for each in self.joined)
            if taken > part.records:
                raise ConfigError(
                    f"batch_size {size} has {taken:.1f} videos of data.train.{number}, a list of {part.records}: lower "
                    "its weight or the batch size"
                )
        if size % (world * micro):
            raise ConfigError(f"batch_size {size} is not a multiple of {world} processes x micro_batch_size {micro}")

    def __len__(self) -> int:
        return (self.stop - self.start) * (self.batch_size // self.world // self.micro_batch_size)

    def __iter__(self) -> Iterator[list[Key]]:
        local = self.batch_size // self.world
        for step in range(self.start, self.stop):
            keys = keys_of_step(step, self.batch_size, self.num_records, self.seed, self.joined)
            mine = keys[self.rank * local : (self.rank + 1) * local]
            for first in range(0, local, self.micro_batch_size):
                yield mine[first : first + self.micro_batch_size]
