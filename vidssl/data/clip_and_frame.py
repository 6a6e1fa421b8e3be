"""The sampler of two views of different lengths."""

from collections.abc import Sequence

import numpy as np

from vidssl.data.clip_samplers import SAMPLERS, Clip, ClipSettings, Sampler
from vidssl.errors import ConfigError, DataError
from vidssl.types import VideoMeta


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
            raise DataError(
                f"a clip of {span} frames and one after it need {span + 1} frames, the video has {meta.num_frames}; "
                f"remove such videos (vidssl check --min-frames {span + 1})"
            )
        frame = int(generators[1].integers(clip.last + 1, meta.num_frames))
        return [clip, Clip(np.array([frame]), frame, frame)]
