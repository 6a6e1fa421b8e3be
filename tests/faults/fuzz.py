"""Read damaged files of all kinds in child processes, and report what neither works nor is a VidsslError.

    python tests/faults/fuzz.py --minutes 30 --out output/fuzz    new seeds until the time is over, as `make fuzz`
    python tests/faults/fuzz.py --seed 1 --count videos=2000      these mutants and no others, as the tests

One process imports everything; a child, forked, reads each mutant under a limit of memory and CPU time. One that dies,
hangs or lets another exception out is a finding. With `--out` the mutant of each finding is kept there.
"""

import argparse
import faulthandler
import json
import os
import resource
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import torch
from fuzz_kinds import KINDS

from vidssl.base.errors import VidsslError
from vidssl.base.keyed_generators import generator

MEMORY = 1 << 30  # bytes that reading a mutant may take, beside those of the imports
CPU, WALL = 10.0, 60.0  # seconds of a mutant
_REFUSED, _DONE = b"!", b"."
_OURS = Path(__file__).parents[2] / "vidssl"


class Mutant(NamedTuple):
    """A file to read: of a kind, with this name in its folder, and this content."""

    kind: str
    name: str
    content: bytes


class Finding(NamedTuple):
    """What went wrong with a mutant."""

    label: str  # kind and number, or path
    name: str
    what: str  # the last line of the traceback, or how the child died
    where: str  # of the traceback, the innermost lines in vidssl

    @property
    def key(self) -> tuple[str, str]:
        """Equal for what is probably the same fault."""
        return self.what.split(":")[0], self.where.rpartition(" < ")[2] or self.where


