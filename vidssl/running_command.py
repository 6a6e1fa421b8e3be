"""The command that is running: its command line, for the files that it writes, and what it has said already."""

import logging
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
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
