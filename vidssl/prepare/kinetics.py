"""Kinetics-400, -600 and -700: clips named by their video and its times, of which every copy lacks some."""

import csv
import io
import math
from pathlib import Path

from vidssl.data.video_list import read_text
from vidssl.errors import DataError
from vidssl.prepare.file_index import Found, Tree, scan
from vidssl.prepare.match import Listed, Report, classes_of, shown, write_found

_COLUMNS = ("label", "youtube_id", "time_start", "time_end")


def prepare_kinetics(
    root: Path,
    out: Path,
    train: Path,
    test: Path | None = None,
    classes: Path | None = None,
    *,
    untrimmed: bool = False,
    max_missing: float = 0.2,
    fps: float | None = None,
    follow_links: bool = False,
) -> Report:
    """Write `train.csv`, `test.csv`, `classes.txt` and `root.txt` for Kinetics.

    Class n is the n-th of the sorted labels of the training list, whatever folders there are. Files are found by
    name, in whatever folder they lie; where several have it, the one in a folder of the class's name.

    Args:
        root: Folder with `<id>_<start>_<end>.mp4`, times in six digits, or `<id>.mp4`; other suffixes are found too.
        out: Where the lists go.
        train: The official CSV `label,youtube_id,time_start,time_end,…`.
        test: The same of the videos to test on: the validation list, since the test list has no labels.
        classes: Names of the classes to keep, one a line; None: all.
        untrimmed: The files are whole videos `<id>.mp4`: start and end are written too.
        max_missing: Fraction of the files of a list that may be missing.
        fps: Frames per second of folders of images.
        follow_links: Follow links to folders, and links that leave the root.

    Raises:
        DataError: The lists are not what they should be, contradict each other, or do not fit the folder.
    """
    sides = {side: _read(path) for side, path in (("train", train), ("test", test)) if path is not None}
    known = {label for _, label, *_ in sides["train"]}
    chosen = set(classes_of(classes)) if classes is not None else known
    if chosen - known:
        raise DataError(f"{classes}: {shown(sorted(chosen - known))}: no label of {train} is called so")
    names = sorted(chosen)
    numbers = {name: n for n, name in enumerate(names)}
    lists: dict[str, list[Listed]] = {}
    notes = []
    for side, rows in sides.items():
        lists[side] = []
        for place, label, video, start, end in rows:
            if label not in known:
                raise DataError(
                    f"{place}: class {label!r} is not among the {len(known)} of {train}: are the lists of one version?"
                )
            if label not in chosen:
                continue
            if untrimmed:
                lists[side].append(Listed(place, f"{video}.mp4", numbers[label], start, end))
            else:
                lists[side].append(
                    Listed(place, f"{video}_{int(start):06d}_{int(end):06d}.mp4", numbers[label])
                )
        if classes is not None:
            notes.append(f"{side}: {len(rows) - len(lists[side])} rows of other classes left out")

    def find(tree: Tree, row: Listed) -> Found:
        folders = (names[row.label], names[row.label].replace(" ", "_"))
        found = tree.find_anywhere(row.name, folders)
        if found.paths or untrimmed:
            return found
        video = row.name.rsplit("_", 2)[0]
        return tree.find_anywhere(f"{video}.mp4", folders)

    tree = scan(root, follow_links=follow_links)
    return write_found(
        root, out, tree, lists, names, max_missing=max_missing, fps=fps, find=find, notes=notes
    )


def _read(path: Path) -> list[tuple[str, str, str, float, float]]:
    """The rows of an official list: place, label, id, start and end in seconds."""
    reader = csv.DictReader(io.StringIO(read_text(path, "give an official CSV"), newline=""), strict=True)
    rows = []
    try:
        lacking = [column for column in _COLUMNS if column not in (reader.fieldnames or ())]
        if lacking:
            raise DataError(
                f"{path}:1: header {','.join(reader.fieldnames or ())!r} lacks {' and '.join(lacking)}; the official "
                "test list has no labels: test on the validation list"
            )
        for row in reader:
            place = f"{path}:{reader.line_num}"
            if (
                None in row
                or None in row.values()
                or not row["label"].strip()
                or not row["youtube_id"].strip()
            ):
                raise DataError(
                    f"{place}: a row needs {', '.join(reader.fieldnames or ())}; quote labels with commas"
                )
            try:
                start, end = float(row["time_start"]), float(row["time_end"])
            except ValueError:
                start = end = math.nan
            if not 0 <= start < end < math.inf:
                raise DataError(
                    f"{place}: from {row['time_start']!r} to {row['time_end']!r} is no span: seconds, the start first"
                )
            rows.append((place, row["label"].strip(), row["youtube_id"].strip(), start, end))
    except csv.Error as error:
        raise DataError(f"{path}:{reader.line_num}: not CSV: {error}; is a quote left open?") from None
    return rows
