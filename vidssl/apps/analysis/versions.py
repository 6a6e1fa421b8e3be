"""Clips of videos with changed versions of each, from one decode: what invariance and robustness are measured on.

Shapes: B videos, C clips of each, V versions of each clip (the first is the clip itself), T frames, D numbers.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vidssl.base.config import Tree
from vidssl.base.errors import ConfigError, DataError
from vidssl.base.keyed_generators import generator
from vidssl.base.types import Batch, Frames, VideoMeta
from vidssl.data.clip_samplers import Clip, ClipSettings, Sampler, Uniform
from vidssl.data.dataset import SKIPPING, ClipDataset
from vidssl.data.video_list import VideoList
from vidssl.evaluation.features import TestClips, encode_videos, finished
from vidssl.evaluation.measure import check_class_names, check_measurable
from vidssl.evaluation.protocols import Accuracy
from vidssl.jobs.grad_cam import VersionRequest, version_of, with_versions
from vidssl.jobs.job import NetworkOptions
from vidssl.jobs.load_network import Subject
from vidssl.transforms import Recipe, View, center_crop
from vidssl.transforms.invariance_changes import Change, ChangeKind
from vidssl.video.reader import DecodeSettings

Version = tuple[str, int]  # name of a change, and the place of its amount
ORIGINAL: Version = ("", 0)
_SEEDS = 2**62


@dataclass(frozen=True)
class Versions:
    """The clips of a video, and the versions that each of them has."""

    clip: ClipSettings  # frames and sampling rate
    clips: int  # C, at uniform positions
    size: int  # of the central square, pixels
    table: Mapping[str, Change]
    changed: Sequence[Version]  # V - 1 of them, in the order of the table, whose squares come first
    short_side: int | None = None  # of the video before the crop, pixels; None: `size`

    def of(self, *kinds: ChangeKind) -> list[Version]:
        """The changed versions of some kinds."""
        return [version for version in self.changed if self.table[version[0]].kind in kinds]

    def dataset(self, videos: VideoList, reading: DecodeSettings, seed: int = 0, skip: bool = False) -> ClipDataset:
        """Build the dataset whose samples have all views of a video; draws depend on the seed and the row only."""
        squares, others = _Squares(self, self.of("square")), len(self.of("frames", "clip"))
        # First the squares: so the generators of the clips do not depend on what is measured.
        recipes = [squares] * self.clips + [_Squares(self, [])] * (others * self.clips)
        reading = with_versions(reading, self._frames) if self.of("frames") else reading
        return ClipDataset(videos, _Clips(self), recipes, seed=seed, reading=reading, skip=skip, remedy=SKIPPING)

    def _frames(self, request: VersionRequest) -> Frames:
        name, place = self.of("frames")[request.version - 1]
        frames: Frames = self.table[name].apply(request, self.table[name].amounts[place])
        return frames

    def split(self, views: Iterable[Tensor]) -> Tensor:
        """Arrange what was computed of each view of a sample, (B, ...) in their order, as (B, C, V, ...)."""
        x = torch.stack([*views], dim=1)
        squares = self.clips * (1 + len(self.of("square")))
        parts = [part for part in (x[:, :squares], x[:, squares:]) if part.shape[1]]
        return torch.cat([part.reshape(len(x), self.clips, -1, *x.shape[2:]) for part in parts], dim=2)

    @property
    def originals(self) -> list[int]:
        """The view of the clip itself, for each view of a sample."""
        squares, others = 1 + len(self.of("square")), len(self.of("frames", "clip"))
        return [clip * squares for each in (squares, others) for clip in range(self.clips) for _ in range(each)]

    def sources(
        self, source: np.random.Generator, kind: ChangeKind
    ) -> Callable[[str, int], Sequence[np.random.Generator]]:
        """Return what gives each version of a kind its generator, the same whichever versions are measured."""
        kinds = {name: change for name, change in self.table.items() if change.kind == kind}
        if not any(change.draws for change in kinds.values()):
            return lambda name, place: []
        seeds = source.integers(_SEEDS, size=(len(kinds), max(len(change.amounts) for change in kinds.values())))
        of_name = dict(zip(kinds, seeds.tolist(), strict=True))
        return lambda name, place: [generator(of_name[name][place])] if kinds[name].draws else []


def encode_versions(
    subject: Subject, dataset: ClipDataset, test: TestClips, arrange: Callable[[Iterable[Tensor]], Tensor], title: str
) -> tuple[NDArray[np.int64], Tensor, tuple[tuple[str, str], ...]]:
    """Encode all versions of videos: rows (N,) of the list, features (N, V, D), and the skipped videos.

    With a classifier its probabilities follow the features. `arrange` makes (B, V, D) of those of all views (B, D).
    """
    classify = subject.classify

    def encode(batch: Batch, features: Iterator[Tensor]) -> tuple[Tensor]:
        return (arrange(features if classify is None else (torch.cat([h, classify(h)], dim=1) for h in features)),)

    (index, x), missing = encode_videos(subject.encoder, dataset, test, subject.device, encode, title)
    return index.numpy(), finished(subject.encoder, x), missing


def central_square(options: NetworkOptions, done: str) -> NetworkOptions:
    """Return the options of a measurement of the central square, of one clip unless there are more."""
    if options.get("crops") not in (None, 1):
        raise ConfigError(f"crops={options['crops']}: only the central square is {done}; leave it out")
    return {**options, "clips": options.get("clips") or 1, "crops": 1}


def as_read(settings: Tree) -> Tree:
    """Return settings as they are read from a file, with lists for tuples."""
    tree: Tree = json.loads(json.dumps(settings))
    return tree


def why_no_classifier(subject: Subject, videos: VideoList) -> ConfigError | DataError | None:
    """Return why the network has no classifier of the classes of a list; None: it has one."""
    try:
        check_measurable({"accuracy": Accuracy(Accuracy.Config())}, None, videos, subject.classes)
        check_class_names(videos, subject.class_names, "when the network was trained")
    except (ConfigError, DataError) as error:
        return error
    return None


class _Squares(Recipe):
    """A recipe: the central square of a clip, then its versions."""

    def __init__(self, versions: Versions, changed: Sequence[Version]) -> None:
        super().__init__(versions)
        self._changed = changed

    def __call__(self, frames: Frames, source: np.random.Generator) -> list[View]:
        square, window = center_crop(frames, self.config.size, self.config.short_side)
        sources, views = self.config.sources(source, "square"), [View(square, window)]
        for name, place in self._changed:
            change = self.config.table[name]
            views.append(View(change.apply(square, change.amounts[place], *sources(name, place)), window))
        return views


class _Clips(Sampler):
    """A sampler: uniform clips, then the versions of each that have other frames."""

    def __init__(self, versions: Versions) -> None:
        super().__init__(versions)
        self._uniform = Uniform(Uniform.Config(**dict(versions.clip), clips=versions.clips))

    def __call__(self, meta: VideoMeta, generators: Sequence[np.random.Generator]) -> list[Clip]:
        clips, moved, made = self._uniform(meta, ()), [], self.config.of("frames")
        for clip, clip_generator in zip(clips, generators, strict=False):
            sources = self.config.sources(clip_generator, "clip")
            for name, place in self.config.of("frames", "clip"):
                change = self.config.table[name]
                if change.kind == "frames":
                    moved.append(version_of(clip, 1 + made.index((name, place))))
                else:
                    amount, settings = change.amounts[place], self._uniform.config
                    moved.append(change.apply(settings, meta, clip, amount, *sources(name, place)))
        return [*clips, *moved]
