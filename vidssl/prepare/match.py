"""Match the rows of official lists to the files of a folder, and write the lists of the files that were found."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypedDict

from typing_extensions import Unpack

from vidssl.data.video_list import check_beside, write_lists
from vidssl.errors import ConfigError, DataError
from vidssl.prepare.file_index import FileIndex, FileMatch, check_name, index_files, preview
from vidssl.types import VideoRecord


class ListedVideo(NamedTuple):
    """One row of an official list."""

    place: str  # file:line
    name: str  # path in the list, relative to the root
    label: int = -1  # -1: unknown
    start: float | None = None  # seconds
    end: float | None = None  # seconds
    num_frames: int | None = None  # expected images of a folder; None: unknown

    @property
    def span(self) -> tuple[float | None, float | None]:
        """Start and end."""
        return self.start, self.end


Finder = Callable[[FileIndex, ListedVideo], FileMatch]


class MatchOptions(TypedDict, total=False):
    """Options shared by the data sets with official lists."""

    max_missing: float  # largest fraction of the files of a list that may be missing, in [0, 1]; default 0.05
    fps: float | None  # frame rate for folders of images, for the column fps; default None: no column
    follow_links: bool  # follow links to folders, and links that leave the root; default False


@dataclass(frozen=True)
class Counts:
    """How the rows of one list matched."""

    listed: int
    found: int
    duplicates: int  # repeated rows, which are dropped
    missing: tuple[str, ...]
    case_mismatches: tuple[tuple[str, str], ...]  # (listed, file)
    extension_mismatches: tuple[tuple[str, str], ...]  # (listed, file)
    image_folders: int  # matches that are folders of images
    frame_count_mismatches: tuple[str, ...]
    empty_classes: tuple[str, ...]  # classes without a file


@dataclass(frozen=True)
class Report:
    """How official lists matched a folder; `str()` is what the command prints."""

    lists: Mapping[str, Counts]
    classes: tuple[str, ...]
    notes: tuple[str, ...]

    def __str__(self) -> str:
        lines = []
        pair = "{0[0]!r} is {0[1]!r}".format
        for name, counts in self.lists.items():
            lines.append(
                f"{name}: {counts.listed} listed, {counts.found} found, {len(counts.missing)} missing, "
                f"{len(counts.case_mismatches)} in different case, "
                f"{len(counts.extension_mismatches)} with another extension, {counts.duplicates} duplicates"
            )
            details = {
                "missing": preview(counts.missing),
                "in different case": preview(counts.case_mismatches, pair),
                "with another extension": preview(counts.extension_mismatches, pair),
                "folders of images": counts.image_folders and f"{counts.image_folders}; set --fps, or data.fps later",
                "frame count differs": preview(counts.frame_count_mismatches, str),
                "classes without a file": preview(counts.empty_classes),
            }
            lines += [f"  {title}: {text}" for title, text in details.items() if text]
        return "\n".join([*lines, *self.notes, *([f"{len(self.classes)} classes"] if self.classes else [])])


def write_matched_lists(
    root: Path,
    out: Path,
    lists: Mapping[str, Sequence[ListedVideo]],
    classes: Sequence[str],
    *,
    index: FileIndex | None = None,
    find: Finder = lambda index, video: index.find(video.name),
    notes: Sequence[str] = (),
    **options: Unpack[MatchOptions],
) -> Report:
    """Find the files of all lists and write the lists of those that exist: all of them or none.

    Duplicate rows are dropped and counted. The lists `trainX` and `testX` must not share a file. `index` avoids a scan
    of the root, `find` replaces the search by path, and `notes` are added to the report.

    Raises:
        ConfigError: `max_missing` or `fps` is out of range.
        DataError: Too many files are missing, rows contradict each other, a name matches several files, several names
            match one file, a list cannot hold a name, or `out` holds other lists.
    """
    max_missing, fps = options.get("max_missing", 0.05), options.get("fps")
    if not 0 <= max_missing <= 1:
        raise ConfigError(f"--max-missing is {max_missing}: it must be in [0, 1]")
    if fps is not None and not 0 < fps < float("inf"):
        raise ConfigError(f"--fps is {fps}: it must be above 0")
    duplicates = sorted({name for name in classes if classes.count(name) > 1})
    if duplicates:
        raise DataError(f"duplicate class names: {preview(duplicates)}")
    for name in classes:
        check_name(name)
    check_beside(out, root, classes)
    index = index or index_files(root, follow_links=options.get("follow_links", False))
    matched, counts = {}, {}
    for name, videos in lists.items():
        matched[name], counts[name] = _match(name, videos, index, classes, find, max_missing)
    _check_apart(matched)
    rows: dict[str, list[VideoRecord]] = {}
    for name, pairs in matched.items():
        for _, path in pairs:
            check_name(path)
        rows[name] = [
            VideoRecord(path, video.label, *video.span, fps if path in index.image_folders else None)
            for video, path in pairs
        ]
    write_lists(out, root, rows, classes)
    return Report(counts, tuple(classes), (*notes, *index.notes))


def _match(
    name: str, videos: Sequence[ListedVideo], index: FileIndex, classes: Sequence[str], find: Finder, max_missing: float
) -> tuple[list[tuple[ListedVideo, str]], Counts]:
    """The rows of a list whose files exist, with the files, and the counts."""
    if not videos:
        raise DataError(f"{name}: the list has no rows")
    unique = _drop_duplicates(videos)
    matches = [(video, find(index, video)) for video in unique]
    ambiguous = [(video, match.paths) for video, match in matches if len(match.paths) > 1]
    if ambiguous:
        video, paths = ambiguous[0]
        raise DataError(
            f"{video.place}: {video.name!r} matches {preview(paths)} ({len(ambiguous)} such rows): "
            "keep one of them in the folder"
        )
    found = [(video, match.paths[0], match.kind) for video, match in matches if match.paths]
    missing = tuple(video.name for video, match in matches if not match.paths)
    if len(missing) > max_missing * len(unique) or not found:
        raise DataError(
            f"{name}: {len(missing)} of {len(unique)} listed files are not in {index.root}, a fraction of "
            f"{len(missing) / len(unique):.3g}, the limit is {max_missing:g} (--max-missing): {preview(missing)}; "
            "is it the right folder, and the right list?"
        )
    first: dict[object, ListedVideo] = {}
    for video, path, _ in found:
        other = first.setdefault((path, video.span), video)
        if other is not video:
            raise DataError(
                f"{video.place}: {video.name!r} and {other.name!r} ({other.place}) both match the file {path!r}: "
                "rename the files as they are listed"
            )
    labels = {video.label for video, *_ in found}
    return [(video, path) for video, path, _ in found], Counts(
        listed=len(videos),
        found=len(found),
        duplicates=len(videos) - len(unique),
        missing=missing,
        case_mismatches=tuple((video.name, path) for video, path, kind in found if kind == "case"),
        extension_mismatches=tuple((video.name, path) for video, path, kind in found if kind == "extension"),
        image_folders=sum(path in index.image_folders for _, path, _ in found),
        frame_count_mismatches=tuple(
            f"{path!r} has {folder.num_images}, {video.num_frames} are listed"
            for video, path, _ in found
            if (folder := index.image_folders.get(path)) and video.num_frames not in (None, folder.num_images)
        ),
        empty_classes=tuple(text for n, text in enumerate(classes) if n not in labels),
    )


def _drop_duplicates(videos: Sequence[ListedVideo]) -> list[ListedVideo]:
    first: dict[object, ListedVideo] = {}
    for video in videos:
        other = first.setdefault((video.name, video.span), video)
        if other.label != video.label:
            raise DataError(
                f"{video.place}: {video.name!r} has label {video.label}, but label {other.label} at {other.place}: "
                "delete one row"
            )
    return list(first.values())


def _check_apart(matched: Mapping[str, Sequence[tuple[ListedVideo, str]]]) -> None:
    for name, pairs in matched.items():
        tested = {path: video for video, path in matched.get(f"test{name.removeprefix('train')}", ())}
        for video, path in pairs if name.startswith("train") else ():
            if path in tested:
                raise DataError(
                    f"{tested[path].place}: {path!r} is also in the training list at {video.place}: delete one row"
                )
