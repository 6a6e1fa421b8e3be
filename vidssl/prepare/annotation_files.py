"""Readers of annotation files. All raise DataError with `file:line` for a file that is unreadable or malformed.

`remedy` ends the error for a missing file, such as "pass an official CSV".
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from vidssl.data.csv_rows import read_rows, read_text
from vidssl.errors import DataError
from vidssl.untrusted_files import parse_json


def read_lines(path: Path, remedy: str) -> Iterator[tuple[str, str]]:
    """Yield the non-empty lines of a text file, stripped, each with its `file:line`."""
    for number, line in enumerate(read_text(path, remedy).split("\n"), 1):
        if line.strip():
            yield f"{path}:{number}", line.strip()


def read_csv(path: Path, columns: Sequence[str], remedy: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the rows of a CSV file with a header, each with its `file:line`; `columns` must not be empty."""
    rows = read_rows(path, remedy)
    _, header = next(rows, (1, []))
    missing = [column for column in columns if column not in header]
    if missing:
        raise DataError(f"{path}:1: header {','.join(header)!r} lacks {' and '.join(missing)}; {remedy}")
    for line, row in rows:
        fields = dict(zip(header, row, strict=False))
        if len(row) > len(header) or not all(fields.get(column, "").strip() for column in columns):
            raise DataError(f"{path}:{line}: a row needs {', '.join(columns)}; quote names with commas")
        yield f"{path}:{line}", fields


def read_json(path: Path) -> Any:
    """Read a JSON file."""
    try:
        return parse_json(read_text(path, "pass an official JSON file"))
    except ValueError as error:
        raise DataError(f"{path} is not JSON: {error}") from None


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
