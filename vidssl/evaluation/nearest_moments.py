"""Search in windows of videos: neighbouring windows of one moment count once."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from vidssl.data.allowed_paths import RealPath
from vidssl.data.find_same_videos import spans_overlap
from vidssl.evaluation.search import Neighbours, nearest
from vidssl.types import VideoRecord


def nearest_moments(
    query: Tensor,
    gallery: Tensor,
    records: Callable[[Sequence[int]], Sequence[VideoRecord]],
    k: int,
    exclude: Tensor | None = None,
    *,
    center: bool = False,
    one_per_video: bool = False,
) -> Neighbours:
    """Search as `nearest` does, without rows that overlap a nearer row of the same file, links followed.

    With `one_per_video` all other rows of that file are left out. `records` returns those of some rows of the gallery.
    Where fewer than k rows are left, the index is -1 and the similarity -inf. Errors are those of `nearest`.
    """
    real_path = RealPath()
    known: dict[int, VideoRecord] = {}

    def distinct(rows: Sequence[int]) -> list[int]:
        """Return the places of up to k rows that are kept."""
        kept: dict[str, list[VideoRecord]] = {}
        places: list[int] = []
        for place, row in enumerate(rows):
            record = known[row]
            nearer = kept.setdefault(record.path, [])
            if not (nearer and (one_per_video or any(spans_overlap(record, other) for other in nearer))):
                nearer.append(record)
                places.append(place)
                if len(places) == k:
                    break
        return places

    depth = k
    while True:
        depth = min(4 * depth, len(gallery))
        found = nearest(query, gallery, depth, exclude, center=center)
        there = [
            row[finite].tolist() for row, finite in zip(found.index, torch.isfinite(found.similarity), strict=True)
        ]
        new = sorted({row for rows in there for row in rows} - known.keys())
        for row, record in zip(new, records(new), strict=True):
            known[row] = replace(record, path=real_path(record.path))
        places = [distinct(rows) for rows in there]
        if depth == len(gallery) or all(len(kept) == k for kept in places):
            break
    index, similarity = torch.full((len(query), k), -1), torch.full((len(query), k), -torch.inf)
    for n, kept in enumerate(places):
        index[n, : len(kept)], similarity[n, : len(kept)] = found.index[n, kept], found.similarity[n, kept]
    return Neighbours(index, similarity)
