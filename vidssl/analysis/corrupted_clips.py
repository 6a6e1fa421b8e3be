"""Clips with their corrupted versions, and the mean features of each version over the clips of a video.

A video is decoded once. Compressions act on its frames, at its own rate and size; time corruptions choose other frames
of it; all others change the network's input, the central square of a clip.

Shapes: V versions, D numbers of each; B videos of a batch.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vidssl.analysis.compress_videos import COMPRESSIONS, compress, compressed
from vidssl.analysis.time_corruptions import TIME_CORRUPTIONS
from vidssl.analysis.versions_from_one_decode import with_versions
from vidssl.data.clip_samplers import Clip, ClipSettings, Sampler, Uniform
from vidssl.data.dataset import SKIPPING, ClipDataset
from vidssl.data.video_list import VideoList
from vidssl.keyed_generators import generator
from vidssl.transforms import Recipe, View, center_crop
from vidssl.transforms.graded_changes import Change, choose_changes
from vidssl.transforms.pixel_corruptions import PIXEL_CORRUPTIONS
from vidssl.types import Batch, Frames, VideoMeta
from vidssl.video.reader import DecodeSettings

ROBUSTNESS: dict[str, Change] = {**PIXEL_CORRUPTIONS, **COMPRESSIONS, **TIME_CORRUPTIONS}
SEVERITIES = (1, 2, 3, 4, 5)
Version = tuple[str, int]  # name and severity; ("", 0): the clip itself
CLEAN: Version = ("", 0)
_SEEDS = 2**62


def choose_corruptions(names: Sequence[str] | None, frames: int, size: int) -> tuple[tuple[str, ...], dict[str, str]]:
    """Choose the corruptions that clips of some frames and size can have, as `choose_changes`."""
    excluded = {}
    if frames == 1:
        excluded = dict.fromkeys(TIME_CORRUPTIONS, "a clip of one frame has no order")
    if size % 2:
        excluded["global_shuffle"] = excluded["local_shuffle"] = f"2x2 patches do not divide {size} pixels"
    return choose_changes("corruption", ROBUSTNESS, names, excluded)


@dataclass(frozen=True)
class CorruptedClips:
    """The clips of a video, and the versions that each of them has."""

    clip: ClipSettings  # frames and sampling rate
    clips: int  # per video, at uniform positions
    size: int  # of the central square, pixels
    names: tuple[str, ...]  # of corruptions, in the order of `ROBUSTNESS`
    severities: tuple[int, ...] = SEVERITIES
    short_side: int | None = None  # of the video before the crop, pixels; None: `size`

    @property
    def versions(self) -> list[Version]:
        """The clip itself, then each corruption with each severity."""
        return [CLEAN, *((name, severity) for name in self.names for severity in self.severities)]

    def dataset(self, videos: VideoList, reading: DecodeSettings, seed: int = 0, skip: bool = False) -> ClipDataset:
        """Build the dataset whose samples have all views of a video; draws depend on the seed and the row only."""
        settings = with_versions(reading, compress)
        square, plain = (_CorruptedSquare(self, self._of(kind)) for kind in (PIXEL_CORRUPTIONS, {}))
        moved = len(self._of(COMPRESSIONS)) + len(self._of(TIME_CORRUPTIONS))
        # First the squares: so the generators of the clips do not depend on what is measured.
        recipes = [square] * self.clips + [plain] * (moved * self.clips)
        return ClipDataset(videos, _MovedClips(self), recipes, seed=seed, reading=settings, skip=skip, remedy=SKIPPING)

    def examples(self, videos: VideoList, reading: DecodeSettings, seed: int = 0) -> dict[Version, Frames]:
        """Make the views of the first clip of the first video that can be read, without time corruptions."""
        dataset = self.dataset(videos, reading, seed, skip=True)
        made = (dataset[0, row].views for row in range(len(dataset)))
        views = next(views for views in made if views)
        versions = [CLEAN, *self._of(PIXEL_CORRUPTIONS)]
        found = dict(zip(versions, views, strict=False))
        return found | dict(zip(self._of(COMPRESSIONS), views[len(versions) * self.clips :], strict=False))

    def average(self, batch: Batch, features: Iterator[Tensor]) -> Tensor:
        """Average the features (B, D) of all views over the clips of each version: (B, V, D)."""
        moved = [*self._of(COMPRESSIONS), *self._of(TIME_CORRUPTIONS)]
        views = [CLEAN, *self._of(PIXEL_CORRUPTIONS)] * self.clips + moved * self.clips
        place = {version: n for n, version in enumerate(self.versions)}
        total: Tensor | None = None
        for version, rows in zip(views, features, strict=True):
            if total is None:
                total = torch.zeros(len(batch.index), len(place), rows.shape[1], device=rows.device)
            total[:, place[version]] += rows / self.clips
        assert total is not None  # there is a clip
        return total

    def _of(self, kinds: Mapping[str, Change]) -> list[Version]:
        """The versions of some kind, in the order of their views."""
        return [version for version in self.versions if version[0] in kinds]


class _CorruptedSquare(Recipe):
    """A recipe: the central square of a clip, then its versions."""

    def __init__(self, settings: CorruptedClips, versions: Sequence[Version]) -> None:
        super().__init__(settings)
        self._versions = versions

    def __call__(self, frames: Frames, generator: np.random.Generator) -> list[View]:
        square, window = center_crop(frames, self.config.size, self.config.short_side)
        sources = _sources(generator, PIXEL_CORRUPTIONS)
        views = [View(square, window)]
        for name, severity in self._versions:
            kind = PIXEL_CORRUPTIONS[name]
            changed = kind.apply(square, kind.amounts[severity - 1], sources(name, severity))
            views.append(View(changed, window))
        return views


class _MovedClips(Sampler):
    """A sampler: uniform clips, then the compressed and the moved versions of each."""

    def __init__(self, settings: CorruptedClips) -> None:
        super().__init__(settings)
        self._uniform = Uniform(Uniform.Config(**dict(settings.clip), clips=settings.clips))

    def __call__(self, meta: VideoMeta, generators: Sequence[np.random.Generator]) -> list[Clip]:
        clips = self._uniform(meta, ())
        moved = []
        for clip, own in zip(clips, generators, strict=False):
            sources = _sources(own, TIME_CORRUPTIONS)
            for name, severity in self.config.versions:
                if name in COMPRESSIONS:
                    moved.append(compressed(clip, name, COMPRESSIONS[name].amounts[severity - 1]))
                elif name in TIME_CORRUPTIONS:
                    kind, source = TIME_CORRUPTIONS[name], sources(name, severity)
                    amount = kind.amounts[severity - 1]
                    moved.append(kind.apply(self._uniform.config, meta, clip, amount, source))
        return [*clips, *moved]


def _sources(source: np.random.Generator, kinds: Mapping[str, object]) -> Callable[[str, int], np.random.Generator]:
    """Make a generator for each version of some kind, the same whichever versions are measured."""
    seeds = source.integers(_SEEDS, size=(len(kinds), len(SEVERITIES)))
    of_name = dict(zip(kinds, seeds.tolist(), strict=True))
    return lambda name, severity: generator(of_name[name][severity - 1])
