"""The worker pool: results in order, each task once, and an item that hangs or crashes costs only itself."""

import gc
import logging
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from vidssl.base.errors import DataError, DecodeError
from vidssl.base.worker_pool import ItemGuard, ordered


def open_files():
    return len(list(Path("/proc/self/fd").iterdir()))


def children():
    """Processes that this one started and has not waited for, zombies too."""
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


def alive(pid):
    """Whether there is such a process that is not dead already."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def until(condition, seconds=10.0):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


@pytest.fixture(autouse=True, scope="module")
def small_heap():
    """Let the collections of garbage around each test look at what the tests make only."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def nothing_is_left():
    """No test leaves a process, a zombie or an open file."""
    gc.collect()
    files, processes = open_files(), children()
    yield
    gc.collect()
    assert open_files() <= files and children() == processes and not multiprocessing.active_children()


@pytest.fixture
def failures():
    """The failed items: a list of (item, reason) that is also an `on_failure`."""

    class Failures(list):
        def __call__(self, item, reason):
            self.append((item, reason))

    return Failures()


def once(path):
    """Whether this is the first time that any process asks so."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


# Order ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("workers", "number"), [(0, 25), (1, 2), (3, 0), (3, 25)])
def test_results_are_in_the_order_of_the_tasks(workers, number):
    def slow_at_first(task, guard):
        guard.at(task)
        time.sleep(0.03 if task % 3 == 0 else 0.0)  # others overtake it
        return task, os.getpid()

    actual = list(ordered(slow_at_first, iter(range(number)), workers))
    assert [task for task, _ in actual] == list(range(number))
    processes = {pid for _, pid in actual}
    assert (os.getpid() in processes) == (workers == 0 and number > 0)
    assert len(processes) <= max(1, workers) and (number < 25 or len(processes) == max(1, workers))


@pytest.mark.parametrize(("workers", "ahead"), [(1, 1), (3, 4)])
def test_no_more_tasks_are_drawn_than_may_be_ahead(workers, ahead):
    drawn = []

    def tasks():
        for number in range(40):
            drawn.append(number)
            yield number

    for number, result in enumerate(ordered(lambda task, guard: task, tasks(), workers, ahead=ahead)):
        assert result == number
        assert len(drawn) <= number + workers * ahead
    assert len(drawn) == 40


def test_workers_do_not_wait_for_a_slow_consumer(tmp_path):
    def mark(task, guard):
        (tmp_path / str(task)).touch()

    results = ordered(mark, range(20), 2, ahead=3)
    next(results)
    assert until(lambda: len(list(tmp_path.iterdir())) == 6)
    time.sleep(0.05)
    assert len(list(tmp_path.iterdir())) == 6  # and no further
    results.close()


# Values -----------------------------------------------------------------------------------------------------


def test_arrays_of_any_size_and_order():
    def make(task, guard):
        random = np.random.Generator(np.random.PCG64(task))
        return {
            "large": random.integers(0, 255, (task + 1, 3, 500, 700), np.uint8),
            "none": np.empty((0, 4)),
            "columns": np.asfortranarray(random.normal(size=(5, 7))),
            "steps": random.normal(size=(9, 6))[::2, ::-1],
            "turned": random.integers(0, 9, (4, 5, 6)).transpose(2, 0, 1),
            "words": ["é", task],
        }

    for task, actual in enumerate(ordered(make, range(5), 2)):
        expected = make(task, ItemGuard())
        assert actual.pop("words") == expected.pop("words") and {*actual} == {*expected}
        for name, array in actual.items():
            assert np.array_equal(array, expected[name]) and array.dtype == expected[name].dtype
            assert array.flags.writeable and array.ctypes.data % 8 == 0
            array[...] = 1
        assert actual["large"].ctypes.data % 64 == 0
        assert (actual["large"] == 1).all() and (actual["turned"] == 1).all()


def test_sockets_with_a_small_buffer_by_default(monkeypatch):
    """8 KiB, as on macOS: messages of both directions fill them, and each side would wait for the other to read."""
    plain = socket.socketpair

    def small():
        ends = plain()
        for end in ends:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 10)
        return ends

    def ring(*_):
        raise TimeoutError

    monkeypatch.setattr(socket, "socketpair", small)
    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(5)
    try:
        tasks = [np.full(14 << 10, n, np.uint8) for n in range(12)]
        actual = list(ordered(lambda task, guard: task + 1, tasks, 1, ahead=4))
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert all(np.array_equal(task + 1, result) for task, result in zip(tasks, actual, strict=True))


def test_more_than_containers_have_of_shared_memory():
    (result,) = ordered(lambda task, guard: np.full(100 << 20, task, np.uint8), [7], 1)
    assert result.nbytes == 100 << 20 and result[0] == result[-1] == 7


def test_results_that_are_kept_cost_no_open_files():
    before = open_files()
    results = ordered(lambda task, guard: np.full(1000, task), range(200), 2)
    kept = [next(results) for _ in range(150)]
    assert open_files() < before + 10
    results.close()
    assert [int(array[-1]) for array in kept] == list(range(150))  # they outlive the workers


def test_pages_are_freed_with_the_arrays():
    def mapped():
        return Path("/proc/self/maps").read_text().count("memfd:vidssl")

    results = ordered(lambda task, guard: np.zeros(1 << 20, np.uint8), range(30), 1, ahead=1)
    for array in results:
        part = array[5:9]
        del array
        assert mapped() <= 2
    del part
    assert mapped() == 0


# Errors -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_a_users_error_is_itself_when_its_task_has_its_turn(workers):
    def fail(task, guard):
        if task == 3:
            raise DecodeError("a.mp4: not a video")
        time.sleep(0.02)
        return task

    collected = []
    with pytest.raises(DecodeError) as caught:
        collected += ordered(fail, range(9), workers)
    assert collected == [0, 1, 2] and str(caught.value) == "a.mp4: not a video"
    assert caught.value.__cause__ is None and type(caught.value) is DecodeError


def test_any_other_error_is_a_bug_with_its_traceback():
    def a_bug(task, guard):
        return 1 / task

    with pytest.raises(RuntimeError, match=r"(?s)in a_bug.*ZeroDivisionError: division by zero"):
        list(ordered(a_bug, [1, 0], 2))
    with pytest.raises(RuntimeError, match=r"(?s)a worker failed.*[Pp]ickle"):
        list(ordered(lambda task, guard: lambda: task, [1], 1))


def test_an_error_of_the_tasks_themselves():
    def tasks():
        yield 1
        raise DataError("no more")

    with pytest.raises(DataError, match="no more"):
        list(ordered(lambda task, guard: task, tasks(), 2))


# Failures ---------------------------------------------------------------------------------------------------


def pairs_without_failed(how, bad):
    """A function of pairs of items that returns those that have not failed; `how()` is called at a bad one."""

    def function(task, guard):
        collected = []
        for item in task:
            if item not in guard.failed:
                guard.at(item)
                time.sleep(0.001)
                if item in bad:
                    how()
                collected.append(item)
        return collected, dict(guard.failed)

    return function


PAIRS = [(n, n + 1) for n in range(0, 40, 2)]


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "was killed by signal 9: out of memory?"),
        (lambda: os.kill(os.getpid(), signal.SIGUSR2), "was killed by signal 12: User defined signal 2"),
        (lambda: os._exit(3), "ended with exit code 3"),
        (lambda: sys.exit(4), "ended with exit code 4"),
    ],
    ids=["killed", "crashed", "left", "exit"],
)
def test_a_worker_that_dies_costs_the_item_it_was_at(how, said, failures, capfd):
    bad = {5, 6, 11}
    actual = list(ordered(pairs_without_failed(how, bad), PAIRS, 2, on_failure=failures))
    assert [items for items, _ in actual] == [[n for n in pair if n not in bad] for pair in PAIRS]
    assert sorted(failures) == [(n, f"its worker {said}") for n in sorted(bad)]
    assert actual[-1][1] == dict(failures) and actual[2][1].keys() >= {5}  # later tasks know of it
    assert capfd.readouterr() == ("", "")


def test_an_item_that_hangs_fails_after_the_timeout(failures):
    start = time.monotonic()
    actual = list(
        ordered(pairs_without_failed(lambda: time.sleep(100), {8}), PAIRS, 2, timeout=0.5, on_failure=failures)
    )
    assert [items for items, _ in actual] == [[n for n in pair if n != 8] for pair in PAIRS]
    assert failures == [(8, "timed out after 0.5 s, twice (timeout=SECONDS, of a run data.timeout)")]
    assert 0.5 < time.monotonic() - start < 60


def test_an_item_that_hangs_once_in_each_of_several_tasks_does_not_fail(failures, tmp_path):
    """The job was suspended at the same video in several epochs."""

    def work(task, guard):
        guard.at(8)
        if once(tmp_path / str(task)):
            time.sleep(100)
        return task

    assert list(ordered(work, range(3), 1, timeout=0.2, on_failure=failures)) == [0, 1, 2] and not failures


def test_the_time_that_a_job_is_suspended_costs_no_item(failures):
    """Slurm suspends jobs for others; the clocks of the workers go on."""

    def work(task, guard):
        guard.at(task)
        time.sleep(0.1)
        return os.getpid()

    results = ordered(work, range(12), 2, timeout=0.4, ahead=6, on_failure=failures)
    workers = {next(results) for _ in range(2)}
    assert len(workers) == 2
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for pid in workers:
            os.kill(pid, number)
        time.sleep(0.6)
    assert len(list(results)) == 10 and not failures


def test_workers_stay_when_the_thread_that_started_them_ends(failures):
    def work(task, guard):
        guard.at(task)
        time.sleep(0.02)
        return task, os.getpid()

    results = ordered(work, range(20), 2, on_failure=failures)
    collected = []
    thread = threading.Thread(target=lambda: collected.append(next(results)))
    thread.start()
    thread.join()
    collected += results
    assert [task for task, _ in collected] == list(range(20)) and not failures
    assert len({pid for _, pid in collected}) == 2  # no process was replaced


FILES = """
import mmap, multiprocessing.popen_fork, os, resource, time  # all that must be read before it is nobody
import numpy as np
import torch
from vidssl.base.errors import DataError
from vidssl.base.worker_pool import ordered
if os.geteuid() == 0:  # root has no limit
    os.setgroups([]), os.setgid(65534), os.setuid(65534)
