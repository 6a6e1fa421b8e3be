"""The one training loop."""

import logging
from contextlib import ExitStack, closing
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from vidssl import comm
from vidssl.config import build, dump
from vidssl.data.dataset import ClipDataset
from vidssl.data.loader import Loader, StepSampler, to_device, train_loader
from vidssl.data.moving_digits import ensure
from vidssl.data.records import VideoList, read_list
from vidssl.data.samplers import SAMPLERS, ClipSettings
from vidssl.data.video import Reading
from vidssl.engine.log import RunLog
from vidssl.engine.optim import build_optimizer, set_lr
from vidssl.engine.resume import only_run_in, resume, save
from vidssl.engine.run import Run, choose_device
from vidssl.errors import DataError, TrainingError
from vidssl.evaluation.features import TestClips, extract
from vidssl.evaluation.protocols import PROTOCOLS, own_rows
from vidssl.methods.base import METHODS, Method
from vidssl.models.backbones import BACKBONES, Backbone
from vidssl.transforms import RECIPES

_log = logging.getLogger(__name__)


def train(run: Run, until: int | None = None) -> Path:
    """Train to the end of the run, or go on from its newest checkpoint.

    Args:
        run: The bound config.
        until: Stop, and save, after this step: the run goes on when it is started again.

    Returns:
        The last checkpoint.

    Raises:
        VidsslError: What a user can mend; the run's files are as the last checkpoint left them.
    """
    device = choose_device(run.device)
    comm.start(device)
    output = Path(run.output)
    with ExitStack() as stack:
        stack.enter_context(only_run_in(output))
        _make_deterministic(run, device)
        videos = training_list(run)
        steps = run.total_steps(len(videos.records))
        stop = steps if until is None else min(until, steps)

        torch.manual_seed(run.seed)
        method: Method = build(METHODS, run.method, build_backbone(run)).to(device)
        optimizer = build_optimizer(run.optimizer, method)
        step = resume(run, output, videos, method, optimizer)
        loader = stack.enter_context(closing(iter(_loader(run, videos, step, stop))))
        parallel: nn.Module = _parallel(method, run, device)
        if comm.is_main():
            output.mkdir(parents=True, exist_ok=True)
            (output / "config.yaml").write_text(dump(run))
            _log.info(_banner(run, videos, method, device, step, steps))
            log = RunLog(output, step, steps, run.batch_size * len(run.data.views))
            stack.callback(log.close)
        broken: dict[str, str] = {}
        micro_batches = run.batch_size // comm.world() // _micro_batch_size(run)

        method.train()
        while step < stop:
            lr = set_lr(optimizer, run.optimizer, step / steps, run.batch_size)
            optimizer.zero_grad(set_to_none=True)
            totals: dict[str, Tensor] = {}
            for _ in range(micro_batches):
                raw = next(loader)
                _count_broken(broken, raw.replaced, run, len(videos.records))
                batch = to_device(raw, device, run.data.mean, run.data.std)
                with torch.autocast(device.type, torch.bfloat16, enabled=run.precision == "bfloat16"):
                    scalars = parallel(batch)
                (scalars["loss"] / micro_batches).backward()
                for name, value in scalars.items():
                    totals[name] = totals.get(name, 0.0) + value.detach() / micro_batches
            means = {name: comm.mean(value) for name, value in totals.items()}
            if not bool(torch.isfinite(means["loss"])):
                raise TrainingError(
                    f"the loss of step {step + 1} is {means['loss'].item()}; records {batch.index.tolist()}; "
                    "lower the learning rate, or use precision: float32; the last checkpoint is untouched"
                )
            optimizer.step()
            step += 1
            method.after_step(step / steps)

            if comm.is_main():
                log.advance()
                if step % run.log_every == 0 or step == steps:
                    epoch = step * run.batch_size / len(videos.records)
                    numbers = {name: value.item() for name, value in means.items()}
                    log.scalars(step, {"epoch": epoch, **numbers, "lr": lr})
            if run.evaluate.every and (step % run.evaluate.every == 0 or step == steps):
                numbers = _monitor(run, method.backbone, device)
                if comm.is_main():
                    log.write(step, numbers)
            if step % run.checkpoint.every == 0 or step == stop:
                save(run, output, step, videos, method, optimizer)
        comm.barrier()
    comm.stop()
    return output / "checkpoints" / "last.pt"


