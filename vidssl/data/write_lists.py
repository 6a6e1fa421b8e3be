"""Writing of video lists: the CSV files and what lies beside them, all or none."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vidssl.base.atomic import ELSEWHERE, csv_text
from vidssl.base.errors import DataError
from vidssl.base.output_folder import check_files, write_files
from vidssl.base.registry import APPS
from vidssl.base.types import VideoRecord
from vidssl.data.allowed_paths import is_file, is_utf8
from vidssl.data.video_list import COLUMNS, VideoList, read_text

_BESIDE = ("classes.txt", "root.txt")  # belong to all lists of a folder


def write_lists(
    out: Path,
    root: Path,
    lists: Mapping[str, Iterable[VideoRecord | tuple[Any, ...]]],
    classes: Sequence[str],
    inputs: Sequence[Path] = (),
) -> None:
    """Write `NAME.csv` for each list, `classes.txt` if there are classes, and `root.txt`: all of them or none.

    `lists` has records or tuples of their fields, with paths relative to `root`; columns without a value are left out.
    `inputs` are the files that were read, first the one that the lists are made from.

    Raises:
        DataError: They cannot be written, or would replace an input, a file that vidssl did not write, or lists of
            another root, of other classes or made from another file (`vidssl.base.output_folder`).
    """
    texts = {f"{name}.csv": _csv(rows) for name, rows in lists.items()} | _beside(root, classes)
    check_beside(out, root, classes, lists, inputs)
    write_files(out, {name: text.encode("utf-8") for name, text in texts.items()}, inputs, _BESIDE)


def _csv(rows: Iterable[VideoRecord | tuple[Any, ...]]) -> str:
    records = [row if isinstance(row, VideoRecord) else VideoRecord(*row) for row in rows]
    default, names = VideoRecord(""), (*COLUMNS, *APPS["column"])
    used = {name for name in names if any(_value(record, name) != _value(default, name) for record in records)}
    columns = [name for name in names if name in used | {"path"}]
    for record in records:
        check_name(record.path)
    return csv_text([columns, *([_value(record, name) for name in columns] for record in records)])


def _value(record: VideoRecord, column: str) -> Any:
    return getattr(record, COLUMNS[column]) if column in COLUMNS else record.columns.get(column)


def check_name(name: str) -> None:
    """Check that a list or `classes.txt` can hold a name."""
    if re.search("[\r\n]", name) or not is_utf8(name):
        raise DataError(f"{name!r} holds a line break or is not UTF-8: rename it")


def copy_list(videos: VideoList, out: Path, root: Path, names: Sequence[str | None]) -> Path:
    """Write a list again under new names, relative to `root`; None leaves a row out. Returns the path of the list."""
    path = place_of_copy(videos, out, root)
    rows = zip(map(videos.records.row, range(len(videos))), names, strict=True)
    lists = {path.stem: [replace(row, path=name) for row, name in rows if name]}
    write_lists(out, root, lists, videos.classes, [videos.path])
    return path


def place_of_copy(videos: VideoList, out: Path, root: Path) -> Path:
    """Return the path that `copy_list` writes to, or raise DataError if it will not write; call it before long work."""
    if root.resolve() != videos.root.resolve() and any(record.mask for record in videos.records):
        raise DataError(f"masks are not copied: {videos.path} has some, use a list without masks")
    path = out / f"{videos.path.stem}.csv"
    for name in videos.names:
        check_name(name)
    unknown = check_beside(out, root, videos.classes, [path.stem], [videos.path])
    if path in unknown:
        raise DataError(f"{path} is there already, and vidssl has no record of writing it: {ELSEWHERE}")
    return path


def check_beside(
    out: Path, root: Path, classes: Sequence[str] | None, names: Iterable[str] = (), inputs: Sequence[Path] = ()
) -> list[Path]:
    """Raise DataError if lists cannot be written to a folder; call it before long work.

    The reasons: `classes.txt` or `root.txt` there belong to other lists than `names`, or those of `check_files`, whose
    result it returns. `classes` is None if they are not known yet.
    """
    files, beside = [f"{name}.csv" for name in names], _beside(root, classes or ())
    unknown = check_files(out, [*files, *beside], inputs, _BESIDE)
    for path in unknown:  # a list may be the one that is written again; that is known when it is written
        if path.name in files and not _is_list(path):
            raise DataError(f"{path} is no list, and vidssl has no record of writing it: {ELSEWHERE}")
    existing = {out / name: text for name, text in beside.items() if (out / name).exists()}
    changed = [path for path, text in existing.items() if read_text(path, ELSEWHERE) != text]
    if classes is not None and not classes and (out / "classes.txt").exists():
        raise DataError(f"{out} holds a classes.txt, the list has none: choose another folder to write to")
    others = {path.name for path in out.glob("*.csv")} - {*files} if changed else ()
    for path in changed:  # the classes may change if all lists of the folder are written again
        if path.name == "root.txt" or others or path in unknown or not files:
            raise DataError(f"{path} belongs to other lists: choose another folder to write to")
    return unknown


def _is_list(path: Path) -> bool:
    header = {column.strip() for column in read_text(path, ELSEWHERE).partition("\n")[0].split(",")}
    return "path" in header and header <= {*COLUMNS, *APPS["column"]}


def _beside(root: Path, classes: Sequence[str]) -> dict[str, str]:
    """The files beside a list and their content."""
    for name in (*classes, str(root.resolve())):
        check_name(name)
    named = {"classes.txt": "".join(f"{name}\n" for name in classes)} if classes else {}
    return {**named, "root.txt": f"{root.resolve()}\n"}


def check_images(root: Path, names: Sequence[str], title: str) -> None:
    """Raise a DataError if images of a list to be written do not exist."""
    missing = [name for name in names if not is_file(root / name)]
    if missing:
        counts = f"{len(missing)} of {len(names)} images"
        raise DataError(f"{title}: {counts} are missing in {root}, the first is {missing[0]}: complete the folder")
