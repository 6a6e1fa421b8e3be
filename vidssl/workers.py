"""Work done by several processes, its results in order. A process that hangs or dies costs one item, not the run."""

import ctypes
import errno
import mmap
import multiprocessing
import os
import pickle
import resource
import signal
import socket
import struct
import tempfile
import threading
import time
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count, islice
from multiprocessing.connection import wait
from typing import IO, Any, Generic, TypeVar

from vidssl.errors import DataError, VidsslError

Task = TypeVar("Task")
Result = TypeVar("Result")
_Answer = tuple[Result | None, Exception | None]  # to a task: one of the two

_NOTHING = -1  # on a guard
_TRIES = 3  # processes in a row that may end at one place without a result or a loss
# Of a message: where the pickle starts in its memory file and where it ends; or the size of what follows, and 0.
_HEADER = struct.Struct("<QQ")
# Bytes of messages in a socket at a time: half of the buffer that it asks for, so that sending never waits.
_INLINE = 1 << 16
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGALRM)

# This process's ends of all connections: a worker closes its copies of them, for as long as any copy is open
# the others do not see that this process is gone.
_ends: set[socket.socket] = set()


def usable_cpus() -> int:
    """Count the CPUs that this process may run on: a batch system or a container may allow fewer than there are.

    Only CPU affinity is seen (Slurm, `docker --cpuset-cpus`), not a quota of CPU time (`docker --cpus`).
    """
    # macOS has no CPU affinity.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class ItemGuard:
    """What a job sees of the place it is done at."""

    def __init__(self) -> None:
        self.lost: Mapping[int, str] = {}  # items that took a process with them, and how: item -> reason

    def at(self, item: int) -> None:
        """Say which item, a number from 0, is worked on now; the clock of the timeout starts anew."""