def build_backbone(run: Run) -> Backbone:
    """Make the untrained backbone of a run: after `torch.manual_seed(run.seed)` the one that training starts from."""
    backbone: Backbone = build(BACKBONES, run.backbone)
    return backbone


def training_list(run: Run) -> VideoList:
    """Read the list that a run trains on, rendering the embedded set first where it is asked for and missing."""
    render(run)
    return read_list(run.data.train, run.data.root, run.data.allow_external)


def render(run: Run) -> None:
    """Render the embedded set where the run names it and it is missing; the main process does it, the others wait."""
    if run.data.moving_digits is not None:
        if comm.is_main():
            ensure(Path(run.data.moving_digits.out), run.data.moving_digits)
        comm.barrier()


def test_clips(run: Run) -> TestClips:
    """How the features of this run's backbone are taken, unless a tool is told otherwise."""
    sampler = run.data.sampler.model_dump(include=set(ClipSettings.model_fields))
    return TestClips(
        clip=ClipSettings(**sampler),
        clips=run.evaluate.clips,
        crops=run.evaluate.crops,
        size=run.test_size,
        mean=run.data.mean,
        std=run.data.std,
        **run.data.model_dump(include=set(Reading.model_fields)),
        batch_size=run.evaluate.batch_size,
        workers=run.data.workers,
        timeout=run.data.timeout,
    )


test_clips.__test__ = False  # type: ignore[attr-defined]  # no test, whatever pytest thinks of the name


def _loader(run: Run, videos: VideoList, step: int, stop: int) -> Loader:
    recipes = [build(RECIPES, view) for view in run.data.views]
    limit = int(run.data.max_broken * len(videos.records))
    dataset = ClipDataset(videos, build(SAMPLERS, run.data.sampler), recipes, run.seed, limit, run.data)
    micro = _micro_batch_size(run)
    sampler = StepSampler(
        len(dataset), run.batch_size, micro, step, stop, run.seed, comm.rank(), comm.world()
    )
    return train_loader(dataset, sampler, run.data.workers, run.data.timeout)


def _micro_batch_size(run: Run) -> int:
    return run.micro_batch_size or max(1, run.batch_size // comm.world())


def _parallel(method: Method, run: Run, device: torch.device) -> nn.Module:
    if run.compile:
        method.backbone.compile()
    if comm.world() == 1:
        return method
    # Buffers (queue, pointer) are kept equal by the methods themselves; broadcasting them each step is for
    # nothing.
    return DistributedDataParallel(
        method, device_ids=[device.index] if device.type == "cuda" else None, broadcast_buffers=False
    )


def _monitor(run: Run, backbone: Backbone, device: torch.device) -> dict[str, float]:
    """Measure the backbone on held lists; training's random numbers are not touched."""
    lists = [
        read_list(str(path), run.data.root, run.data.allow_external)
        for path in (run.evaluate.gallery, run.evaluate.query)
    ]
    gallery, query = (extract(backbone, videos, test_clips(run), device) for videos in lists)
    numbers: dict[str, float] = {}
    for name in ("retrieval", "knn", "uniformity"):
        protocol = PROTOCOLS[name]
        numbers.update(protocol(protocol.Config())(gallery, query, own_rows(*lists)))  # type: ignore[attr-defined]
    return numbers


def _count_broken(
    broken: dict[str, str], replaced: tuple[tuple[str, str], ...], run: Run, num_records: int
) -> None:
    """Name each broken video once; stop when they are too many."""
    for path, reason in replaced:
        if path not in broken:
            broken[path] = reason
            _log.warning("broken video %d, the next one takes its place: %s", len(broken), reason)
    if len(broken) > run.data.max_broken * num_records:
        raise DataError(
            f"{len(broken)} of {num_records} videos are broken, data.max_broken is {run.data.max_broken}: "
            + "; ".join(broken.values())
        )


def _make_deterministic(run: Run, device: torch.device) -> None:
    if run.deterministic:
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False
    elif device.type == "cuda":
        torch.backends.cudnn.benchmark = True


def _banner(run: Run, videos: VideoList, method: Method, device: torch.device, step: int, steps: int) -> str:
    millions = sum(p.numel() for p in method.backbone.parameters()) / 1e6
    return (
        f"{run.method.name} on {run.backbone.name} ({millions:.1f} M parameters), {len(videos.records)} videos of "
        f"{videos.path}; steps {step}-{steps} of {run.batch_size} videos x {len(run.data.views)} views; {device}, "
        f"{run.precision}; output {run.output}"
    )
