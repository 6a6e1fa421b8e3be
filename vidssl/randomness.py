"""Random numbers for data: a function of (seed, epoch, index, view), without hidden state."""

from enum import IntEnum

import numpy as np


def generator(seed: int, *key: int) -> np.random.Generator:
    """Make the random generator of a key.

    Equal arguments make equal streams on every machine and in every process, different ones independent streams. So
    results do not depend on the number of workers, and a resumed run needs no saved data state.

    Args:
        seed: Seed of the run, >= 0.
        key: Each >= 0: (epoch, index, view) for a view of a sample, (epoch,) for the order of an epoch.
    """
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(entropy=seed, spawn_key=key)))


class RngStream(IntEnum):
    """Last number of a method's key (step, view, stream), which keeps the draws of its parts apart from each other.

    A key can equal that of a view of a sample, (epoch, index, view): the two seed different kinds of draws.
    """

    INTER = 1
    JIGSAW = 2
    NPID = 3
    CLUSTERS = 4
