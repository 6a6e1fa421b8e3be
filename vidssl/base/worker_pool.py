"""A pool of worker processes, with results in order. A process that hangs or dies costs one item, not the run."""

import errno
import gc
import logging
import mmap
import multiprocessing
import os
import pickle
import resource
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count, islice
from multiprocessing.connection import wait
from tempfile import TemporaryFile
from types import MappingProxyType
from typing import IO, Any, TypeVar

from vidssl.base.command_line_and_notices import log_once
from vidssl.base.errors import DataError, VidsslError
from vidssl.base.keep_memory import keep_memory

Message = bytes | tuple[IO[bytes], int]

# Start of the pickle in the memory file and size of the file; or the number of bytes that follow, and 0.
_HEADER = struct.Struct("<QQ")


@contextmanager
def file_limit_explained() -> Iterator[None]:
    """Turn the error for too many open files, or too many in flight between processes, into a DataError."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ETOOMANYREFS):
            raise
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        raise DataError(
            f"worker processes cannot exchange more files ({error.strerror}): this process may have {limit} open, the "
            "user as many in flight; raise the limit (ulimit -n), or lower workers=N (of a run "
            "data.workers)"
        ) from None


@file_limit_explained()
def pack(value: object, inline: int) -> Message:
    """Pickle a value to bytes, or if that takes more than `inline` of them to a memory file."""
    buffers: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    if len(pickled) + sum(buffer.raw().nbytes for buffer in buffers) <= inline:
        return pickle.dumps(value, protocol=5) if buffers else pickled
    spans: list[tuple[int, int]] = []
    # Where there are no anonymous memory files, which are of Linux, it is a file without a name on the disk.
    file: IO[bytes] = open(os.memfd_create("vidssl"), "w+b") if hasattr(os, "memfd_create") else TemporaryFile()
    for buffer in buffers:
        file.seek(-(-file.tell() // 64) * 64)  # aligned for vector instructions
        spans.append((file.tell(), buffer.raw().nbytes))
        file.write(buffer.raw())
    start = file.tell()
    pickle.dump((pickled, spans), file, protocol=5)
    file.flush()
    return file, start


@file_limit_explained()
def send(end: socket.socket, message: Message) -> None:
    """Send a packed message."""
    if isinstance(message, bytes):
        end.sendall(_HEADER.pack(len(message), 0) + message)
        return
    with message[0] as file:
        socket.send_fds(end, [_HEADER.pack(message[1], file.tell())], [file.fileno()])


@file_limit_explained()
def receive(end: socket.socket) -> Any:
    """Receive a value; raises EOFError if the other end is closed."""
    header, files, _, _ = socket.recv_fds(end, _HEADER.size, 1)
    if not header:
        raise EOFError
    start, stop = _HEADER.unpack(header)
    if not stop:
        content = bytearray()
        while len(content) < start:
            part = end.recv(start - len(content))
            if not part:
                raise EOFError
            content += part
        return pickle.loads(content)
    if not files:  # the kernel drops a descriptor that exceeds the limit of this process
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    try:
        import torch  # not above: commands import this module before they parse their arguments

        # Unlike the mmap module torch keeps no descriptor open: a thousand results would exceed the limit.
        pages = torch.from_file(f"/dev/fd/{files[0]}", shared=True, size=stop, dtype=torch.uint8)
    except RuntimeError as error:  # one descriptor more for a moment
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE)) from error
    finally:
        os.close(files[0])
    view = pages.numpy().data
    pickled, spans = pickle.loads(view[start:])
    return pickle.loads(pickled, buffers=[view[first : first + size] for first, size in spans])


Task = TypeVar("Task")
Result = TypeVar("Result")
_Answer = tuple[Any, Exception | None]  # a result or an error

_log = logging.getLogger(__name__)
_IDLE = -1  # in place of an item
_MAX_DEATHS = 3  # in a row, of processes in one slot that finished no task and failed no item
_INLINE = 1 << 16  # most bytes in a socket at a time: half of the buffer that it requests, so sending never blocks
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGALRM)

# This process's ends of all sockets. A forked worker closes its copies, or others would not see this process end.
_ends: set[socket.socket] = set()


def usable_cpus() -> int:
    """Count the CPUs that this process may run on: by affinity, which Slurm sets, not by a quota of CPU time."""
    if not hasattr(os, "sched_getaffinity"):  # of Linux
        return os.cpu_count() or 1
    return len(os.sched_getaffinity(0))


class ItemGuard:
    """Passed with each task: names the item in work, so that the right one is blamed for a hang or crash."""

    failed: Mapping[int, str] = MappingProxyType({})  # item to reason; the function must skip these

    def at(self, item: int) -> None:
        """Declare which item, a number from 0, is worked on now. Its timeout starts."""


# What runs tasks as `ordered` does, here or on other machines.
Pool = Callable[..., Iterator[Any]]


def ordered(
    function: Callable[[Task, ItemGuard], Result],
    tasks: Iterable[Task],
    workers: int,
    *,
    timeout: float | None = None,
    ahead: int = 2,
    on_failure: Callable[[int, str], None] | None = None,
) -> Generator[Result, None, None]:
    """Apply a function to tasks in worker processes, and yield the results in the order of the tasks.

    A task can cover several items; the function calls `guard.at(item)` before it touches one. An item that kills its
    process, or exceeds the timeout twice, has failed: `on_failure` is called, a new process takes over the unfinished
    tasks, and the function finds the item in `guard.failed`. A VidsslError of the function is raised at the turn of its
    task, any other exception as a RuntimeError. Large arrays in results are not copied in this process.

    Args:
        function: Processes are forked: only tasks and results must be picklable.
        tasks: Drawn only as far ahead as the workers need.
        workers: Processes. With 0, and in a daemonic process, this one does the work, and no hang or crash is survived.
        timeout: Wall-clock seconds for an item. They pass while the job is suspended too: hence a second attempt.
        ahead: Tasks that a process has at a time.
        on_failure: Called with a failed item and the reason; it may raise to stop. None: a failed item is a DataError.
    """
    if workers and multiprocessing.current_process().daemon:
        line = "a daemonic process, as of Celery or multiprocessing.Pool, may not start workers: workers=0 is used, so"
        log_once(_log, logging.WARNING, f"{line} nothing stops a video at which its decoder hangs or crashes")
        workers = 0
    if not workers:
        guard = ItemGuard()
        yield from (function(task, guard) for task in tasks)
        return
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # some systems allow less than the hard limit says
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    owner, failed = os.getpid(), dict[int, str]()
    pool = [_Worker(function, timeout, _INLINE // ahead, failed) for _ in range(workers)]
    try:
        yield from _results(pool, tasks, workers * ahead, on_failure)
    finally:
        if os.getpid() == owner:  # a fork that cleans up its copy of this generator must not kill the workers
            for worker in pool:
                worker.stop()


def _results(
    pool: list["_Worker"], tasks: Iterable[Any], ahead: int, on_failure: Callable[[int, str], None] | None
) -> Generator[Any, None, None]:
    for worker in pool:
        worker.start()
    numbered, submitted = enumerate(tasks), 0
    answers: dict[int, _Answer] = {}  # by task number; they wait for their turn
    for turn in count():
        while True:
            for number, task in islice(numbered, turn + ahead - submitted):
                min(pool, key=lambda worker: len(worker.tasks)).submit(number, task)
                submitted = number + 1
            if turn == submitted:
                return
            # Receive all finished answers, even if it is not their turn: their workers get new tasks.
            ready = wait([worker.end for worker in pool], timeout=0 if turn in answers else None)
            for worker in pool:
                if worker.end in ready:
                    try:
                        worker.receive(answers)
                    except (EOFError, ConnectionError):
                        worker.handle_exit(on_failure)
                        worker.start()
            if not ready and turn in answers:
                break
        if (error := answers[turn][1]) is not None:
            raise error
        yield answers.pop(turn)[0]  # not kept in a variable: the consumer frees its memory


class _SharedGuard(ItemGuard):
    """The guard of a worker process; the parent can read the item after the process has died."""

    def __init__(self, timeout: float | None) -> None:
        self._timeout = timeout or 0.0  # 0: none
        self._shared = mmap.mmap(-1, 8)  # the item + 1; 0: idle

    def at(self, item: int) -> None:
        self._shared[:] = (item + 1).to_bytes(8, "little")
        # The kernel kills the process at the timeout: even inside of a decoder that never returns to Python, while
        # the parent is busy, and after the parent has died.
        signal.setitimer(signal.ITIMER_REAL, self._timeout)

    @property
    def item(self) -> int:
        return int.from_bytes(self._shared[:], "little") - 1


class _Worker:
    """A slot of the pool: a process, replaced when it dies, and a socket to it. Processes share no lock or queue."""

    def __init__(
        self, function: Callable[..., Any], timeout: float | None, inline: int, failed: dict[int, str]
    ) -> None:
        self.tasks: deque[tuple[int, Any]] = deque()  # submitted and not answered, oldest first
        self._function, self._timeout, self._failed = function, timeout, failed
        self._inline = inline  # bytes up to which a message is sent through the socket itself
        self._deaths = 0  # in a row
        self._late: set[int] = set()  # items of the oldest task that timed out once
        self._process: multiprocessing.process.BaseProcess | None = None

    @file_limit_explained()
    def start(self) -> None:
        """Start a process and submit the unfinished tasks to it."""
        self._guard = _SharedGuard(self._timeout)
        self.end, theirs = socket.socketpair()
        for end in (self.end, theirs):  # the default is configurable
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * _INLINE)
        _ends.add(self.end)
        with theirs:
            # Fork: workers share the list and the settings, and start at once. They never use the GPU.
            self._process = multiprocessing.get_context("fork").Process(
                target=_work, args=(self._function, theirs, self._guard, os.getpid(), self._inline), daemon=True
            )
            # Signals wait until the worker has set its own handlers.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
            try:
                self._process.start()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
        unfinished, self.tasks = self.tasks, deque()
        for number, task in unfinished:
            self.submit(number, task)

    def submit(self, number: int, task: Any) -> None:
        self.tasks.append((number, task))
        with suppress(ConnectionError):  # a process that has died is noticed where its answer is received
            send(self.end, pack((task, self._failed), self._inline))

    def receive(self, answers: dict[int, _Answer]) -> None:
        """Store the answer to the oldest task; raises EOFError or ConnectionError if the process has died."""
        answer = receive(self.end)
        answers[self.tasks.popleft()[0]] = answer
        self._deaths = 0
        self._late.clear()

    def stop(self) -> int:
        """Kill the process; return its exit code, which is its own if it had ended already."""
        if self._process is None:
            return 0
        process, self._process = self._process, None
        _ends.discard(self.end)
        self.end.close()
        if process.pid is not None:  # it could be started
            process.kill()
            process.join()
        return process.exitcode or 0

    def handle_exit(self, on_failure: Callable[[int, str], None] | None) -> None:
        """Fail the item that a dead process was at, unless it deserves another attempt or is not to blame."""
        item, code = self._guard.item, self.stop()
        if code == -signal.SIGALRM and self._timeout is not None:
            twice = ", twice" * (item in self._late)
            reason = f"timed out after {self._timeout:g} s{twice} (timeout=SECONDS, of a run data.timeout)"
            if item not in self._late and item != _IDLE:
                self._late.add(item)
                self._deaths = 0
                return
        elif code < 0:
            hint = "out of memory?" if code == -signal.SIGKILL else signal.strsignal(-code)
            reason = f"its worker was killed by signal {-code}: {hint}"
        else:
            reason = f"its worker ended with exit code {code}"
        # SIGTERM comes from outside, for example from Slurm: no item is to blame.
        if item == _IDLE or item in self._failed or code == -signal.SIGTERM:
            self._deaths += 1
            if self._deaths == _MAX_DEATHS:
                raise DataError(
                    f"{_MAX_DEATHS} workers in a row died before finishing a sample (last: {reason}): lower "
                    "workers=N (of a run data.workers) if the memory is full"
                )
            return
        if on_failure is None:
            raise DataError(f"item {item}: {reason}")
        on_failure(item, reason)
        self._failed[item] = reason
        self._deaths = 0


def _work(function: Callable[..., Any], end: socket.socket, guard: _SharedGuard, parent: int, inline: int) -> None:
    """Do tasks until the parent closes the socket: the main function of a worker process."""
    gc.freeze()  # freeing frames of PyAV that the parent made would wait for threads that a fork does not have
    # Ctrl-C and batch systems signal the whole group: these are for the parent, which may need more results before it
    # ends. SIGTERM must end a worker: Python sends it to daemons when the parent exits.
    for number in (signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    for connection in _ends:
        connection.close()
    keep_memory()  # a program of Python that calls a job keeps its own settings
    # Workers share the cores; and the threads that torch had before the fork are not there: it would wait for them.
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    with suppress(EOFError, ConnectionError):
        while True:
            guard.at(_IDLE)
            signal.setitimer(signal.ITIMER_REAL, 0)  # waiting is not a timeout
            task, guard.failed = receive(end)
            guard.at(_IDLE)  # the time before the first item counts too
            try:
                result = function(task, guard)
                guard.at(_IDLE)
                message = pack((result, None), inline)
            except VidsslError as error:
                message = pack((None, error), inline)
            except Exception:
                message = pack((None, RuntimeError(f"a worker failed\n{traceback.format_exc()}")), inline)
            try:
                send(end, message)
            except DataError as error:  # too many open files
                send(end, pack((None, error), _INLINE))


def _end_with(parent: int) -> None:
    """End this process when its parent has ended, even during a slow task: it holds memory and locks."""
    # Linux's parent death signal is not used: it comes when the *thread* ends that forked this process.
    while os.getppid() == parent:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)
