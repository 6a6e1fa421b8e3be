"""A clip, and the settings of its length: how many frames of a video it covers, and which of them are kept."""

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from vidssl.config import Settings
from vidssl.errors import ConfigError, DataError
from vidssl.types import VideoMeta


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
        given = (self.seconds is not None, self.sampling_rate is not None, self.target_fps is not None)
        if given not in ((True, False, False), (False, True, False), (False, True, True)):
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
                raise DataError(
                    f"the clip needs {span} frames ({span / meta.fps:.2f} s), the video has {meta.num_frames}; set "
                    "short_video to loop or hold"
                )
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
                raise DataError(
                    f"the clip needs {seconds:.2f} s, the video has {rest:.2f} s; set short_video to loop or hold"
                )
            times = np.linspace(begin, begin + max(seconds - 1 / meta.fps, 0), self.frames)
            return Clip(meta.frames_at(times % meta.duration if self.short_video == "loop" else times), start, last)
        times = np.linspace(begin, kept[0], self.frames)
        return Clip(np.clip(meta.frames_at(times), start, last), start, last)
