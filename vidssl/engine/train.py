"""The training loop. What it works with is made in run_setup.py."""

import logging
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch

from vidssl.base import distributed
from vidssl.base.errors import Interrupted, VidsslError
from vidssl.engine.optim import set_lr
from vidssl.engine.parallel import average_gradients, check_equal, gradient_norm
from vidssl.engine.periodic_evaluation import encode_list
from vidssl.engine.run_config import Run
from vidssl.engine.run_setup import AnyTraining, Training
from vidssl.engine.training_step import accumulate
from vidssl.models.batch_norms import average_statistics

_log = logging.getLogger(__name__)


def train(run: Run, until: int | None = None) -> Path:
    """Train to the end of the run, or `until` a step, from the newest checkpoint on; return the path of the last one.

    Under torchrun or srun this is one of several processes: each trains on its slice of every batch, the main one
    writes all files.

    Raises:
        VidsslError: An error that a user can fix; the last checkpoint is untouched.
        Interrupted: SIGTERM, SIGUSR1 or SIGINT stopped the run; it is saved.
    """
    with ExitStack() as stack:
        return train_on(Training(run, until, stack))


def train_on(t: AnyTraining[Any]) -> Path:
    """Train from the current step on; return the path of the last checkpoint."""
    run, method, optimizer, state = t.run, t.method, t.optimizer, t.state
    with ExitStack() as feeds:
        feed = None
        try:
            if state.step == 0:  # some methods encode the training videos before their first step
                method.begin(partial(encode_list, run, t.videos, t.device, t.request))
            # A resumed run may have been stopped between a step and its evaluation.
            _evaluate_if_due(t)
            _save_if_due(t)
            while state.step < t.stop:
                if feed is None or (t.tracks is not None and t.tracks.due(state.step)):
                    feed = _next_feed(t, feeds)

                # Batches, loss and backward. The schedules depend on the fraction of the run before this step.
                lr = set_lr(optimizer, run.optimizer, state.step / t.steps, run.batch_size)
                method.watched = (state.step + 1) % run.log_every == 0 or state.step + 1 == t.steps
                # Only between steps can a signal interrupt the wait for data: half a step cannot be saved.
                batches = (feed.next(between_steps=n == 0) for n in range(t.micro_batches))
                half = run.precision == "bfloat16"
                totals, index = accumulate(method, t.parallel, batches, t.micro_batches, half)
                average_gradients(t.parallel)
                scalars = totals if method.watched else {"loss": totals["loss"]}
                means = dict(zip(scalars, distributed.mean(torch.stack([*scalars.values()])), strict=True))
                # All processes see the same sum, so that all of them stop.
                finite = torch.isfinite(means["loss"] + gradient_norm(method))
                t.check.begin(state.step + 1, finite, totals["loss"], index)

                # Step.
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                state.step += 1
                method.after_step(state.step / t.steps)
                if t.norm in ("local", "shuffle"):
                    average_statistics(method)

                # Log, evaluate, save.
                if method.watched:
                    t.check.settle()
                if t.log is not None:
                    t.log.advance(feed.waited)
                    feed.waited = 0.0
                    if method.watched:
                        epoch = state.step * run.batch_size / t.videos.samples_per_epoch
                        numbers = {name: value.item() for name, value in means.items()}
                        t.log.scalars(state.step, {"epoch": epoch, **numbers, "lr": lr})
                if run.verify_every and state.step % run.verify_every == 0:
                    t.check.settle()
                    check_equal(state.step, method, optimizer)
                _evaluate_if_due(t)
                _save_if_due(t)
        except Interrupted:
            t.save()
            if distributed.is_main():
                _log.info("saved at step %d of %d; the same command continues the run", state.step, t.steps)
            raise
    return Path(run.output) / "checkpoints" / "last.pt"


def _next_feed(t: AnyTraining[Any], feeds: ExitStack) -> Any:
    """Start the loader at the current step, after tracking the videos again if that is due."""
    feeds.close()  # ends the workers of the previous feed
    if t.tracks is not None and t.tracks.due(t.state.step):
        t.save(required=False)  # if tracking fails, the trained steps must not be lost
        t.tracks.make(t.state.step, t.method.target_backbone, t.device, t.request)
    feed = t.new_feed()
    feeds.callback(feed.close)
    return feed


def _evaluate_if_due(t: AnyTraining[Any]) -> None:
    """Evaluate the network after every `evaluate.every` steps and the last one, once."""
    step, every = t.state.step, t.run.evaluate.every
    due = step == t.steps or (every is not None and step % every == 0)
    if t.monitor is None or t.state.evaluated == step or not due:
        return
    t.check.settle()
    try:
        numbers = t.measure()
    except VidsslError:
        t.save()  # a video or image that cannot be read must not cost the trained steps
        raise
    if t.log is not None:
        t.log.write(step, numbers)
    t.state.evaluated = step


def _save_if_due(t: AnyTraining[Any]) -> None:
    last = t.state.step >= t.stop
    if last or t.state.step % t.run.checkpoint.every == 0:
        t.save(required=last)
