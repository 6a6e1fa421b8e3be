"""Samplers: which frames of a video make a clip. Pure functions of (meta, generator); no pixel is touched."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from vidssl.config import Settings
from vidssl.errors import ConfigError, DataError
from vidssl.registry import Registry
from vidssl.types import Tracks, VideoMeta


@dataclass(frozen=True)
class Clip:
    """The frames of one clip, and the native frames that it spans."""

    indices: NDArray[np.int64]  # (T,) in [first, last]: nondecreasing, unless reversed or looped
    first: int  # the span, both ends included
    last: int

    @property
    def middle_frame(self) -> int:
        """The frame in the middle, number T // 2 of those that are kept: it stands for the clip where one must."""
        return int(self.indices[len(self.indices) // 2])


class Sampler(Protocol):
    """Turns what is known of a video into the clips of one sample."""

    def __call__(self, meta: VideoMeta, generators: Sequence[np.random.Generator]) -> list[Clip]:
        """Choose clips; `generators` holds one source of random numbers for each view of the sample."""
        ...


SAMPLERS: Registry[type[Sampler]] = Registry("sampler", "vidssl.data")


class ClipSettings(Settings):
    """How long a clip is, and what is done with a video that is shorter.

    Exactly one of `seconds` (length of the span) and `sampling_rate` (stride between kept frames) is given. With
    `target_fps`, `sampling_rate` counts frames at this rate: the span then lasts
    `frames * sampling_rate / target_fps` seconds, as in SlowFast (`slowfast/datasets/decoder.py`).
    `short`: `loop` plays a short video again from its start, `hold` repeats its last frame, `error` refuses
    it.
    """

    frames: int = Field(ge=1)  # T
    seconds: float | None = Field(default=None, gt=0)
    sampling_rate: int | None = Field(default=None, ge=1)
    target_fps: float | None = Field(default=None, gt=0)
    short: Literal["loop", "hold", "error"] = "loop"

    @model_validator(mode="after")
    def _one_length(self) -> "ClipSettings":
        if (self.seconds is None) == (self.sampling_rate is None):
            raise ValueError("give exactly one of seconds and sampling_rate")
        if self.target_fps is not None and self.sampling_rate is None:
            raise ValueError(
                "target_fps is the frame rate that sampling_rate counts in: give both, or seconds alone"
            )
        return self

    def span(self, fps: float, factor: float = 1.0) -> int:
        """Number of native frames that a clip covers, at least 1; `factor` stretches its duration."""
        seconds = self.seconds
        if self.sampling_rate is not None:
            if self.target_fps is None:
                return max(1, round(((self.frames - 1) * self.sampling_rate + 1) * factor))
            seconds = self.frames * self.sampling_rate / self.target_fps
        assert seconds is not None  # by the validator
        return max(1, round(seconds * factor * fps))

    def clip(self, meta: VideoMeta, start: int, span: int) -> Clip:
        """Keep `frames` of the native frames start … start + span - 1, evenly, both ends included.

        Raises:
            DataError: The video is shorter and `short` is `error`.
        """
        steps = max(self.frames - 1, 1)
        indices = start + np.arange(self.frames, dtype=np.int64) * (span - 1) // steps
        end = meta.num_frames - 1
        if start + span - 1 > end:
            if self.short == "error":
                seconds = f"{span / meta.fps:.2f} s"
                raise DataError(
                    f"the clip needs {span} frames ({seconds}), the video has {meta.num_frames}; "
                    "choose short: loop or hold"
                )
            indices = indices % meta.num_frames if self.short == "loop" else np.minimum(indices, end)
        return Clip(indices, start, min(start + span - 1, end))


@SAMPLERS.register("random")
class Random:
    """Clips with independent, uniform starts.

    `jitter` draws the duration of each clip from 1 - jitter … 1 + jitter times the nominal one, uniformly;
    `reverse` is the probability that a clip runs backwards. (SCE, section 4.2.1 and Table 16.)
    """

    class Config(ClipSettings):
        """Settings of the sampler."""

        jitter: float = Field(default=0.0, ge=0, lt=1)
        reverse: float = Field(default=0.0, ge=0, le=1)

    def __init__(self, config: Config) -> None:
        self.config = config

    def __call__(self, meta: VideoMeta, generators: Sequence[np.random.Generator]) -> list[Clip]:
        """Draw one clip with each generator."""
        return [self._draw(meta, generator) for generator in generators]

    def _draw(self, meta: VideoMeta, generator: np.random.Generator) -> Clip:
        jitter = self.config.jitter
        span = self.config.span(meta.fps, generator.uniform(1 - jitter, 1 + jitter))
        start = int(generator.integers(max(meta.num_frames - span, 0) + 1))
        backwards = generator.random() < self.config.reverse
        clip = self.config.clip(meta, start, span)
        return Clip(clip.indices[::-1], clip.first, clip.last) if backwards else clip


@SAMPLERS.register("uniform")
class Uniform:
    """Clips at evenly spaced starts: the first begins with the video, the last ends with it; one lies in the middle."""

    class Config(ClipSettings):
        """Settings of the sampler."""

        clips: int = Field(default=10, ge=1)

    def __init__(self, config: Config) -> None:
        self.config = config

    def __call__(self, meta: VideoMeta, generators: Sequence[np.random.Generator]) -> list[Clip]:
        """Give `clips` clips; nothing is random."""
        span, clips = self.config.span(meta.fps), self.config.clips
        room = max(meta.num_frames - span, 0)
        starts = [room // 2] if clips == 1 else [round(room * n / (clips - 1)) for n in range(clips)]
        return [self.config.clip(meta, start, span) for start in starts]


@SAMPLERS.register("center")
class Center(Uniform):
    """One clip from the middle of the video."""

    class Config(ClipSettings):
        """Settings of the sampler."""

    def __init__(self, config: Config) -> None:
        super().__init__(Uniform.Config(**config.model_dump(exclude={"name"}), clips=1))


@SAMPLERS.register("pair")
class Pair:
    """Clips that lie far apart, one for each view, in random order.

    A clip spans L native frames. From the last native frame of one to the first of the next it is `min_gap` or more,
    so their starts lie L - 1 + `min_gap` apart or more; for clips of one frame, i < j, that is j - i >= `min_gap`.
    All placements of the clips that keep this are equally likely, and so are all orders of them over the views.
    (Purushwalkam & Gupta, 2020: frames at least 40 apart.)

    `too_short` says what is done with a video that has no room for that: `error` refuses it, `closer` takes the clips
    as far apart as the video allows. `short` stays what it is, for videos that are shorter than one clip.
    """

    class Config(ClipSettings):
        """Settings of the sampler."""

        min_gap: int = Field(default=40, ge=1)  # native frames
        too_short: Literal["error", "closer"] = "error"

    def __init__(self, config: Config) -> None:
        self.config = config

    def __call__(self, meta: VideoMeta, generators: Sequence[np.random.Generator]) -> list[Clip]:
        """Draw the clips, all with the first generator: where one lies depends on the others.

        Raises:
            ConfigError: Fewer than two views.
            DataError: The video is too short, and `too_short` is `error`.
        """
        views = len(generators)
        if views < 2:
            raise ConfigError(
                "the sampler draws clips that belong together: data.views must name two recipes"
            )
        span = self.config.span(meta.fps)
        distance = span - 1 + self.config.min_gap
        room = meta.num_frames - span - (views - 1) * distance  # frames to spare
        if room >= 0:
            # Take the distances out: what is left are `views` of `room + 1` places, with repetition, in order. Adding
            # 0, 1, 2, … makes them different ones of room + views, which are drawn.
            drawn = generators[0].choice(room + views, views, replace=False, shuffle=False)
            starts = np.sort(drawn) + np.arange(views) * (distance - 1)
        elif self.config.too_short == "closer":
            starts = evenly(max(meta.num_frames - span, 0), views)
        else:
            needed = meta.num_frames - room
            raise DataError(
                f"{views} clips of {span} frames, {self.config.min_gap} apart, need {needed} frames, the video has "
                f"{meta.num_frames}; leave such videos out (check_videos.py --min-frames {needed}), or choose "
                "too_short: closer"
            )
        return [self.config.clip(meta, int(start), span) for start in generators[0].permutation(starts)]


def evenly(room: int, count: int) -> NDArray[np.int64]:
    """Spread `count` >= 2 whole numbers evenly over 0 … room, both ends included."""
    return (2 * room * np.arange(count, dtype=np.int64) + count - 1) // (2 * (count - 1))


@SAMPLERS.register("tracked_pair")
class TrackedPair(Pair):
    """Two clips that show one tracked thing, in random order: their middle frames are two frames of one track.

    The middle frame of a clip is number T // 2 of those that it keeps. The two lie at least `min_gap` apart; the clips
    around them may meet. All pairs of frames that share a track are equally likely, however many tracks they share.

    `untracked` says what is done with a video without such a pair: `error` refuses it, `pair` draws as `pair` does.
    """

    class Config(Pair.Config):
        """Settings of the sampler."""

        untracked: Literal["error", "pair"] = "error"

    config: Config

    def __call__(self, meta: VideoMeta, generators: Sequence[np.random.Generator]) -> list[Clip]:
        """Draw the clips, all with the first generator.

        Raises:
            ConfigError: Not two views, or nobody gave the video's tracks.
            DataError: There is no pair, and `untracked` is `error`; or as `Pair` says.
        """
        if len(generators) != 2:
            raise ConfigError(
                f"the sampler tracked_pair draws two clips, data.views names {len(generators)} recipes"
            )
        if meta.tracks is None:
            raise ConfigError(
                "the sampler tracked_pair needs tracks: run tools/track_regions.py and name its folder as tracks.folder"
            )
        span = self.config.span(meta.fps)
        middle = int(self.config.clip(meta, 0, span).middle_frame)
        pairs = pairs_of(meta.tracks, self.config.min_gap, middle, meta.num_frames - span + middle)
        if len(pairs):
            drawn = generators[0].permutation(pairs[generators[0].integers(len(pairs))])
            return [self.config.clip(meta, int(moment) - middle, span) for moment in drawn]
        if self.config.untracked == "pair":
            return super().__call__(meta, generators)
        raise DataError(
            f"no track of the video has two frames {self.config.min_gap} apart around which clips of {span} frames "
            "fit; lower min_gap, or choose untracked: pair"
        )


def pairs_of(tracks: Tracks, min_gap: int, first: int, last: int) -> NDArray[np.int64]:
    """List the pairs of frames in first … last that share a track, `min_gap` or more apart: (P, 2), i < j."""
    inside = (tracks.frames >= first) & (tracks.frames <= last)
    numbers, frame = np.unique(tracks.frames[inside], return_inverse=True)
    order = np.lexsort((frame, tracks.track[inside]))
    frame, track = frame[order], tracks.track[inside][order]
    shared = np.zeros((len(numbers), len(numbers)), bool)
    # Rows of one track follow one another: all pairs of them are those 1, 2, … rows apart.
    for lag in range(1, len(frame)):
        same = track[lag:] == track[:-lag]
        if not same.any():
            break
        shared[frame[:-lag][same], frame[lag:][same]] = True
    pairs = numbers[np.argwhere(shared)]
    return pairs[pairs[:, 1] - pairs[:, 0] >= min_gap]


def chunk_starts(num_frames: int, chunks: int, length: int) -> list[int]:
    """Place chunks of `length` consecutive frames as far apart as a video allows.

    The first begins with the video, the last ends with it, the others lie evenly in between; they may overlap where the
    video is short. A single chunk is the first.

    Args:
        num_frames: Of the video.
        chunks: How many, at least 1.
        length: Frames of each, at least 1.

    Returns:
        The frames that they start at, rising; fewer where there are not so many. [0] where the video is shorter than
        one: it is that chunk then.
    """
    room = max(num_frames - length, 0)
    count = min(chunks, room + 1)
    return [0] if count == 1 else evenly(room, count).tolist()
