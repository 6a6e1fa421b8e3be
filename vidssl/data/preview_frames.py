"""Frames that show what a video is about, for pages."""

import numpy as np

from vidssl.data.dataset import resolve_span
from vidssl.types import Frames, VideoRecord
from vidssl.video.reader import open_video


def middle_frames(record: VideoRecord, fps: float | None = None) -> Frames:
    """Decode up to eight frames of the middle of a video or span, over three seconds at most.

    `fps` is the frame rate for folders of images without an fps column; only spans depend on it.
    """
    with open_video(record.path, fps=record.fps or fps or 25) as video:
        first, part = resolve_span(video.meta, record)
        if part.times is not None:
            half = min(3.0, part.duration) / 2
            times = part.duration / 2 + np.linspace(-half, half, 8, endpoint=False)
            return video.frames(np.unique(first + part.frames_at(times)).tolist())
        length = min(part.num_frames, max(1, round(3 * part.fps)))
        start = first + (part.num_frames - length) // 2
        return video.frames(np.unique(start + np.arange(8) * length // 8).tolist())
