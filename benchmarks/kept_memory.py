r"""What a command saves by keeping freed memory (`vidssl/base/keep_memory.py`): pairs of runs without and with it.

    python benchmarks/kept_memory.py --rounds 3 -- extract VIDEOS --checkpoint vidssl-frames --out OUT
    python benchmarks/kept_memory.py --rounds 3 -- train --cfg CONFIG VIDEOS steps=30 output=OUT

OUT is a new folder for each run. CPU time is that of the command and its workers, memory the largest resident set of
the command; the order of a pair alternates. Linux with glibc only.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from measure import table

OFF = {"GLIBC_TUNABLES": "glibc.malloc.check=0"}  # any setting of the user's wins, and this one changes nothing


def main() -> None:
    """Print the medians and the ratios of the pairs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("words", nargs="+", help="the command of vidssl")
    parsed = parser.parse_args()
    runs: dict[str, list[list[float]]] = {"given back": [], "kept": []}
    for number in range(parsed.rounds):
        for name in [*runs][:: 1 if number % 2 == 0 else -1]:
            runs[name].append(run(parsed.words, OFF if name == "given back" else {}))
    columns = ("user, CPU s", "system, CPU s", "both", "wall, s", "peak, MB")
    rows = [[name, *(f"{median(values):.1f}" for values in zip(*rounds, strict=True))] for name, rounds in runs.items()]
    ratios = [[b / a for a, b in zip(*pair, strict=True)] for pair in zip(*runs.values(), strict=True)]
    cells = [f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})" for values in zip(*ratios, strict=True)]
    print(table([f"memory is, {parsed.rounds} pairs", *columns], [*rows, ["ratio", *cells]]))


def run(words: list[str], environment: dict[str, str]) -> list[float]:
    """Return CPU seconds of the user, of the system, their sum, seconds of the wall clock, and megabytes."""
    with tempfile.TemporaryDirectory() as folder:
        command = [word[:-3] + str(Path(folder) / "out") if word.endswith("OUT") else word for word in words]
        start = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-m", "vidssl", *command], env={**os.environ, **environment}, stdout=subprocess.DEVNULL
        )
        _, status, usage = os.wait4(process.pid, 0)
        if status:
            sys.exit(f"vidssl {' '.join(command)} failed")
        cpu = usage.ru_utime + usage.ru_stime
        return [usage.ru_utime, usage.ru_stime, cpu, time.perf_counter() - start, usage.ru_maxrss / 1e3]


if __name__ == "__main__":
    main()
