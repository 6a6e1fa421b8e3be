"""The one training loop."""

import json
import logging
import os
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from vidssl import distributed
from vidssl.atomic import replacing
from vidssl.config import build, dump
from vidssl.data.dataset import ClipDataset
from vidssl.data.fingerprint import check_copies, identify
from vidssl.data.loader import Loader, train_loader
from vidssl.data.samplers import SAMPLERS, ClipSettings
from vidssl.data.step_sampler import StepSampler
from vidssl.data.synthetic.moving_digits import ensure
from vidssl.data.video_list import VideoList, choose, read_list
from vidssl.engine.accumulate import accumulate
from vidssl.engine.checkpoint import saved as saved_checkpoints
from vidssl.engine.feed import Feed
from vidssl.engine.interrupt import StopRequest
from vidssl.engine.log import RunLog
from vidssl.engine.optim import build_optimizer, set_lr
from vidssl.engine.parallel import (
    average_gradients,
    check_equal,
    compile_backbones,
    gradient_norm,
    over_processes,
    set_batch_norm,
)
from vidssl.engine.refresh_tracks import RunTracks
from vidssl.engine.resume import only_run_in, resume, save, seed_process
from vidssl.engine.run_config import Run, choose_device
from vidssl.engine.status import Status
from vidssl.errors import CheckpointError, ConfigError, Interrupted, PeerError, TrainingError, VidsslError
from vidssl.evaluation.features import TestClips
from vidssl.evaluation.measure import chosen_protocols, measure
from vidssl.evaluation.preconditions import check_measurable, check_names
from vidssl.evaluation.protocols import EvaluationProtocol
from vidssl.methods.base import METHODS, Method
from vidssl.models.backbones import BACKBONES, Backbone
from vidssl.models.norms import average_statistics
from vidssl.models.weights import load_initial
from vidssl.transforms import RECIPES
from vidssl.video.reader import DecodeSettings

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Tested:
    """What a network is measured by during its training, and after it."""

    protocols: dict[str, EvaluationProtocol]
    gallery: VideoList | None
    query: VideoList


