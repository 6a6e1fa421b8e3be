"""Setting up a run: lists, method, optimizer, resume, logs, workers. The loop is in train.py."""

import logging
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Generic, TypeVar

import torch

from vidssl import distributed
from vidssl.atomic import write_whole
from vidssl.config import build, dump
from vidssl.data.step_sampler import StepSampler
from vidssl.data.video_list import VideoList
from vidssl.distributed import choose_device
from vidssl.engine.batch_feed import Feed
from vidssl.engine.checkpoint import saved as saved_checkpoints
from vidssl.engine.config_schema import AnyRun, Run, bfloat16_is_emulated
from vidssl.engine.conv3d_faults import conv3d_fault
from vidssl.engine.detection_schema import AnyDetectionRun
from vidssl.engine.finite_check import FiniteCheck
from vidssl.engine.interrupt import StopRequest
from vidssl.engine.log import RunLog
from vidssl.engine.optim import build_optimizer
from vidssl.engine.parallel import compile_backbones, over_processes, set_batch_norm
from vidssl.engine.resume import resume, save, seed_process
from vidssl.errors import CheckpointError, PeerError
from vidssl.methods.base import Method
from vidssl.models.backbones import BACKBONES, Backbone
from vidssl.models.bfloat16_check import check_bfloat16
from vidssl.models.weights import load_initial
from vidssl.output_folder import claim, only_run_in

_log = logging.getLogger(__name__)


RunType = TypeVar("RunType", Run, AnyDetectionRun)


