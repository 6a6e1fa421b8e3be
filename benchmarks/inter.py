"""Time InterCLR's branch as its bank grows: `python benchmarks/inter.py [--records M ...] [--json FILE]`.

Measures the parts of a step for one view: writing rows to the bank, updating the clusters, drawing positives and
negatives by each sampling, the loss forward and backward. The rows are those of a mixture, so that there are clusters.
All banks run in turn in each round (A B C A B C ...), and the fastest round of each part counts: wall clock, or CPU
time with one thread (OMP_NUM_THREADS=1). One iteration of the global k-means is timed once.

Memory is the peak during a part minus what was in use before it, in a step of its own: on a GPU that of torch's
allocator, on a CPU the resident memory of the process.
"""

import argparse
import ctypes
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from measure import finish, table

from vidssl.base.keyed_generators import generator
from vidssl.base.schedule import constant
from vidssl.losses import margin_nce, unit
from vidssl.methods import Method
from vidssl.methods.interclr_branch import Inter, InterBranch
from vidssl.methods.npid import MemoryBank
from vidssl.models import build_backbone

DIM = 128
NOISE = 0.05  # of each number of a row, beside its centre of length 1
SAMPLINGS = ("hard", "semihard", "semieasy", "random")


def fill(bank: MemoryBank, centres: int) -> None:
    """Write a row for every record, each near one of the centres of a mixture."""
    source = torch.Generator(bank.rows.device).manual_seed(0)
    shape = (centres, bank.rows.shape[1])
    centre = unit(torch.randn(shape, generator=source, device=source.device))
    for rows in bank.rows.split(2**16):
        cluster = torch.randint(centres, (len(rows),), generator=source, device=source.device)
        noise = torch.randn(rows.shape, generator=source, device=source.device)
        rows.copy_(unit(centre[cluster] + NOISE * noise))
    bank.seen.fill_(True)


