"""Writing of video lists: the CSV files and what lies beside them, all or none."""

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from vidssl.atomic import replacing
from vidssl.data.path_rules import is_utf8
from vidssl.data.video_list import COLUMNS, VideoList, read_text
from vidssl.errors import DataError
from vidssl.types import VideoRecord


def write_lists(
    out: Path, root: Path, lists: Mapping[str, Iterable[VideoRecord | tuple[Any, ...]]], classes: Sequence[str]
) -> None:
    """Write `NAME.csv` for each list, `classes.txt` if there are classes, and `root.txt`: all of them or none.

    `lists` has records or tuples of their fields, with paths relative to `root`; columns without a value are left out.
    """
    texts = {f"{name}.csv": _csv(rows) for name, rows in lists.items()} | _beside(root, classes)
    folders = [name for name in texts if (out / name).is_dir()]
    if folders:
        raise DataError(f"cannot write list {out / folders[0]}: it is a folder; choose another folder for the lists")
    try:
        out.mkdir(parents=True, exist_ok=True)
        with ExitStack() as written:  # the files are renamed when all of them are on disk
            for name, text in texts.items():
                file = written.enter_context(replacing(out / name))
                file.write(text.encode("utf-8"))
                file.flush()
    except OSError as error:
        raise DataError(f"cannot write lists to {out}: {error.strerror}") from None


def _csv(rows: Iterable[VideoRecord | tuple[Any, ...]]) -> str:
    records = [row if isinstance(row, VideoRecord) else VideoRecord(*row) for row in rows]
    default = VideoRecord("")
    columns = {
        name: field
        for name, field in COLUMNS.items()
        if name == "path" or any(getattr(r, field) != getattr(default, field) for r in records)
    }
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for record in records:
        _check_name(record.path)
        writer.writerow([getattr(record, field) for field in columns.values()])
    return text.getvalue()


def _check_name(name: str) -> None:
    """Check that a list or `classes.txt` can hold a name."""
    if re.search("[\r\n]", name) or not is_utf8(name):
        raise DataError(f"{name!r} holds a line break or is not UTF-8: rename it")


def copy_list(videos: VideoList, out: Path, root: Path, names: Sequence[str | None]) -> Path:
    """Write a list again under new names, relative to `root`; None leaves a row out. Returns the path of the list."""
    path = place_of_copy(videos, out, root)
    rows = zip(map(videos.records.row, range(len(videos.records))), names, strict=True)
    write_lists(out, root, {path.stem: [replace(row, path=name) for row, name in rows if name]}, videos.classes)
    return path


def place_of_copy(videos: VideoList, out: Path, root: Path) -> Path:
    """Return the path that `copy_list` writes to, or raise DataError if it will not write; call it before long work."""
    if root.resolve() != videos.root.resolve() and any(record.mask for record in videos.records):
        raise DataError(f"masks are not copied: {videos.path} has some, use a list without masks")
    path = out / f"{videos.path.stem}.csv"
    if path.exists() and path.samefile(videos.path):
        raise DataError(f"{path} is the list that is read: choose another folder to write to")
    check_beside(out, root, videos.classes)
    return path


def check_beside(out: Path, root: Path, classes: Sequence[str]) -> None:
    """Raise DataError if `classes.txt` or `root.txt` of a folder belong to other lists than one to be written there."""
    for name, text in _beside(root, classes).items():
        there = out / name
        if there.exists() and read_text(there, "delete it or choose another folder") != text:
            raise DataError(f"{there} belongs to other lists: choose another folder to write to")
    if not classes and (out / "classes.txt").exists():
        raise DataError(f"{out} holds a classes.txt, the list has none: choose another folder to write to")


def _beside(root: Path, classes: Sequence[str]) -> dict[str, str]:
    """The files beside a list and their content."""
    for name in (*classes, str(root.resolve())):
        _check_name(name)
    named = {"classes.txt": "".join(f"{name}\n" for name in classes)} if classes else {}
    return {**named, "root.txt": f"{root.resolve()}\n"}
