"""Time the SVM protocols: `python benchmarks/svm.py [--rows N] [--dim D] [--classes C] [--lowshot] [--json FILE]`.

As many random features as UCF101, split 1, has training videos, around one centre per class: once with classes that a
linear SVM separates, once with overlapping ones, as of an untrained network. The first table times the protocol `svm`,
and with `--lowshot` also `lowshot`, with default settings. The second times a part of the cross-validation, one class
against the rest on one fold for each cost, with the protocol's solver and with the dual solver
(`LinearSVC(dual=True, max_iter=20_000)`), which is stopped after `--limit` seconds.
"""

import argparse
import multiprocessing
import sys
import time
import warnings
from argparse import Namespace
from pathlib import Path

import numpy as np
import torch
from measure import finish, table
from sklearn.svm import LinearSVC

from vidssl.base.keyed_generators import generator
from vidssl.base.types import Features
from vidssl.evaluation.protocols import PROTOCOLS

SETS = {"overlapping": 0.05, "separable": 0.3}  # distance of the centres from the origin, in noise


def features(rows: int, parsed: Namespace, distance: float, seed: int) -> Features:
    """Draw rows around one centre per class; all classes have the same number."""
    label = np.arange(rows) % parsed.classes
    centres = generator(0).standard_normal((parsed.classes, parsed.dim))
    x = distance * centres[label] + generator(seed).standard_normal((rows, parsed.dim))
    return Features(torch.from_numpy(x.astype(np.float32)), torch.from_numpy(label), torch.arange(rows))


def run_protocol(name: str, gallery: Features, query: Features) -> tuple[float, dict[str, float]]:
    """Run a protocol with its default settings; return seconds and numbers."""
    protocol = PROTOCOLS[name](PROTOCOLS[name].Config())  # type: ignore[attr-defined]
    start = time.perf_counter()
    numbers = protocol(gallery, query, torch.empty(0, 2, dtype=torch.int64)).numbers
    return time.perf_counter() - start, numbers


def fit(x: np.ndarray, label: np.ndarray, cost: float, dual: bool) -> None:
    """Fit one class against the rest."""
    warnings.simplefilter("ignore")
    LinearSVC(C=cost, dual=dual, max_iter=20_000, random_state=0).fit(x, label == 0)


def limited(x: np.ndarray, label: np.ndarray, cost: float, dual: bool, limit: float) -> float:
    """Time `fit` in its own process, in seconds; inf if it exceeds `limit`."""
    process = multiprocessing.get_context("fork").Process(target=fit, args=(x, label, cost, dual))
    start = time.perf_counter()
    process.start()
    process.join(limit)
    if process.is_alive():
        process.terminate()
        process.join()
        return float("inf")
    return time.perf_counter() - start


def main() -> None:
    """Print the tables and write the numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=9537, help="N: the training videos of UCF101, split 1")
    parser.add_argument("--dim", type=int, default=512, help="D: the features of ResNet3D-18")
    parser.add_argument("--classes", type=int, default=101)
    parser.add_argument("--queries", type=int, default=3783, help="the test videos of UCF101, split 1")
    parser.add_argument("--lowshot", action="store_true", help="time `lowshot` too: about three times as long")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds of one fit of the slice")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", type=Path, help="file for the figures")
    parsed = parser.parse_args()
    torch.set_num_threads(parsed.threads)
    figures: dict[str, object] = {key: value for key, value in vars(parsed).items() if key != "json"}
    protocols, slices = [], []
    for name, distance in SETS.items():
        gallery = features(parsed.rows, parsed, distance, 1)
        query = features(parsed.queries, parsed, distance, 2)
        x = torch.nn.functional.normalize(gallery.x.double(), dim=1).numpy()[: parsed.rows * 2 // 3]
        label = gallery.label.numpy()[: len(x)]
        for cost in PROTOCOLS["svm"].Config().costs:  # type: ignore[attr-defined]
            slow, fast = (limited(x, label, cost, dual, parsed.limit) for dual in (True, len(x) < x.shape[1]))
            figures[f"{name} slice {cost:g}"] = {"before": slow, "now": fast}
            seconds_text = f"> {parsed.limit:g}" if slow == float("inf") else f"{slow:.2f}"
            slices.append([name, f"{cost:g}", seconds_text, f"{fast:.2f}"])
            print(*slices[-1], file=sys.stderr, flush=True)
        for protocol in ("svm", "lowshot") if parsed.lowshot else ("svm",):
            seconds, numbers = run_protocol(protocol, gallery, query)
            figures[f"{name} {protocol}"] = {"seconds": seconds, **numbers}
            value = numbers.get("svm", max(v for k, v in numbers.items() if not k.endswith("_spread")))
            protocols.append([name, protocol, f"{seconds:.0f}", f"{100 * value:.1f}"])
            print(*protocols[-1], file=sys.stderr, flush=True)
    print(table(["features", "protocol", "seconds", "accuracy, percent"], protocols))
    header = ["features", "cost", "dual solver: seconds of one class on one fold", "protocol's solver"]
    print("\n" + table(header, slices))
    finish(figures, parsed.json)


if __name__ == "__main__":
    main()
