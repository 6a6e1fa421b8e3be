"""From a video to the views of a sample: ask the sampler, decode once, apply the recipes."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from vidssl.data.samplers import Clip, Sampler
from vidssl.errors import ConfigError, DataError
from vidssl.transforms import Recipe, View, difference_pairs, rgb_difference
from vidssl.types import VideoMeta, VideoRecord
from vidssl.video.reader import Video


def make_views(
    video: Video,
    record: VideoRecord,
    sampler: Sampler,
    recipes: Sequence[Recipe],
    generators: Sequence[np.random.Generator],
) -> tuple[View, ...]:
    """Make all views of one video with one forward pass of the decoder.

    Args:
        video: The open video.
        record: Its row, with the part of the video that is meant.
        sampler: Chooses the clips.
        recipes: One for each clip, or one for all clips.
        generators: The random numbers of each view; one for each recipe.

    Returns:
        The views, frames (T, C, S, S) and windows: those of the first clip, then those of the second, …

    Raises:
        ConfigError: Numbers of clips and recipes do not fit.
        DecodeError: A frame cannot be decoded.
        DataError: The record's span lies outside the video, or is shorter than the clip and the sampler refuses that.
    """
    offset, meta = part_of(video.meta, record)
    return fetch(video, offset, sampler(meta, generators), recipes, generators).views


class Fetched(NamedTuple):
    """The views of some clips, and what places a box or a mask in them."""

    views: tuple[View, ...]
    moments: tuple[int, ...]  # for each view the frame in the middle of its clip, in the part that is meant
    height: int  # of the frames that the views were cut from, pixels
    width: int


def fetch(
    video: Video,
    offset: int,
    clips: Sequence[Clip],
    recipes: Sequence[Recipe],
    generators: Sequence[np.random.Generator],
) -> Fetched:
    """Decode clips that were chosen and make their views, as `make_views` does.

    Args:
        video: The open video.
        offset: Frame of the video that the clips call 0.
        clips: What a sampler chose.
        recipes: One for each clip, or one for all clips.
        generators: The random numbers of each view; one for each recipe.
    """
    pairs = list(zip(recipes, generators, strict=True))
    if len(recipes) == 1:
        pairs *= len(clips)
    if len(pairs) != len(clips):
        raise ConfigError(
            f"{len(clips)} clips and {len(recipes)} recipes: give one recipe, or one for each clip"
        )
    # The coin for the RGB difference falls before the decoding: it decides which frames are needed.
    wanted = [
        _wanted(clip, generator.random() < recipe.difference)
        for clip, (recipe, generator) in zip(clips, pairs, strict=True)
    ]
    union = np.unique(np.concatenate([part for parts in wanted for part in parts]))
    frames = video.frames(offset + union)
    views: list[View] = []
    moments: list[int] = []
    for clip, parts, (recipe, generator) in zip(clips, wanted, pairs, strict=True):
        shown = [frames[np.searchsorted(union, part)] for part in parts]
        made = recipe(shown[0] if len(shown) == 1 else rgb_difference(*shown), generator)
        views += made
        moments += [clip.middle_frame] * len(made)
    return Fetched(tuple(views), tuple(moments), *frames.shape[2:])


def _wanted(clip: Clip, difference: bool) -> tuple[np.ndarray, ...]:
    return difference_pairs(clip.indices, clip.first, clip.last) if difference else (clip.indices,)


def part_of(meta: VideoMeta, record: VideoRecord) -> tuple[int, VideoMeta]:
    """Turn the span of a record, in seconds, into frames: its first frame, and the span as a video of its own.

    Times are rounded to the nearest frame, a span has at least one. What lies beyond the end of the file is cut off:
    annotations are often whole seconds, a little longer than the file.

    Raises:
        DataError: Less than half of the span lies in the file: other units, times of another file, or a truncated file.
    """
    start, end = record.start or 0.0, meta.duration if record.end is None else record.end
    inside = min(end, meta.duration) - start
    if inside <= 0 or 2 * inside < end - start:
        span = f"from {start:g} s on" if record.end is None else f"{start:g}-{record.end:g} s"
        raise DataError(
            f"{record.path}: {'most of ' if inside > 0 else ''}the row's span, {span}, lies outside the file, which is "
            f"{meta.duration:.2f} s long: start and end are seconds; correct the list, or remove such rows with "
            "tools/check_videos.py"
        )
    first = min(round(start * meta.fps), meta.num_frames - 1)
    stop = min(round(end * meta.fps), meta.num_frames)
    return first, VideoMeta(max(stop - first, 1), meta.fps, meta.height, meta.width)
