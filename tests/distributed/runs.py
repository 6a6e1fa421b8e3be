"""What processes of a run do in these tests: train a toy, and keep what each of them holds when it saves."""

import importlib
import os
import runpy
import sys
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from vidssl import cli
from vidssl.base import distributed
from vidssl.base.errors import CheckpointError, DecodeError, Interrupted, VidsslError
from vidssl.data.dataset import ClipDataset
from vidssl.engine.run_config import load_run
from vidssl.methods import METHODS
from vidssl.methods.momentum_method import KeyQueue

PLACES = runpy.run_path(str(Path(__file__).parents[1] / "toys.py"))
TOYS = PLACES["TOYS"]
train_module = importlib.import_module("vidssl.engine.train")
training_module = importlib.import_module("vidssl.engine.run_setup")
feed_module = importlib.import_module("vidssl.engine.training_step")
features_module = importlib.import_module("vidssl.evaluation.features")
checkpoint_module = importlib.import_module("vidssl.engine.checkpoint")


def toy(name, data, output, overrides):
    where = PLACES["placed"](name, data, output)
    return load_run(PLACES["CONFIGS"] / f"{name}.yaml", [*where, *overrides])


def train_toy(name, data, output, overrides=(), until=None, ddp=False, float64=False):
    """Train; what a rank holds at step N is in `output/rank-R-step-N.pt`, its gradients of all steps are given.

    With `ddp` gradients are averaged as on a GPU; with `float64` everything is computed in float64.
    """
    run = toy(name, data, output, overrides)
    gradients = []
    save, norm = training_module.save, train_module.gradient_norm

    def saving(run, videos, method, optimizer, state):
        held = {"method": method.state_dict(), "optimizer": optimizer.state_dict(), "rng": torch.get_rng_state()}
        torch.save(held, Path(output) / f"rank-{distributed.rank()}-step-{state.step}.pt")
        save(run, videos, method, optimizer, state)

    def measuring(method):
        gradients.append(torch.cat([p.grad.flatten().clone() for p in method.parameters() if p.grad is not None]))
        return norm(method)

    def over_processes(method, device, exact):
        return parallel(method, device, exact and not ddp)

    def set_batch_norm(method, expected, device):
        method, norm = norms(method, expected, device)
        return method.double(), norm

    def on_device(*arguments):
        for batch in move(*arguments):
            yield replace(batch, views=tuple(view.double() for view in batch.views))

    parallel, norms, move = training_module.over_processes, training_module.set_batch_norm, feed_module.on_device
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(training_module, "save", saving)
        patch.setattr(train_module, "gradient_norm", measuring)
        patch.setattr(training_module, "over_processes", over_processes)
        if float64:
            patch.setattr(training_module, "set_batch_norm", set_batch_norm)
            patch.setattr(feed_module, "on_device", on_device)
        train_module.train(run, until)
    return gradients


def outcome(name, data, output, overrides=(), until=None):
    """Train, and say how it ended."""
    try:
        train_toy(name, data, output, overrides, until)
    except (VidsslError, Interrupted) as error:
        return type(error).__name__, str(error)
    return "finished", os.environ.get("RANK", "0")


def meddled(name, data, output, overrides, meddle, *arguments):
    """Train while something happens on the way: `meddle` is a function of this file that patches a process."""
    with pytest.MonkeyPatch.context() as patch:
        globals()[meddle](patch, *arguments)
        return outcome(name, data, output, overrides)


def meddled_until(name, data, output, overrides, meddle, *arguments):
    """As `meddled`, and stop after one step more than there is."""
    saved = checkpoint_module.saved(Path(output) / "checkpoints")
    until = 1 + (int(saved[0].stem.split("-")[1]) if saved else 0)
    with pytest.MonkeyPatch.context() as patch:
        globals()[meddle](patch, *arguments)
        return outcome(name, data, output, overrides, until)


def counted(name, data, output, overrides):
    """Train, and list the bytes that this process gives to each kind of collective in step 2, which is not logged."""
    sent, recording = {}, [False]
    calls = [0]

    def counting(kind, original, size):
        def call(*arguments, **options):
            if recording[0]:
                sent[kind] = [*sent.get(kind, []), size(*arguments)]
            return original(*arguments, **options)

        return call

    def bytes_of(x):
        return x.numel() * x.element_size()

    set_lr = train_module.set_lr

    def next_step(*arguments):
        calls[0] += 1
        recording[0] = calls[0] == 2
        return set_lr(*arguments)

    run = toy(name, data, output, overrides)
    with pytest.MonkeyPatch.context() as patch:
        for kind, size in {
            "all_gather": lambda every, own, *_: bytes_of(own),
            "all_reduce": lambda x, *_: bytes_of(x),
            "all_to_all_single": lambda received, own, *_: bytes_of(own),
            "broadcast": lambda x, *_: bytes_of(x),
            "all_gather_object": lambda *_: 0,
        }.items():
            patch.setattr(dist, kind, counting(kind, getattr(dist, kind), size))
        patch.setattr(train_module, "set_lr", next_step)
        train_module.train(run)
    return sent


