"""The nearest rows of features, in memory."""

from pathlib import Path

import torch
from torch import Tensor

from vidssl.data.column_store import Records
from vidssl.data.find_same_videos import compare, own_rows
from vidssl.data.video_list import VideoList
from vidssl.errors import ConfigError, DataError
from vidssl.evaluation.features import difference
from vidssl.evaluation.search import Neighbours, check_k, join_pairs, nearest, nearest_moments, rows_of
from vidssl.evaluation.train_test_overlap import describe, report_overlap
from vidssl.models.eval_mode import usual_torch
from vidssl.types import Features


@usual_torch()
def search(
    gallery: Features | Tensor,
    query: Features | Tensor | None = None,
    k: int = 10,
    *,
    center: bool = False,
    exclude: Tensor | None = None,
    one_per_video: bool = False,
) -> Neighbours:
    """Find the k rows of the gallery with the highest cosine similarity to each query, as `vidssl retrieval` does.

    Features of `extract` know their videos: a query does not find a span of its own file that overlaps it, and in a
    gallery of windows a row that overlaps a nearer one is left out. Copies of a query under other names are found, with
    a warning.

    Args:
        gallery: Features of `extract`, or any (N, D) float32 tensor on the CPU.
        query: Likewise (Q, D); None: each row of the gallery, which does not find itself.
        k: Neighbours of each query, nearest first; equal similarities are ordered by row.
        center: Subtract the mean of the queries and that of the gallery first.
        exclude: (P, 2) int64, more pairs of a query and a gallery row that it must not find.
        one_per_video: Return only the nearest row of each file.

    Raises:
        DataError: The features have no rows, other shapes than (N, D), different lengths, or are not finite; or they
            are of different networks, layers or clips, which only tensors do not tell.
        ConfigError: k is not 1 or more; `one_per_video` of a gallery whose files are not known; other types.
    """
    check_k(k)
    asked, g = gallery if query is None else query, rows_of("gallery", gallery)
    q = g if query is None else rows_of("query", query)
    pairs = [] if exclude is None else [exclude]
    if query is None:
        pairs.append(torch.arange(len(g)).unsqueeze(1).expand(-1, 2))
        if len(g) == 1:
            raise DataError("the gallery has one row, which does not find itself: give a query, or more videos")
        k = min(k, len(g) - 1)  # not itself, even if there is nothing else
    if isinstance(asked, Features) and isinstance(gallery, Features):
        if changes := difference(gallery.made_by, asked.made_by):
            raise DataError(f"gallery and query are not comparable: {changes}; extract both with the same network")
        lists = _list_of(asked), _list_of(gallery)
        pairs.append(own_rows(lists[1], lists[0]))
        if asked.records and gallery.records:
            _report_copies(asked, gallery, *lists)
    exclude = join_pairs(pairs)
    if isinstance(gallery, Features) and gallery.records and (gallery.windows or one_per_video):
        records = gallery.records
        return nearest_moments(
            q, g, lambda rows: [records[n] for n in rows], k, exclude, center=center, one_per_video=one_per_video
        )
    if one_per_video:
        raise ConfigError("one_per_video needs the files of the gallery: give features of vidssl.extract")
    return nearest(q, g, k, exclude, center=center)


def _report_copies(query: Features, gallery: Features, q: VideoList, g: VideoList) -> None:
    """Warn of copies of the queries in the gallery, and of other videos of their recordings; `q` and `g` list them."""
    labelled = len(q) > 1 and bool((query.label >= 0).all() and (gallery.label >= 0).all())
    overlap = {"gallery": describe(q, g, compare(q, g)), "training": None}
    report_overlap(overlap, q.path, measured=labelled, remedy="`exclude` leaves out pairs")


def _list_of(features: Features) -> VideoList:
    records = features.records
    listed = records if isinstance(records, Records) else Records(Path(), records)
    return VideoList(listed.roots[0], listed, features.classes)
