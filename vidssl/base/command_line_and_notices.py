"""The command that is running: its command line, for the files that it writes, and what it has said already."""

import logging
import shlex
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class _Command:
    line: str
    worded: Callable[[str], str]  # writes a message as that of the command: with options for arguments of Python


_running: ContextVar[_Command | None] = ContextVar("command", default=None)
_said: ContextVar[set[str] | None] = ContextVar("said", default=None)


@contextmanager
def running(command: str, arguments: Sequence[str], worded: Callable[[str], str] = str) -> Iterator[None]:
    """State in this block that a command of vidssl runs; `worded` writes messages of `log_once` with its options."""
    token = _running.set(_Command(shlex.join(["vidssl", command, *arguments]), worded))
    try:
        with messages_once():
            yield
    finally:
        _running.reset(token)


@contextmanager
def messages_once() -> Iterator[None]:
    """Log each message of `log_once` once in this block, a command or a job; nested blocks are one."""
    said = _said.get()
    token = _said.set(set() if said is None else said)
    try:
        yield
    finally:
        _said.reset(token)


def command_line() -> str:
    """Return the command line: that of the command, in Python that of the program."""
    command = _running.get()
    return command.line if command else shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])


def log_once(log: logging.Logger, level: int, message: str) -> None:
    """Log a message, unless the running command or job, which may consist of several measurements, has logged it."""
    command, said = _running.get(), _said.get()
    if said is None or message not in said:
        log.log(level, "%s", command.worded(message) if command else message)
    if said is not None:
        said.add(message)


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
