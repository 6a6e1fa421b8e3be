"""Setting up a run: lists, method, optimizer, resume, logs, workers. The loop is in train.py."""

import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.optim import Optimizer

from vidssl import distributed
from vidssl.atomic import replacing
from vidssl.config import build, dump
from vidssl.data.dataset import ClipDataset
from vidssl.data.loader import StepSampler, train_loader
from vidssl.data.samplers import SAMPLERS
from vidssl.data.synthetic.moving_digits import ensure
from vidssl.data.video_list import VideoList, choose, read_list
from vidssl.engine.checkpoint import saved as saved_checkpoints
from vidssl.engine.feed import Feed
from vidssl.engine.interrupt import StopRequest
from vidssl.engine.log import RunLog
from vidssl.engine.monitor import Monitor, build_monitor
from vidssl.engine.optim import build_optimizer
from vidssl.engine.parallel import BatchNorm, compile_backbones, over_processes, set_batch_norm
from vidssl.engine.refresh_tracks import RunTracks
from vidssl.engine.resume import RunState, Saver, only_run_in, resume, seed_process
from vidssl.engine.run_config import Run, choose_device
from vidssl.engine.status import Status
from vidssl.errors import ConfigError
from vidssl.methods.base import METHODS, Method
from vidssl.models.backbones import BACKBONES, Backbone
from vidssl.models.weights import load_initial
from vidssl.transforms import RECIPES

_log = logging.getLogger(__name__)


@dataclass
class Training:
    """What the loop works with.

    Attributes:
        parallel: The method, or DistributedDataParallel around it.
        norm: Over what the batch norms take their statistics, see `set_batch_norm`.
        micro_batches: Micro-batches of this process in a step.
        steps: Length of the run.
        stop: The step to stop after: `steps`, or `until` if that is less.
    """

    run: Run
    videos: VideoList
    monitor: Monitor | None
    device: torch.device
    request: StopRequest
    method: Method
    parallel: nn.Module
    norm: BatchNorm
    optimizer: Optimizer
    tracks: RunTracks
    state: RunState
    saver: Saver
    log: RunLog
    micro_batches: int
    steps: int
    stop: int


@contextmanager
def set_up(run: Run, until: int | None) -> Iterator[Training]:
    """Make all that the loop needs, resume the run if it has checkpoints, and clean up at the end of the block."""
    device, output = choose_device(run.device), Path(run.output)
    with ExitStack() as stack:
        stack.enter_context(distributed.joined(device))
        request = stack.enter_context(StopRequest().listening())
        stack.enter_context(only_run_in(output))
        status = stack.enter_context(Status(output).reported())
        # As in `joined`, but inside of the status, which then holds the plain error too.
        stack.enter_context(distributed.lost_peers_reported())
        _make_deterministic(run, device)
        videos = training_list(run)
        monitor = None if run.evaluate.every is None else build_monitor(run, videos)
        steps = run.total_steps(len(videos.records))
        stop = steps if until is None else min(until, steps)

        # The order matters: weights depend on the seed alone, state must be allocated before it is loaded, the
        # optimizer needs the final parameters, and names in checkpoints are those of the uncompiled backbone.
        torch.manual_seed(run.seed)
        method: Method = build(METHODS, run.method, _initial_backbone(run))
        method.allocate(len(videos.records))
        method.to(device)
        _channels_last(method)
        method, norm = set_batch_norm(method, run.sync_bn, device)
        optimizer = build_optimizer(run.optimizer, method)
        seed_process(run)
        state = resume(run, videos, method, optimizer)
        if run.compile:
            compile_backbones(method)
        parallel = over_processes(method, device, exact=run.deterministic or device.type == "cpu")
        method.train()

        distributed.on_main(lambda: write_config(run))
        clips = run.batch_size * len(run.data.views)
        log = RunLog(output, state.step, steps, clips, strict=run.checkpoint.on_error == "stop")
        distributed.on_main(log.open)
        stack.callback(log.close)
        if distributed.is_main():
            _log.info(_banner(run, videos, method, device, norm, state.step, steps))
        status.start(state.step, steps)
        yield Training(
            run=run,
            videos=videos,
            monitor=monitor,
            device=device,
            request=request,
            method=method,
            parallel=parallel,
            norm=norm,
            optimizer=optimizer,
            tracks=RunTracks(run, videos),
            state=state,
            saver=Saver(run, videos, method, optimizer, state, status),
            log=log,
            micro_batches=run.batch_size // distributed.world() // _micro_batch_size(run),
            steps=steps,
            stop=stop,
        )


