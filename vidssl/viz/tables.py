"""Tables of results: what their rows say, and how they stand in Markdown."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import quote


@dataclass(frozen=True)
class Row:
    """One row: what was measured, what was not run, or what others published.

    Attributes:
        state: Which of the three.
        cells: One text for each column; the first bears the notes, the last the link.
        notes: Numbers of the notes below the table, from 1.
        file: What the last cell leads to.
    """

    state: Literal["measured", "not run", "published"]
    cells: tuple[str, ...]
    notes: tuple[int, ...] = ()
    file: Path | None = None


@dataclass(frozen=True)
class Table:
    """A table with its title, notes and remarks.

    Attributes:
        title: Of the section.
        columns: Titles.
        numeric: For each column whether it holds numbers, which stand to the right.
        rows: In their order.
        notes: The texts that rows point to by number, from 1.
        remarks: Sentences that hold for the whole table.
    """

    title: str
    columns: tuple[str, ...]
    numeric: tuple[bool, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


def markdown(table: Table, folder: Path) -> str:
    """Write a table as Markdown, without its title; links lead from `folder` to the files."""
    lines = [[_plain(name) for name in table.columns]]
    for row in table.rows:
        first, *others, last = (_plain(cell) for cell in row.cells)
        if row.notes:
            first += f" <sup>{', '.join(map(str, row.notes))}</sup>"
        if row.file is not None:
            last = f"[{last}]({link(row.file, folder)})"
        lines.append([first, *others, last])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    widths[-1] = len(lines[0][-1])  # nothing stands behind it
    rule = [
        "-" * (width - 1) + (":" if right else "-")
        for width, right in zip(widths, table.numeric, strict=True)
    ]
    written = [_line(line, widths, table.numeric) for line in lines]
    text = [written[0], _line(rule, widths, table.numeric), *written[1:]]
    if table.notes:
        text += ["", *(f"{number}. {_plain(note)}" for number, note in enumerate(table.notes, 1))]
    if table.remarks:
        text += ["", *(_plain(remark) for remark in table.remarks)]
    return "\n".join(text)


def link(file: Path, folder: Path) -> str:
    """Write the way from a folder to a file as a page there links to it."""
    return quote(Path(os.path.relpath(file, folder)).as_posix())


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    padded = (
        cell.rjust(width) if to_right else cell.ljust(width)
        for cell, width, to_right in zip(cells, widths, right, strict=True)
    )
    return f"| {' | '.join(padded)} |"


def _plain(text: str) -> str:
    """Write a text so that Markdown shows it as it is, in one line, also inside of a table."""
    text = re.sub(r"&(?=#?\w+;)", "&amp;", " ".join(text.split()))
    text = re.sub(r"[\\`*\[\]|]|(?<![^\W_])_|_(?![^\W_])", r"\\\g<0>", text)
    return text.replace("<", "&lt;").replace(">", "&gt;").replace("~", "&#126;")
