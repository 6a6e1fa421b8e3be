"""Lists of SlowFast, pytorchvideo, mmaction2 and VideoMAE: lines of a path, which may hold separators, and numbers."""

import posixpath
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple

from typing_extensions import Unpack

from vidssl.apps.prepare.match import ListedVideo, MatchOptions, read_classes, write_matched_lists
from vidssl.base.errors import ConfigError, DataError
from vidssl.base.progress import progress
from vidssl.base.types import Count, Positive, VideoRecord
from vidssl.data.clip_samplers import chunk_starts
from vidssl.data.dataset import resolve_span
from vidssl.data.read_input import VIDEO_SUFFIXES, FileIndex, index_files, quoted
from vidssl.data.video_list import parse_whole_number, read_lines, read_list
from vidssl.data.write_lists import place_of_copy, write_lists
from vidssl.video.reader import open_video

# The fields of a line, by their number.
FORMS: dict[str, dict[int, tuple[str, ...]]] = {
    "slowfast": {1: ("path",), 2: ("path", "label"), 3: ("path", "frames", "label")},
    "mmaction2": {2: ("path", "label")},
    "mmaction2_rawframes": {3: ("path", "frames", "label")},
    "videomae": {2: ("path", "label"), 3: ("path", "start", "frames")},
}
_COUNTED = ("mmaction2_rawframes", "videomae")  # the number of images is compared


def prepare_list(
    videos: Path,
    form: str,
    root: Path,
    out: Path,
    *,
    name: str = "train",
    separator: str = " ",
    classes: Path | None = None,
    **options: Unpack[MatchOptions],
) -> str:
    """A list of SlowFast, pytorchvideo, mmaction2 or VideoMAE: NAME.csv.

    `videos` is the list, in the form "slowfast" (pytorchvideo's too), "mmaction2", "mmaction2_rawframes" or "videomae".
    Its paths are relative to `root`, or absolute and inside it. The last fields of a line are numbers, and all before
    them is the path, which may hold the separator; a path in double quotes is one field. `classes` is a file of class
    names, one a line.

    Args:
        videos: List of another project.
        form: Its form: slowfast, mmaction2, mmaction2_rawframes, videomae.
        root: Folder that the paths are relative to.
        out: Folder for what is written.
        name: Name of the written list.
        separator: Text between fields (default space).
        classes: File of the names of the classes, one a line.
        options: See `MatchOptions`.
    """
    if form not in FORMS:
        raise ConfigError(f"unknown form {form!r}; there are: {', '.join(FORMS)}")
    if not separator or any(letter.isdigit() or letter in '"\r\n' for letter in separator):
        raise ConfigError(f"separator {separator!r} is empty or has a quote, line break or digit: choose another one")
    names = read_classes(classes) if classes is not None else []
    index = index_files(root, follow_links=options.get("follow_links", False))
    listed = []
    for place, line in read_lines(videos, "pass the list of another project"):
        video = _parse(place, line, form, separator, index)
        if names and video.label >= len(names):
            raise DataError(f"{place}: label {video.label} is out of range; {classes} has {len(names)} classes, from 0")
        listed.append(video)
    folders = {video.name.partition("/")[0] for video in listed if "/" in video.name}
    remedy = "write the number of its class behind each path, or take the first folders as classes where it is read"
    notes = [f"no row has a label: {remedy} (labels: folders, {len(folders)})"]
    notes *= all(video.label < 0 for video in listed)
    inputs = [videos] if classes is None else [videos, classes]
    return write_matched_lists(root, out, {name: listed}, names, inputs, index=index, notes=notes, **options)


class _Reading(NamedTuple):
    """A line as a path and the numbers behind it."""

    path: str
    numbers: dict[str, int]
    is_plain: bool  # the path is in quotes or without separators, so that other projects read it so too


def _parse(place: str, line: str, form: str, separator: str, index: FileIndex) -> ListedVideo:
    remedy = f"put paths that contain {separator!r} in double quotes, or choose another separator"
    readings = _readings(line, form, separator)
    plain = [candidate for candidate in readings if candidate.is_plain]
    present = [candidate for candidate in readings if _exists(place, candidate.path, index)]
    reading = next(iter([*plain, *present, *_missing(readings, form, separator)]), None)
    if reading is None:
        expected = " or ".join(repr(separator.join(fields)) for fields in FORMS[form].values())
        others = [name for name in FORMS if any(candidate.is_plain for candidate in _readings(line, name, separator))]
        remedy = f"form={others[0]} has it" if others else remedy
        raise DataError(f"{place}: {line!r} is not {expected}; {remedy}")
    for count in range(0 if line.startswith('"') else max(FORMS[form])):
        # A number may belong to the path: "x/f 12" is a path, or has a label.
        longer = _split(line, separator, count)[0]
        if longer != reading.path and _exists(place, longer, index):
            raise DataError(f"{place}: {line!r} is ambiguous: the path may also be {longer!r}, which exists; {remedy}")
    numbers = reading.numbers
    if numbers.get("start", 0) > 1:
        raise DataError(f"{place}: {line!r} begins at frame {numbers['start']}: only whole folders are listed")
    frames = numbers.get("frames", -1) if form in _COUNTED else -1
    path = _relative(place, reading.path, index.root)
    return ListedVideo(place, path, numbers.get("label", -1), num_frames=None if frames < 0 else frames)


def _readings(line: str, form: str, separator: str) -> list[_Reading]:
    """All that a line may mean: for each number of fields of the form, the last ones are numbers."""
    least = {"frames": -1 if form == "videomae" else 0}  # -1: a video
    readings = []
    for fields in FORMS[form].values():
        path, *texts = _split(line, separator, len(fields) - 1)
        quoted = re.fullmatch(r'"((?:[^"]|"")+)"', path)
        try:
            numbers = dict(zip(fields[1:], map(parse_whole_number, texts), strict=True))
        except ValueError:
            continue
        if not path or (path[0] == '"' and not quoted) or any(n < least.get(name, 0) for name, n in numbers.items()):
            continue
        is_plain = quoted is not None or len(_split(path, separator, 1)) == 1
        readings.append(_Reading(quoted[1].replace('""', '"') if quoted else path, numbers, is_plain))
    return readings


def _split(line: str, separator: str, count: int) -> list[str]:
    """Split off the last `count` fields, fewer if there are no more; blanks and tabs around fields are dropped."""
    return [part.strip() for part in line.rsplit(separator if separator.strip() else None, count)]


def _exists(place: str, path: str, index: FileIndex) -> bool:
    return bool(index.find(_relative(place, path, index.root), any_case=False).paths)


def _missing(readings: Sequence[_Reading], form: str, separator: str) -> list[_Reading]:
    """The reading of a line whose file is not there, if it is clear: the path ends as a video's, or names a folder."""
    likely = [
        reading
        for reading in readings
        if Path(reading.path).suffix.lower() in VIDEO_SUFFIXES
        or (form == "mmaction2_rawframes" and not _split(reading.path, separator, 1)[-1].isdigit())
    ]
    return likely if len(likely) == 1 else []


def _relative(place: str, path: str, root: Path) -> str:
    if "/" not in path:
        path = path.replace("\\", "/")  # a list from Windows
    path = posixpath.normpath(path)
    for folder in (root.absolute(), root.resolve()):
        path = path.removeprefix(f"{folder}/")
    if path.startswith("/") or path.split("/")[0] == "..":
        raise DataError(f"{place}: {path!r} leaves {root}; pass the folder of all videos: root=FOLDER")
    return path


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
    rows, too_short, fewer = list[VideoRecord](), list[str](), 0
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
