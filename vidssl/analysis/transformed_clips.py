"""Local trajectories: each clip with its transformed versions, and their features.

A video is decoded once. Moves choose other frames of it, corruptions change the central square of a clip.

Shapes: N samples (clips), V versions of each, D units; B videos of a batch.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vidssl.analysis.versions_from_one_decode import Make, VersionRequest, version_of, with_versions
from vidssl.data.clip_samplers import Clip, ClipSettings, Sampler, Uniform
from vidssl.data.dataset import SKIPPING, ClipDataset
from vidssl.data.instance_boxes import Boxes, pixels_of
from vidssl.data.video_list import VideoList
from vidssl.transforms import Recipe, View, center_crop
from vidssl.transforms.invariance_changes import CORRUPTIONS, GRAY, Change, choose_changes
from vidssl.types import Batch, Frames, VideoMeta
from vidssl.video.reader import DecodeSettings

FRACTIONS = (0.25, 0.5, 0.75)  # of the width of the box, covered from the left: version 1 to 3


def covering(boxes: Mapping[str, Boxes]) -> Make:
    """Make versions with a fraction of the instance covered; `boxes` are by the path of the record.

    Frames without a box are equal in all versions.
    """

    def cover(request: VersionRequest) -> Frames:
        covered, fraction = request.frames.copy(), FRACTIONS[request.version - 1]
        for place, rows, columns in pixels_of(boxes.get(request.record.path, {}), request.numbers, fraction):
            covered[place, :, rows, columns] = GRAY
        return covered

    return cover


def shift(settings: ClipSettings, meta: VideoMeta, clip: Clip, fraction: float) -> Clip:
    """Start later by a fraction of the clip's span."""
    return _start_at(settings, meta, clip, [settings.later(meta, clip.first, fraction * settings.span(meta))])


def gap(settings: ClipSettings, meta: VideoMeta, clip: Clip, frames: float) -> Clip:
    """Start `frames` frames after the clip's last one; if that is too late, end as many before its first."""
    distance, span = round(frames), settings.span(meta)
    before = settings.later(meta, clip.first - distance + 1, -span)
    return _start_at(settings, meta, clip, [clip.last + distance, before])