class Fuzzer:
    """The files of all kinds in a folder, and the children that read their mutants."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._seeds: dict[str, dict[str, bytes]] = {}
        self._order: dict[str, list[str]] = {}
        self.peak = 0  # bytes, of the largest child
        self.refused = 0  # mutants that were a VidsslError

    def seeds(self, kind: str) -> dict[str, bytes]:
        """Build the files of a kind at first use; return the content of those that are changed."""
        if kind not in self._seeds:
            place = self.folder / kind
            place.mkdir()
            self._order[kind] = [*KINDS[kind].build(place)]
            self._seeds[kind] = {name: (place / name).read_bytes() for name in self._order[kind]}
        return self._seeds[kind]

    def mutant(self, kind: str, seed: int, number: int) -> Mutant:
        """Make a mutant: a function of kind, seed and number, and of the versions of what wrote the seeds."""
        seeds, random = self.seeds(kind), generator(seed, [*KINDS].index(kind), number)
        name = self._order[kind][number % len(self._order[kind])]
        return Mutant(kind, name, KINDS[kind].mutate(random, seeds[name], [*seeds.values()]))

    def read(self, mutants: Iterable[tuple[str, Mutant]]) -> Iterator[Finding]:
        """Read mutants, each with its label, and yield the findings."""
        for label, mutant in mutants:
            path = self.folder / mutant.kind / mutant.name
            _write(path, mutant.content)
            answer, status = self._read_in_child(mutant)
            _write(path, self._seeds[mutant.kind][mutant.name])
            self.refused += answer == _REFUSED
            if answer not in (_DONE, _REFUSED):
                what, _, where = answer.decode(errors="replace").partition("\n")
                yield Finding(label, mutant.name, what or _ending(status), where)

    def _read_in_child(self, mutant: Mutant) -> tuple[bytes, int]:
        """Fork a child that reads a mutant: what it answers, and the status that it ends with."""
        inlet, outlet = os.pipe()
        if not (child := os.fork()):
            os.close(inlet)
            _read_and_end(self.folder / mutant.kind, mutant, outlet)
        os.close(outlet)
        answer, used = b"", ""
        with open(inlet, "rb") as pipe:
            while not select.select([pipe], [], [], WALL)[0]:
                before, used = used, _progress(child)
                if used == before and not used.startswith("R"):  # on a busy machine its limit of CPU time counts
                    os.kill(child, signal.SIGKILL)  # it waits for something, without using the CPU
                    answer = b"hangs without using the CPU"
                    break
            answer = answer or pipe.read()
        _, status, usage = os.wait4(child, 0)
        self.peak = max(self.peak, usage.ru_maxrss * 1024)
        return answer, status


def _ending(status: int) -> str:
    number = os.waitstatus_to_exitcode(status)
    text = f"killed: {signal.Signals(-number).name}" if number < 0 else f"ended with status {number}"
    return text.replace("SIGPROF", f"more than {CPU:g} s of CPU time")


def _progress(child: int) -> str:
    """The state of a process, `R` if it could run, and the CPU time that it has used."""
    fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
    return " ".join((fields[0], *fields[11:13]))


def _write(path: Path, content: bytes) -> None:
    path.unlink(missing_ok=True)  # another inode: caches see a new file
    path.write_bytes(content)


def _read_and_end(folder: Path, mutant: Mutant, outlet: int) -> None:
    """Read a mutant in this process, and end it; the answer is `_DONE`, `_REFUSED`, or the finding."""
    faulthandler.disable()  # pytest's would write the trace of a crash into its own output
    devnull = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(devnull, stream)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, CPU)
    answer = _DONE
    try:
        KINDS[mutant.kind].read(folder, mutant.name)
    except VidsslError as error:
        answer = _REFUSED if "\n" not in str(error) else f"not one line: {error!r:.300}".encode()
    except BaseException as error:
        answer = _describe(error).encode(errors="replace")
    signal.setitimer(signal.ITIMER_PROF, 0)
    os.write(outlet, answer[:60_000])
    os._exit(0)


def _describe(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in frames if _OURS in Path(f.filename).parents]
    ours = ours or [f"{Path(frames[-1].filename).name}:{frames[-1].lineno}"]
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}\n{' < '.join(ours[-4:])}"


def main() -> None:
    """Read the command line, and print the findings as JSON, one a line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    option = parser.add_argument
    option("--seed", type=int, default=0)
    option("--count", nargs="+", default=[], metavar="KIND=N", help="of a kind; without it all kinds, for --minutes")
    option("--minutes", type=float, default=10.0)
    option("--kinds", nargs="+", choices=KINDS, default=[*KINDS])
    option("--out", type=Path, help="folder for the mutant of each finding")
    parsed = parser.parse_args()
    torch.set_num_threads(1)
    cv2.setNumThreads(0)
    counts = {kind: int(number) for kind, _, number in (text.partition("=") for text in parsed.count)}
    until, known, total = time.monotonic() + 60 * parsed.minutes, set(), 0
    with tempfile.TemporaryDirectory() as folder:
        fuzzer = Fuzzer(Path(folder))
        seed = parsed.seed
        while True:
            for kind, count in (counts or dict.fromkeys(parsed.kinds, 200)).items():
                labelled = {f"{kind}-{seed}-{n}": fuzzer.mutant(kind, seed, n) for n in range(count)}
                for finding in fuzzer.read(labelled.items()):
                    if counts or finding.key not in known:
                        known.add(finding.key)
                        line: dict[str, Any] = finding._asdict()
                        if parsed.out:
                            parsed.out.mkdir(parents=True, exist_ok=True)
                            line["file"] = str(parsed.out / finding.label)
                            Path(line["file"]).write_bytes(labelled[finding.label].content)
                        print(json.dumps(line), flush=True)
                total += count
                if not counts and time.monotonic() > until:
                    break
            if counts or time.monotonic() > until:
                break
            seed += 1
        seeds, more = [parsed.seed, seed], {"refused": fuzzer.refused, "peak": fuzzer.peak}
        print(json.dumps({"mutants": total, "findings": len(known), "seeds": seeds, **more}), flush=True)
    sys.exit(1 if known else 0)


if __name__ == "__main__":
    main()
