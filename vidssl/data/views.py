"""From a video to the views of a sample: ask the sampler, decode once, apply the recipes."""

from collections.abc import Sequence

import numpy as np

from vidssl.data.samplers import Clip, Sampler
from vidssl.data.video import Video
from vidssl.errors import ConfigError
from vidssl.transforms import Recipe, difference_pairs, rgb_difference
from vidssl.types import Frames, VideoMeta, VideoRecord


def make_views(
    video: Video,
    record: VideoRecord,
    sampler: Sampler,
    recipes: Sequence[Recipe],
    generators: Sequence[np.random.Generator],
) -> tuple[Frames, ...]:
    """Make all views of one video with one forward pass of the decoder.

    Args:
        video: The open video.
        record: Its row, with the part of the video that is meant.
        sampler: Chooses the clips.
        recipes: One for each clip, or one for all clips.
        generators: The random numbers of each view; one for each recipe.

    Returns:
        The views, each (T, C, S, S): those of the first clip, then those of the second, …

    Raises:
        ConfigError: Numbers of clips and recipes do not fit.
        DecodeError: A frame cannot be decoded.
        DataError: The video is shorter than the clip and the sampler refuses that.
    """
    offset, meta = _part(video.meta, record)
    clips = sampler(meta, generators)
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
    views: list[Frames] = []
    for parts, (recipe, generator) in zip(wanted, pairs, strict=True):
        clip = [frames[np.searchsorted(union, part)] for part in parts]
        views += recipe(clip[0] if len(clip) == 1 else rgb_difference(*clip), generator)
    return tuple(views)


def _wanted(clip: Clip, difference: bool) -> tuple[np.ndarray, ...]:
    return difference_pairs(clip.indices, clip.first, clip.last) if difference else (clip.indices,)


def _part(meta: VideoMeta, record: VideoRecord) -> tuple[int, VideoMeta]:
    """First frame of the part that the record means, and that part as a video of its own."""
    first = 0 if record.start is None else round(record.start * meta.fps)
    stop = meta.num_frames if record.end is None else min(round(record.end * meta.fps), meta.num_frames)
    first = min(first, meta.num_frames - 1)
    return first, VideoMeta(max(stop - first, 1), meta.fps, meta.height, meta.width)