def take(size, soft, hard):
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    shared = mmap.mmap(-1, 81)  # a flag for each task, and one for the parent's
    def make(task, guard):
        while task and not shared[80]:
            time.sleep(0.005)
        shared[task] = 1
        return np.zeros(size, np.uint8)
    results = ordered(make, range(80), 4, ahead=16)
    try:
        next(results)
        shared[80] = 1
        while sum(shared[:64]) < 64:  # results in flight, more than the limit
            time.sleep(0.01)
        time.sleep(0.05)
        print(1 + len(list(results)), resource.getrlimit(resource.RLIMIT_NOFILE))
    except DataError as error:
        print(error)
take(100_000, 40, 400)
take(1_000, 40, 40)
take(100_000, 40, 40)
"""


def test_the_limit_of_open_files():
    """It is raised as far as it may be; small results need no files; where it still binds, the error is plain."""
    done = subprocess.run([sys.executable, "-c", FILES], capture_output=True, text=True, check=True, timeout=60)
    raised, small, refused = done.stdout.splitlines()
    assert raised == "80 (400, 400)" and small == "80 (40, 40)"
    assert refused.startswith("worker processes cannot exchange more files (") and "may have 40 open" in refused
    assert "raise the limit (ulimit -n), or lower workers=N" in refused
    assert done.stderr == ""


def test_each_item_has_the_timeout_for_itself(failures):
    def slow(task, guard):
        for item in range(5):
            guard.at(item)
            time.sleep(0.15)
        return task

    assert list(ordered(slow, [1, 2], 2, timeout=0.5, on_failure=failures)) == [1, 2] and not failures


def test_waiting_for_the_consumer_is_not_a_timeout(failures):
    pids = set()
    results = ordered(
        lambda task, guard: (guard.at(task), os.getpid())[1], range(12), 2, timeout=0.2, on_failure=failures
    )
    for number, pid in enumerate(results):
        pids.add(pid)
        if number in (0, 5):
            time.sleep(0.6)
    assert number == 11 and len(pids) == 2 and not failures


def test_a_hanging_item_is_stopped_while_the_consumer_is_slow(failures, tmp_path):
    def slow(task, guard):
        if 3 not in guard.failed:
            guard.at(task)
            if task == 3:
                (tmp_path / str(os.getpid())).touch()
                time.sleep(100)
        return task

    results = ordered(slow, range(8), 2, timeout=0.8, ahead=4, on_failure=failures)
    assert [next(results) for _ in range(2)] == [0, 1]
    assert until(lambda: any(tmp_path.iterdir()))
    (stuck,) = tmp_path.iterdir()
    assert until(lambda: not alive(stuck.name)) and not failures
    assert list(results) == [2, 3, 4, 5, 6, 7]
    assert failures == [(3, "timed out after 0.8 s, twice (timeout=SECONDS, of a run data.timeout)")]
    assert len(list(tmp_path.iterdir())) == 2  # attempts


def test_without_on_failure_a_failed_item_is_an_error():
    with pytest.raises(DataError, match=r"^item 8: its worker ended with exit code 3$"):
        list(ordered(pairs_without_failed(lambda: os._exit(3), {8}), PAIRS, 2))


def test_what_on_failure_raises_stops_everything():
    def stop(item, reason):
        raise DataError(f"enough: {item}")

    with pytest.raises(DataError, match="enough: 8"):
        list(ordered(pairs_without_failed(lambda: os._exit(3), {8}), PAIRS, 3, on_failure=stop))


@pytest.mark.parametrize("how", ["die", "hang"])
def test_processes_that_end_before_they_get_to_an_item(how, failures):
    def never(task, guard):
        if task > 2:
            os._exit(5) if how == "die" else time.sleep(100)
        return task

    collected = []
    said = "ended with exit code 5" if how == "die" else "timed out after 0.2 s"
    with pytest.raises(
        DataError, match=f"3 workers in a row died before finishing a sample .last: .*{said}.*lower workers=N"
    ):
        collected += ordered(never, range(9), 2, timeout=0.2, on_failure=failures)
    assert collected == list(range(len(collected))) and not failures


def test_a_function_that_ignores_failed_items(failures):
    def stubborn(task, guard):
        guard.at(task)
        os._exit(5)

    with pytest.raises(DataError, match="3 workers in a row died"):
        list(ordered(stubborn, [6], 1, on_failure=failures))
    assert [item for item, _ in failures] == [6]


def test_sigterm_from_outside_fails_no_item(failures, tmp_path):
    """A batch system sends SIGTERM to every process of a job: no video is to blame."""

    def signalled(task, guard):
        guard.at(task)
        if task in (2, 4, 7, 9) and once(tmp_path / str(task)):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(100)
        return task

    before = signal.signal(signal.SIGTERM, lambda number, frame: pytest.fail("the parent's handler ran"))
    try:
        assert list(ordered(signalled, range(10), 2, on_failure=failures)) == list(range(10)) and not failures
    finally:
        signal.signal(signal.SIGTERM, before)
    assert len(list(tmp_path.iterdir())) == 4


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGINT])
def test_workers_ignore_signals_for_their_parent(number, failures):
    """A batch system signals every process of a job: the parent may still need results for what it does then."""

    def signalled(task, guard):
        guard.at(task)
        os.kill(os.getpid(), number)
        time.sleep(0.01)
        return task, os.getpid()

    before = signal.signal(number, lambda number, frame: pytest.fail("the parent's handler ran"))
    try:
        results = list(ordered(signalled, range(10), 2, on_failure=failures))
    finally:
        signal.signal(number, before)
    assert [task for task, _ in results] == list(range(10)) and not failures
    assert len({pid for _, pid in results}) == 2  # none was replaced


def test_alarms_of_the_parent_stay_its_own(failures):
    rung = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: rung.append(number))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        hang = pairs_without_failed(lambda: time.sleep(100), {2})
        assert len(list(ordered(hang, PAIRS[:3], 1, timeout=0.3, on_failure=failures))) == 3
    finally:
        signal.signal(signal.SIGALRM, before)
    assert rung == [signal.SIGALRM] and [item for item, _ in failures] == [2]


# The end ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["close", "forget", "exhaust", "error"])
def test_all_workers_end_with_the_results(end):
    def busy(task, guard):
        guard.at(task)
        time.sleep(0.001 if task < 3 or end == "exhaust" else 100)
        return os.getpid()

    results = ordered(busy, range(6), 3)
    pids = {next(results) for _ in range(3)}
    assert all(alive(pid) for pid in pids)
    if end == "close":
        results.close()
    elif end == "forget":
        del results
    elif end == "exhaust":
        assert len(list(results)) == 3
    else:
        with pytest.raises(KeyError):
            results.throw(KeyError())
    assert not any(alive(pid) for pid in pids)


def test_nothing_is_started_before_the_first_result_is_asked_for():
    results = ordered(lambda task, guard: task, range(6), 3)
    assert not multiprocessing.active_children()
    results.close()


SCRIPT = """
import os, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job begins without
from vidssl.base.worker_pool import ordered
def work(task, guard):
    guard.at(task)
    if task > 3:
        time.sleep({sleep})
    return os.getpid()
