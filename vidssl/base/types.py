"""Types that pass between packages. Each checks its shapes and ranges when it is made."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from annotated_types import Ge, Gt
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import Self

from vidssl.base.errors import ConfigError, how_many

# Numbers that functions and commands take.
Count = Annotated[int, Ge(1)]
Natural = Annotated[int, Ge(0)]
Positive = Annotated[float, Gt(0)]
Frames = NDArray[np.uint8]  # (T, C, H, W) RGB 0-255, a channels-last view in memory


@dataclass(frozen=True)
class VideoRecord:
    """One row of a list: a video, its label, and optionally a span of it."""

    path: str  # not checked when the list is read
    label: int = -1  # -1: unknown
    start: float | None = None  # seconds; None: the start of the video
    end: float | None = None  # seconds; None: the end of the video
    fps: float | None = None  # frame rate of a folder of images
    mask: str | None = None  # path of a PNG with the part number of each pixel; 255: ignored
    label_set: str | None = None  # several labels, as in the column `labels`; None: the list has `label`, or none
    columns: Mapping[str, float] = field(default_factory=dict, hash=False)  # numbers that an app reads, by column
    group: str | None = None  # recording or person: its videos are not split, and do not predict each other

    def __post_init__(self) -> None:
        if self.label < -1:
            raise ValueError(f"label {self.label} < -1")
        if self.start is not None and self.end is not None and self.end <= self.start:
            raise ValueError(f"end {self.end} is not after start {self.start}")
        if self.fps is not None and not 0 < self.fps < inf:
            raise ValueError(f"fps {self.fps} is not above 0")

    @property
    def span(self) -> str:
        """The span in seconds, `4-5.2 s`, to hundredths; nothing for a whole video."""
        if self.start is self.end is None:
            return ""
        times = (f"{time:.2f}".rstrip("0").rstrip(".") for time in (self.start or 0, self.end) if time is not None)
        return f"{'-'.join(times)}{'-' * (self.end is None)} s"


@dataclass(frozen=True)
class Tracks:
    """Regions tracked through a video; a row is one region in one frame. Two rows of one track are a patch pair."""

    frames: NDArray[np.int64]  # (N,) frame numbers within the span of the record
    boxes: NDArray[np.float32]  # (N, 4) xyxy, pixels of the decoded frame, x2 and y2 exclusive
    scores: NDArray[np.float32]  # (N,) score of the track, in [0, 1]
    track: NDArray[np.int64]  # (N,)

    def __post_init__(self) -> None:
        frames, scores, tracks = len(self.frames), len(self.scores), len(self.track)
        if self.boxes.shape != (frames, 4) or not frames == scores == tracks:
            raise ValueError(f"{frames} frames, {self.boxes.shape} boxes, {scores} scores, {tracks} tracks")
        sides = self.boxes[:, 2:] - self.boxes[:, :2]
        if not (np.isfinite(sides).all() and (sides > 0).all() and (self.frames >= 0).all()):
            raise ValueError("a box has no area, or is not finite, or a frame number is negative")


@dataclass(frozen=True)
class VideoMeta:
    """Metadata of a video, read without decoding a pixel.

    Seconds are presentation times, counted from the first frame, which is at 0. `time_of`, `frame_at` and
    `frames_between` are the only conversions between seconds and frames. Frame i of a regular video begins at i / fps.
    Where the rate varies `times` has the seconds at which each frame begins.
    """

    num_frames: int
    fps: float  # frames per second; their average where the rate varies
    height: int  # pixels, as stored: before a rotation that the file asks for
    width: int
    tracks: Tracks | None = field(default=None, compare=False, repr=False)  # None: not loaded
    times: NDArray[np.float64] | None = field(default=None, compare=False, repr=False)  # (num_frames,); None: regular
    end: float | None = None  # seconds at which the last frame ends; default: it lasts as long as the one before it

    def __post_init__(self) -> None:
        if self.num_frames < 1 or self.fps <= 0 or self.height < 1 or self.width < 1:
            raise ValueError(f"not a video: {self.num_frames} frames, {self.fps} fps, {self.width}x{self.height}")
        if self.times is None and self.end is not None:
            raise ValueError("an end of the last frame without times of the frames")
        if self.times is not None:
            if self.end is None:
                steps = np.diff(self.times)
                object.__setattr__(self, "end", float(self.times[-1] + (steps[-1] if len(steps) else 1 / self.fps)))
            edges = self._edges
            if edges.shape != (self.num_frames + 1,) or edges[0] != 0 or not bool((edges[1:] > edges[:-1]).all()):
                raise ValueError(f"{self.num_frames} frames need as many ascending times from 0, and a later end")

    @cached_property
    def _edges(self) -> NDArray[np.float64]:
        """(num_frames + 1,) the times at which frames begin, and the end of the last one."""
        assert self.times is not None and self.end is not None
        return np.append(self.times, self.end)

    @property
    def duration(self) -> float:
        """Length in seconds: the end of the last frame."""
        return self.num_frames / self.fps if self.end is None else self.end

    def time_of(self, frame: int) -> float:
        """Return the second at which a frame begins; that of `num_frames` is the end of the video."""
        return frame / self.fps if self.times is None else float(self._edges[frame])

    def frame_at(self, seconds: float) -> int:
        """Return the frame that is shown at a time, or the next one if it begins within half a frame.

        Half a frame is half of the duration of the frame that is shown, or of the average one if that is shorter: a
        frame that stands for seconds begins where it begins. Times outside of the video are those of its ends.
        """
        return int(self.frames_at(np.array([seconds]))[0])

    def frames_at(self, seconds: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return `frame_at` of each time."""
        if self.times is None:
            numbers = np.round(seconds * self.fps).astype(np.int64)
            return np.asarray(np.clip(numbers, 0, self.num_frames - 1), np.int64)
        shown, since, half = self._shown_at(seconds)
        remaining = self._edges[shown + 1] - self._edges[shown] - since
        return np.asarray(np.minimum(shown + (remaining <= half), self.num_frames - 1), np.int64)

    def frames_between(self, start: float, end: float) -> tuple[int, int]:
        """Return the first frame of a span of seconds, and the one after its last: at least one frame.

        A frame belongs to a span that shows half of it, where the rate varies also to one that shows it for half a
        frame of the average rate: spans that follow one another leave no frame out.
        """
        first = self.frame_at(start)
        if self.times is None:
            stop = min(round(end * self.fps), self.num_frames)
        else:
            stop = int(self.stops_at(np.array([end]))[0])
        return first, max(stop, first + 1)

    def stops_at(self, ends: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return for spans that end at some times the frame after their last, where the rate varies."""
        shown, since, half = self._shown_at(ends)
        return shown + (since + _MICROSECOND >= half)  # lists have times in microseconds

    def shown_at(self, seconds: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the frame that is shown at each time, without rounding, where the rate varies."""
        return np.clip(np.searchsorted(self._edges, seconds, side="right") - 1, 0, self.num_frames - 1)

    def _shown_at(self, seconds: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[Any], NDArray[Any]]:
        """The frames that are shown at some times, for how long they were shown then, and half a frame, in seconds."""
        edges, shown = self._edges, self.shown_at(seconds)
        return shown, seconds - edges[shown], np.minimum((edges[shown + 1] - edges[shown]) / 2, 0.5 / self.fps)

    def part(self, first: int, stop: int) -> "VideoMeta":
        """Return the metadata of the frames `first` … `stop` - 1 as of a video of their own, without tracks."""
        times = end = None
        if self.times is not None:
            times, end = self.times[first:stop] - self.times[first], self.time_of(stop) - self.time_of(first)
        return VideoMeta(stop - first, self.fps, self.height, self.width, None, times, end)


_MICROSECOND = 1e-6


class Operation(NamedTuple):
    """An operation of a recipe, with the values drawn for all frames of a clip."""

    name: str  # a key of `transforms.recipes.OPERATIONS`
    amount: float = 0.0  # factor, fraction, degrees …, as the operation takes it
    kernel: int = 0  # of the blur: its side in pixels


OperationGroups = tuple[tuple[str, int, int], ...]  # name, kernel and number of clips


class TensorFields:
    """The base of dataclasses of tensors, tuples of them and other values.

    They are pickled with arrays: workers send arrays without a copy, and tensors with one.
    """

    @classmethod
    def of_arrays(cls, *fields: Any) -> Self:
        """Make it of its fields, with arrays in place of tensors; the views of a batch are (B, T, S, S, C)."""
        return cls(*_replaced(fields, np.ndarray, _tensor_of))

    def __reduce__(self) -> tuple[Any, ...]:
        return self.of_arrays, _replaced(tuple(vars(self).values()), Tensor, _array_of)

    def map(self, function: Callable[[Tensor], Tensor]) -> Self:
        """Apply a function to all tensors."""
        return type(self)(*_replaced(tuple(vars(self).values()), Tensor, function))


def _replaced(value: Any, kind: type, function: Callable[[Any], Any]) -> Any:
    """Apply a function to each part of a value that is of a kind."""
    if isinstance(value, tuple):
        return tuple(_replaced(part, kind, function) for part in value)
    if isinstance(value, TensorFields):
        return type(value)(*_replaced(tuple(vars(value).values()), kind, function))
    return function(value) if isinstance(value, kind) else value


def _tensor_of(array: NDArray[Any]) -> Tensor:
    tensor = torch.from_numpy(array)
    return tensor.permute(0, 1, 4, 2, 3) if tensor.ndim == 5 else tensor


def _array_of(tensor: Tensor) -> NDArray[Any]:
    return (tensor.permute(0, 1, 3, 4, 2) if tensor.ndim == 5 else tensor).numpy()


@dataclass(frozen=True)
class DrawnOperations(TensorFields):
    """The operations that are still to be applied to a view of a batch, as `transforms.batched.grouped` orders them."""

    groups: OperationGroups  # each is one call, in this order
    clips: Tensor  # (M,) int64, the clips of all groups, one after the other
    amounts: Tensor  # (M,) float64, the amount for each

    def __post_init__(self) -> None:
        count = sum(clips for _, _, clips in self.groups)
        if not len(self.clips) == len(self.amounts) == count:
            raise ValueError(f"{len(self.clips)} clips and {len(self.amounts)} amounts for groups of {count}")


@dataclass(frozen=True)
class Sample:
    """The views of one video, made by a worker."""

    # Each (T, C, S, S) uint8, of some encoders of others (T, C, H, W); none if the video is broken and skipped.
    views: tuple[Frames, ...]
    label: int
    index: int  # of the record in its list
    replaced: tuple[tuple[str, str], ...] = ()  # (path, reason) of broken videos that this one replaces
    boxes: NDArray[np.float32] | None = None  # (views, 4) xyxy, pixels of each view: one region; None: no tracks
    mask: NDArray[np.uint8] | None = None  # (S, S) of the first view; None: the list has no masks
    operations: tuple[tuple[Operation, ...], ...] = ()  # still to be applied to each view; none: all views are finished

    def __post_init__(self) -> None:
        for view in self.views:
            if view.dtype != np.uint8 or view.ndim != 4 or view.shape[1] != 3:
                raise ValueError(f"a view is (T, 3, H, W) uint8, got {view.shape} {view.dtype}")
        if self.boxes is not None and self.boxes.shape != (len(self.views), 4):
            raise ValueError(f"{self.boxes.shape} boxes for {len(self.views)} views")
        if self.mask is not None and self.mask.shape != self.views[0].shape[2:]:
            raise ValueError(f"a mask {self.mask.shape} for a view {self.views[0].shape}")
        if len(self.operations) not in (0, len(self.views)):
            raise ValueError(f"operations of {len(self.operations)} views for {len(self.views)}")


@dataclass(frozen=True)
class Batch(TensorFields):
    """B samples: uint8 views (B, T, C, S, S) from the loader, normalised float (B, C, T, S, S) on the device."""

    views: tuple[Tensor, ...]  # none if all videos of the batch were skipped
    label: Tensor  # (B,) int64
    index: Tensor  # (B,) int64
    replaced: tuple[tuple[str, str], ...] = ()
    boxes: Tensor | None = None  # (B, views, 4) float32, xyxy, pixels of each view; None: no tracks
    mask: Tensor | None = None  # (B, S, S) of the first view: uint8 from the loader, int64 on the device
    operations: tuple[DrawnOperations, ...] = ()  # still to be applied to each view; none: all views are finished

    def __post_init__(self) -> None:
        size = len(self.label)
        for view in self.views:
            if view.ndim != 5 or len(view) != size or len(self.index) != size:
                raise ValueError(f"view {tuple(view.shape)} does not fit {size} labels, {len(self.index)} indices")
        if self.boxes is not None and self.boxes.shape != (size, len(self.views), 4):
            raise ValueError(f"{tuple(self.boxes.shape)} boxes for {size} samples of {len(self.views)} views")
        if self.mask is not None and self.mask.shape != (size, *self.views[0].shape[3:]):
            raise ValueError(f"masks {self.mask.shape} do not fit the first view {self.views[0].shape}")
        if len(self.operations) not in (0, len(self.views)):
            raise ValueError(f"operations of {len(self.operations)} views for {len(self.views)}")


def unread_files(missing: Iterable[tuple[str, str]]) -> str:
    """Write how many files, path and reason, could not be read: `, 2 files could not be read`; of none nothing."""
    return f", {how_many(len(unread), 'file')} could not be read" if (unread := dict(missing)) else ""


@dataclass(frozen=True)
class Features:
    """Features of each video that could be decoded, each exactly once, sorted by index."""

    x: Tensor  # (N, D) float32
    label: Tensor  # (N,) int64
    index: Tensor  # (N,) int64, of the record in its list
    missing: tuple[tuple[str, str], ...] = ()  # (path, reason) of the videos that could not be decoded
    targets: Tensor | None = None  # (N, classes) int8 of a list with several labels per row: 1, 0, -1 not counted
    cells: int = 1  # positions of the feature maps that `x` consists of: (N, C * cells), channels first
    reverse: Tensor | None = None  # (N, D) of the same clips with their frames in reversed order; None: not asked for
    classes: tuple[str, ...] = ()  # names of the list's classes
    columns: Mapping[str, Tensor] = field(default_factory=dict)  # (N,) float64 that an app reads, NaN: missing
    records: Sequence[VideoRecord] = ()  # (N,) file and span of each row, as in `vidssl.extract`; none: not known
    windows: bool = False  # the rows are windows of videos, one after another or overlapping
    path: Path | None = None  # the folder that they were read from
    made_by: Mapping[str, Any] = field(default_factory=dict)  # `describe_network`; empty: not known

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.x)

    def __repr__(self) -> str:
        return f"<Features: {self}>"

    def __str__(self) -> str:
        """Describe them in a line."""
        rows = how_many(len(self), "window" if self.windows else "video")
        files = f" of {how_many(len({*self.names}), 'file')}" if self.windows else ""  # a person counts files
        folder = "" if self.path is None else f" in {self.path}"
        return f"{rows} x {self.x.shape[1]} features{files}{folder}{unread_files(self.missing)}"

    def describe(self) -> dict[str, Any]:
        """Describe them as plain data."""
        missing = [{"path": path, "reason": reason} for path, reason in self.missing]
        about = {"count": len(self), "dim": self.x.shape[1], "missing": missing, "windows": self.windows}
        return {**about, "path": None if self.path is None else str(self.path)}

    @property
    def names(self) -> Sequence[str]:
        """(N,) path of each row as its list has it, or below its folder; none: not known."""
        names: Sequence[str] | None = getattr(self.records, "names", None)
        return [record.path for record in self.records] if names is None else names

    def class_name(self, row: int) -> str | None:
        """Name of the class of a row, its number if the list has no names; None: not known."""
        label = int(self.label[row])
        return None if label < 0 else self.classes[label] if self.classes else str(label)

    def rows(self) -> Iterator[tuple[str | None, str | None, float | None, float | None]]:
        """Yield path, class, start and end of each row; None: not known. Paths are as in `names`."""
        for n in range(len(self)):
            record = self.records[n] if self.records else VideoRecord("")
            yield self.names[n] if self.records else None, self.class_name(n), record.start, record.end

    def to_pandas(self) -> Any:
        """Return a table of pandas: `path`, `class`, `start`, `end`, `index`, `label`, and a column for each feature.

        Paths are those of the list, or below the folder: a table of theirs can be merged on `path`.

        Raises:
            ConfigError: pandas is not installed.
        """
        try:
            import pandas  # type: ignore[import-untyped]
        except ModuleNotFoundError:
            raise ConfigError("a table needs pandas, which is not installed: pip install pandas") from None

        about = pandas.DataFrame(self.rows(), columns=["path", "class", "start", "end"])
        about = about.astype({"start": float, "end": float}).assign(index=self.index.numpy(), label=self.label.numpy())
        x = pandas.DataFrame(self.x.numpy(), columns=[f"x{n}" for n in range(self.x.shape[1])])
        return pandas.concat([about, x], axis=1)

    def __post_init__(self) -> None:
        if len(self.records) not in (0, len(self.x)):
            raise ValueError(f"{len(self.x)} features, {len(self.records)} records")
        if self.reverse is not None and len(self.reverse) != len(self.x):
            raise ValueError(f"{len(self.x)} features, {len(self.reverse)} of reversed clips")
        if self.x.ndim != 2 or not len(self.x) == len(self.label) == len(self.index):
            raise ValueError(f"{tuple(self.x.shape)} features, {len(self.label)} labels, {len(self.index)} indices")
        if not bool(torch.all(self.index[1:] > self.index[:-1])):
            raise ValueError("indices must be strictly increasing: a video is duplicated, or the rows are not sorted")
