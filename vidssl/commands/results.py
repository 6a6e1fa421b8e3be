"""Results as text: tables, counts and CSV files."""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

from vidssl.atomic import write_whole
from vidssl.config import Tree


def format_count(found: int, missing: Sequence[object]) -> str:
    """Format a count, with the total if some are missing: `58 of 60 (2 missing)`."""
    return f"{found} of {found + len(missing)} ({len(missing)} missing)" if missing else str(found)


def format_clips(test: Tree) -> str:
    """Format the views of a video, of the settings of a test: `4 clips x 1 crop of 64²`."""
    parts = [f"{test[name]} {name.removesuffix('s') if test[name] == 1 else name}" for name in ("clips", "crops")]
    return f"{' x '.join(parts)} of {test['size']}²"


def format_table(rows: Sequence[Sequence[str]], sides: str) -> list[str]:
    """Format rows as lines with columns of equal width; `sides` has `<` (left) or `>` (right) per column."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    line = "  ".join(f"{{:{side}{width}}}" for side, width in zip(sides, widths, strict=True))
    return [line.format(*row).rstrip() for row in rows]


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a CSV file atomically."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    write_whole(path, text.getvalue().encode())
