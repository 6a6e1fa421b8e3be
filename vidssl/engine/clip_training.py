"""The training of methods on clips of videos."""

import logging
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import combinations
from pathlib import Path

from vidssl import distributed
from vidssl.config import build
from vidssl.data.clip_samplers import SAMPLERS
from vidssl.data.dataset import REPLACING, ClipDataset
from vidssl.data.loader import Loader
from vidssl.data.overlap import own_rows
from vidssl.data.synthetic.moving_digits import ensure
from vidssl.data.video_list import VideoList
from vidssl.engine.batch_feed import Feed
from vidssl.engine.config_schema import Run
from vidssl.engine.periodic_evaluation import Monitor, encode_list
from vidssl.engine.refresh_tracks import RunTracks
from vidssl.engine.setup import Training
from vidssl.engine.trained_lists import join, read_lists
from vidssl.errors import ConfigError, DataError, naming
from vidssl.evaluation.list_checks import check_classes
from vidssl.methods.base import METHODS, Method
from vidssl.models.backbones import Backbone
from vidssl.transforms import RECIPES
from vidssl.video.reader import state_of_video

_log = logging.getLogger(__name__)
_FEW = 200  # videos: see docs/which.md


class ClipTraining(Training[Run]):
    """The training of a method on clips of videos."""

    def __init__(self, run: Run, until: int | None, stack: ExitStack) -> None:
        self.views = len(run.data.views)
        super().__init__(run, until, stack)
        self.tracks = RunTracks(run, self.videos)

    def read_list(self) -> VideoList:
        """Read the list of videos."""
        videos = training_list(self.run)
        _warn_of_few(self.run, videos)
        self.monitor = None if self.run.evaluate.every is None else Monitor(self.run, videos)
        return videos

    def build_method(self, backbone: Backbone) -> Method:
        """Build the method around its backbone."""
        method: Method = build(METHODS, self.run.method, backbone)
        return method

    def clip_sizes(self) -> set[tuple[int, int]]:
        """Return frames and size of each view."""
        return {(self.run.data.sampler.frames, view.size) for view in self.run.data.views}

    def begin(self) -> None:
        """Let the method of a fresh run encode the training videos, if it needs that before the first step."""
        if self.state.step == 0:
            self.method.begin(partial(encode_list, self.run, self.videos, self.device, self.request))

    def new_feed(self) -> Feed:
        """Start the batches of the steps from the current one on."""
        run, videos, step = self.run, self.videos, self.state.step
        dataset = training_dataset(run, videos, self.tracks.folder(step))
        dataset = replace(dataset, on_device=run.data.augment == "device")
        loader = Loader(dataset, self.keys(), run.data.workers, run.data.timeout, run.data.prefetch)
        return Feed(loader, run, len(videos.records), self.device, self.request, self.state.broken)

    def tracking_is_due(self) -> bool:
        """Whether the videos must be tracked before the next step."""
        return self.tracks.due(self.state.step)

    def track(self) -> None:
        """Track the videos with the current network."""
        self.tracks.make(self.state.step, self.method.target_backbone, self.device, self.request)

    def evaluation_is_due(self) -> bool:
        """Whether the current step is a multiple of `evaluate.every`, or the last."""
        step, every = self.state.step, self.run.evaluate.every
        return every is not None and (step % every == 0 or step == self.steps)

    def measure(self) -> dict[str, float]:
        """Measure the protocols of `evaluate`."""
        assert self.monitor is not None
        return self.monitor.measure(self.run, self.method, self.device, self.request)

    def describe(self) -> str:
        """Name the method."""
        return str(self.run.method.name)


def training_dataset(run: Run, videos: VideoList, tracks: Path | None) -> ClipDataset:
    """Build the dataset that a run trains on; `tracks` is the folder of their files."""
    recipes = [build(RECIPES, view) for view in run.data.views]
    sampler, limit = build(SAMPLERS, run.data.sampler), int(run.data.max_broken * len(videos.records))
    return ClipDataset(videos, sampler, recipes, run.seed, limit, run.data, tracks=tracks, remedy=REPLACING)


def training_list(run: Run) -> VideoList:
    """Read the lists that a run trains on, rendering moving digits first if they are configured and missing."""
    digits = run.data.moving_digits
    if digits is not None:
        distributed.on_main(lambda: ensure(Path(digits.out), digits))
    with naming("data.train"):
        lists = read_lists(run)
    kind, method = run.objective
    needs_labels = kind.needs_labels or kind.classifies
    if len(lists) > 1:
        _check_several(lists, needs_labels)
    videos = join(run, lists)
    unlabelled = int((videos.labels < 0).sum())
    if unlabelled and needs_labels:
        raise ConfigError(
            f"{run.method.name} needs labels, but {unlabelled} of {len(videos.records)} videos of {videos.path} have "
            "none (-1): set data.train to a labelled list, or choose another method"
        )
    classes = getattr(method, "classes", None)
    if not kind.classifies and classes is not None and videos.labels.max() >= classes:
        raise ConfigError(f"method.classes is {classes}, and {videos.path} has label {videos.labels.max()}: raise it")
    if kind.classifies:
        assert classes is not None
        found = len(videos.classes) or int(videos.labels.max()) + 1
        if found > classes or (videos.classes and found != classes):
            raise ConfigError(
                f"method.classes is {classes}, and {videos.path} has {found} classes: set method.classes={found}"
            )
    return videos


def _warn_of_few(run: Run, videos: VideoList) -> None:
    """Warn if there are too few videos for pre-training to gain from; not of rendered digits, which are a demo."""
    kind, count = run.objective[0], len(videos.records)
    learns_alone = not (kind.needs_labels or kind.classifies) and run.init is None
    if learns_alone and count < _FEW and run.data.moving_digits is None and distributed.is_main():
        _log.warning(
            "%d videos are few: with fewer than %d, pre-training was no better than the untrained network, except for "
            "motions before one background; add some, start from trained weights, or train with labels",
            count,
            _FEW,
        )


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
        if not any(state_of_video(record.path)[1] >= 0 for record in videos.records):
            raise DataError(
                f"none of the videos of {videos.path} are in {videos.root}: set the folder of this list, data.train="
                "[{list: …, root: FOLDER}, …]"
            )