def new_feed(t: Training) -> Feed:
    """Start the batches of the steps from the current one on."""
    run, videos, step = t.run, t.videos, t.state.step
    dataset = ClipDataset(
        videos,
        build(SAMPLERS, run.data.sampler),
        [build(RECIPES, view) for view in run.data.views],
        run.seed,
        int(run.data.max_broken * len(videos.records)),
        run.data,
        tracks=t.tracks.folder(step),
    )
    rank, world = distributed.rank(), distributed.world()
    sampler = StepSampler(
        len(dataset), run.batch_size, _micro_batch_size(run), step, t.stop, run.seed, rank, world
    )
    loader = train_loader(dataset, sampler, run.data.workers, run.data.timeout, run.data.prefetch)
    return Feed(loader, run, len(videos.records), t.device, t.request, t.state.broken)


def training_list(run: Run) -> VideoList:
    """Read the list that a run trains on, rendering moving digits first if they are configured and missing.

    Raises:
        ConfigError: The list lacks the classes of the classifier, or the labels that the method needs.
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
            f"{run.method.name} needs labels, but {unlabelled} of {len(videos.records)} videos of {videos.path} have "
            "none (-1): set data.train to a labelled list, or choose another method"
        )
    return videos if run.data.subset is None else choose(videos, run.data.subset)


def _check_classes(videos: VideoList, classes: int) -> None:
    if len(videos.classes) not in (0, classes):
        raise ConfigError(
            f"method.classes is {classes}, but {videos.path} has {len(videos.classes)} classes (classes.txt): set "
            f"method.classes={len(videos.classes)}"
        )
    labels = set(videos.labels.tolist())
    if min(labels) < 0:
        raise ConfigError(f"{videos.path} has videos without a label: a classifier learns from labels alone")
    if max(labels) >= classes:
        raise ConfigError(
            f"method.classes is {classes}, but {videos.path} has labels from 0 to {max(labels)}: set "
            f"method.classes={max(labels) + 1}"
        )


def render(run: Run) -> None:
    """Render the moving digits of a run if they are missing, on the main process; the others wait."""
    if run.data.moving_digits is not None:
        settings = run.data.moving_digits
        distributed.on_main(lambda: ensure(Path(settings.out), settings))


def _initial_backbone(run: Run) -> Backbone:
    """Build the backbone, with the weights of `init`; a resumed run has its weights in its checkpoint."""
    backbone: Backbone = build(BACKBONES, run.backbone)
    if run.init is not None and not saved_checkpoints(Path(run.output) / "checkpoints"):
        matched = load_initial(backbone, run.init, run.checkpoint.trust)
        if distributed.is_main():
            _log.info("%s", matched)
    elif run.init is None and getattr(run.method, "freeze", False) and distributed.is_main():
        _log.warning("the frozen backbone is untrained: name its weights with init=FILE")
    return backbone


def _micro_batch_size(run: Run) -> int:
    return run.micro_batch_size or max(1, run.batch_size // distributed.world())


def _channels_last(method: nn.Module) -> None:
    """Lay out the weights of 3D convolutions like the clips, channels last: the fastest on GPUs and CPUs."""
    for p in method.parameters():
        if p.ndim == 5:
            p.data = p.data.contiguous(memory_format=torch.channels_last_3d)


def _make_deterministic(run: Run, device: torch.device) -> None:
    if run.deterministic:
        # Without it torch refuses matrix products on GPUs.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(run.deterministic)
    torch.backends.cudnn.benchmark = not run.deterministic and device.type == "cuda"


def write_config(run: Run) -> None:
    """Write `config.yaml` into the output folder.

    Raises:
        ConfigError: The file cannot be written.
    """
    path = Path(run.output) / "config.yaml"
    try:
        with replacing(path) as file:
            file.write(dump(run).encode())
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None


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
