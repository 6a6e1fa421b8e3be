"""Samplers: which frames of a video make a clip. Pure functions of metadata and random numbers; nothing is decoded."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from vidssl.base.config import Settings
from vidssl.base.errors import ConfigError, DataError
from vidssl.base.registry import Registry
from vidssl.base.types import Tracks, VideoMeta

# Frame n + c * COPY is frame n of version c; version 0 is the video itself. So the clips of all versions are clips of
# one video, see jobs/grad_cam.py.
COPY = 1 << 40
_LENGTHEN = "set short_video to loop or hold"


@dataclass(frozen=True)
class Clip:
    """The frames of one clip, and the span of native frames (those of the file) that it covers."""

    indices: NDArray[np.int64]  # (T,) in [first, last]: nondecreasing, unless reversed or looped
    first: int  # the span, both ends included
    last: int

    @property
    def middle_frame(self) -> int:
        """Kept frame number T // 2, which represents the clip where a single frame is needed."""
        return int(self.indices[len(self.indices) // 2])


class ClipSettings(Settings):
    """Length of a clip, and what to do with shorter videos."""

    frames: int = Field(ge=1)  # T
    seconds: Annotated[float, Field(gt=0)] | Literal["whole"] | None = None  # length of the span; or sampling_rate
    sampling_rate: int | None = Field(default=None, ge=1)  # stride between kept frames
    # Rate that `sampling_rate` counts in: the span lasts frames * sampling_rate / target_fps seconds, as in SlowFast.
    target_fps: float | None = Field(default=None, gt=0)
    short_video: Literal["loop", "hold", "error"] = "loop"  # repeat it from its start, its last frame, or raise

    @model_validator(mode="after")
    def _one_length(self) -> "ClipSettings":
        by_rate = self.sampling_rate is not None
        if (self.seconds is not None) == by_rate or (self.target_fps is not None and not by_rate):
            raise ValueError("set exactly one of seconds and sampling_rate; target_fps only with sampling_rate")
        return self

    def span(self, meta: VideoMeta, factor: float = 1.0) -> int:
        """Number of native frames that a clip covers, at least 1; `factor` multiplies its duration.

        If `in_time`, it is the number at the average rate, and stands for the duration: `length`.
        """
        if self.seconds == "whole":
            return max(1, min(round(meta.num_frames * factor), meta.num_frames))
        if self.sampling_rate is not None and self.target_fps is None:
            return max(1, round(((self.frames - 1) * self.sampling_rate + 1) * factor))
        return max(1, round(self._seconds(meta) * factor * meta.fps))

    def in_time(self, meta: VideoMeta) -> bool:
        """Whether a clip is a span of seconds, with any number of frames: of a duration, and of a variable rate."""
        return meta.times is not None and (self.sampling_rate is None or self.target_fps is not None)

    def length(self, meta: VideoMeta, span: float) -> float:
        """Seconds of a clip if it is `in_time`: those of the settings for the span that `span` returns."""
        return self._seconds(meta) * span / self.span(meta)

    def _seconds(self, meta: VideoMeta) -> float:
        """The duration of a clip by the settings."""
        if self.seconds == "whole":
            return meta.duration
        if self.target_fps is not None:
            assert self.sampling_rate is not None  # by the validator
            return self.frames * self.sampling_rate / self.target_fps
        assert self.seconds is not None  # by the validator
        return self.seconds

    def starts(self, meta: VideoMeta, span: int) -> int:
        """Count the frames at which a clip can start; they are the first ones. 0 if the video is shorter than it."""
        if not self.in_time(meta):
            return max(meta.num_frames - span + 1, 0)
        latest = meta.duration - self.length(meta, span)
        return 0 if latest < -0.5 / meta.fps else meta.frame_at(latest) + 1

    def draw_start(self, meta: VideoMeta, span: int, generator: np.random.Generator) -> int:
        """Draw the first frame of a clip, uniformly in time; 0 if the video is shorter than the clip."""
        count = max(self.starts(meta, span), 1)
        if meta.times is None or not self.in_time(meta):
            return int(generator.integers(count))
        durations = np.diff(meta.times[:count], append=meta.time_of(count))
        return int(generator.choice(count, p=durations / durations.sum()))

    def later(self, meta: VideoMeta, frame: int, span: float) -> int:
        """Return the frame that lies a span of frames later, or earlier if it is negative; it may be outside."""
        if not self.in_time(meta) or not 0 <= frame <= meta.num_frames:
            return frame + round(span)
        seconds = meta.time_of(frame) + self.length(meta, span)
        if seconds > meta.duration:
            return meta.num_frames
        return -1 if seconds < 0 else meta.frame_at(seconds)

    def clip(self, meta: VideoMeta, start: int, span: int) -> Clip:
        """Keep `frames` frames of the span that begins with the frame `start`, evenly spaced, both ends included.

        They are of the native frames start … start + span - 1, or, if the clip is `in_time`, those at even times. Of a
        video that is shorter than the clip they are those that `short_video` asks for.

        Raises:
            ConfigError: The clip does not begin at one of the `starts`; at 0, if the video is shorter than it.
            DataError: The video is shorter than the clip, and `short_video` is `error`.
        """
        last = max(self.starts(meta, span) - 1, 0)
        if not 0 <= start <= last:
            length = f"{self.length(meta, span):.2f} s" if self.in_time(meta) else f"{span} frames"
            raise ConfigError(
                f"the sampler begins a clip of {length} at frame {start} of a video of {meta.num_frames} frames "
                f"({meta.duration:.2f} s): the last start is {last}; use draw_start or starts of its config"
            )
        if self.in_time(meta):
            return self._clip_in_time(meta, start, self.length(meta, span))
        steps = max(self.frames - 1, 1)
        indices = start + np.arange(self.frames, dtype=np.int64) * (span - 1) // steps
        end = meta.num_frames - 1
        if start + span - 1 > end:
            if self.short_video == "error":
                needed = f"{span} frames ({span / meta.fps:.2f} s)"
                raise DataError(f"the clip needs {needed}, the video has {meta.num_frames}; {_LENGTHEN}")
            indices = indices % meta.num_frames if self.short_video == "loop" else np.minimum(indices, end)
        return Clip(indices, start, min(start + span - 1, end))

    def bounds_in_time(self, meta: VideoMeta, span: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the last and the middle frame of the clip at each of the `starts`, if clips are `in_time`."""
        assert meta.times is not None
        begins = meta.times[: self.starts(meta, span)]
        lasts, kept = self._ends(meta, begins, self.length(meta, span))
        middles = (self.frames // 2) * ((kept - begins) / max(self.frames - 1, 1)) + begins  # as of np.linspace
        return lasts, np.clip(meta.frames_at(middles), np.arange(len(begins)), lasts)

    def _ends(
        self, meta: VideoMeta, begins: NDArray[np.float64], seconds: float
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The last frames of clips that begin at the times of frames, and the times of the last ones that are kept."""
        ends = begins + seconds
        lasts = np.maximum(meta.stops_at(ends) - 1, meta.frames_at(begins))
        # A last frame that is longer than the average may be kept several times.
        assert meta.times is not None
        return lasts, np.maximum(np.maximum(meta.times[lasts], ends - 1 / meta.fps), begins)

    def _clip_in_time(self, meta: VideoMeta, start: int, seconds: float) -> Clip:
        begin = meta.time_of(start)
        lasts, kept = self._ends(meta, np.array([begin]), seconds)
        last, rest = int(lasts[0]), meta.duration - begin
        if seconds > rest + 0.5 / meta.fps + 1e-6:
            if self.short_video == "error":
                raise DataError(f"the clip needs {seconds:.2f} s, the video has {rest:.2f} s; {_LENGTHEN}")
            times = np.linspace(begin, begin + max(seconds - 1 / meta.fps, 0), self.frames)
            return Clip(meta.frames_at(times % meta.duration if self.short_video == "loop" else times), start, last)
        times = np.linspace(begin, kept[0], self.frames)
        return Clip(np.clip(meta.frames_at(times), start, last), start, last)


class Sampler:
    """Chooses the clips of a sample from the metadata of its video."""

    def __init__(self, config: Any) -> None:
        self.config = config

    def __call__(self, meta: VideoMeta, generators: Sequence[np.random.Generator]) -> list[Clip]:
        """Choose clips; `generators` has one source of random numbers for each view of the sample."""
        raise ConfigError(f"sampler {type(self).__name__} has no __call__(meta, generators): see docs/extend.md")


SAMPLERS: Registry[type[Sampler]] = Registry("sampler", "vidssl.data")


@SAMPLERS.register("random")
class Random(Sampler):
    """Clips with independent, uniform starts (SCE, section 4.2.1 and Table 16)."""

    class Config(ClipSettings):
        jitter: float = Field(default=0.0, ge=0, lt=1)  # durations are multiplied by uniform numbers in 1 ± jitter
        reverse: float = Field(default=0.0, ge=0, le=1)  # probability that a clip is reversed

    config: Config

    def __call__(self, meta: VideoMeta, generators: Sequence[np.random.Generator]) -> list[Clip]:
        """Draw one clip with each generator."""
        jitter, clips = self.config.jitter, []
        for generator in generators:
            span = self.config.span(meta, generator.uniform(1 - jitter, 1 + jitter))
            start = self.config.draw_start(meta, span, generator)
            reverse = generator.random() < self.config.reverse
            clip = self.config.clip(meta, start, span)
            clips.append(replace(clip, indices=clip.indices[::-1]) if reverse else clip)
        return clips


@SAMPLERS.register("segments")
class Segments(Sampler):
    """Clips of one random frame from each of `frames` equal segments of their span, which starts at random.

    With `seconds: whole` these are the segments of the video (TSN, Wang et al., 2016; on Something-Something V2).
    """

    class Config(ClipSettings):
        """Settings of the sampler."""

    config: Config

    def __call__(self, meta: VideoMeta, generators: Sequence[np.random.Generator]) -> list[Clip]:
        """Draw one clip with each generator."""
        span, clips = self.config.span(meta), []
        for generator in generators:
            start = self.config.draw_start(meta, span, generator)
            clip = self.config.clip(meta, start, span)
            if self.config.in_time(meta):
                begin = meta.time_of(start)
                end = min(begin + self.config.length(meta, span), meta.duration)
                edges = np.linspace(begin, end, self.config.frames + 1)
                indices = meta.shown_at(generator.uniform(edges[:-1], edges[1:]))
            else:
                edges = np.linspace(clip.first, clip.last + 1, self.config.frames + 1)
                indices = np.floor(generator.uniform(edges[:-1], edges[1:])).astype(np.int64)
            clips.append(replace(clip, indices=np.minimum(indices, clip.last)))
        return clips


@SAMPLERS.register("uniform")
class Uniform(Sampler):
    """Clips at evenly spaced starts, from the first frame of the video to the last; a single clip is centered."""

    class Config(ClipSettings):
        clips: int = Field(default=10, ge=1)

    config: Config

    def __call__(self, meta: VideoMeta, generators: Sequence[np.random.Generator]) -> list[Clip]:
        """Return `clips` clips; nothing is random."""
        span, clips = self.config.span(meta), self.config.clips
        last = max(self.config.starts(meta, span) - 1, 0)
        if self.config.in_time(meta):
            latest = meta.time_of(last)
            times = [latest / 2] if clips == 1 else np.linspace(0, latest, clips)
            starts = meta.frames_at(np.array(times)).tolist()
        else:
            starts = [last // 2] if clips == 1 else [round(last * n / (clips - 1)) for n in range(clips)]
        return [self.config.clip(meta, start, span) for start in starts]


@SAMPLERS.register("center")
class Center(Uniform):
    """One clip from the middle of the video."""

    class Config(ClipSettings):
        """Settings of the sampler."""

    def __init__(self, config: Config) -> None:
        super().__init__(Uniform.Config(**config.model_dump(exclude={"name"}), clips=1))


@SAMPLERS.register("pair")
class Pair(Sampler):
    """Clips that lie far apart, one for each view, in random order.

    A clip spans L native frames. From the last native frame of one clip to the first of the next there are at least
    `min_gap` frames, so their starts are at least L - 1 + `min_gap` apart; for clips of one frame, i < j, that is
    j - i >= `min_gap`. All placements that satisfy this are equally likely, and so are all assignments to the views.
    (Purushwalkam & Gupta, 2020: frames at least 40 apart.)
    """

    class Config(ClipSettings):
        min_gap: int = Field(default=40, ge=1)  # native frames
        no_room: Literal["error", "closest"] = "error"  # closest: place them as far apart as the video allows

    config: Config

    def __call__(self, meta: VideoMeta, generators: Sequence[np.random.Generator]) -> list[Clip]:
        """Draw the clips, all with the first generator, since their positions depend on each other."""
        views = len(generators)
        if views < 2:
            raise ConfigError(f"the sampler draws one clip for each view: data.views needs 2 recipes, got {views}")
        span = self.config.span(meta)
        distance = span - 1 + self.config.min_gap
        slack = meta.num_frames - span - (views - 1) * distance  # frames that are left beyond the minimal layout
        if self.config.in_time(meta):
            starts = self._starts_in_time(meta, span, generators)
        elif slack >= 0:
            # Without the distances, the sorted starts are `views` numbers in 0 … slack, with repetition. Adding
            # 0, 1, 2, … makes them distinct numbers out of slack + views, which can be drawn uniformly.
            distinct = generators[0].choice(slack + views, views, replace=False, shuffle=False)
            starts = np.sort(distinct) + np.arange(views) * (distance - 1)
        elif self.config.no_room == "closest":
            starts = _evenly_spaced(max(meta.num_frames - span, 0), views)
        else:
            clips = f"{views} clips of {span} frames, {self.config.min_gap} apart,"
            raise _too_short(clips, meta, meta.num_frames - slack, ", or set no_room to closest")
        return [self.config.clip(meta, int(start), span) for start in generators[0].permutation(starts)]

    def _starts_in_time(
        self, meta: VideoMeta, span: int, generators: Sequence[np.random.Generator]
    ) -> NDArray[np.int64]:
        """Draw the starts, ascending, where the number of frames of a clip depends on its start."""
        views, count = len(generators), self.config.starts(meta, span)
        # following[s]: the first start that the next clip may have after one that starts at s
        lasts, _ = self.config.bounds_in_time(meta, span)
        following = np.minimum(lasts + self.config.min_gap, count)
        # ways[v][s]: the number of placements of v more clips, all of them at s or later
        ways = [np.ones(count + 1)]
        for _ in range(views):
            beginning_at = ways[-1][following]
            ways.append(np.append(np.cumsum(beginning_at[::-1])[::-1], 0))
        if ways[views][0] == 0:
            if self.config.no_room == "closest":
                return _evenly_spaced(max(count - 1, 0), views)
            clips = f"{views} clips of {self.config.length(meta, span):.2f} s, {self.config.min_gap} frames apart,"
            video = f"the video of {meta.num_frames} frames and {meta.duration:.2f} s"
            raise DataError(f"{clips} do not fit into {video}; remove such videos, or set no_room to closest")
        starts, least = [], 0
        for more in reversed(range(views)):  # clips after this one
            weights = ways[more][following[least:]]
            starts.append(least + int(generators[0].choice(len(weights), p=weights / weights.sum())))
            least = int(following[starts[-1]])
        return np.array(starts)


@SAMPLERS.register("spaced")
class Spaced(Sampler):
    """Clips at an exact distance in time, one for each view, in random order.

    Of two consecutive clips one starts `distance` native frames after the other; 0: all views show the same clip.
    """

    class Config(ClipSettings):
        distance: int = Field(default=16, ge=0)  # native frames

    config: Config

    def __call__(self, meta: VideoMeta, generators: Sequence[np.random.Generator]) -> list[Clip]:
        """Draw the clips, all with the first generator."""
        views, span, distance = len(generators), self.config.span(meta), self.config.distance
        room = self.config.starts(meta, span) - 1 - (views - 1) * distance
        if room < 0:
            clips = f"{views} clips of {span} frames, {distance} apart,"
            raise _too_short(clips, meta, span + (views - 1) * distance, ", or lower distance")
        first = int(generators[0].integers(room, endpoint=True))
        starts = first + distance * np.arange(views)
        return [self.config.clip(meta, int(start), span) for start in generators[0].permutation(starts)]


def _too_short(clips: str, meta: VideoMeta, needed: int, remedy: str = "") -> DataError:
    remove = f"remove such videos (vidssl check --min-frames {needed}){remedy}"
    return DataError(f"{clips} need {needed} frames, the video has {meta.num_frames}; {remove}")


def _evenly_spaced(last: int, count: int) -> NDArray[np.int64]:
    """Return `count` >= 2 integers from 0 to `last`, both included, as evenly as rounding allows."""
    return (2 * last * np.arange(count, dtype=np.int64) + count - 1) // (2 * (count - 1))


@SAMPLERS.register("tracked_pair")
class TrackedPair(Pair):
    """Two clips that show the same tracked region, in random order: their middle frames belong to one track.

    The middle frames are at least `min_gap` apart; the clips around them may overlap. All pairs of frames that share a
    track are equally likely, however many tracks they share.
    """

    class Config(Pair.Config):
        untracked: Literal["error", "pair"] = "error"  # for videos without such a pair; pair: draw as that sampler

    config: Config

    def __call__(self, meta: VideoMeta, generators: Sequence[np.random.Generator]) -> list[Clip]:
        """Draw the clips, all with the first generator."""
        if len(generators) != 2 or meta.tracks is None:
            views = f"2 recipes in data.views, got {len(generators)}"
            raise ConfigError(f"tracked_pair needs {views}, and tracks.folder of vidssl track")
        span = self.config.span(meta)
        if self.config.in_time(meta):
            _, middles = self.config.bounds_in_time(meta, span)
        else:
            middles = self.config.clip(meta, 0, span).middle_frame + np.arange(self.config.starts(meta, span))
        pairs = pairs_of(meta.tracks, self.config.min_gap, 0, meta.num_frames)
        pairs = pairs[np.isin(pairs, middles).all(axis=1)]
        if len(pairs):
            pair = generators[0].permutation(pairs[generators[0].integers(len(pairs))])
            starts = np.searchsorted(middles, pair)  # ascending
            return [self.config.clip(meta, int(start), span) for start in starts]
        if self.config.untracked == "pair":
            return super().__call__(meta, generators)
        room = f"two frames {self.config.min_gap} apart with room for clips of {span} frames"
        raise DataError(f"no track of the video has {room}; lower min_gap, or set untracked to pair")


def pairs_of(tracks: Tracks, min_gap: int, first: int, last: int) -> NDArray[np.int64]:
    """Return all pairs of frames (P, 2), i < j, in first … last that share a track and are at least `min_gap` apart."""
    inside = (tracks.frames >= first) & (tracks.frames <= last)
    numbers, frame = np.unique(tracks.frames[inside], return_inverse=True)
    order = np.lexsort((frame, tracks.track[inside]))
    frame, track = frame[order], tracks.track[inside][order]
    paired = np.zeros((len(numbers), len(numbers)), bool)
    # The rows of a track are consecutive now: its pairs are the rows that are 1, 2, … apart.
    for lag in range(1, len(frame)):
        same = track[lag:] == track[:-lag]
        if not same.any():
            break
        paired[frame[:-lag][same], frame[lag:][same]] = True
    pairs = numbers[np.argwhere(paired)]
    return pairs[pairs[:, 1] - pairs[:, 0] >= min_gap]


def chunk_starts(num_frames: int, chunks: int, length: int) -> list[int]:
    """Return the starts of chunks of `length` frames: evenly spaced, the first and last one at the ends of the video.

    They overlap where the video is short; there are fewer than `chunks` where it has not so many starts.
    """
    last = max(num_frames - length, 0)
    count = min(chunks, last + 1)
    return [0] if count == 1 else _evenly_spaced(last, count).tolist()


@SAMPLERS.register("clip_and_frame")
class ClipAndFrame(Sampler):
    """The first view is the clip that the video begins with, the second one of the frames after it, at random."""

    class Config(ClipSettings):
        """Settings of the sampler: those of the clip."""

    config: Config

    def __call__(self, meta: VideoMeta, generators: Sequence[np.random.Generator]) -> list[Clip]:
        """Return the clip, and draw the frame with the second generator."""
        if len(generators) != 2:
            raise ConfigError(f"the sampler clip_and_frame needs 2 recipes in data.views, got {len(generators)}")
        span = self.config.span(meta)
        clip = self.config.clip(meta, 0, span) if meta.num_frames > 1 else None
        if clip is None or clip.last + 1 >= meta.num_frames:
            raise _too_short(f"a clip of {span} frames and one after it", meta, span + 1)
        frame = int(generators[1].integers(clip.last + 1, meta.num_frames))
        return [clip, Clip(np.array([frame]), frame, frame)]
