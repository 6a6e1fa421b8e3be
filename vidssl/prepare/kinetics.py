"""Kinetics-400, -600 and -700: clips named by their YouTube id and times; every copy of the data set lacks some."""

from pathlib import Path

from typing_extensions import Unpack

from vidssl.data.csv_rows import decimal_number
from vidssl.data.read_input import FileIndex, FileMatch, quoted
from vidssl.errors import DataError, first_few
from vidssl.prepare.annotation_files import read_classes, read_csv
from vidssl.prepare.match import ListedVideo, MatchOptions, write_matched_lists

_REMEDY = "pass an official CSV; the test list has no labels: use the validation list"
_COLUMNS = ("label", "youtube_id", "time_start", "time_end")


def prepare_kinetics(
    root: Path,
    out: Path,
    train: Path,
    test: Path | None = None,
    classes: Path | None = None,
    *,
    untrimmed: bool = False,
    **options: Unpack[MatchOptions],
) -> str:
    """Kinetics-400, -600 or -700: train.csv, test.csv.

    `root` holds `<id>_<start>_<end>.mp4`, times in six digits, or `<id>.mp4`, in any folders; if several have the file,
    the one named after the class is used. `train` and `test` are the official training and validation lists, CSV with
    the columns `label,youtube_id,time_start,time_end`. Class n is the n-th of the sorted labels of the training list.
    `max_missing` is 0.2 by default.

    With `classes`, a file with one name a line, only these classes are listed. With `untrimmed` the files are whole
    videos `<id>.mp4`, and start and end are written too. Rows that begin before second 0 are named in the report.

    Args:
        root: Folder of the videos.
        out: Folder for what is written.
        train: Official training list, CSV.
        test: Official validation list, CSV.
        classes: File of classes to keep, one a line.
        untrimmed: Whole videos <id>.mp4: write start and end.
        options: See `MatchOptions`.
    """
    sides = {side: _read(path) for side, path in (("train", train), ("test", test)) if path is not None}
    known = {label for _, label, *_ in sides["train"]}
    kept = set(read_classes(classes)) if classes is not None else known
    if kept - known:
        raise DataError(f"{classes}: {quoted(sorted(kept - known))}: not a label of {train}")
    names = sorted(kept)
    labels = {name: n for n, name in enumerate(names)}
    lists: dict[str, list[ListedVideo]] = {}
    notes = []
    for side, rows in sides.items():
        lists[side], early = [], []
        for place, label, video, start, end in rows:
            if label not in known:
                raise DataError(f"{place}: class {label!r} is not among the {len(known)} of {train}")
            if label not in kept:
                continue
            name = video if untrimmed else f"{video}_{int(start):06d}_{int(end):06d}"
            if start < 0:  # the file of a clip has these times in its name, that of a whole video begins at 0
                early.append(f"{video!r}, {start:g} to {end:g} s")
            span = (max(start, 0.0), end) if untrimmed else (None, None)
            if not untrimmed or end > 0:
                lists[side].append(ListedVideo(place, f"{name}.mp4", labels[label], *span))
        if early:
            rule = (
                ": listed from 0, those that end before it left out" if untrimmed else ", which the files do not need"
            )
            notes.append(f"{side}: {len(early)} rows begin before the video{rule}: {first_few(early)}")
        if classes is not None:
            others = sum(label not in kept for _, label, *_ in rows)
            notes.append(f"{side}: skipped {others} rows of other classes")

    def find(index: FileIndex, video: ListedVideo) -> FileMatch:
        folders = (names[video.label], names[video.label].replace(" ", "_"))
        match = index.find_anywhere(video.name, folders)
        if match.paths or untrimmed:
            return match
        return index.find_anywhere(f"{video.name.rsplit('_', 2)[0]}.mp4", folders)

    options.setdefault("max_missing", 0.2)
    inputs = [path for path in (train, test, classes) if path is not None]
    return write_matched_lists(root, out, lists, names, inputs, find=find, notes=notes, **options)


def _read(path: Path) -> list[tuple[str, str, str, float, float]]:
    """The rows of an official list: place, label, id, start and end in seconds."""
    rows = []
    for place, row in read_csv(path, _COLUMNS, _REMEDY):
        label, video, *times = (row[column].strip() for column in _COLUMNS)
        try:
            start, end = map(decimal_number, times)
        except ValueError:
            start = end = 0.0
        if not -float("inf") < start < end < float("inf"):
            raise DataError(f"{place}: {times[0]!r} to {times[1]!r} is not a span: seconds, start before end")
        rows.append((place, label, video, start, end))
    return rows
