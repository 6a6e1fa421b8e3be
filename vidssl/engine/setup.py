"""Setting up a run: lists, method, optimizer, resume, logs, workers. The loop is in train.py."""

import logging
import os
from contextlib import ExitStack
from functools import partial
from itertools import combinations
from pathlib import Path

import torch

from vidssl import distributed
from vidssl.atomic import write_whole
from vidssl.config import build, dump
from vidssl.data.dataset import ClipDataset
from vidssl.data.loader import Loader
from vidssl.data.samplers import SAMPLERS
from vidssl.data.step_sampler import StepSampler
from vidssl.data.subset import choose
from vidssl.data.synthetic.moving_digits import ensure
from vidssl.data.video_list import VideoList, join_lists, read_list
from vidssl.engine.batch_feed import Feed
from vidssl.engine.checkpoint import saved as saved_checkpoints
from vidssl.engine.config_schema import Run, bfloat16_is_emulated, choose_device
from vidssl.engine.interrupt import StopRequest
from vidssl.engine.log import RunLog
from vidssl.engine.optim import build_optimizer
from vidssl.engine.parallel import compile_backbones, over_processes, set_batch_norm
from vidssl.engine.periodic_evaluation import Monitor, encode_list
from vidssl.engine.refresh_tracks import RunTracks
from vidssl.engine.resume import only_run_in, resume, save, seed_process
from vidssl.errors import CheckpointError, ConfigError, DataError, PeerError
from vidssl.evaluation.list_checks import check_classes, own_rows
from vidssl.methods.base import METHODS, Method
from vidssl.models.backbones import BACKBONES, Backbone
from vidssl.models.weights import load_initial
from vidssl.transforms import RECIPES

_log = logging.getLogger(__name__)


