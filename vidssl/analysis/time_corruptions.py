"""Corruptions of the order and rate of a clip's frames, each in five severities: choices of other frames.

T is the number of frames of a clip.
"""

from dataclasses import replace

import numpy as np

from vidssl.data.clip_samplers import Clip, ClipSettings
from vidssl.transforms.graded_changes import Change
from vidssl.types import VideoMeta

Rng = np.random.Generator


def freeze(settings: ClipSettings, meta: VideoMeta, clip: Clip, fraction: float, generator: Rng) -> Clip:
    """Replace a random fraction of the frames after the first by the frame before: at 1, all are the first."""
    length = len(clip.indices)
    frozen = 1 + generator.permutation(length - 1)[: _at_least(1, fraction * (length - 1))]
    shown = np.arange(length)
    shown[frozen] = 0
    return replace(clip, indices=clip.indices[np.maximum.accumulate(shown)])


def drop(settings: ClipSettings, meta: VideoMeta, clip: Clip, fraction: float, generator: Rng) -> Clip:
    """Lose a random fraction of the native frames from the first on: the clip runs on faster, and unevenly.

    The clip keeps its stride, counted in the frames that are left. Where the video ends, the last one is held.
    """
    later = np.arange(clip.first + 1, meta.num_frames)
    left = np.concatenate([[clip.first], later[generator.random(len(later)) >= fraction]])
    indices = left[np.minimum(clip.indices - clip.first, len(left) - 1)]
    return Clip(indices, clip.first, int(indices.max()))


def shuffle(settings: ClipSettings, meta: VideoMeta, clip: Clip, fraction: float, generator: Rng) -> Clip:
    """Displace a random fraction of the frames, at least two: each takes the place of another."""
    length = len(clip.indices)
    places = generator.permutation(length)[: _at_least(2, fraction * length)]
    shown = np.arange(length)
    shown[places] = np.roll(places, 1)
    return replace(clip, indices=clip.indices[shown])


def reverse(settings: ClipSettings, meta: VideoMeta, clip: Clip, fraction: float, generator: Rng) -> Clip:
    """Play a stretch of the clip backwards, at a random place; at 1 the whole clip."""
    length = len(clip.indices)
    stretch = _at_least(2, fraction * length)
    start = int(generator.integers(length - stretch, endpoint=True))
    shown = np.arange(length)
    shown[start : start + stretch] = shown[start : start + stretch][::-1]
    return replace(clip, indices=clip.indices[shown])


def jumble(settings: ClipSettings, meta: VideoMeta, clip: Clip, parts: float, generator: Rng) -> Clip:
    """Cut the clip into equal parts, at most T, and play them in another order: none stays in its place."""
    pieces = np.array_split(clip.indices, min(round(parts), len(clip.indices)))
    order = generator.permutation(len(pieces))
    shown = np.empty(len(pieces), np.int64)
    shown[order] = np.roll(order, 1)
    return replace(clip, indices=np.concatenate([pieces[n] for n in shown]))


def rate(settings: ClipSettings, meta: VideoMeta, clip: Clip, factor: float, generator: Rng) -> Clip:
    """Play at a wrong rate: the clip spans `factor` times its native frames, about the same centre."""
    whole = settings.span(meta) if settings.in_time(meta) else clip.last - clip.first + 1
    span = max(1, round(factor * whole))
    start = settings.later(meta, clip.first, (whole - span) // 2)
    return settings.clip(meta, min(start, max(settings.starts(meta, span) - 1, 0)), span)


_FRACTIONS = (0.2, 0.4, 0.6, 0.8, 1.0)

# New ones go to the end: the random numbers of a corruption depend on its position.
# Each takes the settings of the clip, the metadata of its video, a clip of two frames or more, an amount and a
# generator; the amounts are those of the severities 1 to 5.
TIME_CORRUPTIONS = {
    "freeze": Change(freeze, _FRACTIONS, "fraction of the frames after the first", "time"),
    "drop": Change(drop, (0.1, 0.25, 0.5, 0.75, 0.9), "fraction of the native frames", "time"),
    "shuffle": Change(shuffle, _FRACTIONS, "fraction of the frames", "time"),
    "reverse": Change(reverse, _FRACTIONS, "fraction of the frames", "time"),
    "jumble": Change(jumble, (2, 3, 4, 6, 8), "parts", "time"),
    "rate": Change(rate, (0.8, 0.6, 0.4, 0.2, 0.1), "factor of the span", "time"),
}


def _at_least(least: int, number: float) -> int:
    return max(least, round(number))
