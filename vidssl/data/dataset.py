"""The one dataset: (epoch, index) to a sample, and what happens when a video is broken."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from vidssl.data.masks import read_mask
from vidssl.data.samplers import Sampler
from vidssl.data.tracks import read_tracks, sample_track, tracks_file
from vidssl.data.video_list import VideoList
from vidssl.data.views import Fetched, fetch, part_of
from vidssl.errors import ConfigError, DataError, DecodeError
from vidssl.randomness import generator
from vidssl.transforms import Recipe, View, Window
from vidssl.types import Sample, Tracks, VideoMeta
from vidssl.video.reader import DecodeSettings
from vidssl.workers import ItemGuard

_IN_A_ROW = 1000  # limit on consecutive broken videos

_SHOWN = 5  # reasons in a message


def first_few(reasons: Sequence[str]) -> str:
    """Join the first reasons of a list that can have thousands; say how many more there are."""
    more = len(reasons) - _SHOWN
    return "; ".join(reasons[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")


class ClipDataset:
    """Clips of the videos of a list.

    Args:
        videos: The list.
        sampler: Chooses the clips of a video.
        recipes: One for each view, or one for all clips.
        seed: Every random choice of a sample is a function of (seed, epoch, index, view).
        replace: How many consecutive broken videos may be replaced by the next one, at most 999. 0, for evaluation: a
            broken video is an error.
        reading: How videos are read.
        skip: Instead of an error, a broken video gives a sample without views; `replaced` names it.
        tracks: Folder of the videos' tracks. With it the sampler knows them, and samples have boxes. A video without
            a file there is an error whatever `replace` says: a run must not leave out thousands.
    """

    def __init__(
        self,
        videos: VideoList,
        sampler: Sampler,
        recipes: Sequence[Recipe],
        seed: int = 0,
        replace: int = 0,
        reading: DecodeSettings | None = None,
        skip: bool = False,
        tracks: Path | None = None,
    ) -> None:
        self.videos = videos
        self.replace = replace
        self.skip = skip
        self._sampler = sampler
        self._recipes = list(recipes)
        self._seed = seed
        self._reading = reading or DecodeSettings()
        self._tracks = tracks

    def __len__(self) -> int:
        return len(self.videos.records)

    def __getitem__(self, key: tuple[int, int]) -> Sample:
        """Make the sample of (epoch, index), as `sample` does."""
        return self.sample(key, ItemGuard())

    def sample(self, key: tuple[int, int], guard: ItemGuard) -> Sample:
        """Make the sample of (epoch, index).

        Args:
            key: Epoch and index.
            guard: Hears of each record that is opened. A record that was lost there, for it hung or killed its
                process, counts as a broken video.

        Raises:
            DataError: The video, and `replace` more after it, cannot be used.
            ConfigError: Its tracks are missing, damaged, or of other frames; or tracks or masks cannot follow a recipe.
        """
        epoch, index = key
        broken: list[tuple[str, str]] = []
        for step in range(min(self.replace + 1, len(self), _IN_A_ROW)):
            # By rule, not by chance: the next video of the list takes the place.
            at = (index + step) % len(self)
            path = self.videos.records[at].path
            try:
                if at in guard.failed:
                    raise DataError(f"{path}: {guard.failed[at]}")
                guard.at(at)
                return self._sample(epoch, at, tuple(broken))
            except DataError as error:
                broken.append((path, str(error)))
        if self.skip:
            return Sample((), self.videos.records[index].label, index, tuple(broken))
        if len(broken) == 1:
            raise DataError(broken[0][1])
        remedy = " or raise data.max_broken"
        if len(broken) == _IN_A_ROW:
            remedy = f": the limit is {_IN_A_ROW} consecutive broken videos, whatever data.max_broken is"
        raise DataError(
            f"{len(broken)} videos in a row cannot be used: {first_few([reason for _, reason in broken])}; correct the "
            f"list (tools/check_videos.py){remedy}"
        )

    def _sample(self, epoch: int, index: int, broken: tuple[tuple[str, str], ...]) -> Sample:
        cv2.setNumThreads(0)  # workers share the cores already; OpenCV's own pool would fight them
        record = self.videos.records[index]
        generators = [generator(self._seed, epoch, index, view) for view in range(len(self._recipes))]
        with self._reading.open(record) as video:
            offset, meta = part_of(video.meta, record)
            if self._tracks is not None:
                meta = replace(meta, tracks=self._tracks_of(index))
            try:
                clips = self._sampler(meta, generators)
                made = fetch(video, offset, clips, self._recipes, generators)
            except DecodeError:
                raise
            except DataError as error:
                raise DataError(f"{record.path}: {error}") from None
        boxes = None
        if meta.tracks is not None:
            last = generator(self._seed, epoch, index, len(self._recipes))  # no view's own
            boxes = self._boxes(meta, made, record.path, last)
        mask = None
        if record.mask is not None:
            picture = read_mask(record.mask, made.height, made.width)
            mask = self._window(made.views, 0, "masks").cut(picture, made.views[0].frames.shape[-1])
        return Sample(tuple(view.frames for view in made.views), record.label, index, broken, boxes, mask)

    def _tracks_of(self, index: int) -> Tracks:
        assert self._tracks is not None
        path = tracks_file(self._tracks, self.videos.names[index], self.videos.records[index])
        try:
            return read_tracks(path)[0]
        except DataError as error:  # no broken video: none of them takes its place
            raise ConfigError(f"{error}, or take the video out of the list") from None

    def _window(self, views: Sequence[View], number: int, what: str) -> Window:
        window = views[number].window
        if window is None:
            recipe = type(self._recipes[min(number, len(self._recipes) - 1)]).__name__
            raise ConfigError(
                f"{what} cannot follow into view {number}, which its recipe {recipe} rotates and shears: set geometry: "
                f"false or operations: 0 there, or go without {what}"
            )
        return window

    def _boxes(
        self, meta: VideoMeta, made: Fetched, path: str, generator: np.random.Generator
    ) -> NDArray[np.float32]:
        tracks = meta.tracks
        assert tracks is not None
        last = tracks.frames.max(initial=0)
        if last >= meta.num_frames:
            raise ConfigError(
                f"the tracks of {path} go on to frame {last}, it has {meta.num_frames} frames, from 0: make them "
                "again, with tools/track_regions.py"
            )
        edges = tracks.boxes[:, 2:].max(axis=0, initial=0)
        if edges[0] > made.width + 1 or edges[1] > made.height + 1:
            raise ConfigError(
                f"the tracks of {path} reach {edges[0]:.0f}x{edges[1]:.0f}, its frames are {made.width}x{made.height}: "
                "make them again, with tools/track_regions.py"
            )
        windows = [self._window(made.views, number, "tracks") for number in range(len(made.views))]
        sizes = [view.frames.shape[-1] for view in made.views]
        return sample_track(tracks, made.moments, windows, sizes, generator)
