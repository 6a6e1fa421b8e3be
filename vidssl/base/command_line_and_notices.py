"""The command that is running: its command line, for the files that it writes, and what it has said already."""

import logging
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path

from vidssl.base.errors import first_few

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Command:
    line: str
    worded: Callable[[str], str]  # writes a message as that of the command: with options for arguments of Python


@dataclass(frozen=True)
class _Notices:
    said: set[str] = field(default_factory=set)  # messages of `log_once`
    left_out: dict[str, str] = field(default_factory=dict)  # videos so far, path to reason
    outputs: list[Path] = field(default_factory=list)  # folders of the jobs of the block, the outermost first


_running: ContextVar[_Command | None] = ContextVar("command", default=None)
_notices: ContextVar[_Notices | None] = ContextVar("notices", default=None)


@contextmanager
def running(command: str, arguments: Sequence[str], worded: Callable[[str], str] = str) -> Iterator[None]:
    """State in this block that a command of vidssl runs; `worded` writes messages of `log_once` with its options."""
    token = _running.set(_Command(shlex.join(["vidssl", command, *arguments]), worded))
    try:
        with noticing():
            yield
    finally:
        _running.reset(token)


@contextmanager
def noticing(output: str | Path | None = None, at_once: bool = False) -> Iterator[None]:
    """Log each message of `log_once` once in this block, a command or a job, and name the videos left out at its end.

    Nested blocks are one, but with `at_once`, as the end of a training may be days away. A block that fails names none.
    `output` is the folder whose results list all of them.
    """
    outer = _notices.get()
    notices = _Notices(outer.said if outer else set()) if at_once or outer is None else outer
    notices.outputs.extend([] if output is None else [Path(output)])
    if notices is outer:
        yield
        return
    token = _notices.set(notices)
    try:
        yield
        _name(left_out(), notices.outputs)
    finally:
        _notices.reset(token)


def command_line() -> str:
    """Return the command line: that of the command, in Python that of the program."""
    command = _running.get()
    return command.line if command else shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])


def worded(message: str) -> str:
    """Write a message as that of the running command, with options for arguments of Python."""
    command = _running.get()
    return command.worded(message) if command else message


def log_once(log: logging.Logger, level: int, message: str) -> None:
    """Log a message, unless the running command or job, which may consist of several measurements, has logged it."""
    notices = _notices.get()
    if notices is None or message not in notices.said:
        log.log(level, "%s", worded(message))
    if notices is not None:
        notices.said.add(message)


def leave_out(videos: Iterable[tuple[str, str]]) -> None:
    """Note videos, path and reason, to be named at the end of the job; outside of one they are named now."""
    with noticing():
        notices = _notices.get()
        assert notices is not None
        notices.left_out.update(videos)


def left_out() -> dict[str, str]:
    """Return all videos that the job has left out so far: by path the reason, which names the path."""
    notices = _notices.get()
    noted = {} if notices is None else notices.left_out
    # The reason can be in another file, such as that of a background.
    return {path: why if why.startswith(path) else f"{path}: {why}" for path, why in sorted(noted.items())}


def _name(videos: dict[str, str], outputs: Sequence[Path]) -> None:
    if not videos:
        return
    head = f"{len(videos)} videos cannot be read and are" if len(videos) > 1 else "1 video cannot be read and is"
    files = [output / name for output in outputs[:1] for name in ("results.json", "meta.json", "index.html")]
    listed = next((str(file) for file in files if file.is_file()), "vidssl check")
    more = f"; {listed} names all" * (len(videos) > 3)
    _log.warning("%s left out: %s%s", head, first_few(videos.values(), separator="; "), more)
