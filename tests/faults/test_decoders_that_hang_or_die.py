"""A decoder that never returns, or takes its process with it, in the middle of a file: a real run goes on."""

import logging
import multiprocessing
import os
import runpy
import signal
import time
from pathlib import Path

import pytest
import torch

from vidssl.base.errors import DataError, DecodeError
from vidssl.data.video_list import read_list
from vidssl.engine.run_config import load_run
from vidssl.engine.train import train
from vidssl.video import reader
from vidssl.video.decode import PyAV

same = runpy.run_path(str(Path(__file__).parents[1] / "equal.py"))["same"]
TOY = Path(__file__).parents[2] / "configs" / "toy" / "supervised.yaml"


@pytest.fixture
def curse(monkeypatch):
    """Have the decoder do something after the first frame of some videos: `curse(hang, {"00003.mp4"})`.

    Workers are forks: they get the decoder that is in the registry now.
    """

    def cast(what, names):
        class Cursed(PyAV):
            def fetch(self, expected):
                for actual in super().fetch(expected):
                    yield actual
                    if self._path.name in names:
                        what(self._path)

        monkeypatch.setitem(reader.BACKENDS, "pyav", Cursed)

    return cast


def hang(path):
    time.sleep(1000)


def die(path):
    os.kill(os.getpid(), signal.SIGKILL)


def fail(path):
    raise DecodeError(f"{path}: broken")


@pytest.fixture
def records(digits):
    return read_list(digits / "motion/train.csv").records


@pytest.fixture
def run(digits, tmp_path):
    def go(name, *overrides, until=None):
        settings = [f"data.train={digits}/motion/train.csv", "data.moving_digits=null", f"output={tmp_path / name}"]
        settings += ["device=cpu", "steps=10", "data.timeout=1", *overrides]  # 80 samples of 40 videos
        return torch.load(train(load_run(TOY, settings), until), weights_only=True)

    return go


def goes_on(what, said, curse, run, records, caplog):
    """Train where two videos do this, and where they are simply broken: the same comes out, bit by bit."""
    numbers = (7, 22)
    names = {Path(records[n].path).name for n in numbers}
    curse(fail, names)
    broken = run("broken", "data.workers=0")
    caplog.clear()
    curse(what, names)
    start = time.monotonic()
    with caplog.at_level(logging.WARNING):
        survived = run("survived", "data.workers=2")
    assert time.monotonic() - start < 60 and not multiprocessing.active_children()
    for part in ("method", "optimizer"):
        same(survived[part], broken[part])
    logged = [record.getMessage() for record in caplog.records]
    for number in numbers:
        path = records[number].path
        at_once, replaced = (text for text in logged if path in text)
        assert said in at_once
        assert "the next one takes its place" in replaced and said in replaced
    assert len(logged) == 4


def test_fault_10_a_decoder_that_hangs(curse, run, records, caplog):
    goes_on(hang, "timed out after 1 s, twice", curse, run, records, caplog)


def test_fault_11_a_decoder_that_takes_its_worker_with_it(curse, run, records, caplog):
    goes_on(die, "killed by signal 9: out of mem", curse, run, records, caplog)


def too_many(what, said, curse, run, records, *overrides):
    names = {Path(record.path).name for record in records[::3]}
    curse(what, names)
    with pytest.raises(DataError, match=r"3 of 40 videos made a worker hang or crash; the limit is 2: ") as caught:
        run("stopped", "data.workers=2", *overrides)
    message = str(caught.value)
    named = [record.path for record in records if f"{record.path}: " in message]
    assert len(named) == message.count(said) == 3 and {Path(path).name for path in named} <= names
    assert "\n" not in message and not multiprocessing.active_children()


def test_fault_10_after_too_many_the_run_stops(curse, run, records):
    too_many(hang, "timed out after 0.5 s, twice", curse, run, records, "data.timeout=0.5")


def test_fault_10_an_interrupted_run_meets_the_same_video_again(curse, run, records):
    """What is lost is not part of the checkpoint: the resumed run finds it anew, and ends as if never stopped."""
    names = {Path(records[7].path).name}
    curse(fail, names)
    straight = run("straight", "data.workers=0")
    curse(hang, names)
    assert run("stopped", "data.workers=2", until=5)["step"] == 5
    resumed = run("stopped", "data.workers=2")
    assert resumed["step"] == 10
    same(resumed["method"], straight["method"])