class Subject:
    """A bank of M records with its clusters, and the parts of a step.

    Attributes:
        seconds: Of each part, of all rounds.
        mib: Peak of each part, measured once.
        weighed: Whether memory is measured, or time.
        held: MiB of the bank and the state of its clusters.
    """

    def __init__(self, records: int, parsed: Namespace) -> None:
        self.records, self._batch, self._negatives = records, parsed.batch, parsed.negatives
        self._device, single_thread = parsed.device, parsed.device.type == "cpu" and torch.get_num_threads() == 1
        self._clock = time.process_time if single_thread else time.perf_counter
        self.centroids = parsed.clusters or min(10_000, max(2, records // 100))
        self.seconds: dict[str, list[float]] = {}
        self.mib: dict[str, float] = {}
        torch.manual_seed(0)
        self._host = Method(None, build_backbone("resnet3d18", width=16))  # branches read its step and progress
        self._bank = MemoryBank(DIM, omega=0.5)
        self._branches = {name: self._branch(name) for name in (None, *SAMPLINGS)}
        self._clusters = self._branches[None].clusters
        for branch in self._branches.values():
            branch.clusters = self._clusters  # one k-means for all of them
        self._bank.allocate(records)
        self._clusters.allocate(records)
        self._bank.to(self._device)
        self._clusters.to(self._device)
        fill(self._bank, self.centroids)
        self.held = sum(x.nbytes for x in (*self._bank.buffers(), *self._clusters.buffers())) / 2**20
        for self.weighed in (False, True):
            source = torch.Generator(self._device).manual_seed(0)
            self._do("global k-means, one iteration", lambda s=source: self._clusters.fit(self._bank, s))
        self.weighed = False

    def _branch(self, sampling: Any) -> InterBranch:
        settings = Inter(clusters=self.centroids, negatives=self._negatives, sampling=sampling, iterations=1)
        return InterBranch(settings, DIM, None if sampling is None else constant(0.1), self._bank)

    def _do(self, part: str, action: Callable[[], Any]) -> Any:
        """Run a part and record its time, or its peak."""
        if self.weighed:
            before = _held(self._device)
            result = action()
            self.mib[part] = (_peak(self._device) - before) / 2**20
            return result
        start = self._clock()
        result = action()
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        self.seconds.setdefault(part, []).append(self._clock() - start)
        return result

    def step(self, number: int) -> None:
        """Run all parts of a step, with records and rows that are a function of its number."""
        bank, clusters, self._host.step = self._bank, self._clusters, number
        source = generator(1, number)
        index = torch.from_numpy(source.choice(self.records, self._batch, replace=False)).to(self._device)
        noise = torch.from_numpy(source.standard_normal((self._batch, DIM), "float32")).to(self._device)
        query = unit(bank.rows[index] + NOISE * noise)

        bank.hold(index, query)
        _, before = self._do("bank write", bank.write)
        self._do("online k-means", lambda: clusters.update(bank, index, before))
        for name, branch in self._branches.items():
            draw = f"draw of positives and negatives, {name}" if name else "draw of positives"
            positives, negatives = self._do(draw, lambda b=branch: b.draw(self._host, query, index, 0))
        query.requires_grad_()
        self._do(
            "loss, forward and backward",
            lambda: margin_nce(query, bank.rows[positives], bank.rows, 0.1, -0.5, negatives).backward(),
        )


def _held(device: torch.device) -> int:
    """Bytes in use, to be subtracted from the peak."""
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    ctypes.CDLL(None).malloc_trim(0)  # memory that is free must not hide new allocations
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    return _bytes("VmRSS")


def _peak(device: torch.device) -> int:
    return torch.cuda.max_memory_allocated() if device.type == "cuda" else _bytes("VmHWM")


def _bytes(name: str) -> int:
    """A line of this process's memory statistics on Linux."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return 1024 * int(line.split()[1])


def main() -> None:
    """Print the tables, write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, nargs="+", default=[10_000, 100_000, 1_300_000], help="M")
    parser.add_argument("--clusters", type=int, help="k, of all banks; a hundredth of M, at most 10,000")
    parser.add_argument("--negatives", type=int, default=16384, help="K")
    parser.add_argument("--batch", type=int, help="N, videos per step")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    parser.add_argument("--json", type=Path, help="file for the figures")
    parsed = parser.parse_args()
    parsed.batch = parsed.batch or (256 if parsed.device.type == "cuda" else 32)
    subjects = [Subject(records, parsed) for records in parsed.records]
    once = len(subjects[0].seconds)  # parts that are not in a step
    for number in range(parsed.rounds + 2):
        for subject in subjects:
            subject.weighed = number > parsed.rounds
            subject.step(number)
    figures = []
    for subject in subjects:
        parts = list(subject.seconds)
        fastest = {
            part: 1000 * min(subject.seconds[part][n >= once :]) for n, part in enumerate(parts)
        }  # of a step, the first round warms up
        figures.append(
            {
                "records": subject.records,
                "clusters": subject.centroids,
                "state_mib": subject.held,
                "ms": fastest,
                "mib": subject.mib,
            }
        )
    names = list(figures[0]["ms"])
    for title, key in (("ms", "ms"), ("MiB at the peak", "mib")):
        rows = [[part, *(f"{x[key][part]:.1f}" for x in figures)] for part in names]
        print(table([title, *(f"M = {x['records']:,}, k = {x['clusters']:,}" for x in figures)], rows), "\n")
    print("bank and state of the clusters:", ", ".join(f"{x['state_mib']:.0f} MiB" for x in figures))
    options = {name: getattr(parsed, name) for name in ("batch", "negatives", "rounds")}
    settings = {**options, "dim": DIM, "threads": torch.get_num_threads(), "device": str(parsed.device)}
    print(", ".join(f"{name} {value}" for name, value in settings.items()))
    finish({**settings, "banks": figures}, parsed.json)


if __name__ == "__main__":
    main()
