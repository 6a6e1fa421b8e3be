"""Other frames of the video for a clip: what the invariance to time is measured with. Nothing is random."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vidssl.analysis.instances import SHARES, in_copy
from vidssl.data.samplers import Clip, ClipSettings
from vidssl.types import VideoMeta


@dataclass(frozen=True)
class Move:
    """Chooses other frames for a clip, and the amounts that make a trajectory.

    Where the video has no room for it, the very clip is given back: a version that changes nothing is not counted.
    """

    move: Callable[[ClipSettings, VideoMeta, Clip, float], Clip]
    amounts: tuple[float, ...]
    says: str  # what the amounts are
    of_motion: bool = False  # it means nothing for clips of one frame


def shift(settings: ClipSettings, meta: VideoMeta, clip: Clip, share: float) -> Clip:
    """Begin later by a share of the clip's own span."""
    return _placed(settings, meta, clip, [clip.first + round(share * settings.span(meta.fps))])


def gap(settings: ClipSettings, meta: VideoMeta, clip: Clip, frames: float) -> Clip:
    """Begin that many frames after the clip's last one; where that is too late, end that many before its first."""
    far, span = round(frames), settings.span(meta.fps)
    return _placed(settings, meta, clip, [clip.last + far, clip.first - far - span + 1])


def speed(settings: ClipSettings, meta: VideoMeta, clip: Clip, factor: float) -> Clip:
    """Play the same place `factor` times as fast: over a span that is so much longer, as far as it can be centred."""
    span, own = settings.span(meta.fps, factor), settings.span(meta.fps)
    if max(span, own) > meta.num_frames:
        return clip
    start = clip.first + (own - span) // 2
    return settings.clip(meta, min(max(start, 0), meta.num_frames - span), span)


def reverse(settings: ClipSettings, meta: VideoMeta, clip: Clip, _: float) -> Clip:
    """Play backwards."""
    return Clip(clip.indices[::-1], clip.first, clip.last)


def cover(settings: ClipSettings, meta: VideoMeta, clip: Clip, share: float) -> Clip:
    """Take the same frames, with a share of the instance covered."""
    return in_copy(clip, share)


MOVES = {
    "instance": Move(cover, SHARES, "covered share of the instance's box"),
    "shift": Move(shift, (-0.5, -0.25, 0.25, 0.5), "share of the clip's span", of_motion=True),
    "gap": Move(gap, (5, 10, 20, 40), "frames from the one clip to the other"),
    "speed": Move(speed, (0.5, 0.75, 1.5, 2.0), "factor", of_motion=True),
    "reverse": Move(reverse, (-1.0,), "factor of the speed", of_motion=True),
}


def _placed(settings: ClipSettings, meta: VideoMeta, clip: Clip, starts: Sequence[int]) -> Clip:
    """Begin at the first of the starts at which a whole clip fits into the video; else give the clip itself."""
    span = settings.span(meta.fps)
    fitting = [start for start in starts if start >= 0 and start + span <= meta.num_frames]
    return settings.clip(meta, fitting[0], span) if fitting else clip
