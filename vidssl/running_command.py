"""The command that is running: its command line, for the files that it writes, and what it has said already."""

import logging
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class _Command:
    line: str
    worded: Callable[[str], str]  # writes a message as that of the command: with options for arguments of Python
    said: set[str] = field(default_factory=set)


_running: ContextVar[_Command | None] = ContextVar("command", default=None)


@contextmanager
def running(command: str, arguments: Sequence[str], worded: Callable[[str], str] = str) -> Iterator[None]:
    """State in this block that a command of vidssl runs; `worded` writes messages of `log_once` with its options."""
    token = _running.set(_Command(shlex.join(["vidssl", command, *arguments]), worded))
    try:
        yield
    finally:
        _running.reset(token)


def command_line() -> str:
    """Return the command line: that of the command, in Python that of the program."""
    command = _running.get()
    return command.line if command else shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])


def log_once(log: logging.Logger, level: int, message: str) -> None:
    """Log a message, unless the running command, which may consist of several measurements, has logged it."""
    command = _running.get()
    if command is None or message not in command.said:
        log.log(level, "%s", command.worded(message) if command else message)
    if command is not None:
        command.said.add(message)
