"""Local trajectories: the transformed versions of each clip, and the features of all of them.

A video is decoded once. One sampler gives its clips, and of each those that are moved, faster, backwards or covered;
what changes pixels is made of the clip's central square.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from vidssl import distributed
from vidssl.analysis.instances import Boxes, Covering
from vidssl.analysis.moves import MOVES, Move
from vidssl.data.dataset import ClipDataset
from vidssl.data.loader import Loader, eval_loader, to_device
from vidssl.data.samplers import Clip, ClipSettings, Uniform
from vidssl.data.video_list import VideoList
from vidssl.errors import ConfigError, DataError
from vidssl.models.backbones import Backbone
from vidssl.progress import progress
from vidssl.registry import did_you_mean
from vidssl.transforms import View, center_crop
from vidssl.transforms.corruptions import CORRUPTIONS, Corruption
from vidssl.types import Batch, Frames, VideoMeta
from vidssl.video.reader import DecodeSettings

TRANSFORMATIONS: dict[str, Corruption | Move] = {**CORRUPTIONS, **MOVES}


def choose_transformations(
    names: Sequence[str] | None, frames: int, boxes: bool
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Find the transformations that can be measured.

    Args:
        names: Those that are asked for; None: all.
        frames: Of a clip.
        boxes: Whether boxes of instances are there.

    Returns:
        Their names in the order of `TRANSFORMATIONS`, and for each that is left out why.

    Raises:
        ConfigError: There is no such transformation, or none is left.
    """
    for name in names or ():
        if name not in TRANSFORMATIONS:
            near = did_you_mean(name, TRANSFORMATIONS)
            raise ConfigError(f"no transformation '{name}'{near}; there are: {', '.join(TRANSFORMATIONS)}")
    asked = [name for name in TRANSFORMATIONS if names is None or name in names]
    left_out = {}
    for name in asked:
        kind = TRANSFORMATIONS[name]
        if isinstance(kind, Move) and kind.of_motion and frames == 1:
            left_out[name] = "a clip of one frame has no motion"
        if name == "instance" and not boxes:
            left_out[name] = "it needs --boxes"
    chosen = tuple(name for name in asked if name not in left_out)
    if not chosen:
        reasons = "; ".join(f"{name}: {why}" for name, why in left_out.items())
        raise ConfigError(f"no transformation is left to measure ({reasons}); name others")
    return chosen, left_out


@dataclass(frozen=True)
class Trajectories:
    """Which clips of a video are samples, and in which versions each is seen.

    Attributes:
        clip: How long a clip is.
        clips: Of each video, at uniform places; each is a sample of its own.
        size: Of the central square that is seen, pixels.
        names: Of the transformations.
        short_side: Of the video before the square is cut, pixels; None: `size`.
    """

    clip: ClipSettings
    clips: int
    size: int
    names: tuple[str, ...]
    short_side: int | None = None

    @property
    def _corruptions(self) -> list[str]:
        return [name for name in self.names if isinstance(TRANSFORMATIONS[name], Corruption)]

    @property
    def _moves(self) -> list[Move]:
        kinds = (TRANSFORMATIONS[name] for name in self.names)
        return [kind for kind in kinds if isinstance(kind, Move)]

    @property
    def places(self) -> dict[str, slice]:
        """For each transformation which of the versions of a clip are its own."""
        moved = [name for name in self.names if name not in self._corruptions]
        found, first = {}, 0
        for name in (*self._corruptions, *moved):  # in the order of the views
            found[name] = slice(first, first + len(TRANSFORMATIONS[name].amounts))
            first = found[name].stop
        return found

    @property
    def versions(self) -> int:
        """How many there are of each clip, over all transformations."""
        return sum(len(TRANSFORMATIONS[name].amounts) for name in self.names)

    def dataset(
        self,
        videos: VideoList,
        reading: DecodeSettings,
        boxes: Mapping[str, Boxes] | None = None,
        skip: bool = False,
    ) -> ClipDataset:
        """Make the data set whose samples hold, clip by clip, the clip and its versions."""
        corruptions = [CORRUPTIONS[name] for name in self._corruptions]
        moved = sum(len(move.amounts) for move in self._moves)
        square, plain_square = (_Square(self.size, self.short_side, kinds) for kinds in (corruptions, ()))
        recipes = [square, *[plain_square] * moved] * self.clips
        plain = {name: getattr(reading, name) for name in DecodeSettings.model_fields}
        opening = DecodeSettings(**plain) if boxes is None else Covering(**plain, boxes=boxes)
        return ClipDataset(
            videos, _Moved(self.clip, self.clips, self._moves), recipes, reading=opening, skip=skip
        )


class _Square:
    """The recipe: the central square of a clip, then the square in every corruption."""

    difference = 0.0

    def __init__(self, size: int, short_side: int | None, corruptions: Sequence[Corruption]) -> None:
        self._size, self._short_side = size, short_side
        self._corruptions = tuple(corruptions)

    def __call__(self, frames: Frames, generator: np.random.Generator) -> list[View]:
        view = center_crop(frames, self._size, self._short_side)
        versions = [version for kind in self._corruptions for version in kind.versions(view.frames)]
        return [view, *(View(version, view.window) for version in versions)]


class _Moved:
    """The sampler: uniform clips, each followed by its moved versions."""

    def __init__(self, clip: ClipSettings, clips: int, moves: Sequence[Move]) -> None:
        self._clip = clip
        settings = clip.model_dump(include=set(ClipSettings.model_fields))
        self._uniform = Uniform(Uniform.Config(**settings, clips=clips))
        self._moves = tuple(moves)

    def __call__(self, meta: VideoMeta, generators: Sequence[np.random.Generator]) -> list[Clip]:
        found = []
        for clip in self._uniform(meta, ()):
            moved = [kind.move(self._clip, meta, clip, n) for kind in self._moves for n in kind.amounts]
            found += [clip, *moved]
        return found