def only_on(rank):
    return int(os.environ.get("RANK", "0")) == rank


def once(work, count):
    """A function that calls `work` when it is called the `count`-th time."""
    calls = 0

    def called(*arguments):
        nonlocal calls
        calls += 1
        if calls == count:
            work()

    return called


def signal_in(patch, phase, rank, number):
    """Send this process a signal in the middle of a step, an evaluation, a wait for data or a save."""
    if not only_on(rank):
        return

    def send():
        os.kill(os.getpid(), number)

    def before(owner, attribute, count, work=send):
        original, tell = getattr(owner, attribute), once(work, count)

        def wrapped(*arguments, **options):
            tell()
            return original(*arguments, **options)

        patch.setattr(owner, attribute, wrapped)

    def late():
        threading.Timer(0.5, send).start()
        time.sleep(60)  # as long as a video that hangs, if nothing breaks it off

    if phase == "step":
        before(train_module, "average_gradients", 6)
    elif phase == "evaluation":
        before(features_module, "normalised", 2)
    elif phase == "data":
        before(ClipDataset, "sample", 4 * 6 + 28 + 1, late)  # in step 7; the evaluation after step 5 takes 28
    else:
        owner, name = (checkpoint_module, "write_checkpoint") if distributed.is_main() else (training_module, "save")
        before(owner, name, 2)


def nan_on(patch, rank, step):
    """Make a loss that is not a number, once, on one process."""
    if only_on(rank):
        pair_loss, calls = METHODS["moco"].pair_loss, [0]

        def loss(self, query, key):
            calls[0] += 1
            bad = calls[0] == 2 * (step - 1) + 1  # two pairs a step
            return pair_loss(self, query, key) * (float("nan") if bad else 1.0)

        patch.setattr(METHODS["moco"], "pair_loss", loss)


def broken_on(patch, rank, every):
    """Let every n-th video be broken for one process."""
    if only_on(rank):
        sample = ClipDataset._sample

        def broken(self, epoch, index, before):
            if index % every == 0:
                raise DecodeError(f"video {index} is broken")
            return sample(self, epoch, index, before)

        patch.setattr(ClipDataset, "_sample", broken)


def unlike(name, data, output, overrides):
    """Train with another seed on each process."""
    return outcome(name, data, output, (*overrides, f"seed={os.environ['RANK']}"))


def without_a_row(name, data, output, overrides):
    """Train with a list that lacks its last row on process 1."""
    rows = (Path(data) / "motion/train.csv").read_text().splitlines(keepends=True)
    own = Path(f"{output}-list-{os.environ['RANK']}") / "train.csv"
    own.parent.mkdir(parents=True)
    own.write_text("".join(rows[: len(rows) - int(os.environ["RANK"])]))
    root = (Path(data) / "motion/root.txt").read_text().strip()
    return outcome(name, data, output, (*overrides, f"data.train={own}", f"data.root={root}"))


def other_queue_on(patch, rank):
    """Let the queue of one process drift from the others'."""
    if only_on(rank):
        enqueue = KeyQueue.enqueue

        def other(self):
            enqueue(self)
            self.keys[0] += 1e-6

        patch.setattr(KeyQueue, "enqueue", other)


def full_disk(patch, step):
    """Let the checkpoint of a step fail, on the process that writes."""
    save = checkpoint_module.write_checkpoint

    def full(folder, at, content, keep):
        if at == step:
            raise CheckpointError(f"cannot write step {step}: No space left on device")
        return save(folder, at, content, keep)

    patch.setattr(checkpoint_module, "write_checkpoint", full)


def guarded(name, data, output, overrides, phase, number, twice):
    """Train as the tools do, with a signal or two on the way, and end with their exit status."""
    with pytest.MonkeyPatch.context() as patch:
        if twice:

            def send_twice(parallel):
                os.kill(os.getpid(), number)
                os.kill(os.getpid(), number)
                time.sleep(60)

            patch.setattr(train_module, "average_gradients", send_twice)
        else:
            signal_in(patch, phase, 0, number)
        cli.guarded(lambda: train_module.train(toy(name, data, output, overrides)))
    sys.exit(0)
