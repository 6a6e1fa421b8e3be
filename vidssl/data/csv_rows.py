"""Rows of CSV files, texts and numbers, with errors that name the file."""

import csv
import re
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
                if "".join(row).strip():  # Excel writes empty rows as commas
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


# Numbers as lists write them: without the forms that only Python reads, such as `1_0` and other digits than 0-9.
_MAX_DIGITS = 4000  # int() refuses more than 4,300
# pandas writes 0.0 in a column that has or had missing values.
_WHOLE = re.compile(rf"([+-]?[0-9]{{1,{_MAX_DIGITS}}})(?:\.0+)?")


def whole_number(text: str) -> int:
    """Read `12`, `-1` or `12.0`; anything else is a ValueError."""
    if len(text) <= _MAX_DIGITS and text.isdecimal() and text.isascii():  # most numbers, in a quarter of the time
        return int(text)
    match = _WHOLE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text[:40]!r} is not a whole number")
    return int(match[1])


def decimal_number(text: str) -> float:
    """Read a number with decimals or an exponent; anything else is a ValueError."""
    try:
        if "_" not in text and text.isascii():
            return float(text)
    except ValueError:
        pass
    raise ValueError(f"{text[:40]!r} is not a number")
