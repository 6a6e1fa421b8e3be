"""Read damaged files of all kinds in child processes, and report what neither works nor is a VidsslError.

    python tests/faults/fuzz.py --minutes 30 --out output/fuzz    new seeds until the time is over, as `make fuzz`
    python tests/faults/fuzz.py --seed 1 --count videos=2000      these mutants and no others, as the tests

One process imports everything; its children, forked, read one mutant after another under a limit of memory and CPU
time. A child that dies, hangs or lets another exception out is a finding, and the next mutant gets a new child. With
`--out` the mutant of each finding is kept there.
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

from vidssl.base.errors import ConfigError, VidsslError
from vidssl.base.keyed_generators import generator

MEMORY = 1 << 30  # bytes that reading a mutant may take, beside those of the imports
CPU, WALL = 10.0, 60.0  # seconds of a mutant
_READS, _REFUSED, _DONE = b">", b"!", b"."
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
        pending = list(mutants)
        while pending:
            done, finding = self._child(pending)
            if finding:
                yield finding
            pending = pending[done:]

    def _child(self, mutants: list[tuple[str, Mutant]]) -> tuple[int, Finding | None]:
        """Fork a child that reads mutants until one is a finding: how many were read, and that one."""
        inlet, outlet = os.pipe()
        if not (child := os.fork()):
            os.close(inlet)
            _read_all(self.folder, mutants, self._seeds, outlet)
        os.close(outlet)
        done, text, reading, since, used = 0, b"", False, time.monotonic(), ""
        while True:
            if not select.select([inlet], [], [], max(0.0, since + WALL - time.monotonic()))[0]:
                runs, before = _progress(child), used
                since, used = time.monotonic(), runs
                if runs != before or runs.startswith("R"):  # slow on a busy machine: its limit of CPU time counts
                    continue
                os.kill(child, signal.SIGKILL)  # it waits for something, without using the CPU
                text = b"hangs without using the CPU"
                break
            content = os.read(inlet, 1 << 16)
            if not content:
                break
            text += content
            since = time.monotonic()
            while text[:1] in (_READS, _REFUSED, _DONE):
                self.refused += text[:1] == _REFUSED
                reading, done, text = text[:1] != _DONE, done + (text[:1] == _DONE), text[1:]
        os.close(inlet)
        _, status, usage = os.wait4(child, 0)
        self.peak = max(self.peak, usage.ru_maxrss * 1024)
        if not reading:
            return done, None
        label, mutant = mutants[done]
        self._restore(mutant)
        if not text:
            number = os.waitstatus_to_exitcode(status)
            text = f"killed: {signal.Signals(-number).name}" if number < 0 else f"ended with status {number}"
            text = text.replace("SIGPROF", f"more than {CPU:g} s of CPU time").encode()
        what, _, where = text.decode(errors="replace").partition("\n")
        return done + 1, Finding(label, mutant.name, what, where)

    def _restore(self, mutant: Mutant) -> None:
        _write(self.folder / mutant.kind / mutant.name, self._seeds[mutant.kind][mutant.name])


def _progress(child: int) -> str:
    """The state of a process, `R` if it could run, and the CPU time that it has used."""
    fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
    return " ".join((fields[0], *fields[11:13]))


def _write(path: Path, content: bytes) -> None:
    path.unlink(missing_ok=True)  # another inode: caches see a new file
    path.write_bytes(content)


def _read_all(folder: Path, mutants: list[tuple[str, Mutant]], seeds: dict[str, dict[str, bytes]], outlet: int) -> None:
    """Read mutants in this process, and end it: `>` before each, `.` or `!.` after it, or the finding."""
    faulthandler.disable()  # pytest's would write the trace of a crash into its own output
    devnull = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(devnull, stream)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    for _, mutant in mutants:
        place = folder / mutant.kind
        _write(place / mutant.name, mutant.content)
        os.write(outlet, _READS)
        refused = b""
        signal.setitimer(signal.ITIMER_PROF, CPU)
        try:
            KINDS[mutant.kind].read(place, mutant.name)
        except VidsslError as error:
            # A config has a line for each mistake, and a head.
            one_line = "\n" not in str(error) or (isinstance(error, ConfigError) and " mistake" in str(error))
            problem = "" if one_line else f"not one line: {error!r:.300}"
            refused = _REFUSED
        except BaseException as error:
            problem = _describe(error)
        else:
            problem = ""
        signal.setitimer(signal.ITIMER_PROF, 0)
        if problem:
            os.write(outlet, problem[:60_000].encode(errors="replace"))
            os._exit(1)
        _write(place / mutant.name, seeds[mutant.kind][mutant.name])
        os.write(outlet, refused + _DONE)
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
