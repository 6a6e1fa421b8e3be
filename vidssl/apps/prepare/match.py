"""Match the rows of official lists to the files of a folder, and write the lists of the files that were found."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypedDict

from typing_extensions import Unpack

from vidssl.base.errors import ConfigError, DataError, first_few
from vidssl.base.types import Positive, VideoRecord
from vidssl.data.read_input import FileIndex, FileMatch, index_files, quoted
from vidssl.data.video_list import read_text
from vidssl.data.write_lists import check_beside, write_lists


def read_classes(path: Path) -> list[str]:
    """Read class names, one a line; line n names class n."""
    names = [line.strip() for line in read_text(path, "pass a file of class names").rstrip().split("\n")]
    if "" in names:
        raise DataError(f"{path}:{names.index('') + 1}: empty line; line n names class n, from 0")
    return names


def file_names(folder: Path) -> list[str]:
    """Names of the files in a folder, sorted."""
    try:
        return sorted(path.name for path in folder.iterdir() if path.is_file())
    except OSError as error:
        raise DataError(f"cannot read folder {folder}: {error.strerror}") from None


class ListedVideo(NamedTuple):
    """One row of an official list."""

    place: str  # file:line
    name: str  # path in the list, relative to the root
    label: int = -1  # -1: unknown
    start: float | None = None  # seconds
    end: float | None = None  # seconds
    num_frames: int | None = None  # expected images of a folder; None: unknown


Finder = Callable[[FileIndex, ListedVideo], FileMatch]


class MatchOptions(TypedDict, total=False):
    """Options shared by the data sets with official lists.

    Attributes:
        max_missing: Largest fraction of the files of a list that may be missing (default 0.05; Kinetics 0.2).
        fps: Frame rate for folders of images, for the column fps (TrackingNet 30).
        follow_links: Follow links to folders and outside.
    """

    max_missing: float
    fps: Positive | None
    follow_links: bool


def write_matched_lists(
    root: Path,
    out: Path,
    lists: Mapping[str, Sequence[ListedVideo]],
    classes: Sequence[str],
    inputs: Sequence[Path],
    *,
    index: FileIndex | None = None,
    find: Finder = lambda index, video: index.find(video.name),
    notes: Sequence[str] = (),
    split_folders: bool = False,
    **options: Unpack[MatchOptions],
) -> str:
    """Find the files of all lists, write the lists of those that exist, all or none, and return the report.

    `inputs` are the official files, first the one that the lists are made from. Duplicate rows are dropped and counted.
    The lists `trainX` and `testX` must not share a file. `index` avoids a scan of the root, `find` replaces the search
    by path, and `notes` are added to the report. With `split_folders` the lists `train1` and `test1` are
    `split1/train.csv` and `split1/test.csv`, each folder complete in itself.
    """
    max_missing, fps = options.get("max_missing", 0.05), options.get("fps")
    if not 0 <= max_missing <= 1:
        raise ConfigError(f"max_missing is {max_missing}: it must be in [0, 1]")
    duplicates = [name for name, count in Counter(classes).items() if count > 1]
    if duplicates:
        raise DataError(f"duplicate class names: {quoted(duplicates)}")
    places = {name: _place(out, name) if split_folders else (out, name) for name in lists}
    folders = {folder: [name for name in lists if places[name][0] == folder] for folder, _ in places.values()}
    for folder, names in folders.items():
        check_beside(folder, root, classes, [places[name][1] for name in names], inputs)
    index = index or index_files(root, follow_links=options.get("follow_links", False))
    matched: dict[str, dict[ListedVideo, str]] = {}
    report: list[str] = []
    for name, videos in lists.items():
        matched[name], lines = _match(name, videos, index, classes, find, max_missing)
        report += lines
    _check_apart(matched)
    rates = dict.fromkeys(index.image_folders, fps)
    rows = {
        name: [VideoRecord(path, row.label, row.start, row.end, rates.get(path)) for row, path in files.items()]
        for name, files in matched.items()
    }
    for folder, names in folders.items():
        write_lists(folder, root, {places[name][1]: rows[name] for name in names}, classes, inputs)
    return "\n".join([*report, *notes, *index.notes, *([f"{len(classes)} classes"] if classes else [])])


def _place(out: Path, name: str) -> tuple[Path, str]:
    """Folder and name of the list `train1`: `split1`, `train`."""
    side = name.rstrip("0123456789")
    return out / f"split{name.removeprefix(side)}", side


def of_classes(
    lists: Mapping[str, Sequence[ListedVideo]], classes: Sequence[str], kept: Path
) -> tuple[dict[str, list[ListedVideo]], list[str]]:
    """Keep the rows of the classes that a file names, one a line; return the lists and the classes, numbered anew."""
    names = read_classes(kept)
    if unknown := sorted({*names} - {*classes}):
        raise DataError(f"{kept}: {quoted(unknown)}: not among the {len(classes)} classes of the official lists")
    kept_classes = [name for name in classes if name in names]
    number = {classes.index(name): n for n, name in enumerate(kept_classes)}
    rows = {
        name: [video._replace(label=number[video.label]) for video in videos if video.label in number]
        for name, videos in lists.items()
    }
    return rows, kept_classes


def _match(
    name: str, videos: Sequence[ListedVideo], index: FileIndex, classes: Sequence[str], find: Finder, max_missing: float
) -> tuple[dict[ListedVideo, str], list[str]]:
    """The rows of a list whose files exist, with the files, and the report."""
    if not videos:
        raise DataError(f"{name}: the list has no rows")
    unique = _drop_duplicates(videos)
    files: dict[ListedVideo, str] = {}
    first: dict[object, ListedVideo] = {}
    differing: dict[str, list[str]] = {"exact": [], "case": [], "extension": []}
    for video in unique:
        paths, kind = find(index, video)
        if len(paths) > 1:
            raise DataError(f"{video.place}: {video.name!r} matches {quoted(paths)}: keep one of them in the folder")
        for path in paths:
            earlier = first.setdefault((path, video.start, video.end), video)
            if earlier is not video:
                names = f"{video.name!r} and {earlier.name!r} ({earlier.place})"
                raise DataError(
                    f"{video.place}: {names} both match the file {path!r}: rename the files as they are listed"
                )
            files[video] = path
            differing[kind].append(f"{video.name!r} is {path!r}")
    missing = [video.name for video in unique if video not in files]
    if len(missing) > max_missing * len(unique) or not files:
        counts = f"{len(missing)} of {len(unique)} listed files are not in {index.root}"
        limit = f"a fraction of {len(missing) / len(unique):.3g}, the limit is {max_missing:g} (max_missing=FRACTION)"
        raise DataError(f"{name}: {counts}, {limit}: {quoted(missing)}; is it the right folder, and the right list?")
    folders = {video: index.image_folders[path] for video, path in files.items() if path in index.image_folders}
    labels = {video.label for video in files}
    details = {
        "missing": quoted(missing),
        "in different case": first_few(differing["case"]),
        "with another extension": first_few(differing["extension"]),
        "folders of images": folders and f"{len(folders)}; set fps=RATE, or data.fps later",
        "frame count differs": first_few(
            f"{files[video]!r} has {folder.num_images}, {video.num_frames} are listed"
            for video, folder in folders.items()
            if video.num_frames not in (None, folder.num_images)
        ),
        "classes without a file": quoted(text for n, text in enumerate(classes) if n not in labels),
    }
    counts = (
        f"{name}: {len(videos)} listed, {len(files)} found, {len(missing)} missing, {len(differing['case'])} in "
        f"different case, {len(differing['extension'])} with another extension, "
        f"{len(videos) - len(unique)} duplicates"
    )
    return files, [counts, *(f"  {title}: {text}" for title, text in details.items() if text)]


def _drop_duplicates(videos: Sequence[ListedVideo]) -> Collection[ListedVideo]:
    first: dict[object, ListedVideo] = {}
    for video in videos:
        earlier = first.setdefault((video.name, video.start, video.end), video)
        if earlier.label != video.label:
            labels = f"label {video.label}, but label {earlier.label} at {earlier.place}"
            raise DataError(f"{video.place}: {video.name!r} has {labels}: delete one row")
    return first.values()


def _check_apart(matched: Mapping[str, Mapping[ListedVideo, str]]) -> None:
    for name, trained in matched.items():
        if name.startswith("train"):
            tested = {path: video for video, path in matched.get(f"test{name.removeprefix('train')}", {}).items()}
            for video, path in trained.items():
                if path in tested:
                    twice = f"is also in the training list at {video.place}"
                    raise DataError(f"{tested[path].place}: {path!r} {twice}: delete one row")
