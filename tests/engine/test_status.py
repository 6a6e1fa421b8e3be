"""`status.json`: how a run stands, as its output folder tells it."""

import errno
import json
import os
import signal
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone

import pytest

from vidssl import atomic
from vidssl.engine.status import Status
from vidssl.errors import DataError, Interrupted


@pytest.fixture
def written(tmp_path):
    """Read the file, less the time."""

    def read():
        content = json.loads((tmp_path / "status.json").read_text())
        content.pop("time")
        return content

    return read


def line(state, step, reason=None):
    return {"state": state, "step": step, "steps": 10, "reason": reason}


@contextmanager
def begun(folder, step):
    """A run of 10 steps that goes on from one of them."""
    with Status(folder).reported() as status:
        status.start(step, 10)
        yield status


def test_an_error_before_the_first_step_is_recorded(written, tmp_path):
    (tmp_path / "status.json").write_text('{"state": "interrupted", "time": ""}')
    with pytest.raises(DataError), Status(tmp_path).reported():
        assert written() == {**line("running", None), "steps": None}
        raise DataError("no list")
    assert written() == {**line("failed", None, "DataError: no list"), "steps": None}


def test_a_run_that_ends_is_finished(written, tmp_path):
    with begun(tmp_path, 3) as status:
        assert written() == line("running", 3)
        status.saved(8)
        assert written() == line("running", 8)
        status.saved(10)
        assert written() == line("running", 10)
    assert written() == line("finished", 10)
    assert [path.name for path in tmp_path.iterdir()] == ["status.json"]


def test_a_run_that_stops_early_on_purpose_is_interrupted(written, tmp_path):
    with begun(tmp_path, 0) as status:
        status.saved(4)
    assert written() == line("interrupted", 4)


@pytest.mark.parametrize(
    ("error", "state", "reason"),
    [
        (Interrupted(signal.SIGUSR1), "interrupted", "SIGUSR1"),
        (Interrupted(15), "interrupted", "SIGTERM"),
        (DataError("3 of 10 videos are broken: «a».mp4"), "failed", "DataError: 3 of 10 videos are broken: «a».mp4"),
        (RuntimeError("out of\nmemory"), "failed", "RuntimeError: out of\nmemory"),
        (KeyboardInterrupt(), "failed", "KeyboardInterrupt: "),
    ],
)
@pytest.mark.parametrize("step", [4, 10])
def test_the_reason_of_a_failed_or_interrupted_run_is_recorded(step, error, state, reason, written, tmp_path):
    with pytest.raises(type(error)) as raised, begun(tmp_path, 0) as status:
        status.saved(step)
        raise error
    assert raised.value is error
    assert written() == line(state, step, reason)


def test_the_time_is_that_of_the_note(tmp_path):
    with begun(tmp_path, 0):
        time = datetime.fromisoformat(json.loads((tmp_path / "status.json").read_text())["time"])
    assert abs(datetime.now(timezone.utc) - time) < timedelta(minutes=1)


@pytest.mark.parametrize("work", ["fsync", "replace"])
def test_a_full_disk_does_not_end_the_run(work, written, tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    with begun(tmp_path, 0) as status:
        monkeypatch.setattr(atomic.os, work, full)
        status.saved(4)
        assert status.step == 4 and written() == line("running", 0)
        monkeypatch.undo()
        status.saved(6)
        assert written() == line("running", 6)
        monkeypatch.setattr(atomic.os, work, full)
    assert written() == line("running", 6)  # the last that could be written, whole
    assert [path.name for path in tmp_path.iterdir()] == ["status.json"]


def test_a_reader_never_sees_a_partial_file(written, tmp_path, monkeypatch):
    seen, fsync = [], os.fsync

    def reading(number):
        seen.append(written())
        fsync(number)

    with begun(tmp_path, 0) as status:
        monkeypatch.setattr(atomic.os, "fsync", reading)
        status.saved(4)
        status.saved(10)
    assert seen == [line("running", 0), line("running", 4), line("running", 10)]


def test_only_the_main_process_writes(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(DataError), begun(tmp_path, 0) as status:
        status.saved(4)
        assert status.step == 4
        raise DataError("broken")
    assert not list(tmp_path.iterdir())
