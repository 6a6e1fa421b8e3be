"""Pages of the experiments of papers, docs/papers/*.yaml: `title`, `about`, and `sections` of text and rows.

A row has the cells of COLUMNS; `probe` names one of the `probes` of the file, `small` is a command on a small set, and
`lists`, also of the file, the lists of its `vidssl test`, `splits`, also of a section, those that it needs. Below the
rows of a section are the commands of each, made by `paper_commands.py`.
"""

import html
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

sys.path.insert(0, str(Path(__file__).parent))
from paper_commands import Paper, wrapped

ROOT = Path(__file__).resolve().parents[2]
COLUMNS = {  # title, by key of a row
    "item": "table or figure",
    "what": "what",
    "expected": "expected (paper)",
    "command": "command or config",
    "differences": "differences",
    "measured": "measured",
}
DEFAULTS = {"differences": "none", "measured": "not run"}
_NOTE = """\
Each table and figure has a row here; where its rows are different runs, each of them has one. *Expected* is the number
of the paper, in percent. *Measured*: none of the paper's settings was run here. The first config of a row is the
pre-training; the others start from its last checkpoint (`init`). Settings after a config override it. A row's link
leads to its commands, from the lists to the table of its results; none is repeated if its results exist."""


def paper_page(path: Path) -> str:
    """Make the Markdown page of a paper."""
    content, parts = _read(path), []
    commands = iter(row_commands(path))
    for number, section in enumerate(content["sections"], 1):
        parts += [f"## {section['title']}", section.get("text", "").strip()]
        lines, blocks = [], dict[tuple[str, ...], list[str]]()
        for cells in section.get("rows", []):
            row = _row(cells, content.get("probes", {}))
            if row_of := next(commands):
                blocks.setdefault(tuple(row_of), []).append(f"{row['item']}: {row['what']}")
                row["item"] = f"[{row['item']}](#commands-{number}-{[*blocks].index(tuple(row_of)) + 1})"
            lines.append([row[column] for column in COLUMNS])
        parts += [markdown_table([*COLUMNS.values()], lines)] if lines else []
        parts += [_block(f"commands-{number}-{n}", of, rows) for n, (of, rows) in enumerate(blocks.items(), 1)]
    return "\n\n".join(filter(None, [f"# {content['title']}", content["about"].strip(), _NOTE, *parts])) + "\n"


def read_rows(path: Path) -> list[dict[str, str]]:
    """Read the experiments of a paper, with their probes, small versions and defaults."""
    content = _read(path)
    return [_row(cells, content.get("probes", {})) for part in content["sections"] for cells in part.get("rows", [])]


@cache
def row_commands(path: Path) -> list[list[str]]:
    """Make the commands of each row of a paper; one that is left out has none."""
    content, rows = _read(path), []
    for section in content["sections"]:
        splits = {"splits": section["splits"]} if "splits" in section else {}
        rows += [splits | _row(cells, content.get("probes", {})) for cells in section.get("rows", [])]
    blocks = "\n".join([content["about"], *(section.get("text", "") for section in content["sections"])])
    paper = Paper(path.stem, blocks, [row["small"] for row in rows if "small" in row])
    return [
        paper.commands(row["item"], row["command"], row.get("lists", content.get("lists")), row.get("splits"))
        for row in rows
    ]


def _block(anchor: str, commands: tuple[str, ...], titles: list[str]) -> str:
    """Write the commands of one or more rows as text that opens."""
    title = html.escape(re.sub(r"\[([^]]*)\]\([^)]*\)|`", r"\1", "; ".join(titles)))
    lines = "\n".join(map(wrapped, commands))
    code = f'<div id="{anchor}" markdown="1">\n\n```sh\n{lines}\n```\n\n</div>'
    return f'<details markdown="1">\n<summary>{title}</summary>\n\n{code}\n\n</details>'


def small_version(command: str) -> str | None:
    """Return the command of a study on a small set, `--cfg` with a small config, that its header has."""
    study = re.search(r"configs/studies/[\w/]+\.yaml", command)
    if study is None or ", small `" in command:
        return None
    lines = (ROOT / study[0]).read_text(encoding="utf-8").replace("\\\n#", "").splitlines()
    commands = [line.removeprefix("# ") for line in lines if line.startswith("# python benchmarks/study.py")]
    return next((" ".join(line.split()) for line in commands if " --cfg " in line), None)


def markdown_table(head: list[str], rows: list[list[str]]) -> str:
    """Write a table of Markdown."""
    head_and_rule = f"| {' | '.join(head)} |\n|{'---|' * len(head)}\n"
    return head_and_rule + "\n".join(f"| {' | '.join(cells)} |".replace("|  |", "| |") for cells in rows)


@cache
def _read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = YAML(typ="safe").load(path)
    return content


def _row(cells: dict[str, str], probes: dict[str, str]) -> dict[str, str]:
    probe = f", probe {probes[cells['probe']]}" if "probe" in cells else ""
    small = cells.get("small") or small_version(cells["command"])
    return DEFAULTS | cells | {"command": cells["command"] + probe + (f", small `{small}`" if small else "")}
