"""Local trajectories: each clip with its transformed versions, and their features.

A video is decoded once. Moves (`moves.py`) choose other frames of it, corruptions change the central square of a clip.

Shapes: N samples (clips), V versions of each, D units; B videos of a batch.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from vidssl import distributed
from vidssl.analysis.object_occlusion import Boxes, CoveringSettings
from vidssl.analysis.temporal_transformations import MOVES, Move
from vidssl.data.dataset import ClipDataset
from vidssl.data.loader import Loader, eval_loader, to_device
from vidssl.data.samplers import Clip, ClipSettings, Uniform
from vidssl.data.video_list import VideoList
from vidssl.errors import ConfigError, DataError
from vidssl.models.backbones import Backbone
from vidssl.progress import progress
from vidssl.registry import did_you_mean
from vidssl.transforms import Recipe, View, center_crop
from vidssl.transforms.corruptions import CORRUPTIONS, Corruption
from vidssl.types import Batch, Frames, VideoMeta
from vidssl.video.reader import DecodeSettings

TRANSFORMATIONS: dict[str, Corruption | Move] = {**CORRUPTIONS, **MOVES}


def choose_transformations(
    names: Sequence[str] | None, frames: int, boxes: bool
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Choose the transformations, of some names or of all, that can be measured on clips of some frames.

    Returns:
        Their names in the order of `TRANSFORMATIONS`, and the reason for each that is left out.

    Raises:
        ConfigError: A name is unknown, or no transformation can be measured.
    """
    for name in names or ():
        if name not in TRANSFORMATIONS:
            near = did_you_mean(name, TRANSFORMATIONS)
            raise ConfigError(f"no transformation '{name}'{near}; there are: {', '.join(TRANSFORMATIONS)}")
    wanted = [name for name in TRANSFORMATIONS if names is None or name in names]
    left_out = {}
    for name in wanted:
        kind = TRANSFORMATIONS[name]
        if isinstance(kind, Move) and kind.needs_motion and frames == 1:
            left_out[name] = "a clip of one frame has no motion"
        if name == "instance" and not boxes:
            left_out[name] = "it needs --boxes"
    chosen = tuple(name for name in wanted if name not in left_out)
    if not chosen:
        reasons = "; ".join(f"{name}: {why}" for name, why in left_out.items())
        raise ConfigError(f"no transformation is left to measure ({reasons}); name others")
    return chosen, left_out


@dataclass(frozen=True)
class Trajectories:
    """Which clips of a video are samples, and which versions each has."""

    clip: ClipSettings  # frames and sampling rate
    clips: int  # per video, at uniform positions; each is a sample
    size: int  # of the central square, pixels
    names: tuple[str, ...]  # of transformations
    short_side: int | None = None  # of the video before the crop, pixels; None: `size`

    @property
    def places(self) -> dict[str, slice]:
        """For each transformation its positions among the versions of a clip: corruptions first, then moves."""
        found, first = {}, 0
        for name in sorted(self.names, key=lambda name: name in MOVES):
            found[name] = slice(first, first + len(TRANSFORMATIONS[name].amounts))
            first = found[name].stop
        return found

    @property
    def versions(self) -> int:
        """Number of versions of each clip, over all transformations."""
        return sum(len(TRANSFORMATIONS[name].amounts) for name in self.names)

    def dataset(
        self, videos: VideoList, reading: DecodeSettings, boxes: Mapping[str, Boxes] | None = None, skip: bool = False
    ) -> ClipDataset:
        """Build the dataset whose samples hold, clip by clip, the clip and its versions."""
        corruptions = [CORRUPTIONS[name] for name in self.names if name in CORRUPTIONS]
        moves = [MOVES[name] for name in self.names if name in MOVES]
        moved = sum(len(move.amounts) for move in moves)
        corrupted, plain = (_CorruptedSquare(self.size, self.short_side, kinds) for kinds in (corruptions, ()))
        if boxes is not None:
            settings = {name: getattr(reading, name) for name in DecodeSettings.model_fields}
            reading = CoveringSettings(**settings, boxes=boxes)
        return ClipDataset(
            videos,
            _MovedClips(self.clip, self.clips, moves),
            [corrupted, *[plain] * moved] * self.clips,
            reading=reading,
            skip=skip,
        )


