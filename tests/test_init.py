"""Importing the package."""

import subprocess
import sys


def test_windows_is_refused_in_one_line():
    code = "import sys; sys.platform = 'win32'; import vidssl"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("ImportError: vidssl runs on Linux, not on Windows: use WSL 2")
