"""Search: the nearest rows of a gallery by cosine, exact to the last bit and tie, in bounded memory."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vidssl.errors import DataError

Array = NDArray[np.floating[Any]]
_SPARE = 16  # rows beyond k that are kept of the products in float32
_STEP = 2**24  # numbers, of the gallery or products, at a time
_SOME = 64  # queries at a time in float64


@dataclass(frozen=True)
class Neighbours:
    """The nearest gallery rows of each query, nearest first."""

    index: Tensor  # (Q, k) int64, rows of the gallery
    similarity: Tensor  # (Q, k) float32 cosine; -inf where there was nothing left


def nearest(
    query: Tensor,
    gallery: Tensor,
    k: int,
    exclude: Tensor | None = None,
    chunk: int = 4096,
    *,
    center: bool = False,
) -> Neighbours:
    """Search exactly: cosines in float64, rounded to float32; equal ones are ordered by gallery row.

    A row of zeros has no direction: its similarity to everything is 0.

    All products are made in float32 first. Their rounding is bounded: the rows that can be among the k nearest are
    compared again in float64, and all rows where the first products leave too many of them. Memory beside the
    features does not grow with the gallery: 0.2 GB, 1 GB where all tie. Features in a mapped file are read by blocks.

    Args:
        query: (Q, D) float32.
        gallery: (G, D) float32.
        k: At most this many; fewer where the gallery is smaller.
        exclude: (P, 2) int64 pairs of a query row and a gallery row that it must not find.
        chunk: Queries at a time.
        center: Subtract the mean of the queries from the queries, and that of the gallery from the gallery, first.

    Raises:
        DataError: A feature is not finite.
    """
    k = min(k, len(gallery))
    q, g = _Vectors("query", query, center), _Vectors("gallery", gallery, center)
    pairs = torch.empty(0, 2, dtype=torch.int64) if exclude is None else exclude
    index, similarity = torch.empty(len(query), k, dtype=torch.int64), torch.empty(len(query), k)
    for start in range(0, len(query) if k else 0, chunk):
        stop = min(start + chunk, len(query))
        own = pairs[(pairs[:, 0] >= start) & (pairs[:, 0] < stop)] - torch.tensor([start, 0])
        index[start:stop], similarity[start:stop] = _search(q, np.arange(start, stop), g, k, own)
    return Neighbours(index, similarity)


def equal_rows(query: Tensor, gallery: Tensor) -> Tensor:
    """Find pairs (P, 2) of a row of (Q, D) and a row of (G, D) that are equal bit by bit, by gallery row."""
    rows: dict[bytes, list[int]] = {}
    for n, row in enumerate(query.numpy()):
        rows.setdefault(row.tobytes(), []).append(n)
    empty: list[int] = []
    found = [rows.get(row.tobytes(), empty) for row in gallery.numpy()]
    columns = np.repeat(np.arange(len(found)), [len(members) for members in found])
    return torch.stack(
        [
            torch.tensor([n for members in found for n in members], dtype=torch.int64),
            torch.from_numpy(columns),
        ],
        dim=1,
    )


def check_finite(name: str, x: Tensor) -> None:
    """Refuse features (N, D) that are not finite.

    Raises:
        DataError: It names the first row that is not.
    """
    finite = torch.isfinite(x).all(dim=1)
    if not bool(finite.all()):
        row = int(finite.logical_not().nonzero()[0])
        raise DataError(
            f"a {name} feature is not finite (row {row} of {len(x)}): the network or its input is broken"
        )


class _Vectors:
    """Features, and for each the factor that makes it a unit vector; by blocks, for they may lie in a file."""

    def __init__(self, name: str, x: Tensor, center: bool) -> None:
        self.x: Array = x.detach().numpy()
        self.mean: Array | None = None
        if center:
            mean = x.detach().mean(dim=0)
            if not bool(torch.isfinite(mean).all()):
                check_finite(name, x)
            self.mean = mean.numpy()
        step = max(1, 2**17 // max(1, x.shape[1]))  # such a block stays in the processor's cache
        norm = torch.empty(len(x), dtype=torch.float64)
        for start in range(0, len(x), step):
            # In float64 no square of a float32 overflows, or is rounded to 0.
            part = torch.from_numpy(self.rows(slice(start, start + step))).double()
            norm[start : start + step] = part.square_().sum(dim=1).sqrt_()
        if not bool(torch.isfinite(norm).all()):
            check_finite(name, x)
            raise DataError(f"the {name} features are too large to be centred: the network is broken")
        self.scale: Array = torch.where(norm > 0, 1 / norm, 0.0).numpy()

    def rows(self, which: slice | NDArray[np.int64]) -> Array:
        """Give features, centred where that was asked for."""
        part = self.x[which] if isinstance(which, slice) else self.x.take(which, axis=0)
        return part if self.mean is None else part - self.mean

    def unit(self, which: NDArray[np.int64], dtype: type[np.floating[Any]]) -> Array:
        """Give unit vectors."""
        rows, scale = self.rows(which), self.scale[which, None]
        if dtype is np.float32 and _is_tame(scale):
            return rows * scale.astype(dtype)
        return (rows.astype(np.float64) * scale).astype(dtype, copy=False)


def _is_tame(scale: Array) -> bool:
    """Whether float32 holds the factors, and neither rounds what they scale to 0 nor overflows."""
    return bool(scale.max() <= 1e20 and scale.min() >= 1e-30)


def _search(
    q: _Vectors, queries: NDArray[np.int64], g: _Vectors, k: int, own: Tensor
) -> tuple[Tensor, Tensor]:
    """Give the rows (Q, k) and similarities (Q, k) of some queries; `own` counts them from the first of these."""
    count = min(k + _SPARE, len(g.x))
    index, value = _largest(q.unit(queries, np.float32), g, count, own)
    # A product of unit vectors in float32 is off by less than this, in whatever order its D terms are added, with the
    # rounding of vectors, scale and result. What is below `least` is behind k other rows, and ties with none of them.
    error = (q.x.shape[1] + 16) * 2.0**-24
    least = value[:, k - 1, None].double() - (2 * error / (1 - error) if error < 1 else torch.inf)
    possible = value >= least
    index, value = _compared(q, queries, g, index, value, possible)
    index, value = index[:, :k], value[:, :k]
    doubtful = possible.all(dim=1).nonzero()[:, 0]  # what was not kept may be possible too
    for start in range(0, len(doubtful) if count < len(g.x) else 0, 256):
        some = doubtful[start : start + 256]
        place = torch.searchsorted(some, own[:, 0].contiguous()).clamp_(max=len(some) - 1)
        theirs = torch.stack([place, own[:, 1]], dim=1)[some[place] == own[:, 0]]
        index[some], value[some] = _largest(q.unit(queries[some.numpy()], np.float64), g, k, theirs)
    return index, value


def _compared(
    q: _Vectors, queries: NDArray[np.int64], g: _Vectors, index: Tensor, value: Tensor, possible: Tensor
) -> tuple[Tensor, Tensor]:
    """Order the possible of some gallery rows (Q, C) anew by their products in float64; the others come last."""
    index, order = torch.where(possible, index, len(g.x)).sort(dim=1)  # by row, as ties will be
    rows, counts = index.numpy(), possible.sum(dim=1).tolist()
    product = np.zeros(rows.shape)

    def compare(start: int) -> None:
        for n, unit in enumerate(q.unit(queries[start : start + _SOME], np.float64), start):
            some = g.rows(rows[n, : counts[n]]).astype(np.float64)
            product[n, : counts[n]] = np.vecdot(some, unit)  # each row by itself: equal rows tie exactly

    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        list(pool.map(compare, range(0, len(queries), _SOME)))
    found = torch.from_numpy((product * g.scale.take(rows, mode="clip")).astype(np.float32))
    found[torch.isneginf(value.gather(1, order)) | (index == len(g.x))] = -torch.inf
    value, order = torch.sort(found, dim=1, descending=True, stable=True)
    return index.gather(1, order), value


def _largest(unit: Array, g: _Vectors, count: int, own: Tensor) -> tuple[Tensor, Tensor]:
    """Give the rows and products (Q, count) that are largest; in float64 equal ones go by row, in float32 by chance."""
    exact = unit.dtype == np.float64
    index, value = torch.empty(len(unit), 0, dtype=torch.int64), torch.empty(len(unit), 0)
    most = max(1, _STEP // max(len(unit), unit.shape[1]))
    stop = 0
    while stop < len(g.x):
        # Twice as many rows as before: about twice as many as are kept will be larger than those.
        start, stop = stop, min(stop + max(1, min(most, max(2 * stop, most // 8))), len(g.x))
        block, scale = g.rows(slice(start, stop)), g.scale[start:stop]
        if not exact and not _is_tame(scale):
            block, scale = (block * scale[:, None]).astype(np.float32), np.ones_like(scale)
        product = unit @ block.astype(unit.dtype, copy=False).T
        product *= scale.astype(unit.dtype, copy=False)
        product = product.astype(np.float32, copy=False)
        inside = own[(own[:, 1] >= start) & (own[:, 1] < stop)].numpy()
        product[inside[:, 0], inside[:, 1] - start] = -np.inf
        if exact or value.shape[1] < count:
            place, found = torch.arange(product.shape[1]).expand(product.shape), torch.from_numpy(product)
        else:
            place, found = _above(product, value[:, -1:].numpy())
        # What was found before comes first, so that equal ones stay in order.
        index, value = torch.cat([index, place + start], dim=1), torch.cat([value, found], dim=1)
        if exact:
            value, order = torch.sort(value, dim=1, descending=True, stable=True)
            value, order = value[:, :count], order[:, :count]
        else:
            value, order = torch.topk(value, min(count, value.shape[1]), dim=1)
        index = index.gather(1, order)
    return index, value


def _above(product: Array, least: Array) -> tuple[Tensor, Tensor]:
    """Give the places and values (Q, M) of the products (Q, N) above `least` (Q, 1), padded with -inf at 0."""
    row, column = np.divmod(np.flatnonzero(product > least), product.shape[1])
    counts = np.bincount(row, minlength=len(product))
    nth = np.arange(len(row)) - (counts.cumsum() - counts)[row]
    shape = len(product), int(counts.max())
    place, found = np.zeros(shape, np.int64), np.full(shape, -np.inf, np.float32)
    place[row, nth], found[row, nth] = column, product[row, column]
    return torch.from_numpy(place), torch.from_numpy(found)