@dataclass(frozen=True)
class _CorruptedSquare(Recipe):
    """A recipe: the central square of a clip, then all its corruptions."""

    size: int
    short_side: int | None
    corruptions: Sequence[Corruption]
    difference: float = 0.0

    def __call__(self, frames: Frames, generator: np.random.Generator) -> list[View]:
        view = center_crop(frames, self.size, self.short_side)
        versions = [version for kind in self.corruptions for version in kind.versions(view.frames)]
        return [view, *(View(version, view.window) for version in versions)]


class _MovedClips:
    """A sampler: uniform clips, each followed by its moved versions."""

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
    changed: NDArray[np.bool_]  # (N, V): whether a version differs from its sample in any pixel
    index: NDArray[np.int64]  # (N,): row of the list
    missing: tuple[tuple[str, str], ...]  # (path, reason) of each video that cannot be read


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
    """Encode each clip of a list and each of its versions once, distributed over all processes.

    `backbone` is on the device in eval mode; `mean` and `std` are those of pixels in [0, 1]; `boxes`, by the paths of
    records, are needed by the transformation `instance`; `half` runs the backbone in bfloat16; `skip` leaves out
    videos that cannot be read, which are else an error.

    Returns:
        The features, equal on all processes.

    Raises:
        DataError: A video cannot be used, or none can.
        PeerError: That happened on another process.
    """
    dataset = trajectories.dataset(videos, reading, boxes, skip)
    batch = max(1, batch_size // trajectories.clips)  # videos: all clips of a video are in one sample
    loader = eval_loader(dataset, batch, workers, distributed.rank(), distributed.world(), timeout, prefetch)

    def encode(raw: Batch, view: int) -> NDArray[np.float32]:
        one = to_device(replace(raw, views=(raw.views[view],)), device, mean, std)  # only one view is float
        with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=half):
            encoded: torch.Tensor = backbone(one.views[0])
        return encoded.float().cpu().numpy()

    parts = distributed.gather_outcomes(lambda: _collect(loader, trajectories, backbone.dim, encode, title))
    missing = sorted(pair for part in parts for pair in part.missing)
    if len(missing) == len(videos.records):
        raise DataError(f"none of the {len(missing)} videos of {videos.path} can be read; the first: {missing[0][1]}")
    order = np.argsort(np.concatenate([part.index for part in parts]), kind="stable")
    return TrajectoryFeatures(
        np.concatenate([part.x for part in parts])[order],
        np.concatenate([part.versions for part in parts])[order],
        np.concatenate([part.changed for part in parts])[order],
        np.concatenate([part.index for part in parts])[order],
        tuple(missing),
    )


def _collect(
    loader: Loader,
    trajectories: Trajectories,
    dim: int,
    encode: Callable[[Batch, int], NDArray[np.float32]],
    title: str,
) -> TrajectoryFeatures:
    """Encode the batches of this process."""
    views = 1 + trajectories.versions
    x = [np.empty((0, views, dim), np.float32)]  # a process may have no video at all
    changed = [np.empty((0, views - 1), bool)]
    index = [np.empty(0, np.int64)]
    missing: list[tuple[str, str]] = []
    bar = progress(title=title, unit="batch", total=len(loader), disable=not distributed.is_main(), leave=False)
    with closing(iter(loader)) as batches, bar:
        for raw in batches:
            bar.update()
            missing += raw.replaced
            if not len(raw.index):
                continue
            encoded = np.stack([encode(raw, n) for n in range(len(raw.views))], axis=1)
            x.append(encoded.reshape(-1, views, dim))
            changed.append(_changed(raw, trajectories.clips, views))
            index.append(np.repeat(raw.index.numpy(), trajectories.clips))
    found = np.concatenate(x)
    return TrajectoryFeatures(found[:, 0], found[:, 1:], np.concatenate(changed), np.concatenate(index), tuple(missing))


def _changed(raw: Batch, clips: int, views: int) -> NDArray[np.bool_]:
    """Return (B * clips, views - 1): whether a version differs from its clip in any pixel."""
    found = [
        (raw.views[clip * views + n] != raw.views[clip * views]).flatten(1).any(dim=1).numpy()
        for clip in range(clips)
        for n in range(1, views)
    ]
    return np.stack(found, axis=1).reshape(-1, views - 1)
