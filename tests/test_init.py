"""Importing the package, and what it uses of Linux alone."""

import subprocess
import sys
from pathlib import Path

import pytest

from vidssl.apps.compare import features_and_predictions as encoder_scores


def python(code, *arguments):
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)


def test_a_system_without_fork_and_locks_is_refused_in_one_line():
    done = python("import sys; sys.modules['fcntl'] = None; import vidssl")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("ImportError: vidssl runs on Linux, not on Windows or another")


@pytest.mark.parametrize("lacking", ["", "del os.sched_getaffinity, os.memfd_create; resource.setrlimit = refuse"])
def test_workers_without_the_calls_of_linux(lacking):
    """The same results, of large arrays too, from two processes; these calls are simulated to be missing."""
    code = f"""
import os, resource
import numpy as np
from vidssl.base.worker_pool import ordered, usable_cpus
def refuse(*_): raise ValueError("current limit exceeds maximum limit")
{lacking}
made = [*ordered(lambda task, guard: np.full(1 << 20, task), range(6), usable_cpus() and 2)]
assert [int(each.sum()) >> 20 for each in made] == [*range(6)] and usable_cpus() > 0
"""
    done = python(code)
    assert done.returncode == 0, done.stderr


def test_memory_that_the_system_does_not_state(monkeypatch, tmp_path):
    assert encoder_scores._peak() > 10
    monkeypatch.setattr(encoder_scores, "Path", lambda path: Path(tmp_path / "none" / path.lstrip("/")))
    encoder_scores._reset_peak()
    assert encoder_scores._peak() is None
