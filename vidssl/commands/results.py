"""`results.json`: results of the same request are not computed again; tables and CSV files."""

import csv
import io
import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from vidssl.atomic import write_whole
from vidssl.config import Tree, differences
from vidssl.read_files import read_json

_log = logging.getLogger(__name__)

Results = dict[str, Any]


def existing_results(out: Path, request: Tree) -> Results | None:
    """Return existing results of the same request. Others are replaced: the log states what differs."""
    path = out / "results.json"
    with suppress(OSError, ValueError):
        results: Results = read_json(path)
        stored = results.get("request") if isinstance(results, dict) else None
        if stored == request:
            _log.info("%s holds the results of this test; delete it to measure again", path)
            return results
        earlier = "results of an earlier version, or of several splits"
        changed = describe_changes(stored, request) if isinstance(stored, dict) else earlier
        _log.info("%s holds results of another test (%s): replacing it", path, changed)
    return None


def describe_changes(stored: Tree, requested: Tree) -> str:
    """List what differs between two requests."""
    return "; ".join(
        f"{name} {'nothing' if a is None else a} stored, {'nothing' if b is None else b} requested"
        for name, a, b in differences(stored, requested)
    )


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
