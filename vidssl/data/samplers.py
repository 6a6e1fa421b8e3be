"""Samplers: which frames of a video make a clip. Pure functions of (meta, generator); no pixel is touched."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from vidssl.config import Settings
from vidssl.errors import DataError
from vidssl.registry import Registry
from vidssl.types import VideoMeta


@dataclass(frozen=True)
class Clip:
    """The frames of one clip, and the native frames that it spans."""

    indices: NDArray[np.int64]  # (T,) in [first, last]: nondecreasing, unless reversed or looped
    first: int  # the span, both ends included
    last: int


class Sampler(Protocol):
    """Turns what is known of a video into the clips of one sample."""

    def __call__(self, meta: VideoMeta, generators: Sequence[np.random.Generator]) -> list[Clip]:
        """Choose clips; `generators` holds one source of random numbers for each view of the sample."""
        ...


SAMPLERS: Registry[type[Sampler]] = Registry("sampler", "vidssl.data")


class ClipSettings(Settings):
    """How long a clip is, and what is done with a video that is shorter.

    Exactly one of `seconds` (length of the span) and `sampling_rate` (stride between kept frames) is given.
    `short`: `loop` plays a short video again from its start, `hold` repeats its last frame, `error` refuses
    it.
    """

    frames: int = Field(ge=1)  # T
    seconds: float | None = Field(default=None, gt=0)
    sampling_rate: int | None = Field(default=None, ge=1)
    short: Literal["loop", "hold", "error"] = "loop"

    @model_validator(mode="after")
    def _one_length(self) -> "ClipSettings":
        if (self.seconds is None) == (self.sampling_rate is None):
            raise ValueError("give exactly one of seconds and sampling_rate")
        return self

    def span(self, fps: float, factor: float = 1.0) -> int:
        """Number of native frames that a clip covers, at least 1; `factor` stretches its duration."""
        if self.seconds is not None:
            return max(1, round(self.seconds * factor * fps))
        assert self.sampling_rate is not None  # by the validator
        return max(1, round(((self.frames - 1) * self.sampling_rate + 1) * factor))

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
