"""Setting up a run: lists, method, optimizer, resume, logs, workers. The loop is in train.py."""

import logging
import os
from abc import ABC, abstractmethod
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import torch

from vidssl.base import distributed
from vidssl.base.atomic import write_whole
from vidssl.base.config import build, dump
from vidssl.base.distributed import choose_device
from vidssl.base.errors import CheckpointError, PeerError
from vidssl.base.output_folder import claim, only_run_in
from vidssl.base.worker_pool import usable_cpus
from vidssl.data.clip_samplers import SAMPLERS
from vidssl.data.dataset import REPLACING, ClipDataset, most_broken
from vidssl.data.list_identity import COPIES
from vidssl.data.loader import Loader, StepSampler
from vidssl.data.video_list import VideoList
from vidssl.engine.checkpoint import Bind, resume, save, seed_process
from vidssl.engine.interrupt import StopRequest
from vidssl.engine.log import RunLog
from vidssl.engine.optim import build_optimizer
from vidssl.engine.parallel import compile_backbones, over_processes, set_batch_norm
from vidssl.engine.periodic_evaluation import Monitor, check_layer
from vidssl.engine.refresh_tracks import RunTracks
from vidssl.engine.run_config import Run, RunSettings, bfloat16_is_emulated, bind_stored
from vidssl.engine.training_lists import training_list, warn_of_few
from vidssl.engine.training_step import Feed, FiniteCheck
from vidssl.methods.base import METHODS, Method
from vidssl.models.backbones import BACKBONES, Backbone
from vidssl.models.checkpoint_files import saved as saved_checkpoints
from vidssl.models.convolution_check import check_bfloat16, conv3d_fault
from vidssl.models.match_checkpoints import load_initial
from vidssl.models.read_and_write_weights import Normalization
from vidssl.tracking import check_tracking
from vidssl.transforms import RECIPES

_log = logging.getLogger(__name__)


AnyRun = TypeVar("AnyRun", bound=RunSettings)


