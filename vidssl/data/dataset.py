"""The dataset: (epoch, index) to a sample. Ask the sampler for frames, decode them once, apply the recipes."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, NamedTuple, TypeVar

import cv2
import numpy as np
from numpy.typing import NDArray

from vidssl.base.errors import ConfigError, DataError, first_few, naming
from vidssl.base.keyed_generators import generator
from vidssl.base.progress import progress
from vidssl.base.types import Frames, Operation, Sample, Tracks, VideoMeta, VideoRecord
from vidssl.base.worker_pool import ItemGuard, Pool, ordered
from vidssl.data.clip_samplers import COPY, Clip, Sampler
from vidssl.data.track_files import read_tracks, sample_track, tracks_file
from vidssl.data.video_list import VideoList
from vidssl.transforms import Recipe, View, Window
from vidssl.transforms.color import difference_pairs, rgb_difference
from vidssl.transforms.gamma_and_shuffles import Distortion
from vidssl.transforms.recipes import DrawnRecipe
from vidssl.video.reader import DecodeSettings

_Made = TypeVar("_Made")
_MAX_REPLACED = 1000  # consecutive broken videos


# What those who make a dataset say of a broken video.
SKIPPING = "skip such videos with allow_missing=True, or find all of them with vidssl check"  # of all that evaluates
REPLACING = "raise data.max_broken"  # of a run


def most_broken(count: int, fraction: float) -> int:
    """Return how many of `count` videos may be broken: the fraction, but at least one; none if the fraction is 0."""
    return max(1, int(fraction * count)) if fraction else 0


@dataclass(frozen=True)
class ClipDataset:
    """Clips of the videos of a list, a map-style data set of PyTorch: `dataset[epoch, index]` is a `Sample`.

    Args:
        videos: The list, as in `read_input`.
        sampler: Chooses the frames of each clip, of `SAMPLERS`.
        recipes: Make views of clips, of `RECIPES`: one for each clip, or one for all.
        seed: Every random choice of a sample is a function of (seed, epoch, index, view).
        replace: Consecutive broken videos that may be replaced by the next one of the list; 0: a broken video is an
            error. `replaced` of the sample names them.
        reading: How files are decoded.
        skip: A broken video is a sample without views instead of an error; `replaced` names it.
        tracks: Folder of tracks, for samplers that need them and for the boxes of samples. A missing file is an error
            whatever `replace` is: a run must not leave out thousands of videos.
        on_device: Leave the operations that recipes draw to the device: `Sample.operations`, and have no distortion.
        remedy: What the error of a broken video advises.
    """

    videos: VideoList
    sampler: Sampler
    recipes: Sequence[Recipe]
    seed: int = 0
    replace: int = 0
    reading: DecodeSettings = DecodeSettings()  # noqa: RUF009 - frozen
    skip: bool = False
    tracks: Path | None = None
    on_device: bool = False
    remedy: str = "skip them with skip=True, or take the next one with replace=1"
    # Reads a file of the list's `mask` column: (path, height, width) -> (H, W) uint8. Set by a plug-in; without one,
    # masks are not read.
    read_mask: ClassVar[Callable[[str, int, int], NDArray[np.uint8]] | None] = None

    def __post_init__(self) -> None:
        if self.on_device and any(recipe.distortion != Distortion() for recipe in self.recipes):
            raise ConfigError("a distortion is applied after the operations, and on_device leaves these out: not both")

    def __len__(self) -> int:
        return len(self.videos)

    def __getitem__(self, key: tuple[int, int]) -> Sample:
        """Make a sample as `sample` does."""
        if not isinstance(key, tuple):
            raise TypeError(f"views depend on the epoch: use dataset[epoch, {key!r}], not dataset[{key!r}]")
        return self.sample(key, ItemGuard())

    def sample(self, key: tuple[int, int], guard: ItemGuard) -> Sample:
        """Make the sample of (epoch, index); records that made a worker hang or crash count as broken."""
        epoch, index = key
        broken: list[tuple[str, str]] = []
        for step in range(min(self.replace + 1, len(self), _MAX_REPLACED)):
            at = (index + step) % len(self)  # not a random one: the replacement is reproducible
            path = self.videos.records[at].path
            try:
                if at in guard.failed:
                    raise DataError(f"{path}: {guard.failed[at]}")
                guard.at(at)
                return self._sample(epoch, at, tuple(broken))
            except DataError as error:
                broken.append((path, str(error)))
        if self.skip:
            return Sample((), self.videos.records[index].label, index, tuple(broken))
        if len(broken) == 1:
            raise DataError(f"{broken[0][1]}; {self.remedy}")
        # What is to be done follows the first semicolon: once for all videos.
        parts = [reason.partition("; ") for _, reason in broken]
        said = [first_few((what for what, _, _ in parts), separator="; ")]
        said += [*dict.fromkeys(remedy for _, _, remedy in parts if remedy)][:2]
        reasons = f"{len(broken)} consecutive videos are broken: {'; '.join(said)}"
        remedy = f"correct the list (vidssl check) or {self.remedy} (at most {_MAX_REPLACED} are tried)"
        raise DataError(f"{reasons}; {remedy}")

    def _sample(self, epoch: int, index: int, broken: tuple[tuple[str, str], ...]) -> Sample:
        with self.reading.open(self.videos.records[index]) as video:
            planned = self.plan((epoch, index), video.meta)
            views = planned.views.make(video.frames(planned.frames), self.on_device)
        return self.assemble(planned, views, broken)

    def plan(self, key: tuple[int, int], meta: VideoMeta) -> "PlannedSample":
        """Choose the frames of the sample of (epoch, index) from the metadata of its file; nothing is decoded."""
        epoch, index = key
        record = self.videos.records[index]
        offset, part = resolve_span(meta, record)
        if self.tracks is not None:
            part = dataclasses.replace(part, tracks=self._read_tracks(self.tracks, index))
        generators = [generator(self.seed, epoch, index, view) for view in range(len(self.recipes))]
        views = plan_views(record.path, part, self.sampler, self.recipes, generators)
        return PlannedSample(epoch, index, offset, part, views)

    def assemble(self, planned: "PlannedSample", views: "Views", broken: tuple[tuple[str, str], ...] = ()) -> Sample:
        """Make a sample of the views that its plan made: add the label, the boxes of a track and the mask."""
        epoch, index, meta = planned.epoch, planned.index, planned.meta
        record = self.videos.records[index]
        boxes = mask = None
        sizes = [view.frames.shape[-1] for view in views.views]
        if meta.tracks is not None:
            _check_tracks(meta.tracks, meta.num_frames, views, record.path)
            windows = [self._window(views.views, number, "tracks") for number in range(len(views.views))]
            last = generator(self.seed, epoch, index, len(self.recipes))  # independent of the views'
            middle_frames = [planned.views.clips[number].middle_frame for number in views.clip_of]
            boxes = sample_track(meta.tracks, middle_frames, windows, sizes, last)
        if record.mask is not None and ClipDataset.read_mask is not None:
            whole = ClipDataset.read_mask(record.mask, views.height, views.width)
            mask = self._window(views.views, 0, "masks").cut(whole, sizes[0])
        frames = tuple(view.frames for view in views.views)
        return Sample(frames, record.label, index, broken, boxes, mask, views.operations)

    def _read_tracks(self, folder: Path, index: int) -> Tracks:
        path = tracks_file(folder, self.videos.names[index], self.videos.records[index])
        try:
            return read_tracks(path)[0]
        except DataError as error:  # not a broken video, which would be replaced
            raise ConfigError(f"{error}, or remove the video from the list") from None

    def _window(self, views: Sequence[View], number: int, what: str) -> Window:
        window = views[number].window
        if window is None:
            recipe = type(self.recipes[min(number, len(self.recipes) - 1)]).__name__
            raise ConfigError(
                f"{what} cannot follow into view {number}, which its recipe {recipe} rotates, shears or shuffles: set "
                f"geometry: false or operations: 0, and no shuffle there, or train without {what}"
            )
        return window


def _check_tracks(tracks: Tracks, num_frames: int, views: "Views", path: str) -> None:
    """Raise ConfigError if tracks have frames or boxes beyond those of the video."""
    last = tracks.frames.max(initial=0)
    width, height = tracks.boxes[:, 2:].max(axis=0, initial=0)
    if last >= num_frames or width > views.width + 1 or height > views.height + 1:
        tracked = f"the tracks of {path} extend to frame {last} and {width:.0f}x{height:.0f}"
        video = f"the video has {num_frames} frames of {views.width}x{views.height}"
        raise ConfigError(f"{tracked}, {video}: make them again with vidssl track")


@dataclass(frozen=True)
class PlannedSample:
    """A sample whose frames are chosen and not decoded yet."""

    epoch: int
    index: int
    offset: int  # first frame of the record's span in the file
    meta: VideoMeta  # of the span
    views: "PlannedViews"

    @property
    def frames(self) -> NDArray[np.int64]:
        """The frames of the file that are needed, ascending, each once."""
        return self.offset + self.views.frames


class Views(NamedTuple):
    """The views of a sample, and the numbers that place boxes and masks in them."""

    views: tuple[View, ...]
    clip_of: tuple[int, ...]  # for each view the number of its clip: a recipe may make several views
    height: int  # of the frames before cropping, pixels
    width: int
    operations: tuple[tuple[Operation, ...], ...] = ()  # left to the device, of each view; none: the views are finished


@dataclass(frozen=True)
class PlannedViews:
    """The views of a sample whose frames are chosen and not decoded yet; `make` works once, as its generators go on.

    Frames are counted from the span's first.
    """

    path: str  # for messages
    clips: list[Clip]
    draws: list[tuple[Recipe, np.random.Generator]]  # of each clip; the generators have drawn what the plan needed
    clip_frames: list[tuple[NDArray[np.int64], ...]]  # of each clip: its own, or both operands of an RGB difference
    frames: NDArray[np.int64]  # all of them, ascending, each once

    def make(self, decoded: Frames, on_device: bool = False) -> Views:
        """Make the views from the decoded `frames`.

        With `on_device` the operations that the recipes draw are returned instead of applied.
        """
        cv2.setNumThreads(0)  # workers share the cores already; OpenCV's own pool would compete with them
        views: list[View] = []
        operations: list[tuple[Operation, ...]] = []
        clip_of: list[int] = []
        for number, (operands, (recipe, rng)) in enumerate(zip(self.clip_frames, self.draws, strict=True)):
            clips = [decoded[np.searchsorted(self.frames, indices)] for indices in operands]
            frames = clips[0] if len(clips) == 1 else rgb_difference(*clips)
            with naming(self.path):
                if on_device and isinstance(recipe, DrawnRecipe) and recipe.leaves_operations():
                    view, deferred = recipe.draw(frames, rng)
                    clip_views = [view]
                else:
                    clip_views, deferred = recipe.views(frames, rng), []
            views += clip_views
            operations += [tuple(deferred)] * len(clip_views)
            clip_of += [number] * len(clip_views)
        height, width = decoded.shape[2:]
        return Views(tuple(views), tuple(clip_of), height, width, tuple(operations) if on_device else ())


def plan_views(
    path: str, meta: VideoMeta, sampler: Sampler, recipes: Sequence[Recipe], generators: Sequence[np.random.Generator]
) -> PlannedViews:
    """Choose the frames of all views of a sample, in the order of the clips; `path` is for messages.

    `meta` describes the span of the video, as `resolve_span` returns it; samplers may need tracks in it. There is one
    recipe for each clip or one for all, and one generator for each recipe.
    """
    with naming(path):
        clips = sampler(meta, generators)
    _check_clips(clips, type(sampler).__name__, meta.num_frames)
    draws = list(zip(recipes, generators, strict=True))
    if len(recipes) == 1:
        draws *= len(clips)
    if len(draws) != len(clips):
        raise ConfigError(f"{len(clips)} clips and {len(recipes)} recipes: use one recipe, or one for each clip")
    clip_frames: list[tuple[NDArray[np.int64], ...]] = []
    for clip, (recipe, rng) in zip(clips, draws, strict=True):
        # Decide on RGB difference before decoding: it changes which frames are needed.
        difference = rng.random() < recipe.difference
        clip_frames.append(difference_pairs(clip.indices, clip.first, clip.last) if difference else (clip.indices,))
    frames = np.unique(np.concatenate([indices for parts in clip_frames for indices in parts]))
    return PlannedViews(path, clips, draws, clip_frames, frames)


def _check_clips(clips: object, sampler: str, num_frames: int) -> None:
    """Raise a ConfigError if a sampler, as of a plug-in, made something else than clips of the video."""
    if not isinstance(clips, list) or not all(isinstance(clip, Clip) for clip in clips):
        raise ConfigError(f"sampler {sampler} returns {clips!s:.60}, not a list of Clip: make them with config.clip")
    for clip in clips:
        if not isinstance(clip.indices, np.ndarray) or clip.indices.dtype.kind not in "iu" or not clip.indices.size:
            raise ConfigError(f"sampler {sampler} returns frames {clip.indices!s:.60}, not an array of whole numbers")
        if (clip.indices % COPY >= num_frames).any():  # a negative one is large too
            raise ConfigError(f"sampler {sampler} returns frames {clip.indices} of a video of {num_frames}, from 0 on")


def resolve_span(meta: VideoMeta, record: VideoRecord) -> tuple[int, VideoMeta]:
    """Return the first frame of a record's span, and the metadata of the span as if it were a video of its own.

    The frames are those of `VideoMeta.frames_between`. A span is clipped to the end of the file, since annotations are
    often whole seconds, slightly longer than the file.

    Raises:
        DataError: Less than half of the span lies in the file: wrong units, times of another file, or a truncated file.
    """
    start, end = record.start or 0.0, meta.duration if record.end is None else record.end
    inside = min(end, meta.duration) - start
    if inside <= 0 or 2 * inside < end - start:
        outside = f"{record.span}, lies outside the file, which is {meta.duration:.2f} s long"
        remedy = "start and end are seconds; correct the list, or remove such rows with vidssl check"
        raise DataError(f"{record.path}: most of the row's span, {outside}: {remedy}")
    first, stop = meta.frames_between(start, end)
    return first, meta.part(first, stop)


def of_records(
    records: Sequence[VideoRecord],
    decode: Callable[[VideoRecord], _Made],
    title: str,
    workers: int = 0,
    timeout: float | None = None,
    unit: str = "video",
    pool: Pool = ordered,
) -> Iterator[_Made | str]:
    """Read something of each video, with a bar of this title; a text is why it cannot be read. `pool` runs workers."""
    work = partial(_of_record, records, decode)
    results = pool(work, range(len(records)), workers, timeout=timeout, on_failure=lambda n, reason: None)
    yield from progress(results, title=title, unit=unit, total=len(records), leave=False)


def _of_record(
    records: Sequence[VideoRecord], decode: Callable[[VideoRecord], _Made], n: int, guard: ItemGuard
) -> _Made | str:
    if n in guard.failed:
        return f"{records[n].path}: {guard.failed[n]}"
    guard.at(n)
    try:
        return decode(records[n])
    except DataError as error:
        return str(error)
