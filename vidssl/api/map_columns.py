"""Columns of a CSV file for the points of a map, joined by path."""

from collections.abc import Sequence
from pathlib import Path

from vidssl.data.csv_rows import read_rows
from vidssl.errors import DataError
from vidssl.types import VideoRecord
from vidssl.viz.map_page import Column, column


def read_columns(path: Path, records: Sequence[VideoRecord]) -> tuple[list[Column], int]:
    """Read the columns of a CSV file `path[,start,end],…` for videos with paths as in their list.

    Rows are found by path, and by start and end too if the file has both columns. Returns the columns other than these,
    and how many of the videos have a row; the others have no values. A DataError names a header without `path`, a row
    of another length, two rows of one video, and a file without a row of any video.
    """
    rows = read_rows(path, "columns=FILE is a CSV file with the column path")
    header = [name.strip() for name in next(rows, (1, []))[1]]
    keys = ("path", "start", "end") if {"start", "end"} <= {*header} else ("path",)
    if "path" not in header or len({*header}) < len(header) or len(header) == len(keys):
        text = ",".join(header)[:200]
        raise DataError(f"{path}: header {text!r} needs path and at least one more column, each name once")
    found: dict[tuple[str | float | None, ...], list[str]] = {}
    for line, row in rows:
        if len(row) != len(header):
            raise DataError(f"{path}:{line}: {len(row)} fields, the header has {len(header)}; quote text with commas")
        fields = dict(zip(header, row, strict=True))
        try:
            spans = [float(fields[name]) if fields[name] else None for name in keys[1:]]
        except ValueError as error:
            raise DataError(f"{path}:{line}: {error}: start and end are seconds") from None
        key = (fields["path"], *spans)
        if key in found:
            raise DataError(f"{path}:{line}: {fields['path']!r} is there twice: delete one row")
        found[key] = row
    wanted = [tuple(getattr(record, name) for name in keys) for record in records]
    matched = [found.get(key) for key in wanted]
    count = sum(row is not None for row in matched)
    if not count:
        first = next((key[0] for key in found), "nothing")
        raise DataError(f"{path} has no row of the {len(records)} videos: it has {first!r}, they {records[0].path!r}")
    columns = [
        column(name, ["" if row is None else row[n] for row in matched])
        for n, name in enumerate(header)
        if name not in keys
    ]
    return columns, count
