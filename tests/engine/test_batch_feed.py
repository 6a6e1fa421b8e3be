"""What reaches the method: the same decisions on all processes, and batches on the device."""

import logging
import multiprocessing
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from vidssl.base import distributed
from vidssl.base.errors import DataError, Interrupted, PeerError
from vidssl.base.types import Batch
from vidssl.data.clip_samplers import Random
from vidssl.data.dataset import ClipDataset
from vidssl.data.loader import Loader
from vidssl.data.to_device import on_device, to_device
from vidssl.data.video_list import read_list
from vidssl.engine.interrupt import StopRequest
from vidssl.engine.training_step import Feed
from vidssl.transforms import RECIPES

CPU = torch.device("cpu")
MEAN, STD = (0.4, 0.45, 0.5), (0.2, 0.225, 0.25)


def raw(number, replaced=(), size=4):
    """A batch of 2 samples as the loader makes it; its label is its number."""
    source = torch.Generator().manual_seed(number)
    views = (
        torch.randint(256, (2, 3, size, size, 3), dtype=torch.uint8, generator=source) for size in (size, 2 * size)
    )
    index = torch.tensor([2 * number, 2 * number + 1])
    boxes = torch.rand(2, 2, 4, generator=source)
    mask = torch.randint(256, (2, size, size), dtype=torch.uint8, generator=source)
    views = tuple(view.permute(0, 1, 4, 2, 3) for view in views)
    return Batch(views, torch.tensor([number] * 2), index, replaced, boxes, mask)


class Script:
    """A loader that follows a script: a batch is returned, a function called, an error raised.

    Attributes:
        drawn: How many of these were begun.
        closed: Whether its workers were ended.
    """

    def __init__(self, *acts):
        self.acts, self.drawn, self.closed = acts, 0, False

    def __iter__(self):
        try:
            for act in self.acts:
                self.drawn += 1
                if isinstance(act, BaseException):
                    raise act
                yield act() if callable(act) else act
        finally:
            self.closed = True


def feed(request, *acts, max_broken=0.2, output="no folder", num_records=10):
    loader = Script(*acts)
    data = SimpleNamespace(max_broken=max_broken, mean=MEAN, std=STD, workers=3)
    run = SimpleNamespace(data=data, output=str(output))
    return Feed(loader, run, num_records, CPU, request, {}), loader


def ends(made, between_steps):
    """Ask for a batch, and say how that ended."""
    try:
        return "batch", made.next(between_steps=between_steps).label.tolist()
    except (DataError, PeerError, Interrupted) as error:
        return type(error).__name__, str(error)


def breaks(rank, output):
    """Videos break here and there, one of them twice."""
    broken = [("a", "a: no frames"), ("b", "b: cut off"), ("c", "c: empty")]
    here = [
        [raw(0), raw(1, (broken[0],)), raw(2, (broken[1],)), raw(3)],
        [raw(0, (broken[0],)), raw(1, (broken[0],)), raw(2), raw(3, (broken[2], broken[1]))],
    ]
    messages = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())
    logging.getLogger("vidssl.engine.training_step").addHandler(handler)
    made, _ = feed(StopRequest(), *here[rank], max_broken=0.2, output=output)
    counts, said = [], []
    for n in range(4):
        said.append(ends(made, n % 2 == 0))
        counts.append(dict(made._broken))
    return said, counts, messages


def fails(rank):
    """One process's data cannot be used; where another is asked to stop, the error is raised all the same."""
    collected = []
    for signalled in (False, True):
        request = StopRequest()
        made, loader = feed(request, raw(0), DataError("the list is bad") if rank == 1 else raw(1))
        collected.append(ends(made, True))
        request.signal = 15 if signalled and rank == 0 else None
        collected.append(ends(made, True))
        made.close()
        assert loader.closed
    return collected


def stops(rank):
    """A signal comes to one process while it waits: before a step, in the middle of one."""

    def late():
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.3)
        late.after = True  # not where the wait is broken off
        return raw(1)

    collected = {}
    for between_steps in (True, False):
        late.after = False
        with StopRequest().listening() as request:
            made, loader = feed(request, raw(0), late if rank == 1 else raw(1), raw(2))
            said = [ends(made, True)]
            said.append(ends(made, between_steps))
            if not between_steps:
                said.append(ends(made, True))
            collected[between_steps] = said, loader.drawn, late.after
    # Both get a signal, another one each: they agree on one.
    request = StopRequest()
    request.signal = int((signal.SIGUSR1, signal.SIGTERM)[rank])
    made, loader = feed(request, raw(0))
    collected["both"] = [ends(made, between) for between in (False, True)]
    return collected


def together(output):
    with distributed.joined(CPU):
        actual = {work.__name__: work(distributed.rank()) for work in (fails, stops)}
        return {**actual, "breaks": breaks(distributed.rank(), output)}


@pytest.fixture(scope="module")
def both(run_world, tmp_path_factory):
    """What two processes found."""
    return run_world(2, together, tmp_path_factory.mktemp("run"))