class Training:
    """All that the loop works with, made in order; what must be closed is left to `stack`."""

    def __init__(self, run: Run, until: int | None, stack: ExitStack) -> None:
        self.run, output = run, Path(run.output)
        self.device = device = choose_device(run.device)
        stack.enter_context(distributed.joined(device))
        self.request = stack.enter_context(StopRequest().listening())
        stack.enter_context(only_run_in(output))
        if run.deterministic:
            # Without it torch refuses matrix products on GPUs.
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(run.deterministic)
        torch.backends.cudnn.benchmark = not run.deterministic and device.type == "cuda"
        self.videos = videos = training_list(run)
        self.monitor = None if run.evaluate.every is None else Monitor(run, videos)
        self.steps = run.total_steps(videos.samples_per_epoch)
        self.stop = self.steps if until is None else min(until, self.steps)  # the step to stop after
        self._micro_batch_size = run.micro_batch_size or max(1, run.batch_size // distributed.world())
        self.micro_batches = run.batch_size // distributed.world() // self._micro_batch_size

        # In this order: weights depend on the seed alone, state must be allocated before it is loaded, the optimizer
        # needs the final parameters, and names in checkpoints are those of the uncompiled backbone.
        torch.manual_seed(run.seed)
        method: Method = build(METHODS, run.method, _initial_backbone(run))
        method.allocate(len(videos.records))
        method.to(device)
        for p in method.parameters():
            if p.ndim == 5:  # 3D convolutions are fastest with the layout of the clips, channels last
                p.data = p.data.contiguous(memory_format=torch.channels_last_3d)
        self.method, self.norm = set_batch_norm(method, run.sync_bn, device)
        self.optimizer = build_optimizer(run.optimizer, self.method)
        seed_process(run)
        self.state = resume(run, videos, self.method, self.optimizer)
        self._saved = (self.state.step, self.state.evaluated)
        if run.compile:
            compile_backbones(self.method)
        # The method, or DistributedDataParallel around it.
        self.parallel = over_processes(self.method, device, exact=run.deterministic or device.type == "cpu")
        self.method.train()
        self.tracks = RunTracks(run, videos)

        def open_log() -> None:
            write_config(run)
            clips, strict = run.batch_size * len(run.data.views), run.checkpoint.on_error == "stop"
            self.log = RunLog(output, self.state.step, self.steps, clips, strict)
            stack.callback(self.log.close)
            self._log_banner()

        distributed.on_main(open_log)  # the other processes have no log

    def begin(self) -> None:
        """Let the method of a fresh run encode the training videos, if it needs that before the first step."""
        if self.state.step == 0:
            self.method.begin(partial(encode_list, self.run, self.videos, self.device, self.request))

    def new_feed(self) -> Feed:
        """Start the batches of the steps from the current one on."""
        run, videos, step = self.run, self.videos, self.state.step
        recipes = [build(RECIPES, view) for view in run.data.views]
        sampler, limit = build(SAMPLERS, run.data.sampler), int(run.data.max_broken * len(videos.records))
        dataset = ClipDataset(videos, sampler, recipes, run.seed, limit, run.data, tracks=self.tracks.folder(step))
        rest = distributed.rank(), distributed.world(), videos.joined
        keys = StepSampler(len(dataset), run.batch_size, self._micro_batch_size, step, self.stop, run.seed, *rest)
        loader = Loader(dataset, keys, run.data.workers, run.data.timeout, run.data.prefetch)
        return Feed(loader, run, len(videos.records), self.device, self.request, self.state.broken)

    def save(self, required: bool = True) -> None:
        """Save the current step, unless that is done already; called on all processes.

        If the checkpoint cannot be written this raises a CheckpointError, on the other processes a PeerError, unless it
        is not `required` and `checkpoint.on_error` is `continue`: that is a warning.
        """
        progress = (self.state.step, self.state.evaluated)
        if progress == self._saved:
            return
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
        where = str(self.device) if world == 1 else f"{world} processes on {self.device.type}"
        millions = sum(p.numel() for p in self.method.backbone.parameters()) / 1e6
        _log.info(
            f"{run.method.name} on {run.backbone.name} ({millions:.1f} M parameters), {len(self.videos.records)} "
            f"videos of {self.videos.path}; steps {self.state.step}-{self.steps} of {run.batch_size} videos x "
            f"{len(run.data.views)} views; {where}, {run.precision}, batch norm {self.norm}; output {run.output}"
        )


def training_list(run: Run) -> VideoList:
    """Read the lists that a run trains on, rendering moving digits first if they are configured and missing."""
    digits = run.data.moving_digits
    if digits is not None:
        distributed.on_main(lambda: ensure(Path(digits.out), digits))
    lists = [read_list(each.list, each.root or run.data.root, run.data.allow_external) for each in run.data.lists]
    if run.data.subset is not None:
        lists = [choose(videos, run.data.subset) for videos in lists]
    kind = METHODS[run.method.name]
    needs_labels = kind.needs_labels or kind.classifies
    if len(lists) > 1:
        _check_several(lists, needs_labels)
    videos = join_lists(lists, [each.weight for each in run.data.lists])
    unlabelled = int((videos.labels < 0).sum())
    if unlabelled and needs_labels:
        raise ConfigError(
            f"{run.method.name} needs labels, but {unlabelled} of {len(videos.records)} videos of {videos.path} have "
            "none (-1): set data.train to a labelled list, or choose another method"
        )
    if kind.classifies:
        found = len(videos.classes) or int(videos.labels.max()) + 1
        if found > run.method.classes or (videos.classes and found != run.method.classes):
            raise ConfigError(
                f"method.classes is {run.method.classes}, and {videos.path} has {found} classes: set "
                f"method.classes={found}"
            )
    return videos


def _check_several(lists: list[VideoList], needs_labels: bool) -> None:
    """Raise a DataError if lists cannot be trained on together."""
    for one, other in combinations(lists, 2):
        if needs_labels:
            check_classes(one, other)
        if len(pairs := own_rows(one, other)):
            raise DataError(
                f"{len(set(pairs[:, 0].tolist()))} videos of {other.path} are in {one.path} too, the first "
                f"{other.names[int(pairs[0, 0])]!r}: keep each in one list; the weight of a list uses its videos more "
                "often"
            )
    for videos in lists:  # `max_broken` may allow that a short one is missing
        if not any(os.path.exists(record.path) for record in videos.records):  # noqa: PTH110 - strings
            raise DataError(
                f"none of the videos of {videos.path} are in {videos.root}: set the folder of this list, data.train="
                "[{list: …, root: FOLDER}, …]"
            )


def _initial_backbone(run: Run) -> Backbone:
    """Build the backbone, with the weights of `init` unless the run is resumed."""
    backbone: Backbone = build(BACKBONES, run.backbone)
    if run.init is not None and not saved_checkpoints(Path(run.output) / "checkpoints"):
        matched = load_initial(backbone, run.init, run.checkpoint.trust)
        if distributed.is_main():
            _log.info("%s", matched)
    elif run.init is None and getattr(run.method, "freeze", False) and distributed.is_main():
        _log.warning("the frozen backbone is untrained: name its weights with init=FILE")
    return backbone


def write_config(run: Run) -> None:
    """Write `config.yaml` into the output folder."""
    write_whole(Path(run.output) / "config.yaml", dump(run).encode())
