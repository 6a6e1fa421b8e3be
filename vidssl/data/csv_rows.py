"""Rows of CSV files, and texts, with errors that name the file."""

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vidssl.errors import DataError


def read_rows(path: Path, remedy: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a CSV file that are not blank, header included, with the line number that each ends in."""
    # Universal newlines or splitlines would also split at characters that names may contain.
    with _reading(path, remedy), open(path, encoding="utf-8-sig", newline="") as file:
        rows = csv.reader(file, strict=True)
        try:
            for row in rows:
                if len(row) > 1 or "".join(row).strip():
                    yield rows.line_num, row
        except csv.Error as error:
            raise DataError(f"{path}:{rows.line_num}: not CSV: {error}; is a quote left open?") from None


def read_text(path: Path, remedy: str) -> str:
    """Read a text file, UTF-8 with or without a byte-order mark; `remedy` ends the error for a missing file."""
    with _reading(path, remedy):
        return path.read_text(encoding="utf-8-sig")


@contextmanager
def _reading(path: Path, remedy: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(f"cannot read list {path}: {error.strerror}; {remedy}") from None
    except UnicodeDecodeError:
        raise DataError(f"list {path} is not UTF-8: save it as UTF-8") from None
