"""Near copies: videos of the same footage, encoded again, shortened or edited, which equal files do not show."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from vidssl.evaluation.group_folds import same_group
from vidssl.evaluation.search import check_finite, nearest
from vidssl.evaluation.without_labels import check_same_rows
from vidssl.types import Features

K = 10  # the neighbour whose distance is the measure
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
    found = nearest(x, x, K, same_group(groups))
    distance = 1 - found.similarity.double().numpy()  # (N, k), infinite where there are no more neighbours
    there = np.isfinite(distance)
    # Of fewer than K others the last one. It may be the only one: then nothing says what is near.
    reach = np.where(there, distance, -np.inf).max(axis=1, initial=-np.inf)
    pairs = {}
    for row, place in np.argwhere(there):
        other, own = int(found.index[row, place]), float(distance[row, place])
        if own <= max(RATIO * min(reach[row], reach[other]), _EQUAL):
            pairs[min(row, other), max(row, other)] = own
    return sorted(((int(one), int(other)) for one, other in pairs), key=lambda pair: (pairs[pair], pair))


def _centred(features: Features) -> Tensor:
    """Unit vectors of the features less their mean."""
    check_finite("gallery", features.x)
    x = features.x.float()
    return functional.normalize(x - x.mean(dim=0), dim=1)
