"""What several encoders say of the same videos: near copies, common neighbours, disagreements.

Shapes: N videos, the same rows of each encoder; E encoders; k neighbours.
"""

from collections.abc import Mapping
from itertools import combinations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from vidssl.base.config import Tree
from vidssl.base.errors import DataError
from vidssl.base.types import Features
from vidssl.evaluation.leave_recording_out import same_group
from vidssl.evaluation.search import check_finite, nearest

NEIGHBOURS_COMPARED = 10  # that two encoders have in common; the distance of the last is the measure of near copies
RATIO = 0.25
_EQUAL = 0.002  # distances below are of the same footage, however near other videos are


def near_copies(layout: Features, motion: Features, groups: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Find pairs of rows, of different recording groups, that show the same footage, nearest first.

    The distance of two videos is one minus the mean of their cosines in `layout` and in `motion`, each less its mean
    over videos. Two videos are near copies if it is at most `RATIO` of the distance of each to its `K`-th neighbour;
    videos of the own group are no neighbours. This is the ratio test of Lowe (2004, section 7.1) with the tenth
    neighbour in place of the second, which may be a copy too. A threshold alone fails where people stand before one
    wall: at a cosine of thumbnails of 0.98 it finds 35 of 40 copies among 2,321 clips of signs, and 2,074 other pairs.

    Measured on files, with the two floors at four clips a video:

    * 2,321 clips of signs of three sources: 37 of 40 copies; 24 other pairs, of one person in one place.
    * 731 clips of UCF101: 10 pairs of different groups, each of one recording (BasketballDunk g01 is also g10 and g11,
      HorseRace g04 also g23). With groups not known 285 pairs, 276 of one group, the others among those 10.
    * 200 copies beside the 731 clips: at half the frame rate 100 % are found, with 5 % of the sides cut off 99.5,
      without the first half second 97, at 3/5 of the size 95.5, at CRF 38 94, darker 91, without a second at both ends
      83, only the first half 65.5, with a logo 57.5, with 10 % cut off 49.5. Mirrored ones are not found.
    * 200 copies beside 2,013 of the signs: with 5 % cut off 98.5 %, at CRF 38 83, darker 73.5, without the first half
      second 72.5.

    Args:
        layout: Features that see where things are: of `floor:thumbnails`.
        motion: Features of the same videos that see where they move: of `floor:differences`.
        groups: (N,) recording of each video.

    Raises:
        DataError: The rows are not the same, or features are not finite.
    """
    check_same_rows(layout, motion)
    x = torch.cat([_centred(layout), _centred(motion)], dim=1)
    search = nearest(x, x, NEIGHBOURS_COMPARED, same_group(groups))
    distance = 1 - search.similarity.double().numpy()  # (N, k), infinite where there are no more neighbours
    there = np.isfinite(distance)
    # Of fewer than K others the last one. It may be the only one: then nothing says what is near.
    reach = np.where(there, distance, -np.inf).max(axis=1, initial=-np.inf)
    pairs = {}
    for row, column in np.argwhere(there):
        neighbour, pair_distance = int(search.index[row, column]), float(distance[row, column])
        if pair_distance <= max(RATIO * min(reach[row], reach[neighbour]), _EQUAL):
            pairs[min(row, neighbour), max(row, neighbour)] = pair_distance
    return sorted(((int(first), int(second)) for first, second in pairs), key=lambda pair: (pairs[pair], pair))


def _centred(features: Features) -> Tensor:
    """Unit vectors of the features less their mean."""
    check_finite("gallery", features.x)
    x = features.x.float()
    return functional.normalize(x - x.mean(dim=0), dim=1)


def check_same_rows(first: Features, second: Features) -> None:
    """Raise a DataError if features are not of the same rows of a list."""
    if not torch.equal(first.index, second.index):
        raise DataError(f"the features are not of the same videos: {len(first)} and {len(second)} rows of a list")


def common_neighbours(
    encoders: Mapping[str, Features], groups: NDArray[np.int64], k: int = NEIGHBOURS_COMPARED
) -> list[Tree]:
    """Return of each pair of encoders, by name, the mean `fraction` of the k nearest videos that both find.

    This is the mutual nearest-neighbour metric of Huh et al. (2024, The Platonic Representation Hypothesis, Eq. 11),
    with the videos of one recording group left out. A video with M < k videos of other groups has M neighbours. Of
    random ones a fraction k / M is common, whose mean is `chance`. Both are NaN if all videos are of one group.

    Args:
        encoders: Features of the same rows.
        groups: (N,) recording of each video.
        k: Neighbours.

    Raises:
        ConfigError: k is not a whole number of 1 or more.
        DataError: The rows are not the same, or features are not finite.
    """
    first, *rest = encoders.values()
    for features in rest:
        check_same_rows(first, features)
    same = same_group(groups)
    rows = {name: nearest(features.x, features.x, k, same).index.numpy() for name, features in encoders.items()}
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
    predicted: NDArray[np.int64], labels: NDArray[np.int64] | None = None
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Order videos by the entropy of the votes of the encoders, highest first, then by the margin, lowest first.

    This is query by committee with vote entropy (Dagan and Engelson, 1995). The margin of a video is the fraction of
    the votes for a class minus that for another. Without a label these are the two classes with most votes; with a
    label it is that class and the best other one, so that of equal entropies those come first whose label most encoders
    contradict. Rows are the last criterion.

    Args:
        predicted: (E, N) class that each encoder predicts; -1, no prediction, counts as a class.
        labels: (N,) class of each video, -1: not known.

    Returns:
        The rows (N,), the most useful to label, or whose label to check, first; the entropy (N,) of each row in nats.
    """
    same = (predicted == predicted[:, None]).sum(axis=1) / len(predicted)  # (E, N) fraction of the votes for each vote
    entropy = np.log(1 / same).mean(axis=0)
    most = np.take_along_axis(predicted, same.argmax(axis=0)[None], axis=0)[0]
    class_ = most if labels is None else np.where(labels >= 0, labels, most)
    margin = (predicted == class_).mean(axis=0) - np.where(predicted == class_, 0, same).max(axis=0)
    # Sums in another order differ in the last bits: those are no difference.
    order = np.lexsort((np.arange(len(class_)), margin.round(9), -entropy.round(9)))
    return order, entropy
