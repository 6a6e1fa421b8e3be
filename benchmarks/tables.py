"""Tables of results in Markdown."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import quote


@dataclass(frozen=True)
class Row:
    """One row: measured, not run, or published by others."""

    state: Literal["measured", "not run", "published"]
    cells: tuple[str, ...]  # one for each column; the first gets the notes, the last the link
    notes: tuple[int, ...] = ()  # numbers of the notes below the table, from 1
    file: Path | None = None  # link target of the last cell


@dataclass(frozen=True)
class Table:
    """A table with its title, notes and remarks."""

    title: str
    columns: tuple[str, ...]
    numeric: tuple[bool, ...]  # columns of numbers are aligned right
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()  # sentences about the whole table

    def markdown(self, folder: Path) -> str:
        """The table as Markdown, without its title; links are relative to `folder`."""
        lines = [[_escaped(name) for name in self.columns]]
        for row in self.rows:
            first_cell, *inner_cells, last_cell = map(_escaped, row.cells)
            if row.notes:
                first_cell += f" <sup>{', '.join(map(str, row.notes))}</sup>"
            if row.file is not None:
                last_cell = f"[{last_cell}]({quote(Path(os.path.relpath(row.file, folder)).as_posix())})"
            lines.append([first_cell, *inner_cells, last_cell])
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        widths[-1] = len(lines[0][-1])  # nothing follows the last column: no padding
        columns = list(zip(widths, self.numeric, strict=True))
        lines.insert(1, ["-" * (width - 1) + (":" if right else "-") for width, right in columns])
        text = []
        for line in lines:
            cells = [
                cell.rjust(width) if right else cell.ljust(width)
                for cell, (width, right) in zip(line, columns, strict=True)
            ]
            text.append(f"| {' | '.join(cells)} |")
        if self.notes:
            text += ["", *(f"{number}. {_escaped(note)}" for number, note in enumerate(self.notes, 1))]
        if self.remarks:
            text += ["", *map(_escaped, self.remarks)]
        return "\n".join(text)


def _escaped(text: str) -> str:
    """Escape a text so that Markdown shows it unchanged and on one line, also in a table."""
    text = re.sub(r"&(?=#?\w+;)", "&amp;", " ".join(text.split()))
    text = re.sub(r"[\\`*\[\]|]|(?<![^\W_])_|_(?![^\W_])", r"\\\g<0>", text)
    return text.replace("<", "&lt;").replace(">", "&gt;").replace("~", "&#126;")