def train(run: Run, until: int | None = None) -> Path:
    """Train to the end of the run, or go on from its newest checkpoint.

    Under torchrun or srun this is one of several processes: each takes its slice of every batch, the main one writes.

    Args:
        run: The bound config.
        until: Stop, and save, after this step: the run goes on when it is started again.

    Returns:
        The last checkpoint.

    Raises:
        VidsslError: What a user can mend; the run's files are as the last checkpoint left them.
        Interrupted: SIGTERM, SIGUSR1 or SIGINT asked the run to stop; it is saved.
    """
    device, output = choose_device(run.device), Path(run.output)
    with ExitStack() as stack:
        stack.enter_context(distributed.joined(device))
        request = stack.enter_context(StopRequest().listening())
        stack.enter_context(only_run_in(output))
        status = stack.enter_context(Status(output).reported())
        stack.enter_context(distributed.lost_peers_reported())
        _make_deterministic(run, device)
        videos = training_list(run)
        monitored = None if run.evaluate.every is None else tested(run, videos)
        steps = run.total_steps(len(videos.records))
        stop = steps if until is None else min(until, steps)

        torch.manual_seed(run.seed)
        method: Method = build(METHODS, run.method, _start_backbone(run))
        method.allocate(len(videos.records))
        method.to(device)
        _channels_last(method)
        method, norm = set_batch_norm(method, run.sync_bn, device)
        optimizer = build_optimizer(run.optimizer, method)
        seed_process(run)
        reached = resume(run, output, videos, method, optimizer)
        step = saved = reached.step
        if run.compile:
            compile_backbones(method)
        parallel = over_processes(method, device, exact=run.deterministic or device.type == "cpu")
        tracks = RunTracks(run, videos)
        feed: Feed | None = None
        micro_batches = run.batch_size // distributed.world() // _micro_batch_size(run)
        distributed.on_main(lambda: _write_config(run, output))
        clips = run.batch_size * len(run.data.views)
        log = RunLog(output, step, steps, clips, strict=run.checkpoint.on_error == "stop")
        distributed.on_main(log.open)
        stack.callback(log.close)
        if distributed.is_main():
            _log.info(_banner(run, videos, method, device, norm, step, steps))
        status.saved(step, steps)

        def keep(required: bool) -> None:
            nonlocal saved
            try:
                save(run, output, reached, videos, method, optimizer)
            except (CheckpointError, PeerError) as error:
                if required or run.checkpoint.on_error == "stop":
                    raise
                if distributed.is_main():
                    _log.warning("%s; the run goes on", error)
            else:
                saved = step
                status.saved(step, steps)

        method.train()
        try:
            while True:
                if _is_due(run, step, steps) and reached.evaluated < step:
                    try:
                        numbers = _monitor(run, monitored, method, device, request)
                    except VidsslError:
                        if saved < step:  # a video that cannot be read must not cost what was trained
                            keep(required=True)
                        raise
                    if distributed.is_main():
                        log.write(step, numbers)
                    reached.evaluated, saved = step, min(saved, step - 1)
                if saved < step and (step % run.checkpoint.every == 0 or step >= stop):
                    keep(required=step >= stop)
                if step >= stop:
                    break
                if feed is None or tracks.due(step):
                    if feed is not None:
                        feed.close()
                    if tracks.due(step):
                        if saved < step:  # what was trained must not depend on what tracking meets
                            keep(required=False)
                        tracks.make(step, method, device, request)
                    loader = _loader(run, videos, step, stop, tracks.folder(step))
                    feed = Feed(loader, run, len(videos.records), device, request, reached.broken)
                    stack.callback(feed.close)

                lr = set_lr(optimizer, run.optimizer, step / steps, run.batch_size)
                method.watched = (step + 1) % run.log_every == 0 or step + 1 == steps
                batches = (feed.next(between_steps=n == 0) for n in range(micro_batches))
                totals, seen = accumulate(
                    method, parallel, batches, micro_batches, half=run.precision == "bfloat16"
                )
                average_gradients(parallel)
                means = dict(zip(totals, distributed.mean(torch.stack(list(totals.values()))), strict=True))
                if not bool(torch.isfinite(means["loss"] + gradient_norm(method))):
                    raise _not_finite(output, step + 1, videos, totals["loss"], seen)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                step = reached.step = step + 1
                method.after_step(step / steps)
                if norm in ("local", "shuffle"):
                    average_statistics(method)

                if distributed.is_main():
                    log.advance()
                    if method.watched:
                        epoch = step * run.batch_size / len(videos.records)
                        numbers = {name: value.item() for name, value in means.items()}
                        log.scalars(step, {"epoch": epoch, **numbers, "lr": lr})
                if run.verify_every and step % run.verify_every == 0:
                    check_equal(step, method, optimizer)
        except Interrupted:
            if saved < step:
                keep(required=True)
            raise
    return output / "checkpoints" / "last.pt"


def build_backbone(run: Run) -> Backbone:
    """Make the untrained backbone of a run: after `torch.manual_seed(run.seed)` the one that training starts from."""
    backbone: Backbone = build(BACKBONES, run.backbone)
    return backbone


def _start_backbone(run: Run) -> Backbone:
    """Make the backbone that training starts from; a run that goes on has its weights in its checkpoint."""
    backbone = build_backbone(run)
    if run.init is not None and not saved_checkpoints(Path(run.output) / "checkpoints"):
        matched = load_initial(backbone, run.init, run.checkpoint.trust)
        if distributed.is_main():
            _log.info("%s", matched)
    elif run.init is None and getattr(run.method, "freeze", False) and distributed.is_main():
        _log.warning(
            "the frozen backbone is untrained: name its weights with init=FILE, unless that is what is meant"
        )
    return backbone