def test_broken_videos_of_all_are_counted_once_by_all(both):
    (said, counts, messages), (others, other_counts, other_messages) = (actual["breaks"] for actual in both)
    a, b, c = {"a": "a: no frames"}, {"b": "b: cut off"}, {"c": "c: empty"}
    assert counts == other_counts == [a, a, {**a, **b}, {**a, **b, **c}]
    assert [list(count) for count in counts] == [list(count) for count in other_counts]
    assert said[:3] == others[:3] == [("batch", [n, n]) for n in range(3)]  # 2 of 10 are allowed
    limit = "3 of 10 videos are broken, data.max_broken is 0.2: a: no frames; b: cut off; c: empty; all are listed in "
    assert said[3] == others[3] and said[3][0] == "DataError" and said[3][1].startswith(limit)
    assert Path(said[3][1].removeprefix(limit)).read_text().splitlines() == [
        "path,reason",
        *("a,a: no frames", "b,b: cut off", "c,c: empty"),
    ]
    assert messages == [
        f"broken video {n}, the next one takes its place: {reason}"
        for n, reason in enumerate(("a: no frames", "b: cut off", "c: empty"), 1)
    ]
    assert not other_messages


def test_an_error_of_one_loader_ends_all(both):
    here, there = (actual["fails"] for actual in both)
    batch = ("batch", [0, 0])
    assert there == [batch, ("DataError", "the list is bad")] * 2
    assert here == [batch, ("PeerError", "process 1: the list is bad")] * 2


def test_a_signal_between_steps_stops_all_before_the_step(both):
    for rank, actual in enumerate(both):
        said, drawn, waited = actual["stops"][True]
        assert said == [("batch", [0, 0]), ("Interrupted", "15")]
        assert drawn == 2 and not waited, rank  # the wait was broken off


def test_a_signal_within_a_step_waits_for_its_end(both):
    for rank, actual in enumerate(both):
        said, drawn, waited = actual["stops"][False]
        assert said == [("batch", [0, 0]), ("batch", [1, 1]), ("Interrupted", "15")]
        assert drawn == (2 if rank == 1 else 3) and waited == (rank == 1)


def test_all_processes_raise_the_same_signal(both):
    number = str(int(signal.SIGUSR1))
    assert [actual["stops"]["both"] for actual in both] == [[("batch", [0, 0]), ("Interrupted", number)]] * 2


def test_batches_are_those_of_to_device():
    batches = [raw(n, (("a", "broken"),) * n) for n in range(3)]
    made = list(on_device(Script(*batches), CPU, MEAN, STD))
    assert len(made) == 3
    for actual, batch in zip(made, batches, strict=True):
        same(actual, to_device(batch, CPU, MEAN, STD))
        assert actual.replaced == batch.replaced


def same(actual, expected):
    assert len(actual.views) == len(expected.views) == 2
    for view, other in zip(actual.views, expected.views, strict=True):
        assert view.device == other.device and view.stride() == other.stride()
        assert torch.equal(view, other)
    for name in ("label", "index", "boxes", "mask"):
        one, other = getattr(actual, name), getattr(expected, name)
        assert one.device == other.device and one.dtype == other.dtype and torch.equal(one, other)


@pytest.mark.parametrize("taken", [0, 1, 3])
def test_workers_end_when_the_feed_is_closed(taken, digits):
    sampler = Random(Random.Config(frames=2, seconds=0.2))
    recipe = RECIPES["center_crop"](RECIPES["center_crop"].Config(size=16))
    dataset = ClipDataset(read_list(digits / "motion" / "train.csv"), sampler, [recipe])
    loader = Loader(dataset, [[(0, n), (0, n + 1)] for n in range(30)], workers=2)
    batches = on_device(loader, CPU, MEAN, STD)
    before = set(multiprocessing.active_children())
    for n in range(taken):
        assert next(batches).index.tolist() == [n, n + 1]
    workers = set(multiprocessing.active_children()) - before
    assert len(workers) == (2 if taken else 0)
    batches.close()
    assert set(multiprocessing.active_children()) == before
    assert next(batches, None) is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here")
def test_batches_on_a_gpu_are_those_of_to_device():
    """The default stream is late, and reads a batch long after the next ones were sent for."""
    device = torch.device("cuda", 0)
    expected = [to_device(raw(n, size=64), device, MEAN, STD) for n in range(12)]
    torch.cuda.synchronize()
    collected = []
    for batch in on_device(Script(*(raw(n, size=64) for n in range(12))), device, MEAN, STD):
        assert all(view.device == device for view in batch.views) and batch.index.device == device
        torch.cuda._sleep(50_000_000)  # some 30 ms
        copies = tuple(view.clone() for view in batch.views)
        others = (batch.label, batch.index, batch.boxes, batch.mask)
        label, index, boxes, mask = (tensor.clone() for tensor in others)
        collected.append(Batch(copies, label, index, (), boxes, mask))
        del batch, copies, others  # what is not held is memory for the next ones
    assert len(collected) == len(expected)
    for batch, other in zip(collected, expected, strict=True):
        same(batch, other)