def ordered(
    function: Callable[[Task, ItemGuard], Result],
    tasks: Iterable[Task],
    workers: int,
    *,
    timeout: float | None = None,
    ahead: int = 2,
    on_loss: Callable[[int, str], None] | None = None,
) -> Generator[Result, None, None]:
    """Apply a function to tasks in other processes; give the results in the order of the tasks.

    A task may be about several items; the function says at its guard which one it is about to touch. Where the
    process dies then, or the item takes too long, twice, the item is lost: `on_loss` hears of it, a fresh
    process takes the place and does the unfinished tasks again, and the function finds the item in
    `guard.lost`. Large arrays in results are not copied on this side.

    The soft limit of open files of this process is raised to the hard one: what processes send each other are files.

    Args:
        function: Of a task and a guard. The processes are forks: it need not be picklable; results must be.
        tasks: Picklable; drawn only as far ahead as there are hands.
        workers: Processes; with 0 all is done in this one, and a hanging or crashing item is not survived.
        timeout: Seconds that an item may take. The clock goes on while the processes are suspended or a file system
            does not answer: an item that took too long has a second attempt each time.
        ahead: Tasks that a process has at a time; `workers * ahead` are begun before their turn at most.
        on_loss: Called with a lost item and the reason; what it raises stops everything. Without it a loss
            is an error.

    Raises:
        DataError: An item was lost and there is no `on_loss`, or processes end before they get to any item, or need
            more open files than are allowed.
        VidsslError: What the function raised, when its task has its turn.
        RuntimeError: The function raised anything else, which is a bug; the message holds the traceback.
    """
    if not workers:
        guard = ItemGuard()
        for task in tasks:
            yield function(task, guard)
        return
    owner = os.getpid()
    numbered, drawn = enumerate(tasks), 0
    crew: list[_Worker[Task, Result]] = []
    answers: dict[int, _Answer[Result]] = {}  # by number of the task, of those that wait for their turn
    lost: dict[int, str] = {}
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError):  # macOS names a hard limit, none, that it does not allow
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    try:
        for _ in range(workers):
            crew.append(_Worker(function, timeout, _INLINE // ahead))
            crew[-1].start(lost)
        for turn in count():
            waiting = True
            while waiting:
                for number, task in islice(numbered, turn + workers * ahead - drawn):
                    min(crew, key=lambda worker: len(worker.tasks)).give(number, task, lost)
                    drawn = number + 1
                if turn == drawn:
                    return
                # All that is there is taken, even when it is not its turn yet: its worker gets a new task.
                ready = wait([worker.end for worker in crew], timeout=0 if turn in answers else None)
                for worker in crew:
                    if worker.end in ready:
                        try:
                            worker.receive(answers)
                        except (EOFError, ConnectionError):
                            _handle_exit(worker, lost, on_loss)
                            worker.start(lost)
                waiting = bool(ready) or turn not in answers
            yield _unpacked(answers.pop(turn))  # held by no name here: its memory is the consumer's to free
    finally:
        if os.getpid() == owner:  # a fork that tidies up its copy of this must not touch the processes
            for worker in crew:
                worker.stop()


def _unpacked(answer: "_Answer[Result]") -> Result:
    result, error = answer
    if error is not None:
        raise error
    return result  # type: ignore[return-value]  # without an error it is one


class _WatchedGuard(ItemGuard):
    """The guard of a worker process; its parent can still read it when the process is dead."""

    def __init__(self, timeout: float | None) -> None:
        super().__init__()
        self.timeout = timeout
        self._shared = mmap.mmap(-1, 8)
        self._put(_NOTHING)

    def at(self, item: int) -> None:
        self._put(item)
        if self.timeout is not None:
            # The kernel ends the process when this rings. It does so inside of a decoder that never returns,
            # while the parent is busy, and when the parent is dead.
            signal.setitimer(signal.ITIMER_REAL, self.timeout)

    def rest(self) -> None:
        """Nothing is worked on: the clock stands still."""
        self._put(_NOTHING)
        signal.setitimer(signal.ITIMER_REAL, 0)

    @property
    def item(self) -> int:
        """What is worked on."""
        return int.from_bytes(self._shared[:], "little", signed=True)

    def _put(self, item: int) -> None:
        self._shared[:] = item.to_bytes(8, "little", signed=True)


class _Worker(Generic[Task, Result]):
    """A place where tasks are done: a process, the next one when it is dead, and a connection to it.

    No process shares a lock or a queue with another, so one that is killed hurts nobody else.
    """

    def __init__(
        self, function: Callable[[Task, ItemGuard], Result], timeout: float | None, inline: int
    ) -> None:
        self.tasks: deque[tuple[int, Task]] = deque()  # numbered; given and not answered, oldest first
        self.failures = 0  # processes in a row that ended for nothing
        self.late: set[int] = set()  # items of the oldest task that took too long once
        self._function, self._timeout = function, timeout
        self._inline = inline  # bytes up to which a message goes through the socket itself
        self._process: multiprocessing.process.BaseProcess | None = None

    def start(self, lost: Mapping[int, str]) -> None:
        """Start a process and give it the tasks that are not done."""
        self.guard = _WatchedGuard(self._timeout)
        with _explained():
            self.end, theirs = socket.socketpair()
        for end in (
            self.end,
            theirs,
        ):  # the default is 8 KiB on macOS, and an administrator's choice on Linux
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * _INLINE)
        _ends.add(self.end)
        with theirs:
            # Fork: workers share the list and the settings, and start at once. They never touch the device.
            process = self._process = multiprocessing.get_context("fork").Process(
                target=_work,
                args=(self._function, theirs, self.guard, os.getpid(), self._inline),
                daemon=True,
            )
            # Held back until the worker has decided what they mean to it.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
            try:
                with _explained():
                    process.start()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for _, task in self.tasks:
            self._send(task, lost)

    def give(self, number: int, task: Task, lost: Mapping[int, str]) -> None:
        """Have a task done after those before it."""
        self.tasks.append((number, task))
        self._send(task, lost)

    def receive(self, answers: dict[int, _Answer[Result]]) -> None:
        """Put the answer to the oldest task to the others; EOFError or ConnectionError when the process is dead."""
        with _explained():
            answer = _receive(self.end)
        answers[self.tasks.popleft()[0]] = answer
        self.failures = 0
        self.late.clear()

    def stop(self) -> int:
        """End the process, whatever it does; give its exit code, which is its own if it had ended already."""
        if self._process is None:
            return 0
        process, self._process, code = self._process, None, 0
        _ends.discard(self.end)
        self.end.close()
        if process.pid is not None:  # else it could not be started
            process.kill()
            process.join()
            code = process.exitcode or 0
            process.close()
        return code

    def _send(self, task: Task, lost: Mapping[int, str]) -> None:
        # A connection error: it is dead, which is noticed where its answer is awaited.
        with suppress(ConnectionError), _explained():
            _send(self.end, _packed((task, lost), self._inline))


def _handle_exit(
    worker: _Worker[Task, Result],
    lost: dict[int, str],
    on_loss: Callable[[int, str], None] | None,
) -> None:
    """Find out what a process died of, and of which item."""
    item, code = worker.guard.item, worker.stop()
    reason = _reason(code, worker.guard.timeout)
    if code == -signal.SIGALRM and item in worker.late:
        reason += ", twice"
    elif code == -signal.SIGALRM and item != _NOTHING:
        worker.late.add(item)
        worker.failures = 0
        return
    # SIGTERM is somebody's wish (a batch system's, say), nothing that a video does.
    if item == _NOTHING or item in lost or code == -signal.SIGTERM:
        worker.failures += 1
        if worker.failures == _TRIES:
            raise DataError(
                f"{_TRIES} worker processes in a row ended with nothing done; of the last: {reason}; "
                "is there memory enough? fewer workers need less of it"
            )
        return
    if on_loss is None:
        raise DataError(f"item {item}: {reason}")
    on_loss(item, reason)
    lost[item] = reason
    worker.failures = 0


def _reason(code: int, timeout: float | None) -> str:
    if code == -signal.SIGALRM and timeout is not None:
        return f"timed out after {timeout:g} s"
    if code == -signal.SIGKILL:
        return "the process that read it was killed by signal 9: out of memory?"
    if code < 0:
        return f"the process that read it was killed by signal {-code}: {signal.strsignal(-code)}"
    return f"the process that read it ended with exit code {code}"


def _work(
    function: Callable[[Task, ItemGuard], Result],
    end: socket.socket,
    guard: _WatchedGuard,
    parent: int,
    inline: int,
) -> None:
    """Do tasks until there are no more: the life of a worker process."""
    # Ctrl-C and batch systems reach the whole group: what these ask for is the parent's business, which may need
    # some more tasks for it. SIGTERM must end it: Python sends that to daemons when the parent ends.
    for number in (signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    for other in _ends:
        other.close()
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    with suppress(EOFError, ConnectionError):  # the parent is gone, or has all it wants
        while True:
            guard.rest()
            task, guard.lost = _receive(end)
            guard.at(_NOTHING)
            try:
                with _explained():
                    _send(end, _done(function, task, guard, inline))
            except DataError as error:  # an answer that needs no file
                _send(end, _packed((None, error), _INLINE))


def _end_with(parent: int) -> None:
    """End this process when its parent has ended, also in the middle of a slow task: it holds memory and locks.

    Not by Linux's signal on the death of the parent: that comes when the thread ends that started this process.
    """
    while os.getppid() == parent:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)


def _done(
    function: Callable[[Task, ItemGuard], Result], task: Task, guard: ItemGuard, inline: int
) -> "_Message":
    """Do a task, and write its answer."""
    try:
        result = function(task, guard)
        guard.at(_NOTHING)
        with _explained():
            return _packed((result, None), inline)
    except VidsslError as error:
        return _packed((None, error), inline)
    except Exception:
        return _packed((None, RuntimeError(f"a worker failed\n{traceback.format_exc()}")), inline)


@contextmanager
def _explained() -> Iterator[None]:
    """Say what to do where there are too many open files, or too many in flight between processes."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ETOOMANYREFS):
            raise
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        raise DataError(
            f"worker processes cannot exchange more files ({error.strerror}): this process may have {limit} open, and "
            "all processes of a user as many in flight; raise the limit (ulimit -n), or use fewer workers "
            "(data.workers, --workers) or a smaller data.prefetch"
        ) from None


# Messages: a value of any size is pickled into a file without a name whose pages are memory, and the file's
# descriptor is sent. A sender never waits for its reader, there is no limit by /dev/shm (64 MB in containers),
# and the receiver's arrays lie in those pages, which are freed with the arrays. Small values are sent as they are:
# the files in flight are counted, over all processes of a user.
_Message = bytes | tuple[IO[bytes], int]


def _packed(value: object, inline: int) -> _Message:
    """Pickle a value: as bytes where that is at most `inline` of them, else to a memory file and where it starts."""
    buffers: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    if len(pickled) + sum(buffer.raw().nbytes for buffer in buffers) <= inline:
        return pickle.dumps(value, protocol=5) if buffers else pickled
    spans: list[tuple[int, int]] = []
    file = open(os.memfd_create("vidssl"), "w+b") if hasattr(os, "memfd_create") else tempfile.TemporaryFile()
    for buffer in buffers:
        file.seek(-(-file.tell() // 64) * 64)  # aligned, as vector instructions like it
        spans.append((file.tell(), buffer.raw().nbytes))
        file.write(buffer.raw())
    start = file.tell()
    pickle.dump((pickled, spans), file, protocol=5)
    file.flush()
    return file, start


def _send(end: socket.socket, message: _Message) -> None:
    if isinstance(message, bytes):
        end.sendall(_HEADER.pack(len(message), 0) + message)
        return
    with message[0] as file:
        socket.send_fds(end, [_HEADER.pack(message[1], file.tell())], [file.fileno()])


def _receive(end: socket.socket) -> Any:
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
    if not files:  # the system leaves out those that this process may not open
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    try:
        pages = _mapped(files[0], stop)
    finally:
        os.close(files[0])
    pickled, spans = pickle.loads(pages[start:])
    return pickle.loads(pickled, buffers=[pages[first : first + size] for first, size in spans])


_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *3 * [ctypes.c_int], ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def _mapped(file: int, size: int) -> memoryview:
    """Map a file, writable; it is unmapped when the last view of it dies.

    Python's own mmap keeps a descriptor open for each mapping: a consumer that keeps a thousand results would
    run out of them.
    """
    address = _libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, file, 0)
    if address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), f"cannot map {size} bytes")
    pages = (ctypes.c_char * size).from_address(address)
    # Not at exit: arrays may outlive that.
    weakref.finalize(pages, _libc.munmap, address, size).atexit = False
    return memoryview(pages).cast("B")
