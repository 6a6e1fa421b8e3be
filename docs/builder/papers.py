"""Pages of the experiments of papers, docs/papers/*.yaml: `title`, `about`, and `sections` of text and rows.

A row has the cells of COLUMNS; `probe` names one of the `probes` of the file, `small` is a command on a small set.
"""

import re
from functools import cache
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

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
pre-training; the others start from its last checkpoint (`init`), as in the commands. Settings after a config override
it; give such a run an `output` of its own."""


def paper_page(path: Path) -> str:
    """Make the Markdown page of a paper."""
    content = _read(path)
    parts = [f"# {content['title']}", content["about"].strip(), _NOTE]
    for section in content["sections"]:
        parts += [f"## {section['title']}", section.get("text", "").strip()]
        if rows := [_row(cells, content.get("probes", {})) for cells in section.get("rows", [])]:
            parts.append(markdown_table([*COLUMNS.values()], [[row[column] for column in COLUMNS] for row in rows]))
    return "\n\n".join(filter(None, parts)) + "\n"


def read_rows(path: Path) -> list[dict[str, str]]:
    """Read the experiments of a paper, with their probes, small versions and defaults."""
    content = _read(path)
    return [_row(cells, content.get("probes", {})) for part in content["sections"] for cells in part.get("rows", [])]


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
