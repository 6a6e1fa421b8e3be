"""Signals: the first one asks, the same once more ends, and none is left changed afterwards."""

import os
import signal
import threading
import time

import pytest
import torch

from vidssl.base import distributed
from vidssl.base.errors import Interrupted
from vidssl.engine import interrupt
from vidssl.engine.interrupt import SIGNALS, StopRequest


class Through(Exception):
    """A signal got to the handler that was there before."""


@pytest.fixture(autouse=True)
def before():
    """Handlers that this file can tell from others, and that keep a stray signal from ending the tests."""

    def through(number, frame):
        raise Through(number)

    kept = {number: signal.signal(number, through) for number in SIGNALS}
    yield through
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_noted_and_the_work_goes_on(number, capfd):
    request = StopRequest("all is saved")
    with request.listening() as listening:
        assert listening is request and request.signal is None
        request.check()
        signal.raise_signal(number)
        assert request.signal == number
        with pytest.raises(Interrupted) as raised:
            request.check()
    assert raised.value.signal == number
    said = f"\n{signal.Signals(number).name}: all is saved; send it again to end at once\n"
    assert capfd.readouterr().err == said


@pytest.mark.parametrize("error", [None, ValueError, Interrupted])
def test_handlers_are_restored(error, before):
    try:
        with StopRequest().listening():
            assert all(signal.getsignal(number) is not before for number in SIGNALS)
            if error is not None:
                raise error(15)
    except (ValueError, Interrupted):
        pass
    assert all(signal.getsignal(number) is before for number in SIGNALS)
    with pytest.raises(Through):
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_wait_is_broken_off_at_once(number):
    request = StopRequest()
    timer = threading.Timer(0.2, os.kill, (os.getpid(), number))
    started = time.monotonic()
    with request.listening():
        timer.start()
        with pytest.raises(Interrupted) as raised, request.breaking():
            time.sleep(30)
    assert time.monotonic() - started < 10
    assert raised.value.signal == request.signal == number


@pytest.mark.parametrize("failing", [False, True])
def test_after_a_wait_nothing_is_broken_off(failing):
    request = StopRequest()
    with request.listening():
        try:
            with request.breaking():
                if failing:
                    raise ValueError
        except ValueError:
            pass
        signal.raise_signal(signal.SIGTERM)
        assert request.signal == signal.SIGTERM


@pytest.mark.parametrize("number", SIGNALS)
def test_another_signal_changes_nothing(number, monkeypatch):
    """Slurm sends SIGUSR1, and SIGTERM when its time is over."""
    ended = []
    monkeypatch.setattr(interrupt.os, "_exit", ended.append)
    request = StopRequest()
    with request.listening():
        signal.raise_signal(number)
        handlers = [signal.getsignal(other) for other in SIGNALS]
        for other in set(SIGNALS) - {number}:
            signal.raise_signal(other)
        time.sleep(0.2)
        assert request.signal == number and not ended
        assert [signal.getsignal(other) for other in SIGNALS] == handlers


def hanging(number):
    """Wait for another process inside of torch, where Python hears no signals, and get the signal twice."""
    with distributed.joined(torch.device("cpu")), StopRequest().listening():
        # Started here: joining takes seconds on a busy machine, and a signal before `listening` kills the process.
        threading.Timer(1.0, os.kill, (os.getpid(), number)).start()
        threading.Timer(3.5, os.kill, (os.getpid(), number)).start()  # an echo comes within two seconds
        if distributed.rank() == 0:
            distributed.gather_objects(None)
        time.sleep(60)


def test_a_signal_ends_a_process_that_waits_for_one_that_hangs(start_world):
    started = time.monotonic()
    assert start_world(2, hanging, signal.SIGTERM).wait() == [128 + signal.SIGTERM] * 2
    assert time.monotonic() - started < 30


def test_threads_other_than_the_main_one_set_no_handlers(before):
    collected = []

    def work():
        request = StopRequest()
        with request.listening() as listening, request.breaking():
            collected.append((listening is request, [signal.getsignal(number) for number in SIGNALS]))
        request.check()
        collected.append(request.signal)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert collected == [(True, [before] * len(SIGNALS)), None]


LAUNCHERS = ("TORCHELASTIC_RUN_ID", "SLURM_STEP_ID")


def signalled(folder, number, launcher):
    """Get a signal, its echo, and after the time for echoes the signal once more; note how far it goes."""
    for name in LAUNCHERS:
        os.environ.pop(name, None)
    if launcher is not None:
        os.environ[launcher] = "7"
    now = [100.0]
    interrupt.time = type("Clock", (), {"monotonic": staticmethod(lambda: now[0])})
    with StopRequest().listening() as request:
        for mark, seconds in (("first", 0.0), ("echo", 1.5), ("again", 2.1)):
            now[0] = 100.0 + seconds
            signal.raise_signal(number)
            assert request.signal == number
            time.sleep(0.5)  # of the real clock: for the thread that ends the process
            (folder / mark).touch()


@pytest.mark.parametrize(
    ("number", "launcher"),
    [*((number, None) for number in SIGNALS), *((number, name) for number in SIGNALS for name in LAUNCHERS)],
)
def test_the_same_signal_once_more_ends_at_once(number, launcher, start_world, tmp_path):
    assert start_world(1, signalled, tmp_path, number, launcher).wait() == [128 + number]
    echoes = launcher is not None or number != signal.SIGINT
    assert {path.name for path in tmp_path.iterdir()} == {"first"} | ({"echo"} if echoes else set())