def training_list(run: Run) -> VideoList:
    """Read the list that a run trains on, rendering the embedded set first where it is asked for and missing.

    Raises:
        ConfigError: The list does not have the classes of the classifier, or the labels that the method needs.
        DataError: The list cannot be used.
    """
    render(run)
    videos = read_list(run.data.train, run.data.root, run.data.allow_external)
    kind = METHODS[run.method.name]
    if kind.classifies:
        _check_classes(videos, run.method.classes)
    unlabelled = int((videos.labels < 0).sum())
    if kind.needs_labels and unlabelled:
        raise ConfigError(
            f"{run.method.name} learns from labels, and {unlabelled} of {len(videos.records)} videos of {videos.path} "
            "have none (-1): give data.train a list with labels, or choose another method"
        )
    return videos if run.data.subset is None else choose(videos, run.data.subset)


def _check_classes(videos: VideoList, classes: int) -> None:
    if len(videos.classes) not in (0, classes):
        raise ConfigError(
            f"method.classes is {classes}, and {videos.path} has {len(videos.classes)} classes (its classes.txt): give "
            f"method.classes={len(videos.classes)}"
        )
    labels = set(videos.labels.tolist())
    if min(labels) < 0:
        raise ConfigError(f"{videos.path} has videos without a label: a classifier learns from labels alone")
    if max(labels) >= classes:
        raise ConfigError(
            f"method.classes is {classes}, and {videos.path} has labels up to {max(labels)}, from 0: give "
            f"method.classes={max(labels) + 1}"
        )


def tested(run: Run, videos: VideoList) -> Tested:
    """Read the lists that a run is tested on, and build its protocols: a mistake shows before hours of training.

    Args:
        run: Its `evaluate.query` is set.
        videos: What it trains on.

    Raises:
        ConfigError: A protocol lacks what it needs.
        DataError: A list cannot be used, lists do not fit each other, or one names shrunk copies and one originals.
    """
    gallery, query = (
        None if path is None else read_list(path, run.data.root, run.data.allow_external)
        for path in (run.evaluate.gallery, run.evaluate.query)
    )
    assert query is not None
    if gallery is not None:
        there, asked = gallery, query
        distributed.on_main(lambda: check_copies(there.path, identify(there), asked.path, identify(asked)))
    classifies = METHODS[run.method.name].classifies
    protocols = chosen_protocols(run.evaluate.protocols, classifies, gallery, query)
    check_measurable(protocols, gallery, query, run.method.classes if classifies else 0)
    if any(protocol.probabilities for protocol in protocols.values()):
        check_names(query, videos.classes, f"in {videos.path}")
    return Tested(protocols, gallery, query)


def render(run: Run) -> None:
    """Render the embedded set where the run names it and it is missing; the main process does it, the others wait."""
    if run.data.moving_digits is not None:
        settings = run.data.moving_digits
        distributed.on_main(lambda: ensure(Path(settings.out), settings))


def test_clips(run: Run) -> TestClips:
    """How the features of this run's backbone are taken, unless a tool is told otherwise."""
    sampler = run.data.sampler.model_dump(include=set(ClipSettings.model_fields))
    return TestClips(
        clip=ClipSettings(**sampler),
        clips=run.evaluate.clips,
        crops=run.evaluate.crops,
        size=run.test_size,
        short_side=run.evaluate.short_side,
        mean=run.data.mean,
        std=run.data.std,
        **run.data.model_dump(include=set(DecodeSettings.model_fields)),
        batch_size=run.evaluate.batch_size,
        workers=run.data.workers,
        prefetch=run.data.prefetch,
        timeout=run.data.timeout,
        precision=run.evaluate.precision,
    )


test_clips.__test__ = False  # type: ignore[attr-defined]  # no test, whatever pytest thinks of the name


