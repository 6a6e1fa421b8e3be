"""Search: the nearest rows of a gallery by cosine similarity, in float32 and in bounded memory; ties go by row.

In windows of videos, neighbouring windows of one moment count once.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vidssl.base.errors import ConfigError, DataError
from vidssl.base.types import Features, VideoRecord
from vidssl.data.allowed_paths import RealPath
from vidssl.data.find_same_videos import find_overlap, own_rows, spans_overlap
from vidssl.data.video_list import Records, VideoList
from vidssl.evaluation.features import feature_difference
from vidssl.evaluation.train_test_overlap import describe_overlap, report_overlap
from vidssl.models.eval_mode import usual_torch

Array = NDArray[np.floating[Any]]
QueryRows = NDArray[np.int64]
_BLOCK = 2**24  # numbers in a block of the gallery or of similarities


@dataclass(frozen=True)
class Neighbours:
    """The nearest gallery rows of each query, nearest first."""

    index: Tensor  # (Q, k) int64, rows of the gallery; -1 where it had no more rows
    similarity: Tensor  # (Q, k) float32 cosine; -inf there


def nearest(
    query: Tensor, gallery: Tensor, k: int, exclude: Tensor | None = None, chunk: int = 4096, *, center: bool = False
) -> Neighbours:
    """Return the k gallery rows (or all, if fewer) of highest cosine similarity; equal ones are ordered by gallery row.

    Similarities are matrix products of unit vectors in float32, for at most `chunk` queries at a time. Rows that are
    equal bit by bit have equal similarities wherever they are in the gallery. The similarity of a row of zeros is 0.
    The gallery may be memory-mapped: it is read twice, in blocks. `exclude` (P, 2) int64 are pairs of a query row and a
    gallery row that it must not find. With `center` the means of the queries and of the gallery are subtracted first.
    Where a query finds fewer than k rows, the index is -1 and the similarity -inf.

    Raises:
        ConfigError: k is not a whole number of 1 or more.
        DataError: The features have different lengths, or are not finite.
    """
    check_k(k)
    if query.shape[1] != gallery.shape[1]:
        sizes = f"the queries have {query.shape[1]} features, the gallery {gallery.shape[1]}"
        raise DataError(f"{sizes}: extract both with the same network")
    k = min(k, len(gallery))
    q, g = _Vectors("query", query, center), _Vectors("gallery", gallery, center)
    copies = _find_copies(g)
    chunk = min(chunk, max(1, _BLOCK // max(1, len(copies.first))))
    pairs = torch.empty(0, 2, dtype=torch.int64) if exclude is None else exclude
    index, similarity = torch.empty(len(query), k, dtype=torch.int64), torch.empty(len(query), k)
    for start in range(0, len(query), chunk):
        stop = min(start + chunk, len(query))
        inside = pairs[(pairs[:, 0] >= start) & (pairs[:, 0] < stop)] - torch.tensor([start, 0])
        index[start:stop], similarity[start:stop] = _search(q.unit(slice(start, stop)), g, copies, k, inside.numpy())
    return Neighbours(torch.where(torch.isfinite(similarity), index, -1), similarity)


def nearest_moments(
    query: Tensor,
    gallery: Tensor,
    records: Sequence[VideoRecord],
    k: int,
    exclude: Tensor | None = None,
    *,
    center: bool = False,
    one_per_video: bool = False,
) -> Neighbours:
    """Search as `nearest` does, without rows that overlap a nearer row of the same file, links followed.

    With `one_per_video` all other rows of that file are left out. `records` are those of the gallery. Where fewer than
    k rows are left, the index is -1 and the similarity -inf. Errors are those of `nearest`.
    """
    real_path = RealPath()
    known: dict[int, VideoRecord] = {}
    depth = k
    while True:
        depth = min(4 * depth, len(gallery))
        neighbours = nearest(query, gallery, depth, exclude, center=center)
        rows_of_queries = [row[row >= 0].tolist() for row in neighbours.index]
        for row in {row for rows in rows_of_queries for row in rows} - known.keys():
            known[row] = replace(record := records[row], path=real_path(record.path))
        columns = [_distinct([known[row] for row in rows], k, one_per_video) for rows in rows_of_queries]
        if depth == len(gallery) or all(len(kept) == k for kept in columns):
            break
    index, similarity = torch.full((len(query), k), -1), torch.full((len(query), k), -torch.inf)
    for n, kept in enumerate(columns):
        index[n, : len(kept)], similarity[n, : len(kept)] = neighbours.index[n, kept], neighbours.similarity[n, kept]
    return Neighbours(index, similarity)


def _distinct(records: Sequence[VideoRecord], k: int, one_per_video: bool) -> list[int]:
    """Return which of the records, nearest first, are kept: up to k."""
    kept: dict[str, list[VideoRecord]] = {}
    columns: list[int] = []
    for column, record in enumerate(records):
        nearer = kept.setdefault(record.path, [])
        if not (nearer and (one_per_video or any(spans_overlap(record, before) for before in nearer))):
            nearer.append(record)
            columns.append(column)
            if len(columns) == k:
                break
    return columns


def check_k(k: object) -> None:
    """Raise a ConfigError if k is not a number of neighbours."""
    if not isinstance(k, int | np.integer) or k < 1:
        raise ConfigError(f"k is {k}: a search returns a whole number of neighbours, 1 or more")


def rows_of(name: str, features: object) -> Tensor:
    """Return the rows of features, or of a tensor; an error if they cannot be searched: `name` is for messages."""
    if not isinstance(features, Features | Tensor):
        kind = f"{type(features).__module__}.{type(features).__qualname__}".removeprefix("builtins.")
        raise ConfigError(
            f"the {name} is a {kind}: give features of vidssl.extract, or a tensor (torch.from_numpy of an array)"
        )
    x = features if isinstance(features, Tensor) else features.x
    if x.ndim != 2:
        raise DataError(f"the {name} has the shape {(*x.shape,)}, not (N, D): a row for each video, x[None] of one")
    if not len(x):
        raise DataError(f"the {name} has no rows: give the features of a video or more")
    if not x.is_floating_point() or x.device.type != "cpu":
        kind = str(x.dtype).removeprefix("torch.")
        raise DataError(f"the {name} is {kind} on {x.device}, not float32 on the CPU: give x.float().cpu()")
    return x


def equal_rows(query: Tensor, gallery: Tensor) -> Tensor:
    """Return all pairs (P, 2) of a query row and a gallery row that are equal bit by bit, ordered by gallery row."""
    rows: dict[bytes, list[int]] = {}
    for n, row in enumerate(query.numpy()):
        rows.setdefault(row.tobytes(), []).append(n)
    pairs = [(n, column) for column, row in enumerate(gallery.numpy()) for n in rows.get(row.tobytes(), ())]
    return torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2)


def check_finite(name: str, x: Tensor) -> None:
    """Raise a DataError that names the first row of features (N, D) that is not finite."""
    broken = (~torch.isfinite(x).all(dim=1)).nonzero()
    if len(broken):
        row = int(broken[0])
        raise DataError(f"a {name} feature is not finite (row {row} of {len(x)}): the network or its input is broken")


class _Vectors:
    """Features and their norms, read in blocks: the features may be memory-mapped."""

    def __init__(self, name: str, x: Tensor, center: bool) -> None:
        self.x: Array = x.detach().numpy()
        self._mean: Array | None = x.detach().mean(dim=0).numpy() if center else None
        self.norm: Array = np.empty(len(x))
        step = max(1, 2**17 // max(1, x.shape[1]))  # such a block stays in the processor's cache
        with np.errstate(invalid="ignore"):
            for block in (slice(start, start + step) for start in range(0, len(x), step)):
                rows = self._rows(block).astype(np.float64)  # its squares neither overflow nor are rounded to 0
                self.norm[block] = np.sqrt(np.einsum("nd,nd->n", rows, rows))
        if not np.isfinite(self.norm).all():
            check_finite(name, x)
            raise DataError(f"the {name} features are too large to be centred: the network is broken")
        self._scale = np.divide(1, self.norm, out=np.ones(len(x)), where=self.norm > 0)

    def unit(self, which: slice | QueryRows) -> Array:
        """Return unit vectors (N, D), and zeros for rows of zeros."""
        return (self._rows(which) * self._scale[which, None]).astype(np.float32)

    def similarity(self, unit: Array, which: slice | QueryRows) -> Array:
        """Return the cosine similarities (Q, N) of unit vectors (Q, D) to some rows."""
        scale = self._scale[which]
        if scale.max() > 1e20 or scale.min() < 1e-30:  # float32 products of such rows over- or underflow
            return unit @ self.unit(which).T
        product: Array = unit @ self._rows(which).T
        product *= scale.astype(np.float32)
        return product

    def _rows(self, which: slice | QueryRows) -> Array:
        return self.x[which] if self._mean is None else self.x[which] - self._mean


class _Copies(NamedTuple):
    """The gallery rows that occur several times, bit by bit.

    Matrix products of equal rows can differ in the last bit, so their similarities are computed once, for the first.
    """

    rows: QueryRows  # all of them, ascending
    kind: QueryRows  # of each: the number of its row in `first`
    first: QueryRows  # the first row of each kind


def _find_copies(gallery: _Vectors) -> _Copies:
    norms, counts = np.unique(gallery.norm, return_counts=True)
    rows = np.flatnonzero(np.isin(gallery.norm, norms[counts > 1]))  # only rows of equal norm can be equal
    keys = [hashlib.blake2b(gallery.x[row].tobytes(), digest_size=16).hexdigest() for row in rows]
    _, first, key, counts = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
    repeated = counts[key] > 1
    kinds, kind = np.unique(rows[first[key]][repeated], return_inverse=True)
    return _Copies(rows[repeated], kind, kinds)


def _search(unit: Array, g: _Vectors, copies: _Copies, k: int, exclude: QueryRows) -> tuple[Tensor, Tensor]:
    """Return rows and similarities (Q, k) for unit vectors (Q, D), without the pairs `exclude`."""
    step = max(1, _BLOCK // max(unit.shape))
    of_first = np.empty((len(unit), len(copies.first)), np.float32)
    for start in range(0, len(copies.first), step):
        of_first[:, start : start + step] = g.similarity(unit, copies.first[start : start + step])
    index, value = torch.empty(len(unit), 0, dtype=torch.int64), torch.empty(len(unit), 0)
    for start in range(0, len(g.x), step):
        product = g.similarity(unit, slice(start, start + step))
        stop = start + product.shape[1]
        inside = slice(*np.searchsorted(copies.rows, (start, stop)))
        product[:, copies.rows[inside] - start] = of_first[:, copies.kind[inside]]
        left_out = exclude[(exclude[:, 1] >= start) & (exclude[:, 1] < stop)]
        product[left_out[:, 0], left_out[:, 1] - start] = -np.inf
        largest, column = _largest(torch.from_numpy(product), k)
        # The rows of earlier blocks come first, so that equal similarities stay in the order of rows.
        index, value = torch.cat([index, column + start], dim=1), torch.cat([value, largest], dim=1)
        value, column = _largest(value, k)
        index = index.gather(1, column)
    return index, value


def _largest(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest values of each row (Q, N), descending, and their columns; of equal ones the first."""
    if x.shape[1] <= k:
        column = torch.arange(x.shape[1]).expand(x.shape)
    else:
        value, column = torch.topk(x, k + 1, dim=1)
        column = column[:, :k].sort(dim=1).values
        tied = (value[:, k - 1] == value[:, k]).nonzero()[:, 0]  # topk keeps any of the equal values here
        if len(tied):
            some, least = x[tied], value[tied, k, None]
            larger, equal = some > least, some == least
            missing = k - larger.sum(dim=1, keepdim=True)
            equal &= equal.cumsum(dim=1, dtype=torch.int32) <= missing
            column[tied] = (larger | equal).nonzero()[:, 1].view(-1, k)
    value, order = x.gather(1, column).sort(dim=1, descending=True, stable=True)
    return value, column.gather(1, order)


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
    queries, g = gallery if query is None else query, rows_of("gallery", gallery)
    q = g if query is None else rows_of("query", query)
    pairs = [] if exclude is None else [exclude]
    if query is None:
        pairs.append(torch.arange(len(g)).unsqueeze(1).expand(-1, 2))
        if len(g) == 1:
            raise DataError("the gallery has one row, which does not find itself: give a query, or more videos")
        k = min(k, len(g) - 1)  # not itself, even if there is nothing else
    if isinstance(queries, Features) and isinstance(gallery, Features):
        if changes := feature_difference(gallery.made_by, queries.made_by):
            raise DataError(f"gallery and query are not comparable: {changes}; extract both with the same network")
        lists = _list_of(queries), _list_of(gallery)
        pairs.append(own_rows(lists[1], lists[0]))
        if queries.records and gallery.records:
            _report_copies(queries, gallery, *lists)
    if exclude is not None and (exclude.dtype != torch.int64 or exclude.shape[1:] != (2,)):
        raise DataError(f"exclude has the shape {(*exclude.shape,)} and is {exclude.dtype}, not (P, 2) of torch.int64")
    exclude = torch.cat(pairs) if pairs else None
    if isinstance(gallery, Features) and gallery.records and (gallery.windows or one_per_video):
        return nearest_moments(q, g, gallery.records, k, exclude, center=center, one_per_video=one_per_video)
    if one_per_video:
        raise ConfigError("one_per_video needs the files of the gallery: give features of vidssl.extract")
    return nearest(q, g, k, exclude, center=center)


def _report_copies(query: Features, gallery: Features, q: VideoList, g: VideoList) -> None:
    """Warn of copies of the queries in the gallery, and of other videos of their recordings; `q` and `g` list them."""
    labelled = len(q) > 1 and bool((query.label >= 0).all() and (gallery.label >= 0).all())
    overlap = {"gallery": describe_overlap(q, g, find_overlap(q, g)), "training": None}
    report_overlap(
        overlap, q.path, measured=labelled, remedy="exclude=PAIRS, of query and gallery rows, leaves them out"
    )


def _list_of(features: Features) -> VideoList:
    records = features.records
    records = records if isinstance(records, Records) else Records(Path(), records)
    return VideoList(records.roots[0], records, features.classes)
