"""Videos that cannot be read and are left out: a job names all of them, once, at its end."""

import logging
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

_log = logging.getLogger(__name__)
_thread = threading.local()  # the videos that the job of each thread has left out so far, path to reason


def leave_out(videos: Iterable[tuple[str, str]]) -> None:
    """Note videos, path and reason, to be named at the end of the job; outside of one they are named now."""
    with named_at_end():
        _thread.noted.update(videos)


def left_out() -> dict[str, str]:
    """Return all videos that the job has left out so far: by path the reason, which names the path."""
    noted: dict[str, str] = getattr(_thread, "noted", None) or {}
    # The reason can be in another file, such as that of a background.
    return {path: why if why.startswith(path) else f"{path}: {why}" for path, why in sorted(noted.items())}


@contextmanager
def named_at_end() -> Iterator[None]:
    """Name the videos that this block leaves out at its end; within another such block, that one does.

    A block that fails names none.
    """
    if getattr(_thread, "noted", None) is not None:
        yield
        return
    _thread.noted = {}
    try:
        yield
        _name()
    finally:
        _thread.noted = None


@contextmanager
def named_at_once() -> Iterator[None]:
    """Name the videos that this block leaves out at once: the end of a training may be days away."""
    noted, _thread.noted = getattr(_thread, "noted", None), None
    try:
        yield
    finally:
        _thread.noted = noted


def _name() -> None:
    if reasons := [*left_out().values()]:
        head = f"{len(reasons)} videos cannot be read and are" if len(reasons) > 1 else "1 video cannot be read and is"
        _log.warning("%s left out:%s", head, "".join(f"\n  {reason}" for reason in reasons))
