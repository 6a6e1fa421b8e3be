"""The same video in several versions, whose frames have numbers of their own: one decode gives the frames of all."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vidssl.data.clip_samplers import COPY, Clip, ClipSettings, Sampler, Uniform
from vidssl.types import Frames, VideoMeta, VideoRecord
from vidssl.video.reader import DecodeSettings, Video


class VersionRequest(NamedTuple):
    """Which frames of a version to make, and what they are made of."""

    video: Video
    record: VideoRecord
    version: int  # c > 0
    numbers: NDArray[np.int64]  # (N,)
    frames: Frames  # (N, C, H, W) of the video itself, which must not be changed


Make = Callable[[VersionRequest], Frames]  # makes the frames of a version


def version_of(clip: Clip, version: int) -> Clip:
    """Return the frames of a clip in a version."""
    first = version * COPY
    return Clip(clip.indices + first, clip.first + first, clip.last + first)


def with_versions(reading: DecodeSettings, make: Make) -> DecodeSettings:
    """Return the settings that open videos with versions."""
    return _VersionSettings(**reading.model_dump(include={*DecodeSettings.model_fields}), make=make)


class _VersionSettings(DecodeSettings):
    changes_frames: ClassVar[bool] = True
    make: Any  # Make

    def open(self, record: VideoRecord) -> Video:
        """Open the video of a record."""
        return _VersionedVideo(super().open(record), record, self.make)


class _VersionedVideo(Video):
    def __init__(self, video: Video, record: VideoRecord, make: Make) -> None:
        vars(self).update(vars(video))  # the open file is this video's now
        self._record, self._make = record, make

    def frames(self, indices: Sequence[int] | NDArray[np.int64]) -> Frames:
        """Return frames by number; each frame of the file is decoded once."""
        numbers, rows = np.unique(np.asarray(indices, dtype=np.int64), return_inverse=True)
        versions, numbers = np.divmod(numbers, COPY)
        wanted, places = np.unique(numbers, return_inverse=True)
        images = super().frames(wanted).transpose(0, 2, 3, 1)[places]  # a copy, channels last
        for version in np.unique(versions[versions > 0]).tolist():
            here = versions == version
            request = VersionRequest(self, self._record, version, numbers[here], images[here].transpose(0, 3, 1, 2))
            images[here] = self._make(request).transpose(0, 2, 3, 1)
        return images[rows].transpose(0, 3, 1, 2)


class UniformVersions(Sampler):
    """A sampler: uniform clips, each in some versions."""

    def __init__(self, clip: ClipSettings, clips: int, versions: Sequence[int]) -> None:
        self._uniform = Uniform(Uniform.Config(**dict(clip), clips=clips))
        self._versions = versions

    def __call__(self, meta: VideoMeta, generators: Sequence[np.random.Generator]) -> list[Clip]:
        """Choose the clips."""
        return [version_of(clip, c) for clip in self._uniform(meta, generators) for c in self._versions]
