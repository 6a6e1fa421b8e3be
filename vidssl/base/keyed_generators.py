"""Random numbers for data: a function of (seed, epoch, index, view), without hidden state."""

from enum import IntEnum

import numpy as np


def generator(seed: int, *key: int) -> np.random.Generator:
    """Make the random generator of a seed and a key, all >= 0: equal ones make equal streams in every process.

    A view of a sample has the key (epoch, index, view), the order of an epoch (epoch,), in the n-th of
    several lists (epoch, n) from n = 1 on. So results do not depend on the number of workers, and a resumed run needs
    no saved data state.
    """
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(entropy=seed, spawn_key=key)))


class RngStream(IntEnum):
    """Last number of a method's key (step, view, stream): keeps its parts apart, but not from the keys of samples."""

    INTER = 1
    JIGSAW = 2
    NPID = 3
    CLUSTERS = 4
    DIRECTIONS = 5