class Training(Generic[RunType]):
    """All that the loop works with, made in order; what must be closed is left to `stack`.

    `ClipTraining` and `DetectionTraining` make what differs between methods on videos and detectors.
    """

    samples, views = "videos", 1  # what batches consist of, and the views of each

    def __init__(self, run: RunType, until: int | None, stack: ExitStack) -> None:
        output = Path(run.output)
        self.run: RunType = run
        self.device = device = choose_device(run.device)
        stack.enter_context(distributed.joined(device))
        self.request = stack.enter_context(StopRequest().listening())
        claim_output(run)
        stack.enter_context(only_run_in(output))
        if run.deterministic:
            # Without it torch refuses matrix products on GPUs.
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(run.deterministic)
        torch.backends.cudnn.benchmark = not run.deterministic and device.type == "cuda"
        self.videos = videos = self.read_list()
        self.steps = run.total_steps(videos.samples_per_epoch)
        self.stop = self.steps if until is None else min(until, self.steps)  # the step to stop after
        self._micro_batch_size = run.micro_batch_size or max(1, run.batch_size // distributed.world())
        self.micro_batches = run.batch_size // distributed.world() // self._micro_batch_size

        # In this order: weights depend on the seed alone, state must be allocated before it is loaded, the optimizer
        # needs the final parameters, and names in checkpoints are those of the uncompiled backbone.
        torch.manual_seed(run.seed)
        method = self.build_method(initial_backbone(run))
        method.allocate(len(videos.records))
        method.to(device)
        for p in method.parameters():
            if p.ndim == 5:  # 3D convolutions are fastest with the layout of the clips, channels last
                p.data = p.data.contiguous(memory_format=torch.channels_last_3d)
        if run.precision == "bfloat16":
            check_bfloat16(method.backbone, self.clip_sizes(), device, gradients=True)
        self.method, self.norm = set_batch_norm(method, run.sync_bn, device)
        self.optimizer = build_optimizer(run.optimizer, self.method)
        seed_process(run)
        self.state = resume(run, videos, self.method, self.optimizer)
        self._saved = (self.state.step, self.state.evaluated)
        self.check = FiniteCheck(output, videos.names)
        if isinstance(run, Run) and run.compile:
            compile_backbones(self.method)
        # The method, or DistributedDataParallel around it.
        self.parallel = over_processes(self.method, device, exact=run.deterministic or device.type == "cpu")
        self.method.train()

        def open_log() -> None:
            write_config(run)
            clips, strict = run.batch_size * self.views, run.checkpoint.on_error == "stop"
            self.log = RunLog(output, self.state.step, self.steps, clips, strict)
            stack.callback(self.log.close)
            self._log_banner()

        distributed.on_main(open_log)  # the other processes have no log

    def read_list(self) -> VideoList:
        """Read the list to train on, and check what the run is evaluated with: before hours of training."""
        raise NotImplementedError

    def build_method(self, backbone: Backbone) -> Method:
        """Build what is trained."""
        raise NotImplementedError

    def clip_sizes(self) -> set[tuple[int, int]]:
        """Return the frames and the sides, in pixels, of the clips that the backbone encodes."""
        raise NotImplementedError

    def begin(self) -> None:
        """Do what a fresh run needs before its first step; nothing by default."""

    def new_feed(self) -> Feed:
        """Start the batches of the steps from the current one on."""
        raise NotImplementedError

    def tracking_is_due(self) -> bool:
        """Whether the videos must be tracked before the next step."""
        return False

    def track(self) -> None:
        """Track the videos with the current network."""
        raise NotImplementedError

    def evaluation_is_due(self) -> bool:
        """Whether the current step is to be evaluated."""
        raise NotImplementedError

    def measure(self) -> dict[str, float]:
        """Evaluate the network."""
        raise NotImplementedError

    def describe(self) -> str:
        """Name what is trained, for the log."""
        raise NotImplementedError

    def keys(self) -> StepSampler:
        """Return the keys of the batches of this process, from the current step on."""
        run, videos = self.run, self.videos
        size, where = len(videos.records), (distributed.rank(), distributed.world(), videos.joined)
        return StepSampler(size, run.batch_size, self._micro_batch_size, self.state.step, self.stop, run.seed, *where)

    def save(self, required: bool = True) -> None:
        """Save the current step, unless that is done already; called on all processes.

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

    def _log_banner(self) -> None:
        run, world = self.run, distributed.world()
        if run.precision == "bfloat16" and bfloat16_is_emulated(self.device):
            _log.warning(
                "precision: bfloat16 is emulated on this CPU, about 20 times as slow as float32: set precision=float32"
            )
        if isinstance(run, Run) and run.data.augment == "device" and self.device.type == "cpu":
            _log.warning("data.augment: device is about 20 times as slow on a CPU as in the workers: set it to cpu")
        warn_of_conv3d(self.device, run.precision == "bfloat16")
        where = str(self.device) if world == 1 else f"{world} processes on {self.device.type}"
        millions = sum(p.numel() for p in self.method.backbone.parameters()) / 1e6
        _log.info(
            f"{self.describe()} on {run.backbone.name} ({millions:.1f} M parameters), {len(self.videos.records)} "
            f"{self.samples} of {self.videos.path}; steps {self.state.step}-{self.steps} of {run.batch_size} "
            f"{self.samples} x {self.views} views; {where}, {run.precision}, batch norm {self.norm}; output "
            f"{run.output}"
        )


def claim_output(run: AnyRun) -> None:
    """Decide that a run may write to its output folder: it is new, or holds a run."""
    names = ["config.yaml", "metrics.jsonl", "checkpoints", "broken-videos.csv", "not-finite-step-*.json"]
    names += ["tracks/step-*"] if isinstance(run, Run) else ["results.json"]
    init = None if run.init is None else Path(run.init.file)
    claim(Path(run.output), "a run", names, read=[init], before=_is_run)


def _is_run(folder: Path) -> bool:
    """Whether a folder holds a run of a version that wrote no mark."""
    started = (folder / "metrics.jsonl").exists() or saved_checkpoints(folder / "checkpoints")
    return (folder / "config.yaml").exists() and bool(started)


def warn_of_conv3d(device: torch.device, half: bool) -> None:
    """Warn if 3D convolutions are slow or wrong with this torch and cuDNN."""
    if device.type == "cuda" and (fault := conv3d_fault(half)):
        _log.warning("%s", fault)


def initial_backbone(run: AnyRun) -> Backbone:
    """Build the backbone, with the weights of `init` unless the run is resumed."""
    backbone: Backbone = build(BACKBONES, run.backbone)
    if run.init is not None and not saved_checkpoints(Path(run.output) / "checkpoints"):
        matched = load_initial(backbone, run.init, run.checkpoint.trust)
        if distributed.is_main():
            _log.info("%s", matched)
    elif isinstance(run, Run) and run.init is None and _is_frozen(run) and distributed.is_main():
        _log.warning("the frozen backbone is untrained: name its weights with init=FILE")
    return backbone


def _is_frozen(run: Run) -> bool:
    return bool(getattr(run.objective[1], "freeze", False))


def write_config(run: AnyRun) -> None:
    """Write `config.yaml` into the output folder."""
    write_whole(Path(run.output) / "config.yaml", dump(run).encode())