def _loader(run: Run, videos: VideoList, step: int, stop: int, tracks: Path | None) -> Loader:
    recipes = [build(RECIPES, view) for view in run.data.views]
    limit = int(run.data.max_broken * len(videos.records))
    dataset = ClipDataset(
        videos, build(SAMPLERS, run.data.sampler), recipes, run.seed, limit, run.data, tracks=tracks
    )
    micro = _micro_batch_size(run)
    sampler = StepSampler(
        len(dataset), run.batch_size, micro, step, stop, run.seed, distributed.rank(), distributed.world()
    )
    return train_loader(dataset, sampler, run.data.workers, run.data.timeout, run.data.prefetch)


def _micro_batch_size(run: Run) -> int:
    return run.micro_batch_size or max(1, run.batch_size // distributed.world())


def _channels_last(method: nn.Module) -> None:
    """Lay the weights of 3D convolutions out as clips are: it is what GPUs and CPUs are fastest with."""
    for p in method.parameters():
        if p.ndim == 5:
            p.data = p.data.contiguous(memory_format=torch.channels_last_3d)


def _is_due(run: Run, step: int, steps: int) -> bool:
    """Whether the backbone is measured after this step."""
    every = run.evaluate.every
    return every is not None and step > 0 and (step % every == 0 or step == steps)


def _write_config(run: Run, output: Path) -> None:
    path = output / "config.yaml"
    try:
        with replacing(path) as file:
            file.write(dump(run).encode())
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None


def _monitor(
    run: Run, monitored: Tested | None, method: Method, device: torch.device, request: StopRequest
) -> dict[str, float]:
    """Measure the network on held lists; training's random numbers are not touched."""
    assert monitored is not None  # it is due
    return measure(
        method.backbone,
        monitored.protocols,
        monitored.gallery,
        monitored.query,
        test_clips(run),
        device,
        method.classify if method.classifies else None,
        run.method.classes if method.classifies else 0,
        request.check,
    ).numbers


def _not_finite(output: Path, step: int, videos: VideoList, loss: Tensor, index: Tensor) -> TrainingError:
    """Say which videos a step was about whose loss or gradients are not finite, and write them all to a file."""
    every = distributed.gather_objects((loss.item(), index.tolist()))
    path = output / f"not-finite-step-{step:08d}.json"
    if distributed.is_main():
        content = [
            {"process": rank, "loss": str(value), "records": {n: videos.names[n] for n in records}}
            for rank, (value, records) in enumerate(every)
        ]
        with suppress(OSError):  # the error below is what matters
            path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    values = ", ".join(f"{value:g}" for value, _ in every)
    return TrainingError(
        f"the loss of step {step} is {values}, or its gradients are not finite; its videos are in {path}; lower the "
        "learning rate, or use precision: float32; the last checkpoint is untouched"
    )


def _make_deterministic(run: Run, device: torch.device) -> None:
    if run.deterministic:
        os.environ.setdefault(
            "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
        )  # else torch refuses matrix products on GPUs
    torch.use_deterministic_algorithms(run.deterministic)
    torch.backends.cudnn.benchmark = not run.deterministic and device.type == "cuda"


def _banner(
    run: Run, videos: VideoList, method: Method, device: torch.device, norm: str, step: int, steps: int
) -> str:
    where = str(device) if distributed.world() == 1 else f"{distributed.world()} processes on {device.type}"
    over = " over all of them" if norm in ("sync", "shuffle") else ""
    millions = sum(p.numel() for p in method.backbone.parameters()) / 1e6
    return (
        f"{run.method.name} on {run.backbone.name} ({millions:.1f} M parameters), {len(videos.records)} videos of "
        f"{videos.path}; steps {step}-{steps} of {run.batch_size} videos x {len(run.data.views)} views; "
        f"{where}, {run.precision}, batch norm {norm}{over}; output {run.output}"
    )
