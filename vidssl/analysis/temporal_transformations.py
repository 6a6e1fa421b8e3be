"""Deterministic moves of a clip to other frames of its video, to measure invariance to time with."""

from collections.abc import Sequence

from vidssl.analysis.cover_instances_partly import FRACTIONS
from vidssl.analysis.versions_from_one_decode import version_of
from vidssl.data.clip_samplers import Clip, ClipSettings
from vidssl.transforms.graded_changes import Change
from vidssl.types import VideoMeta


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
