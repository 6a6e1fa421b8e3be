"""What is searched for: a list of queries, one video or a span of it, or several examples of one thing."""

import hashlib
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from vidssl.base.errors import ConfigError, DataError, DecodeError
from vidssl.base.types import VideoRecord
from vidssl.data.video_list import Records, VideoList
from vidssl.jobs.job import NetworkOptions, Videos, read_videos, reading
from vidssl.page.previews import middle_frames
from vidssl.video.reader import state_of_video

_SPAN = re.compile(r"(.+)@([0-9.]+)-([0-9.]+)", re.DOTALL)


@dataclass(frozen=True)
class Queries:
    """What is searched for."""

    videos: VideoList  # queries of their own, or the examples of one query
    one: bool  # whether they are one query, whose neighbours are the result
    words: tuple[str, ...]  # as they are named: `FILE`, `FILE@START-END`

    @property
    def text(self) -> str:
        """Name them in a line."""
        return self.words[0] if len(self.words) == 1 else f"{len(self.words)} examples ({', '.join(self.words)})"

    def page(self, folder: Path) -> str:
        """Name the files of their results in a folder, once another query has followed.

        It is the same for the same query, also if folder and videos have been moved together.
        """
        root = os.path.realpath(folder)
        parts = ((os.path.relpath(os.path.realpath(path), root), *span) for path, *span in map(split_span, self.words))
        identity = "\n".join(map(str, parts))
        more = f" and {len(self.words) - 1} more" if len(self.words) > 1 else ""
        stem = re.sub(r"[^\w.@ -]", "_", Path(self.words[0]).name)[:40] + more
        return f"{stem}-{hashlib.sha256(os.fsencode(identity)).hexdigest()[:8]}"

    def mean(self, x: Tensor) -> Tensor:
        """Return the feature (1, D) of one query from those of its examples: the mean of their unit vectors."""
        return x if len(x) == 1 else torch.nn.functional.normalize(x, dim=1).mean(dim=0, keepdim=True)


def is_list(videos: Videos) -> bool:
    """Whether videos are a list (CSV), or one that was read."""
    return isinstance(videos, VideoList) or (isinstance(videos, str | Path) and Path(videos).suffix.lower() == ".csv")


def read_listed(videos: Videos, options: NetworkOptions) -> VideoList:
    """Read the gallery or a list of queries, without `labels`; the root of the options is that of lists."""
    root = options.get("root") if is_list(videos) else None
    return read_videos(videos, reading(root, options.get("allow_external", False)))


def split_span(word: str | Path) -> tuple[str, float | None, float | None]:
    """Split `FILE@START-END`, in seconds; a file of that name is a whole video."""
    match = _SPAN.fullmatch(str(word))
    if match is None or state_of_video(str(word)) is not None:
        return str(word), None, None
    try:
        record = VideoRecord(match[1], start=float(match[2]), end=float(match[3]))
    except ValueError as error:
        raise DataError(f"{word}: {error}: a span is FILE@START-END, in seconds") from None
    return record.path, record.start, record.end


def read_queries(query: Videos, options: NetworkOptions) -> Queries:
    """Read what is searched for; a single video is decoded.

    Raises:
        DataError: It cannot be read, or a span is not of one file.
        ConfigError: A list is among several files.
    """
    if isinstance(query, VideoList) or is_list(query):
        listed = read_listed(query, options)
        return Queries(listed, len(listed) == 1, (str(listed.path),))
    words = [str(word) for word in ([query] if isinstance(query, str | Path) else query)]
    if several := [word for word in words if len(words) > 1 and is_list(word)]:
        raise ConfigError(f"{several[0]} is a list, and several queries are examples of one thing: name it alone")
    parts = [split_span(word) for word in words]
    videos = read_listed(parts[0][0] if len(parts) == 1 else [file for file, _, _ in parts], options)
    if any(end is not None for _, _, end in parts):
        if len(videos) != len(parts):
            raise DataError(f"{words[0]}: a span is of one file, and {parts[0][0]} has {len(videos)} videos")
        rows = [replace(videos.records.row(n), start=start, end=end) for n, (_, start, end) in enumerate(parts)]
        videos = replace(videos, records=Records(videos.root, rows))
    if len(videos) == 1:
        try:
            middle_frames(videos.records[0])
        except DecodeError as error:
            raise DataError(f"{error}; if it is a list, its name must end in .csv") from None
    return Queries(videos, len(words) > 1 or len(videos) == 1, tuple(words))


def files_of(query: Videos) -> list[Path]:
    """Return the files of a query, for the check that no output replaces one of them."""
    if isinstance(query, VideoList):
        return [query.path]
    return [Path(split_span(word)[0]) for word in ([query] if isinstance(query, str | Path) else query)]
