"""Time the losses and their memory: `python benchmarks/losses.py [--queries N] [--keys K] [--dim d] [--json FILE]`.

Forward and backward of each loss, in several implementations. All run in turn in each round (A B C A B C ...), and the
fastest round of each counts: wall clock, or CPU time with `--threads 1`. Extra memory: on a GPU the peak of torch's
allocator; on a CPU each implementation runs once in a new process, and its peak resident memory minus that of the
inputs counts. Gradients are compared with those in float64.
"""

import argparse
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from measure import finish, table
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize, one_hot

from vidssl.losses import info_nce, ressl, sce

TAU, TAU_M, LAMBDA = 0.1, 0.05, 0.5
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]  # of queries (N, d), keys (N, d), queue (K, d)


def logits(query: Tensor, key: Tensor, queue: Tensor) -> Tensor:
    """Similarities (N, 1 + K) of the positive and the queue."""
    positive = torch.einsum("nc,nc->n", query, key).unsqueeze(1)
    return torch.cat([positive, torch.einsum("nc,kc->nk", query, queue)], dim=1)


def sce_algorithm_1(query: Tensor, key: Tensor, queue: Tensor) -> Tensor:
    """Algorithm 1 of SCE line by line, with `log_softmax` instead of the log of a softmax."""
    sim2_pos = key.new_zeros(len(key), 1)
    sim2 = torch.cat([sim2_pos, torch.einsum("nc,kc->nk", key, queue)], dim=1) / TAU_M
    s2 = torch.softmax(sim2, dim=1)
    first = torch.zeros(len(key), dtype=torch.int64, device=key.device)
    w2 = LAMBDA * one_hot(first, 1 + len(queue)) + (1 - LAMBDA) * s2
    log_p1 = torch.log_softmax(logits(query, key, queue) / TAU, dim=1)
    return -torch.sum(w2 * log_p1, dim=1).mean()


def sce_without_copies(query: Tensor, key: Tensor, queue: Tensor) -> Tensor:
    """The same with the fewest (N, K) matrices possible with torch operations."""
    similarity = torch.cat([key.new_zeros(len(key), 1), key @ queue.T], dim=1)
    log_p = torch.log_softmax(logits(query, key, queue) / TAU, dim=1)
    related = (torch.softmax(similarity / TAU_M, dim=1) * log_p).sum(dim=1)
    return -(LAMBDA * log_p[:, 0] + (1 - LAMBDA) * related).mean()


def moco_algorithm_1(query: Tensor, key: Tensor, queue: Tensor) -> Tensor:
    """Algorithm 1 of MoCo."""
    first = torch.zeros(len(key), dtype=torch.int64, device=key.device)
    return cross_entropy(logits(query, key, queue) / TAU, first)


def ressl_algorithm_1(query: Tensor, key: Tensor, queue: Tensor) -> Tensor:
    """Algorithm 1 of ReSSL."""
    target = torch.softmax(key @ queue.T / TAU_M, dim=1)
    return -torch.sum(target * torch.log_softmax(query @ queue.T / TAU, dim=1), dim=1).mean()


# The first implementation of each loss is the reference.
FORMS: dict[str, dict[str, Loss]] = {
    "sce": {
        "Algorithm 1": sce_algorithm_1,
        "log_softmax, fewest copies": sce_without_copies,
        "**vidssl**": lambda *v: sce(*v, TAU, TAU_M, LAMBDA, "zero"),
    },
    "moco": {"Algorithm 1": moco_algorithm_1, "**vidssl**": lambda *v: info_nce(*v, TAU)},
    "ressl": {"Algorithm 1": ressl_algorithm_1, "**vidssl**": lambda *v: ressl(*v, TAU, TAU_M)},
}


def vectors(parsed: Namespace) -> tuple[Tensor, Tensor, Tensor]:
    """Unit queries, keys near them, a queue."""
    source = torch.Generator().manual_seed(0)
    query, key, queue = (
        torch.randn(n, parsed.dim, generator=source) for n in (parsed.queries, parsed.queries, parsed.keys)
    )
    query = normalize(query, dim=1)
    key = normalize(query + normalize(key, dim=1), dim=1)
    query, key, queue = (x.to(parsed.device) for x in (query, key, normalize(queue, dim=1)))
    return query.requires_grad_(), key, queue


