"""Time the search: `python benchmarks/retrieval.py [--queries Q] [--gallery G] [--dim D] [--k K] [--json FILE]`.

Random features of Q queries and G gallery videos, and the k nearest of each query by cosine: vidssl's `nearest`, exact
to the last bit and tie, beside the flat index of faiss, which searches in float32 and leaves ties to chance. To faiss
belongs what a user needs for the same: copies of both sides made unit vectors, the index, the search. All run in turn
in each round, with as many threads; ratios are medians over rounds: of CPU time, with more than one thread of the wall
clock. A second table times one query in galleries that lie in a file, as with `--index`.
"""

import argparse
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import torch
from measure import finish, ratio, table
from threadpoolctl import threadpool_limits
from torch import Tensor

from vidssl.evaluation.search import nearest
from vidssl.randomness import generator


def features(count: int, dim: int, seed: int) -> Tensor:
    """Random rows: the hardest for a search that must prove that it is exact, for no row stands out."""
    return torch.from_numpy(generator(seed).standard_normal((count, dim), np.float32))


def flat(query: Tensor, gallery: Tensor, k: int) -> np.ndarray:
    """Search with faiss; give the rows that are found."""
    q, g = query.numpy().copy(), gallery.numpy().copy()
    faiss.normalize_L2(q)
    faiss.normalize_L2(g)
    index = faiss.IndexFlatIP(g.shape[1])
    index.add(g)
    return np.asarray(index.search(q, k)[1])


def measure(parsed: Namespace) -> tuple[dict[str, np.ndarray], float]:
    """Time both in milliseconds a round; and the share of places where both found the same row."""
    query, gallery = features(parsed.queries, parsed.dim, 0), features(parsed.gallery, parsed.dim, 1)
    found: dict[str, np.ndarray] = {}
    searches: dict[str, Callable[[], np.ndarray]] = {
        "faiss IndexFlatIP": lambda: flat(query, gallery, parsed.k),
        "**vidssl**": lambda: nearest(query, gallery, parsed.k).index.numpy(),
    }
    clock = time.process_time if parsed.threads == 1 else time.perf_counter
    times: dict[str, list[float]] = {name: [] for name in searches}
    for number in range(parsed.rounds + 1):
        for name, search in searches.items():
            start = clock()
            found[name] = search()
            if number:  # the first round warms up
                times[name].append(1000 * (clock() - start))
    one, other = found.values()
    return {name: np.array(values) for name, values in times.items()}, float((one == other).mean())


def one_query(gallery: int, dim: int, k: int, rounds: int) -> dict[str, float]:
    """Seconds of one query in a file of so many rows: the first, then the median of the others."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "features"
        features(gallery, dim, 2).numpy().tofile(path)
        query, seconds = features(1, dim, 3), []
        for _ in range(rounds + 1):
            start = time.perf_counter()
            rows = torch.from_numpy(np.memmap(path, np.float32, "c", shape=(gallery, dim)))
            nearest(query, rows, k)
            seconds.append(time.perf_counter() - start)
    return {"first": seconds[0], "then": float(np.median(seconds[1:]))}


def main() -> None:
    """Print the tables, write the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--queries", type=int, default=3783, help="Q: the test videos of UCF101, split 1")
    parser.add_argument("--gallery", type=int, default=9537, help="G: its training videos")
    parser.add_argument("--dim", type=int, default=2048, help="D")
    parser.add_argument("--k", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", type=Path, help="file for the figures")
    parsed = parser.parse_args()
    torch.set_num_threads(parsed.threads)
    faiss.omp_set_num_threads(parsed.threads)
    with threadpool_limits(parsed.threads):
        times, same = measure(parsed)
        files = {size: one_query(*size, parsed.k, parsed.rounds) for size in ((10_000, 512), (1_000_000, 64))}
    ratios = {name: ratio(times, name, "faiss IndexFlatIP") for name in times}
    rows = [
        [name, f"{np.median(values):.0f}", f"{values.min():.0f}", f"{ratios[name]:.2f}"]
        for name, values in times.items()
    ]
    print(table(["search", "ms, median", "ms, fastest", "times faiss"], rows))
    shown: dict[str, Any] = {
        name: getattr(parsed, name) for name in ("queries", "gallery", "dim", "k", "rounds", "threads")
    }
    print("\n" + ", ".join(f"{name} {value}" for name, value in shown.items()))
    print(f"the same row at {100 * same:.3f} % of all places\n")
    header = ["one query in a file of", "ms, first", "ms, then"]
    print(
        table(
            header,
            [
                [f"{count:,} x {dim}", f"{1000 * s['first']:.0f}", f"{1000 * s['then']:.0f}"]
                for (count, dim), s in files.items()
            ],
        )
    )
    figures = {
        **shown,
        "ms": {name: values.tolist() for name, values in times.items()},
        "times_faiss": ratios,
        "same": same,
        "one_query": {f"{count}x{dim}": seconds for (count, dim), seconds in files.items()},
    }
    finish(figures, parsed.json)


if __name__ == "__main__":
    main()
