"""Memory that is kept: by the command line and by workers, not in a program that calls a job, nor against its user."""

import ctypes
import os
import platform
import subprocess
import sys

import pytest

from vidssl.base.keep_memory import keep_memory

# Counts the pages that the system clears while 20 arrays of 64 MB are made one after another: 16,384 each if unmapped.
COUNT = """
import resource
import numpy as np
def faults(*_):
    np.ones(2**23); before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        np.ones(2**23)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
"""
COMMAND = """
import sys
from vidssl import cli
sys.argv = ["vidssl", "--version"]
try:
    cli.main()
except SystemExit:
    pass
print(faults())
"""
JOB = "import vidssl; vidssl.list_configs(); print(faults())"
WORKER = "from vidssl.base.worker_pool import ordered; print(*ordered(faults, iter([0]), 1, timeout=60), faults())"
pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other libraries of C have no such setting")


def run(code):
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    clean["NUMPY_MADVISE_HUGEPAGE"] = "0"  # pages of the usual size
    made = subprocess.run([sys.executable, "-c", COUNT + code], env=clean, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    return [int(number) for number in made.stdout.splitlines()[-1].split()]


def test_the_command_line_and_workers_keep_memory():
    (of_command,), (of_job,), (of_worker, of_caller) = run(COMMAND), run(JOB), run(WORKER)
    assert of_command < 1000 and of_worker < 1000
    assert of_job > 100_000 and of_caller > 100_000


SETTINGS = {
    "MALLOC_MMAP_MAX_": "65536",
    "MALLOC_TRIM_THRESHOLD_": "131072",
    "GLIBC_TUNABLES": "glibc.malloc.trim_threshold=131072",
}


@pytest.mark.parametrize("name", SETTINGS)
def test_the_environment_of_the_user_wins(name, monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda _: pytest.fail("glibc was set"))
    monkeypatch.setenv(name, SETTINGS[name])
    keep_memory()