class AnyTraining(ABC, Generic[AnyRun]):
    """What the training loop works with, for a run of any kind.

    Making it joins the processes, handles signals, claims and locks the output folder, reads the lists, builds method
    and optimizer, loads the newest checkpoint, writes config.yaml and opens the log. `stack` undoes that: the log
    is closed, the folder unlocked, signals are handled as before, and the processes are left.
    """

    bind: ClassVar[Bind] = bind_stored  # a stored config of this kind
    num_views: int = 1  # clips of a sample
    tracks: RunTracks | None = None
    monitor: Any = None  # the evaluation during the training; None: there is none

    def __init__(self, run: AnyRun, until: int | None, stack: ExitStack) -> None:
        output = Path(run.output)
        self.run = run
        self.device = device = choose_device(run.device)
        stack.enter_context(distributed.joined(device))
        self.request = stack.enter_context(StopRequest("the run is saved and stops").listening())
        claim_output(run)
        stack.enter_context(only_run_in(output))
        set_determinism(run.deterministic, device)

        self.videos = videos = self._read_lists()
        self.steps = run.total_steps(videos.samples_per_epoch)
        self.stop = self.steps if until is None else min(until, self.steps)  # the step to stop after
        self._micro_batch_size = run.micro_batch_size or max(1, run.batch_size // distributed.world())
        self.micro_batches = run.batch_size // distributed.world() // self._micro_batch_size

        # In this order: weights depend on the seed alone, state must be allocated before it is loaded, the optimizer
        # needs the final parameters, and names in checkpoints are those of the uncompiled backbone.
        torch.manual_seed(run.seed)
        method = self._build_method().to(device)
        channels_last(method)
        self.method, self.norm = set_batch_norm(method, run.sync_bn, device)
        if run.precision == "bfloat16":
            check_bfloat16(self.method, device)
        self.optimizer = build_optimizer(run.optimizer, self.method)
        seed_process(run)
        self.state = resume(run, videos, self.method, self.optimizer, type(self).bind)
        self.check = FiniteCheck(output, videos.names)
        self._saved = (self.state.step, self.state.evaluated)
        if getattr(run, "compile", False):
            compile_backbones(self.method)
        # The method, or DistributedDataParallel around it.
        self.parallel = over_processes(self.method, device, exact=run.deterministic or device.type == "cpu")
        self.method.train()

        # None on the other processes.
        self.log = distributed.together(lambda: self._open_log(stack) if distributed.is_main() else None)

    def _open_log(self, stack: ExitStack) -> RunLog:
        """Write `config.yaml`, and open the log, which states the code that was changed since the checkpoint."""
        run, state, clips = self.run, self.state, self.run.batch_size * self.num_views
        write_whole(Path(run.output) / "config.yaml", dump(run).encode())
        strict = run.checkpoint.on_error == "stop"
        log = RunLog(Path(run.output), state.step, self.steps, clips, strict, self._faster_loading())
        stack.callback(log.close)
        if state.step in state.changed_code and state.step < self.steps:
            log.write(state.step, {"changed_code": state.changed_code[state.step]})
        self._log_banner()
        return log

    def _faster_loading(self) -> str:
        """Say what makes the loader faster; empty: nothing that is known here."""
        cores = usable_cpus()
        workers = self.run.data.workers  # type: ignore[attr-defined] # runs of all kinds have it
        is_large = self.run.decoder is not None and not (self.videos.root / COPIES).exists()
        more = f"more data.workers (now {workers}, there are {cores} cores)"
        remedies = {"copies of the videos by vidssl shrink": is_large, more: workers * distributed.world() < cores}
        return " or ".join(remedy for remedy, helps in remedies.items() if helps)

    @abstractmethod
    def _read_lists(self) -> VideoList:
        """Read the list to train on, and those of `monitor`: their errors come before hours of training."""

    @abstractmethod
    def _build_method(self) -> Method:
        """Build the method, with its state allocated."""

    @abstractmethod
    def _log_banner(self) -> None:
        """Call `log_banner`."""

    @abstractmethod
    def measure(self) -> dict[str, float]:
        """Evaluate the method after the current step with `monitor`."""

    @abstractmethod
    def new_feed(self) -> Any:
        """Start the batches of the steps from the current one on, as a `Feed` of micro-batches."""

    def save(self, required: bool = True) -> None:
        """Save the current step, unless that is done already; all processes together.

        If the checkpoint cannot be written this raises a CheckpointError, on the other processes a PeerError, unless it
        is not `required` and `checkpoint.on_error` is `continue`: that is a warning.
        """
        progress = (self.state.step, self.state.evaluated)
        if progress == self._saved:
            return
        self.check.settle()
        try:
            save(self.run, self.videos, self.method, self.optimizer, self.state)
        except (CheckpointError, PeerError) as error:
            if required or self.run.checkpoint.on_error == "stop":
                raise
            if distributed.is_main():
                _log.warning("%s; the run continues", error)
        else:
            self._saved = progress

    def _new_keys(self) -> StepSampler:
        run, videos, where = self.run, self.videos, (distributed.rank(), distributed.world(), self.videos.joined)
        size, step = self._micro_batch_size, self.state.step
        return StepSampler(len(videos), run.batch_size, size, step, self.stop, run.seed, *where)


class Training(AnyTraining[Run]):
    """What the training loop works with, for a run of a method on videos."""

    tracks: RunTracks

    def __init__(self, run: Run, until: int | None, stack: ExitStack) -> None:
        self.num_views = len(run.data.views)
        super().__init__(run, until, stack)
        self.tracks = RunTracks(run, self.videos)

    def _read_lists(self) -> VideoList:
        videos = training_list(self.run)
        warn_of_few(self.run, videos)
        self.monitor = None if self.run.evaluate.every is None else Monitor(self.run, videos)
        return videos

    def _build_method(self) -> Method:
        run = self.run
        method: Method = build(METHODS, run.method, initial_backbone(run))
        if run.init is None and getattr(run.objective[1], "freeze", False) and distributed.is_main():
            _log.warning("the frozen backbone is untrained: name its weights with init=FILE")
        # What is needed after epochs only.
        check_layer(run, method.backbone)
        if run.tracks is not None and run.tracks.refresh:
            check_tracking(method.target_backbone)
        method.allocate(len(self.videos))
        return method

    def _log_banner(self) -> None:
        run, videos = self.run, self.videos
        if run.data.augment == "device" and self.device.type == "cpu":
            _log.warning("data.augment: device is about 20 times as slow on a CPU as in the workers: set it to cpu")
        steps = f"steps {self.state.step}-{self.steps} of {run.batch_size} videos x {self.num_views} views"
        data = f"{len(videos)} videos of {videos.path}; {steps}"
        log_banner(run, self.device, run.method_in_words, self.method, self.norm, data)

    def measure(self) -> dict[str, float]:
        """Evaluate the backbone with the protocols of `evaluate`."""
        numbers: dict[str, float] = self.monitor.measure(self.run, self.method, self.device, self.request)
        return numbers

    def new_feed(self) -> Feed:
        """Start the batches of the steps from the current one on."""
        run, videos, step = self.run, self.videos, self.state.step
        dataset = training_dataset(run, videos, self.tracks.folder(step), on_device=run.data.augment == "device")
        loader = Loader(dataset, self._new_keys(), run.data.workers, run.data.timeout)
        return Feed(loader, run, len(videos), self.device, self.request, self.state.broken)


def training_dataset(run: Run, videos: VideoList, tracks: Path | None, on_device: bool = False) -> ClipDataset:
    """Build the dataset that a run trains on; the last two are those of `ClipDataset`."""
    recipes = [build(RECIPES, view) for view in run.data.views]
    sampler, limit = build(SAMPLERS, run.data.sampler), most_broken(len(videos), run.data.max_broken)
    return ClipDataset(
        videos, sampler, recipes, run.seed, limit, run.data, tracks=tracks, on_device=on_device, remedy=REPLACING
    )


def claim_output(run: RunSettings) -> None:
    """Decide that a run may write to its output folder: it is new, or holds a run."""
    init = None if run.init is None else Path(run.init.file)
    claim(Path(run.output), "a run", read=[init])


def set_determinism(deterministic: bool, device: torch.device) -> None:
    """Choose algorithms that give the same numbers each time, or the fastest ones."""
    if deterministic:
        # Without it torch refuses matrix products on GPUs.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if torch.are_deterministic_algorithms_enabled() != deterministic:  # the call imports torch's compiler
        torch.use_deterministic_algorithms(deterministic)
    torch.backends.cudnn.benchmark = not deterministic and device.type == "cuda"


def initial_backbone(run: RunSettings) -> Backbone:
    """Build the backbone, with the weights of `init` unless the run is resumed."""
    is_resumed = bool(saved_checkpoints(Path(run.output) / "checkpoints"))
    return fresh_backbone(run.model_copy(update={"init": None}) if is_resumed else run)


def fresh_backbone(run: RunSettings) -> Backbone:
    """Build the backbone as it is before the first step: untrained, or with the weights of `init`."""
    backbone: Backbone = build(BACKBONES, run.backbone)
    if run.init is not None:
        data = getattr(run, "data", None)  # runs of all kinds have it
        pixels = None if data is None else Normalization(data.mean, data.std)
        load_initial(backbone, run.init, run.checkpoint.trust, run.backbone.name, pixels)
    return backbone


def channels_last(method: Method) -> None:
    """Give the weights of 3D convolutions the layout of the clips, channels last, in which they are fastest."""
    for p in method.parameters():
        if p.ndim == 5:
            p.data = p.data.contiguous(memory_format=torch.channels_last_3d)


def log_banner(run: RunSettings, device: torch.device, title: str, method: Method, norm: str, data: str) -> None:
    """Log what is trained on which data, where, and what is slow or wrong there; `norm` is of `set_batch_norm`."""
    if run.precision == "bfloat16" and bfloat16_is_emulated(device):
        _log.warning("bfloat16 is emulated on this CPU, about 20 times as slow as float32: set precision=float32")
    if device.type == "cuda" and (fault := conv3d_fault(run.precision == "bfloat16")):
        _log.warning("%s", fault)
    world = distributed.world()
    where = str(device) if world == 1 else f"{world} processes on {device.type}"
    millions = sum(p.numel() for p in method.backbone.parameters()) / 1e6
    _log.info(
        f"{title} on {run.backbone.name} ({millions:.1f} M parameters), {data}; {where}, {run.precision}, batch norm "
        f"{norm}; output {run.output}"
    )