# The workers of the second were forked while the first was there, and hold what it had open.
both = [ordered(work, range(99), 2, timeout={timeout}) for _ in range(2)]
print(*{{next(results) for results in both for _ in range(4)}}, flush=True)
{end}
"""


def script(sleep=0.0, timeout=None, end="time.sleep(100)"):
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(sleep=sleep, timeout=timeout, end=end)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    pids = [int(pid) for pid in process.stdout.readline().split()]
    assert len(pids) >= 2
    return process, pids


@pytest.mark.parametrize(("sleep", "timeout"), [(0.05, None), (100.0, 0.5)])
def test_workers_do_not_outlive_their_parent(sleep, timeout):
    process, pids = script(sleep, timeout)
    process.kill()
    process.communicate()
    assert until(lambda: not any(alive(pid) for pid in pids))


def test_workers_end_with_a_parent_that_exits():
    process, pids = script(sleep=100.0, end="")
    assert process.communicate()[1] == "" and process.returncode == 0
    assert until(lambda: not any(alive(pid) for pid in pids))


def test_ctrl_c_is_the_parents_alone():
    process, pids = script(sleep=0.2, end="list(both[0])")
    time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    errors = process.communicate()[1]
    assert process.returncode == -signal.SIGINT
    assert errors.count("Traceback") == 1 and errors.count("KeyboardInterrupt") == 1
    assert until(lambda: not any(alive(pid) for pid in pids))


def test_garbage_of_the_parent_stays_the_parents(tmp_path):
    """Frames that PyAV converted with threads wait for these when they are freed: a worker would hang."""

    class Garbage:
        def __init__(self):
            self.itself = self

        def __del__(self):
            (tmp_path / str(os.getpid())).touch()

    gc.disable()
    try:
        Garbage()
        list(ordered(lambda task, guard: gc.collect(), range(2), 1))
    finally:
        gc.enable()
    gc.collect()
    assert [path.name for path in tmp_path.iterdir()] == [str(os.getpid())]


def test_torch_works_in_workers_after_it_used_threads_here():
    """Threads do not survive a fork: a worker that waits for them would hang. In a process of its own, with threads."""
    code = (
        "import torch; from vidssl.base.worker_pool import ordered\n"
        "resized = lambda x: torch.nn.functional.interpolate(x, (300, 400), mode='bilinear').mean().item()\n"
        "torch.set_num_threads(4); x = torch.rand(8, 3, 200, 300); here = resized(x)\n"
        "found = ordered(lambda task, guard: resized(x), range(4), 2, timeout=20, on_failure=print)\n"
        "assert all(abs(value - here) < 1e-5 for value in found)"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "4"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


# Daemonic processes -----------------------------------------------------------------------------------------


def in_a_daemonic_process(function, *arguments):
    """The result of a function in a process that may not start others, as Celery's and those of a Pool, and its log."""
    ours, theirs = multiprocessing.Pipe()

    def work():
        log = []
        handler = logging.Handler()
        handler.emit = lambda record: log.append(record.getMessage())
        logging.getLogger("vidssl").addHandler(handler)
        try:
            theirs.send((function(*arguments), log))
        except BaseException as error:
            theirs.send((repr(error), log))

    process = multiprocessing.get_context("fork").Process(target=work, daemon=True)
    process.start()
    try:
        return ours.recv()
    finally:
        process.join()
        process.close()
        ours.close()
        theirs.close()


def test_a_daemonic_process_does_the_work_itself():
    actual, log = in_a_daemonic_process(lambda: list(ordered(lambda task, guard: 2 * task, range(5), 2)))
    assert actual == [0, 2, 4, 6, 8]
    assert log == [
        "a daemonic process, as of Celery or multiprocessing.Pool, may not start workers: workers=0 is used, so "
        "nothing stops a video at which its decoder hangs or crashes"
    ]
    assert in_a_daemonic_process(lambda: list(ordered(lambda task, guard: task, range(2), 0))) == ([0, 1], [])