def gradient(loss: Loss, query: Tensor, key: Tensor, queue: Tensor) -> Tensor:
    """Forward and backward."""
    return torch.autograd.grad(loss(query, key, queue), query)[0]


def difference(loss: Loss, actual: Tensor, query: Tensor, key: Tensor, queue: Tensor) -> float:
    """Largest difference of a gradient from that in float64, relative to its largest element; of 64 queries."""
    few = slice(min(64, len(query)))
    exact = gradient(loss, query.detach()[few].double().requires_grad_(), key[few].double(), queue.double())
    exact *= len(exact) / len(query)  # losses are means over the queries
    return float((actual[few] - exact).abs().max() / exact.abs().max())


def measure(parsed: Namespace) -> dict[str, dict[str, dict[str, float]]]:
    """Time all forms and compare their gradients."""
    inputs = vectors(parsed)
    cuda = inputs[0].is_cuda
    clock = time.process_time if parsed.threads == 1 and not cuda else time.perf_counter
    ms: dict[tuple[str, str], list[float]] = {(loss, form): [] for loss in FORMS for form in FORMS[loss]}
    memory = {}
    for number in range(parsed.rounds + 1):
        for loss, form in ms:
            if cuda:
                torch.cuda.reset_peak_memory_stats()
                before = torch.cuda.memory_allocated()
                torch.cuda.synchronize()
            start = clock()
            gradient(FORMS[loss][form], *inputs)
            if cuda:
                torch.cuda.synchronize()
                memory[loss, form] = (torch.cuda.max_memory_allocated() - before) / 2**20
            if number:  # the first round warms up
                ms[loss, form].append(1000 * (clock() - start))
    figures: dict[str, dict[str, dict[str, float]]] = {loss: {} for loss in FORMS}
    for loss, form in ms:
        exact, *_ = FORMS[loss].values()
        actual = gradient(FORMS[loss][form], *inputs)
        figures[loss][form] = {
            "ms": min(ms[loss, form]),
            "to_algorithm_1": min(ms[loss, form]) / min(ms[loss, "Algorithm 1"]),
            "mib": memory[loss, form] if cuda else _memory_of_process(loss, form),
            "gradient_difference": difference(exact, actual, *inputs),
        }
    return figures


def _memory_of_process(loss: str, form: str) -> float:
    command = [sys.executable, *sys.argv, "--memory-of", loss, form]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def memory(parsed: Namespace) -> float:
    """MiB that one implementation needs in addition to its inputs, in this new process."""
    inputs, loss = vectors(parsed), FORMS[parsed.memory_of[0]][parsed.memory_of[1]]
    gradient(loss, *(x[:32].detach().requires_grad_(x.requires_grad) for x in inputs))  # loads libraries
    before = _kib("VmRSS")
    gradient(loss, *inputs)
    return (_kib("VmHWM") - before) / 1024


def _kib(name: str) -> int:
    """A line of this process's memory statistics on Linux; `getrusage` may return the parent's larger peak."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1])


def main() -> None:
    """Print the table, write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int, default=512, help="N")
    parser.add_argument("--keys", type=int, default=65536, help="K, of the queue")
    parser.add_argument("--dim", type=int, default=256, help="d")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", type=torch.device, default="cpu")
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--memory-of", nargs=2, metavar=("LOSS", "FORM"), help=argparse.SUPPRESS)
    parsed = parser.parse_args()
    torch.set_num_threads(parsed.threads)
    if parsed.memory_of:
        print(memory(parsed))
        return
    figures = measure(parsed)
    rows = [
        [
            *(loss, form, f"{x['ms']:.0f}", f"{x['to_algorithm_1']:.2f}", f"{x['mib']:.0f}"),
            *(f"{x['mib'] / forms['Algorithm 1']['mib']:.3f}", f"{x['gradient_difference']:.0e}"),
        ]
        for loss, forms in figures.items()
        for form, x in forms.items()
    ]
    header = ["loss", "form", "ms", "times Algorithm 1", "extra MiB", "times Algorithm 1", "gradient off by"]
    print(table(header, rows))
    options: dict[str, Any] = {name: getattr(parsed, name) for name in ("queries", "keys", "dim", "rounds", "threads")}
    print("\n" + ", ".join(f"{name} {value}" for name, value in options.items()) + f", {parsed.device}")
    finish({**options, "device": str(parsed.device), "losses": figures}, parsed.json)


if __name__ == "__main__":
    main()
