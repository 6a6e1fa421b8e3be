"""Chunks: parts of consecutive frames, far apart, each a video of its own (Purushwalkam & Gupta, 2020)."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vidssl.data.dataset import resolve_span
from vidssl.data.samplers import chunk_starts
from vidssl.data.video_list import Row, place_of_copy, read_list, write_lists
from vidssl.errors import ConfigError, DataError
from vidssl.progress import progress
from vidssl.video.reader import open_video


@dataclass(frozen=True)
class Chunked:
    """What was cut; `str()` is the report that the script prints."""

    videos: int  # rows of the list that was read
    chunks: int  # rows of the one that was written
    frames: int  # of a chunk
    short: tuple[str, ...]  # videos that are shorter than a chunk
    kept: bool  # whether these are a chunk each
    fewer: int  # videos with room for some chunks, but not for all
    twice: int  # chunks that another row had already given

    def __str__(self) -> str:
        lines = [f"{self.videos} videos, {self.chunks} chunks of {self.frames} frames"]
        if self.short:
            shown = ", ".join(map(repr, self.short[:3])) + (", ..." if len(self.short) > 3 else "")
            what = "are one chunk each" if self.kept else "are left out"
            lines.append(f"{len(self.short)} shorter than that {what}: {shown}")
        if self.fewer:
            lines.append(f"{self.fewer} have room for fewer chunks")
        if self.twice:
            lines.append(f"{self.twice} chunks dropped, which another row of the list had already given")
        return "\n".join(lines)


def prepare_chunks(
    videos: Path,
    out: Path,
    *,
    chunks: int = 4,
    frames: int = 60,
    short: Literal["keep", "drop"] = "keep",
    root: Path | None = None,
    allow_external: bool = False,
    fps: float | None = None,
) -> Chunked:
    """Write a list again with `chunks` rows for each, maximally spaced parts of `frames` consecutive frames.

    A chunk is a row with `start` and `end`; nothing is decoded or copied. Of a row that has a span already, chunks of
    that span are taken. Labels and masks stay.

    Args:
        videos: The list.
        out: Folder for the new one, which is called as the old one.
        chunks: Of each video.
        frames: Of each chunk.
        short: `keep` makes what there is of a shorter video one chunk, `drop` leaves it out.
        root: Folder of the videos, instead of the one in root.txt.
        allow_external: Accept paths that leave the root.
        fps: Of folders of images whose row does not say; written to their rows.

    Raises:
        ConfigError: No chunks, or none of a frame.
        DataError: The list or a video cannot be read, nothing is left, or it cannot be written there.
    """
    if chunks < 1 or frames < 1:
        raise ConfigError(f"{chunks} chunks of {frames} frames: both must be at least 1")
    listed = read_list(videos, root, allow_external)
    place_of_copy(listed, out, listed.root)
    rows: dict[Row, None] = {}  # in order, each once
    shorter: list[str] = []
    made = fewer = 0
    items = list(zip(listed.names, listed.records, strict=True))
    for name, record in progress(items, title="chunks", unit="video", leave=False):
        with open_video(record.path, fps=record.fps or fps) as video:
            whole, (first, part) = video.meta, resolve_span(video.meta, record)
        mask = None if record.mask is None else Path(os.path.relpath(record.mask, listed.root)).as_posix()
        rate = whole.fps if Path(record.path).is_dir() else record.fps
        row = Row(name, record.label, record.start, record.end, rate, mask)
        if part.num_frames < frames:
            shorter.append(name)
            found = [row] if short == "keep" else []
        else:
            starts = chunk_starts(part.num_frames, chunks, frames)
            fewer += len(starts) < chunks
            # Rounded to microseconds the numbers are short, and still mean just these frames.
            edges = [[round((first + edge) / whole.fps, 6) for edge in (n, n + frames)] for n in starts]
            found = [row._replace(start=start, end=end) for start, end in edges]
        made += len(found)
        rows.update(dict.fromkeys(found))
    if not rows:
        raise DataError(
            f"no video of {videos} has {frames} frames: take shorter chunks, or keep short videos"
        )
    write_lists(out, listed.root, {videos.stem: rows}, listed.classes)
    return Chunked(
        len(listed.records), len(rows), frames, tuple(shorter), short == "keep", fewer, made - len(rows)
    )