def speed(settings: ClipSettings, meta: VideoMeta, clip: Clip, factor: float) -> Clip:
    """Play `factor` times as fast: over a longer span about the same centre, shifted into the video."""
    span, own = settings.span(meta, factor), settings.span(meta)
    starts = settings.starts(meta, span)
    if not starts or not settings.starts(meta, own):
        return clip
    start = settings.later(meta, clip.first, (own - span) // 2)
    return settings.clip(meta, min(max(start, 0), starts - 1), span)


def reverse(settings: ClipSettings, meta: VideoMeta, clip: Clip, _: float) -> Clip:
    """Play backwards."""
    return Clip(clip.indices[::-1], clip.first, clip.last)


def cover(settings: ClipSettings, meta: VideoMeta, clip: Clip, fraction: float) -> Clip:
    """Return the same frames with a fraction of the instance covered."""
    return version_of(clip, 1 + FRACTIONS.index(fraction))


# Each takes the settings of the clip, the metadata of its video, the clip and an amount; the amounts make a trajectory.
# Where the video is too short they return the clip itself: a version that changes nothing is not counted.
MOVES = {
    "instance": Change(cover, FRACTIONS, "covered fraction of the instance's box"),
    "shift": Change(shift, (-0.5, -0.25, 0.25, 0.5), "fraction of the clip's span", needs_motion=True),
    "gap": Change(gap, (5, 10, 20, 40), "frames between the clips"),
    "speed": Change(speed, (0.5, 0.75, 1.5, 2.0), "factor", needs_motion=True),
    "reverse": Change(reverse, (-1.0,), "factor of the speed", needs_motion=True),
}


def _start_at(settings: ClipSettings, meta: VideoMeta, clip: Clip, starts: Sequence[int]) -> Clip:
    """Start at the first of the frames at which a whole clip fits into the video; else return the clip itself."""
    span = settings.span(meta)
    fitting = [start for start in starts if 0 <= start < settings.starts(meta, span)]
    return settings.clip(meta, fitting[0], span) if fitting else clip


TRANSFORMATIONS: dict[str, Change] = {**CORRUPTIONS, **MOVES}


def choose_transformations(
    names: Sequence[str] | None, frames: int, boxes: bool
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Choose the transformations that can be measured on clips of some frames, as `choose_changes`."""
    excluded = {}
    if frames == 1:
        moving = [name for name, kind in MOVES.items() if kind.needs_motion]
        excluded = dict.fromkeys(moving, "a clip of one frame has no motion")
    if not boxes:
        excluded["instance"] = "it needs boxes=FILE"
    return choose_changes("transformation", TRANSFORMATIONS, names, excluded)


@dataclass(frozen=True)
class TrajectoryFeatures:
    """Features of samples and of their versions; the samples of a video follow one another."""

    x: NDArray[np.float32]  # (N, D)
    versions: NDArray[np.float32]  # (N, V, D)
    changed: NDArray[np.bool_]  # (N, V): whether a version differs from its sample in any pixel
    index: NDArray[np.int64]  # (N,): row of the list


@dataclass(frozen=True)
class Trajectories:
    """Which clips of a video are samples, and which versions each has."""

    clip: ClipSettings  # frames and sampling rate
    clips: int  # per video, at uniform positions; each is a sample
    size: int  # of the central square, pixels
    names: tuple[str, ...]  # of transformations, in the order of `TRANSFORMATIONS`
    short_side: int | None = None  # of the video before the crop, pixels; None: `size`

    @property
    def places(self) -> dict[str, slice]:
        """For each transformation its positions among the versions of a clip."""
        found, first = {}, 0
        for name in self.names:
            found[name] = slice(first, first + len(TRANSFORMATIONS[name].amounts))
            first = found[name].stop
        return found

    def dataset(
        self, videos: VideoList, reading: DecodeSettings, boxes: Mapping[str, Boxes] | None = None, skip: bool = False
    ) -> ClipDataset:
        """Build the dataset whose samples hold, clip by clip, the clip and its versions.

        `boxes`, by the paths of records, are needed by the transformation `instance`.
        """
        moves = [MOVES[name] for name in self.names if name in MOVES]
        moved = sum(len(move.amounts) for move in moves)
        corruptions = [CORRUPTIONS[name] for name in self.names if name in CORRUPTIONS]
        corrupted, plain = (_CorruptedSquare(self.size, self.short_side, kinds) for kinds in (corruptions, ()))
        if boxes is not None:
            reading = with_versions(reading, covering(boxes))
        clips = _MovedClips(self.clip, self.clips, moves)
        return ClipDataset(
            videos, clips, [corrupted, *[plain] * moved] * self.clips, reading=reading, skip=skip, remedy=SKIPPING
        )

    def encode(self, batch: Batch, features: Iterator[Tensor]) -> tuple[Tensor, Tensor]:
        """Stack the features (B, views, D) of a batch; also return whether views differ from their clips (B, views)."""
        length = len(batch.views) // self.clips
        pairs = [(view, batch.views[n // length * length]) for n, view in enumerate(batch.views)]
        changed = [(view != clip).flatten(1).any(dim=1) for view, clip in pairs]
        return torch.stack([*features], dim=1), torch.stack(changed, dim=1)

    def features(self, index: Tensor, encoded: Tensor, changed: Tensor) -> TrajectoryFeatures:
        """Collect what `encode` returned for videos, the rows `index` of a list."""
        length = encoded.shape[1] // self.clips
        x = encoded.reshape(-1, length, encoded.shape[2]).numpy()
        differs = changed.reshape(-1, length).numpy()
        return TrajectoryFeatures(x[:, 0], x[:, 1:], differs[:, 1:], index.repeat_interleave(self.clips).numpy())


@dataclass(frozen=True)
class _CorruptedSquare(Recipe):
    """A recipe: the central square of a clip, then all its corruptions."""

    size: int
    short_side: int | None
    corruptions: Sequence[Change]
    difference: float = 0.0

    def __call__(self, frames: Frames, generator: np.random.Generator) -> list[View]:
        view = center_crop(frames, self.size, self.short_side)
        versions = [kind.apply(view.frames, amount) for kind in self.corruptions for amount in kind.amounts]
        return [view, *(View(version, view.window) for version in versions)]


class _MovedClips(Sampler):
    """A sampler: uniform clips, each followed by its moved versions."""

    def __init__(self, clip: ClipSettings, clips: int, moves: Sequence[Change]) -> None:
        self._uniform = Uniform(Uniform.Config(**dict(clip), clips=clips))
        self._moves = moves

    def __call__(self, meta: VideoMeta, generators: Sequence[np.random.Generator]) -> list[Clip]:
        found = []
        for clip in self._uniform(meta, ()):
            moved = [kind.apply(self._uniform.config, meta, clip, n) for kind in self._moves for n in kind.amounts]
            found += [clip, *moved]
        return found
