"""Windows of long videos: a list is cut into spans of equal length, from the metadata of its files."""

import logging
import math
from dataclasses import dataclass, replace

from vidssl.base.errors import ConfigError, DataError, how_many, naming
from vidssl.base.types import VideoMeta, VideoRecord
from vidssl.base.worker_pool import Pool, ordered
from vidssl.data.dataset import of_records, resolve_span
from vidssl.data.video_list import Records, VideoList
from vidssl.video.reader import DecodeSettings

_log = logging.getLogger(__name__)
_ROUNDING = 1e-6  # of products of seconds and rates


@dataclass(frozen=True)
class TimeWindows:
    """How videos are cut into windows."""

    window: float  # seconds
    stride: float  # seconds from the start of a window to the start of the next

    def __post_init__(self) -> None:
        for name, value in (("window", self.window), ("stride", self.stride)):
            if not 0 < value < float("inf"):
                raise ConfigError(f"{name} {value:g} s is not above 0")

    def frames(self, meta: VideoMeta) -> list[tuple[int, int]]:
        """Return the windows of a video, or of a span with this metadata: first frame, and the one after the last.

        All windows have the same number of frames: `window` seconds rounded to frames, at least one, and at least the
        stride if it is not longer than the window, so that no frame lies between two windows. Window n starts at
        n * stride seconds, rounded to frames. Windows that would extend beyond the end are left out. If this leaves
        more frames at the end than there are between two windows, a last window is added that ends with the video. A
        video that is not longer than a window is one window.

        Where the frame rate varies, a window has the frames of its seconds, `seconds`.

        Raises:
            DataError: The stride is shorter than a frame.
        """
        if meta.times is not None:
            return [meta.frames_between(start, end) for start, end in self.seconds(meta)]
        length, total = max(1, round(self.window * meta.fps)), meta.num_frames
        step = self.stride * meta.fps
        if self.stride <= self.window:
            length = max(length, math.ceil(step - _ROUNDING))
        if total <= length:
            return [(0, total)]
        self._check_stride(meta)
        numbers = range(int((total - length + 1) / step) + 1)
        starts = [first for n in numbers if (first := round(n * step)) + length <= total]
        if total - (starts[-1] + length) > max(0, round(step) - length):
            starts.append(total - length)
        return [(first, first + length) for first in starts]

    def seconds(self, meta: VideoMeta) -> list[tuple[float, float]]:
        """Return start and end of the windows of a video, in seconds.

        Where the frame rate is regular they are those of `frames`. Else window n starts at n * stride, and the last one
        ends with the video, as there.
        """
        if meta.times is None:
            return [(meta.time_of(first), meta.time_of(stop)) for first, stop in self.frames(meta)]
        total, half = meta.duration, 0.5 / meta.fps
        if total <= self.window + half:
            return [(0.0, total)]
        self._check_stride(meta)
        starts = [n * self.stride for n in range(int((total - self.window + half) / self.stride) + 1)]
        if total - (starts[-1] + self.window) > max(0.0, self.stride - self.window) + _ROUNDING:
            starts.append(total - self.window)
        return [(start, min(start + self.window, total)) for start in starts]

    def _check_stride(self, meta: VideoMeta) -> None:
        """Raise a DataError if the stride is shorter than a frame."""
        if self.stride * meta.fps < 1:
            raise DataError(f"a stride of {self.stride:g} s is less than a frame of {1 / meta.fps:.3g} s: lengthen it")


def cut_into_windows(
    videos: VideoList,
    windows: TimeWindows,
    reading: DecodeSettings,
    *,
    workers: int = 0,
    timeout: float | None = None,
    keep_missing: bool = False,
    pool: Pool = ordered,
) -> VideoList:
    """Make the list of the windows of each row, in order; all columns but `start` and `end` are repeated.

    Windows lie within the span of their row, and start with it. Start and end are rounded to microseconds, which is
    exact in frames. Of files only the packets are read; nothing is decoded, except of the few files whose packets do
    not give the number of frames. `pool` runs the workers.

    Raises:
        DataError: A file cannot be opened, or a span lies outside of it: with `keep_missing` its row is kept as it is,
            for the command that decodes it to report. Or the stride is shorter than a frame.
    """

    def read(record: VideoRecord) -> VideoMeta:
        with reading.open(record) as video:
            return video.meta

    keys = [(record.path, record.fps) for record in videos.records]
    first_rows = {key: n for n, key in reversed([*enumerate(keys)])}
    files = videos.rows(first_rows.values()).records
    metas = dict(zip(first_rows, of_records(files, read, "windows", workers, timeout, "file", pool), strict=True))
    records = Records(videos.root)
    for n, key in enumerate(keys):
        row, root = videos.records.row(n), videos.records.root_of(n)
        record, meta = videos.records[n], metas[key]
        try:
            if isinstance(meta, str):
                raise DataError(meta)
            offset, part = resolve_span(meta, record)
        except DataError:
            if not keep_missing:
                raise
            records.append(row, root)
            continue
        with naming(record.path):
            spans = _spans(meta, offset, part, windows)
        for start, end in spans:
            records.append(replace(row, start=start, end=end), root)
    _log.info("%s of %s", how_many(len(records), "window"), how_many(len(first_rows), "video"))
    return replace(videos, records=records, joined=(), unit="window")


def _spans(meta: VideoMeta, offset: int, part: VideoMeta, windows: TimeWindows) -> list[tuple[float, float]]:
    """Return start and end of the windows of the part of a video that begins at frame `offset`, in seconds."""
    if meta.times is not None:
        begin = meta.time_of(offset)
        return [(round(begin + start, 6), round(begin + end, 6)) for start, end in windows.seconds(part)]
    return [(round(meta.time_of(offset + a), 6), round(meta.time_of(offset + b), 6)) for a, b in windows.frames(part)]


def parse_windows(window: float | None, stride: float | None) -> TimeWindows | None:
    """Make windows from `window` and `stride`, which is the window by default; None without `window`."""
    if window is None:
        if stride is not None:
            raise ConfigError(f"a stride of {stride:g} s needs a window: it is the distance of the starts of windows")
        return None
    return TimeWindows(window, window if stride is None else stride)
