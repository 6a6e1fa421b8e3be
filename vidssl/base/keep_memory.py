"""Memory that glibc keeps for the next tensor, in processes of vidssl's own."""

import ctypes
import os
import sys

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # of mallopt, as in malloc.h


def keep_memory() -> None:
    """Let glibc keep the memory that is freed; what the environment says of this wins.

    By default the system maps each large tensor anew and clears its pages, which takes up to half of the CPU time of a
    network on a CPU: docs/results/performance.md. Other libraries of C have no such setting.
    """
    variables = {"MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"} & os.environ.keys()
    if sys.platform != "linux" or variables or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return
    library = ctypes.CDLL(None)
    if hasattr(library, "gnu_get_libc_version"):
        library.mallopt(_MMAP_MAX, 0)
        library.mallopt(_TRIM_THRESHOLD, 2**28)  # bytes; with more the peak grows, and nothing is faster
