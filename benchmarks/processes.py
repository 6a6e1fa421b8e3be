"""How much faster N processes of one machine are than one: `vidssl extract` in parts, and `vidssl check`.

    OMP_NUM_THREADS=1 python benchmarks/processes.py --videos FOLDER --processes 1 2 --rounds 3

The same list is done by each number of processes in turn, from the start of the first to the end of the last. A process
of `extract` has no worker and one thread, so it keeps one core busy; `check` has as many workers as processes.
Efficiency is the time of one process over N times that of N. CPU seconds show what the processes cost each other, also
where others use the machine.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from measure import finish, table

EXTRACT = ("extract", "--checkpoint", "vidssl-small", "--clips", "2", "--crops", "1", "--workers", "0")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="N local processes against one.")
    parser.add_argument("--videos", type=Path, required=True, help="list, folder or pattern")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parsed = parser.parse_args()
    numbers, rows, results = parsed.processes, [], {}
    if numbers[0] != 1:
        sys.exit(f"--processes {numbers[0]} …: the first must be 1, which the others are compared with")
    for name, commands in {"extract": extract, "check": check}.items():
        seconds = np.array([[timed(commands(parsed.videos, n)) for n in numbers] for _ in range(parsed.rounds)])
        wall, cpu = seconds[:, :, 0], seconds[:, :, 1]  # (rounds, numbers) seconds
        results[name] = {"processes": numbers, "wall": wall.tolist(), "cpu": cpu.tolist()}
        for k, number in enumerate(numbers):
            efficiency, cost = wall[:, 0] / (number * wall[:, k]), cpu[:, k] / cpu[:, 0]
            times = f"{np.median(wall[:, k]):.1f}", f"{np.median(cpu[:, k]):.1f}"
            ratios = (
                f"{np.median(efficiency):.2f} ({efficiency.min():.2f}-{efficiency.max():.2f})",
                f"{np.median(cost):.2f}",
            )
            rows.append([name, str(number), *times, *ratios])
    print(table(["command", "processes", "seconds", "CPU seconds", "efficiency", "CPU, times one"], rows))
    finish(results, parsed.json)


def extract(videos: Path, processes: int) -> list[list[str]]:
    """Return the commands that extract the parts of a list."""
    parts = [["--shard", f"{n}/{processes}"] for n in range(processes)]
    return [[*EXTRACT, str(videos), "--device", "cpu", "--quiet", *part] for part in parts]


def check(videos: Path, processes: int) -> list[list[str]]:
    """Return the command that checks a list."""
    return [["check", str(videos), "--workers", str(processes), "--quiet"]]


def timed(commands: list[list[str]]) -> tuple[float, float]:
    """Run commands at the same time; return wall and CPU seconds."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    with tempfile.TemporaryDirectory() as out:
        words = [[sys.executable, "-m", "vidssl", *command, "--out", f"{out}/x"] for command in commands]
        running = [subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) for command in words]
        statuses = [process.wait() for process in running]
    wall = time.perf_counter() - start
    if any(status not in (0, 1) for status in statuses):  # 1: broken videos
        sys.exit(f"a command ended with {statuses}: its message is above")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
