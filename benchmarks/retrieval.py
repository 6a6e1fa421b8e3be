"""Time the search: `python benchmarks/retrieval.py [--queries Q] [--gallery G] [--dim D] [--k K] [--json FILE]`.

Search random features of Q queries in G gallery videos for the k nearest by cosine, with vidssl's `nearest` and the
flat index of faiss, both in float32. The time of faiss includes normalised copies of both sides and building the index.
Both run once per round, with the same number of threads; ratios are medians over rounds, of CPU time with one thread
and of wall time with more. A second table times one query in memory-mapped galleries, as with `--index`.
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

from vidssl.base.keyed_generators import generator
from vidssl.evaluation.search import nearest


def features(count: int, dim: int, seed: int) -> Tensor:
    """Random rows of a normal distribution."""
    return torch.from_numpy(generator(seed).standard_normal((count, dim), np.float32))


def flat(query: Tensor, gallery: Tensor, k: int) -> np.ndarray:
    """Search with faiss and return the rows of the k nearest."""
    q, g = query.numpy().copy(), gallery.numpy().copy()
    faiss.normalize_L2(q)
    faiss.normalize_L2(g)
    index = faiss.IndexFlatIP(g.shape[1])
    index.add(g)
    return np.asarray(index.search(q, k)[1])


def measure(parsed: Namespace) -> tuple[dict[str, np.ndarray], float]:
    """Time both, in milliseconds per round; return also the fraction of neighbours that are equal."""
    query, gallery = features(parsed.queries, parsed.dim, 0), features(parsed.gallery, parsed.dim, 1)
    neighbours: dict[str, np.ndarray] = {}
    searches: dict[str, Callable[[], np.ndarray]] = {
        "faiss IndexFlatIP": lambda: flat(query, gallery, parsed.k),
        "**vidssl**": lambda: nearest(query, gallery, parsed.k).index.numpy(),
    }
    clock = time.process_time if parsed.threads == 1 else time.perf_counter
    times: dict[str, list[float]] = {name: [] for name in searches}
    for number in range(parsed.rounds + 1):
        for name, search in searches.items():
            start = clock()
            neighbours[name] = search()
            if number:  # the first round warms up
                times[name].append(1000 * (clock() - start))
    faiss_rows, vidssl_rows = neighbours.values()
    return {name: np.array(values) for name, values in times.items()}, float((faiss_rows == vidssl_rows).mean())


def one_query(gallery: int, dim: int, k: int, rounds: int) -> dict[str, float]:
    """Time one query in a mapped gallery, in seconds: the first, and the median of the others."""
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
    """Print the tables and write the numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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
        times, equal_share = measure(parsed)
        files = {size: one_query(*size, parsed.k, parsed.rounds) for size in ((10_000, 512), (1_000_000, 64))}
    ratios = {name: ratio(times, name, "faiss IndexFlatIP") for name in times}
    rows = [
        [name, f"{np.median(values):.0f}", f"{values.min():.0f}", f"{ratios[name]:.2f}"]
        for name, values in times.items()
    ]
    print(table(["search", "ms, median", "ms, fastest", "times faiss"], rows))
    options: dict[str, Any] = {
        name: getattr(parsed, name) for name in ("queries", "gallery", "dim", "k", "rounds", "threads")
    }
    print("\n" + ", ".join(f"{name} {value}" for name, value in options.items()))
    print(f"{100 * equal_share:.3f} % of the neighbours are equal\n")
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
        **options,
        "ms": {name: values.tolist() for name, values in times.items()},
        "times_faiss": ratios,
        "same": equal_share,
        "one_query": {f"{count}x{dim}": seconds for (count, dim), seconds in files.items()},
    }
    finish(figures, parsed.json)


if __name__ == "__main__":
    main()
