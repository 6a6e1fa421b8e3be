"""What several encoders say of the same videos: common neighbours, disagreements.

Shapes: N videos, the same rows of each encoder; E encoders; k neighbours.
"""

from collections.abc import Mapping
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from vidssl.base.config import Tree
from vidssl.evaluation.leave_recording_out import same_group
from vidssl.evaluation.search import nearest

NEIGHBOURS_COMPARED = 10  # that two encoders have in common


def common_neighbours(
    encoders: Mapping[str, Tensor], groups: NDArray[np.int64], k: int = NEIGHBOURS_COMPARED
) -> list[Tree]:
    """Return of each pair of encoders, by name, the mean `fraction` of the k nearest videos that both find.

    This is the mutual nearest-neighbour metric of Huh et al. (2024, The Platonic Representation Hypothesis, Eq. 11),
    with the videos of one recording group left out. A video with M < k videos of other groups has M neighbours. Of
    random ones a fraction k / M is common, whose mean is `chance`. Both are NaN if all videos are of one group.

    Args:
        encoders: Features (N, D) of the same videos.
        groups: (N,) recording of each video.
        k: Neighbours.

    Raises:
        ConfigError: k is not a whole number of 1 or more.
        DataError: Features are not finite.
    """
    same = same_group(groups)
    rows = {name: nearest(x, x, k, same).index.numpy() for name, x in encoders.items()}
    _, group, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    candidates = len(groups) - sizes[group]  # M
    counted, chance = candidates > 0, np.nan
    neighbours = np.minimum(min(k, len(groups)), candidates[counted])
    if counted.any():
        chance = float((neighbours / candidates[counted]).mean())
    pairs = []
    for a, b in combinations(rows, 2):
        common = np.zeros(len(groups))
        for column in rows[b].T:  # a column at a time: all at once are N k² comparisons in memory
            common += ((rows[a] == column[:, None]) & (column[:, None] >= 0)).any(axis=1)
        fraction = float((common[counted] / neighbours).mean()) if counted.any() else np.nan
        pairs.append({"first": a, "second": b, "fraction": fraction, "chance": chance})
    return pairs


def disagreement(
    predicted: NDArray[np.int64], labels: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Order videos by the entropy of the votes of the encoders, highest first, then by the margin, lowest first.

    This is query by committee with vote entropy (Dagan and Engelson, 1995). The margin of a video is the fraction of
    the votes for its label minus that for the best other class, so that of equal entropies those come first whose label
    most encoders contradict. Rows are the last criterion.

    Args:
        predicted: (E, N) class that each encoder predicts; -1, no prediction, counts as a class.
        labels: (N,) class of each video.

    Returns:
        The rows (N,), those whose label to check first; the entropy (N,) of each row in nats.
    """
    same = (predicted == predicted[:, None]).sum(axis=1) / len(predicted)  # (E, N) fraction of the votes for each vote
    entropy = np.log(1 / same).mean(axis=0)
    margin = (predicted == labels).mean(axis=0) - np.where(predicted == labels, 0, same).max(axis=0)
    # Sums in another order differ in the last bits: those are no difference.
    order = np.lexsort((np.arange(len(labels)), margin.round(9), -entropy.round(9)))
    return order, entropy
