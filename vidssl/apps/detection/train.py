"""The training of a detector, in the manner of torchvision's references: one straight line from lists to weights."""

import logging
from collections.abc import Iterable
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from vidssl.apps.detection.config import AnyDetectionRun, bind_run, bind_stored
from vidssl.apps.detection.evaluation import AnyDetector, Evaluation, detection_list, task_of
from vidssl.apps.detection.images_and_clips import DetectionBatch, batches, next_together
from vidssl.base import distributed
from vidssl.base.distributed import choose_device
from vidssl.base.errors import Interrupted, VidsslError
from vidssl.base.output_folder import only_run_in
from vidssl.data.loader import StepSampler
from vidssl.engine import parallel as processes
from vidssl.engine import run_setup as core
from vidssl.engine.checkpoint import resume, seed_process
from vidssl.engine.interrupt import StopRequest
from vidssl.engine.log import RunLog
from vidssl.engine.optim import build_optimizer, set_lr
from vidssl.engine.training_step import FiniteCheck
from vidssl.models.batch_norms import average_statistics
from vidssl.models.convolution_check import check_bfloat16

__all__ = ["bind_run", "bind_stored", "train"]  # of the project: see `vidssl.base.registry`
_log = logging.getLogger(__name__)


def train(run: AnyDetectionRun, until: int | None = None) -> Path:
    """Train to the end of the run, or `until` a step, from the newest checkpoint on: as `vidssl.engine.train.train`."""
    output, device, task = Path(run.output), choose_device(run.device), task_of(run)
    with ExitStack() as stack:
        stack.enter_context(distributed.joined(device))
        request = stack.enter_context(StopRequest().listening())
        core.claim_output(run)
        stack.enter_context(only_run_in(output))
        core.set_determinism(run.deterministic, device)

        # Lists: their errors come before hours of training.
        boxes = detection_list(task)
        test = None if run.evaluate.list is None else Evaluation(task, boxes)
        steps = run.total_steps(boxes.samples_per_epoch)
        stop = steps if until is None else min(until, steps)

        # Detector and optimizer. Weights depend on the seed alone; the state is loaded into the final parameters.
        torch.manual_seed(run.seed)
        detector = task.detector(core.initial_backbone(run), len(boxes.classes)).to(device)
        core.channels_last(detector)
        method, norm = processes.set_batch_norm(detector, run.sync_bn, device)
        if run.precision == "bfloat16":
            check_bfloat16(method, device)
        optimizer = build_optimizer(run.optimizer, method)
        seed_process(run)
        state = resume(run, boxes, method, optimizer, bind_stored)
        check = FiniteCheck(output, boxes.names)
        saver = core.Saver(run, boxes, method, optimizer, state, check)
        parallel = processes.over_processes(method, device, exact=run.deterministic or device.type == "cpu")
        method.train()

        # Batches: this process has its slice of each, in `count` micro-batches.
        of_process = run.batch_size // distributed.world()
        size = run.micro_batch_size or max(1, of_process)
        count, rank, world = of_process // size, distributed.rank(), distributed.world()
        keys = StepSampler(len(boxes), run.batch_size, size, state.step, stop, run.seed, rank, world)
        loader = batches(task.training_data(boxes), keys, device)
        stack.callback(loader.close)

        def open_log() -> RunLog:
            log = core.start_run_log(run, state, steps, run.batch_size)
            stack.callback(log.close)
            data = f"{len(boxes)} {task.samples} of {boxes.path}"
            data += f"; steps {state.step}-{steps} of {run.batch_size} {task.samples}"
            core.log_banner(run, device, task.title, method, norm, data)
            return log

        log = distributed.together(lambda: open_log() if distributed.is_main() else None)

        def evaluate_and_save() -> None:
            if test is not None and state.evaluated != state.step and test.due(state.step, steps):
                check.settle()
                try:
                    numbers = test.measure(cast(AnyDetector, method), state.step, device, request.check)
                except VidsslError:
                    saver.save()  # an image that cannot be read must not cost the trained steps
                    raise
                if log is not None:
                    log.write(state.step, numbers)
                state.evaluated = state.step
            if state.step >= stop or state.step % run.checkpoint.every == 0:
                saver.save(required=state.step >= stop)

        try:
            evaluate_and_save()  # a resumed run may have been stopped between a step and its evaluation
            while state.step < stop:
                # The schedule depends on the fraction of the run before this step.
                lr = set_lr(optimizer, run.optimizer, state.step / steps, run.batch_size)
                # Only between steps can a signal interrupt the wait for data: half a step cannot be saved.
                micro_batches = (next_together(loader, request, between_steps=n == 0) for n in range(count))
                losses, index = _backward(parallel, micro_batches, count, run.precision == "bfloat16")
                processes.average_gradients(parallel)
                means = dict(zip(losses, distributed.mean(torch.stack([*losses.values()])), strict=True))
                # All processes see the same sum, so that all of them stop.
                finite = torch.isfinite(means["loss"] + processes.gradient_norm(method))
                check.begin(state.step + 1, finite, losses["loss"], index)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                state.step += 1
                method.after_step(state.step / steps)
                if norm == "local":
                    average_statistics(method)
                if log is not None:
                    log.advance()
                if state.step % run.log_every == 0 or state.step == steps:
                    check.settle()
                    if log is not None:
                        epoch = state.step * run.batch_size / boxes.samples_per_epoch
                        log.scalars(state.step, {"epoch": epoch, **{n: x.item() for n, x in means.items()}, "lr": lr})
                if run.verify_every and state.step % run.verify_every == 0:
                    check.settle()
                    processes.check_equal(state.step, method, optimizer)
                evaluate_and_save()
        except Interrupted:
            saver.save()
            if log is not None:
                _log.info("saved at step %d; the same command continues the run", state.step)
            raise
    return output / "checkpoints" / "last.pt"


def _backward(
    parallel: nn.Module, micro_batches: Iterable[DetectionBatch], count: int, half: bool
) -> tuple[dict[str, Tensor], Tensor]:
    """Accumulate the gradients of a step over `count` micro-batches; return the mean losses and the indices (N,)."""
    totals: dict[str, Tensor] = {}
    index = []
    for n, batch in enumerate(micro_batches, start=1):
        with nullcontext() if n == count else processes.without_averaging(parallel):
            with torch.autocast(batch.index.device.type, torch.bfloat16, enabled=half):
                losses = parallel(batch)
            (losses["loss"] / count).backward()
        for name, value in losses.items():
            totals[name] = totals.get(name, 0.0) + value.detach() / count
        index.append(batch.index)
    return totals, torch.cat(index)
