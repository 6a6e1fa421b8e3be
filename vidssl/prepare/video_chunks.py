"""Chunks: spans of consecutive frames, far apart, each listed as a video (Purushwalkam & Gupta, 2020)."""

from dataclasses import replace
from pathlib import Path
from typing import Literal

from vidssl.data.clip_samplers import chunk_starts
from vidssl.data.dataset import resolve_span
from vidssl.data.read_input import quoted
from vidssl.data.video_list import read_list
from vidssl.data.write_lists import place_of_copy, write_lists
from vidssl.errors import ConfigError, DataError
from vidssl.progress import progress
from vidssl.types import Count, Positive, VideoRecord
from vidssl.video.reader import open_video


def prepare_chunks(
    videos: Path,
    out: Path,
    *,
    chunks: Count = 4,
    frames: Count = 60,
    short: Literal["keep", "drop"] = "keep",
    root: Path | None = None,
    allow_external: bool = False,
    fps: Positive | None = None,
) -> str:
    """A list again, with spans of consecutive frames that are far apart.

    A chunk is a row with `start` and `end`; nothing is decoded or copied. A row with a span is cut into chunks of that
    span. Labels and masks are kept. Videos shorter than `frames` become one chunk, or none with `short="drop"`. The
    frame rate `fps`, for folders of images that have none in the list, is written to the new list.

    Args:
        videos: List of videos.
        out: Folder for what is written.
        chunks: Chunks of each video.
        frames: Frames of each chunk.
        short: Videos shorter than a chunk: one chunk each, or none.
        root: Folder of the videos, instead of the one in root.txt.
        allow_external: Accept paths that leave the root.
        fps: Frame rate for image folders without an fps column.
    """
    if chunks < 1 or frames < 1:
        raise ConfigError(f"{chunks} chunks of {frames} frames: both must be at least 1")
    listed = read_list(videos, root, allow_external)
    place_of_copy(listed, out, listed.root)
    rows: list[VideoRecord] = []
    too_short: list[str] = []
    fewer = 0
    for number, record in enumerate(progress(listed.records, title="chunks", unit="video", leave=False)):
        with open_video(record.path, fps=record.fps or fps) as video:
            whole, (first, part) = video.meta, resolve_span(video.meta, record)
        row = replace(listed.records.row(number), fps=whole.fps if Path(record.path).is_dir() else record.fps)
        if part.num_frames < frames:
            too_short.append(row.path)
            rows += [row] if short == "keep" else []
            continue
        starts = [first + start for start in chunk_starts(part.num_frames, chunks, frames)]
        fewer += len(starts) < chunks
        # Microseconds are short to write and still precise enough to select exactly these frames.
        rows += [
            replace(row, start=round(whole.time_of(start), 6), end=round(whole.time_of(start + frames), 6))
            for start in starts
        ]
    unique = dict.fromkeys(rows)  # keeps the order
    if not unique:
        raise DataError(f"no video of {videos} has {frames} frames: use shorter chunks, or keep short videos")
    write_lists(out, listed.root, {videos.stem: unique}, listed.classes, [videos])
    report = [f"{len(listed)} videos, {len(unique)} chunks"]
    if too_short:
        report.append(f"{len(too_short)} videos are shorter than a chunk: {quoted(too_short)}")
    if fewer:
        report.append(f"{fewer} videos have fewer chunks")
    return "\n".join(report)