@dataclass(frozen=True)
class TrajectoryFeatures:
    """Features of samples and of their versions; the samples of a video follow one another."""

    x: NDArray[np.float32]  # (N, D)
    versions: NDArray[np.float32]  # (N, V, D)
    changed: NDArray[np.bool_]  # (N, V): the version differs from its sample in some pixel
    index: NDArray[np.int64]  # (N,), of the record in its list
    missing: tuple[tuple[str, str], ...]  # (path, reason) of the videos that could not be read


def trajectory_features(
    backbone: Backbone,
    videos: VideoList,
    trajectories: Trajectories,
    reading: DecodeSettings,
    device: torch.device,
    *,
    mean: Sequence[float],
    std: Sequence[float],
    boxes: Mapping[str, Boxes] | None = None,
    batch_size: int = 8,
    half: bool = False,
    workers: int = 0,
    prefetch: int = 2,
    timeout: float | None = None,
    skip: bool = False,
    title: str = "trajectories",
) -> TrajectoryFeatures:
    """Encode each clip of a list and each version of it once, over all processes.

    Args:
        backbone: On the device, in eval mode.
        videos: The list.
        trajectories: Which clips and versions.
        reading: How videos are read.
        device: Where the backbone is.
        mean: Of pixels in [0, 1].
        std: Of pixels in [0, 1].
        boxes: Of the instances, by the paths of the records; the transformation `instance` needs them.
        batch_size: Clips at a time.
        half: Whether the backbone runs in bfloat16.
        workers: Processes that decode.
        prefetch: Batches that each worker makes in advance.
        timeout: Seconds that one video may take.
        skip: Leave out videos that cannot be read, and name them; else they are an error.
        title: Of the progress bar.

    Returns:
        The same on every process.

    Raises:
        DataError: A video cannot be used, or none can.
        PeerError: That happened on another process.
    """
    dataset = trajectories.dataset(videos, reading, boxes, skip)
    # All clips and versions of a video come at once: fewer videos at a time, the more clips there are of each.
    batch = max(1, batch_size // trajectories.clips)
    loader = eval_loader(dataset, batch, workers, distributed.rank(), distributed.world(), timeout, prefetch)
    parts = distributed.gather_outcomes(
        lambda: _encode(backbone, trajectories, loader, device, mean, std, half, title)
    )
    missing = sorted(pair for part in parts for pair in part.missing)
    if len(missing) == len(videos.records):
        raise DataError(
            f"none of the {len(missing)} videos of {videos.path} can be read; the first: {missing[0][1]}"
        )
    order = np.argsort(np.concatenate([part.index for part in parts]), kind="stable")
    return TrajectoryFeatures(
        np.concatenate([part.x for part in parts])[order],
        np.concatenate([part.versions for part in parts])[order],
        np.concatenate([part.changed for part in parts])[order],
        np.concatenate([part.index for part in parts])[order],
        tuple(missing),
    )


@torch.no_grad()
def _encode(
    backbone: Backbone,
    trajectories: Trajectories,
    loader: Loader,
    device: torch.device,
    mean: Sequence[float],
    std: Sequence[float],
    half: bool,
    title: str,
) -> TrajectoryFeatures:
    """Encode what this process's loader gives."""
    shape = trajectories.clips, 1 + trajectories.versions
    x = [np.empty((0, shape[1], backbone.dim), np.float32)]  # this process may have no video at all
    changed = [np.empty((0, shape[1] - 1), bool)]
    index = [np.empty(0, np.int64)]
    missing: list[tuple[str, str]] = []
    bar = progress(
        title=title, unit="batch", total=len(loader), disable=not distributed.is_main(), leave=False
    )
    with closing(iter(loader)) as batches, bar:
        for raw in batches:
            bar.update()
            missing += raw.replaced
            if not len(raw.index):
                continue
            views = [_one(backbone, raw, n, device, mean, std, half) for n in range(len(raw.views))]
            encoded = np.stack(views, axis=1)
            x.append(encoded.reshape(-1, shape[1], backbone.dim))
            changed.append(_changed(raw, *shape))
            index.append(np.repeat(raw.index.numpy(), trajectories.clips))
    found = np.concatenate(x)
    return TrajectoryFeatures(
        found[:, 0], found[:, 1:], np.concatenate(changed), np.concatenate(index), tuple(missing)
    )


def _one(
    backbone: Backbone,
    raw: Batch,
    view: int,
    device: torch.device,
    mean: Sequence[float],
    std: Sequence[float],
    half: bool,
) -> NDArray[np.float32]:
    """Encode one view of a batch; one at a time, so that not all of them are float at once."""
    batch = to_device(replace(raw, views=(raw.views[view],)), device, mean, std)
    with torch.autocast(device.type, torch.bfloat16, enabled=half):
        encoded: torch.Tensor = backbone(batch.views[0])
    return encoded.float().cpu().numpy()


def _changed(raw: Batch, clips: int, views: int) -> NDArray[np.bool_]:
    """(B * clips, views - 1): whether a version differs from its clip in some pixel."""
    found = [
        (raw.views[clip * views + n] != raw.views[clip * views]).flatten(1).any(dim=1).numpy()
        for clip in range(clips)
        for n in range(1, views)
    ]
    return np.stack(found, axis=1).reshape(-1, views - 1)
