"""Tables in Markdown pages that are made from the code, and stay readable on a git host.

    python docs/builder/tables.py        # renews the tables of all pages in docs/

A table stands between the lines `<!-- table: … -->` and `<!-- end of table -->`:

    settings NAME  settings of a method or branch, from its `Config` and the comments in it
    packages       packages of vidssl, from their docstrings
"""

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from comments import describe  # noqa: E402
from papers import markdown_table  # noqa: E402

from vidssl.base.config import Settings  # noqa: E402
from vidssl.base.schedule import Schedule  # noqa: E402
from vidssl.methods import METHODS  # noqa: E402
from vidssl.methods.interclr_branch import Inter  # noqa: E402
from vidssl.methods.jigsaw_branch import Jigsaw  # noqa: E402

_TABLE = re.compile(r"(?<=<!-- table: )(\w+)(?: (\S+))? -->\n.*?(?=<!-- end of table -->)", re.DOTALL)


def main() -> None:
    """Write the pages whose tables have changed."""
    for page in sorted((ROOT / "docs").rglob("*.md")):
        if (text := renewed(page)) != page.read_text(encoding="utf-8"):
            page.write_text(text, encoding="utf-8")
            print(page.relative_to(ROOT))


def renewed(page: Path) -> str:
    """Return the text of a page with its tables made anew."""
    makers: dict[str, Callable[[str], str]] = {"settings": settings, "packages": lambda _: packages()}

    def replace(match: re.Match[str]) -> str:
        mark = match[0].partition("\n")[0]
        return f"{mark}\n\n{makers[match[1]](match[2])}\n\n"

    return _TABLE.sub(replace, page.read_text(encoding="utf-8"))


def settings(name: str) -> str:
    """Make the table of the settings of a method or a branch."""
    config = {"inter": Inter, "jigsaw": Jigsaw}.get(name) or METHODS[name].Config
    defaults = config.model_construct().model_dump(mode="json")
    rows = []
    for setting in config.model_fields:
        default = f"`{_flow(defaults[setting])}`" if setting in defaults else "required"
        rows.append([f"`{setting}`", default, _description(config, setting)])
    return markdown_table(["setting", "default", "meaning"], rows)


def packages() -> str:
    """Make the table of the packages of vidssl."""
    rows = []
    for folder in sorted({path.parent for path in (ROOT / "vidssl").rglob("__init__.py")}):
        text = (folder / "__init__.py").read_text(encoding="utf-8")
        sentence = re.split(r"\n\n|(?<=\.) ", ast.get_docstring(ast.parse(text)) or "")[0].replace("\n", " ")
        rows.append([f"`{folder.relative_to(ROOT)}/`", sentence])
    return markdown_table(["package", "content"], rows)


def _description(config: type[Settings], setting: str) -> str:
    """Return the comment beside a setting, or beside that of the base class which it replaces."""
    for owner in config.__mro__:
        if setting in vars(owner).get("__annotations__", {}):
            path = Path(inspect.getfile(owner))
            for line in _fields(owner):
                if ast.unparse(line.target) == setting and (text := describe(path, line.lineno, line.end_lineno or 0)):
                    return re.sub(r"\bNone\b", "null", text)
    return ""


def _fields(owner: type) -> Iterator[ast.AnnAssign]:
    """Yield the fields of a class as they are written, with the lines of its file."""
    names = owner.__qualname__.split(".")
    node: Any = ast.parse(Path(inspect.getfile(owner)).read_text(encoding="utf-8"))
    for name in names:
        (node,) = [part for part in node.body if isinstance(part, ast.ClassDef) and part.name == name]
    yield from (line for line in node.body if isinstance(line, ast.AnnAssign))


def _flow(value: object) -> str:
    """Write a default as YAML in one line; of a schedule what differs from the usual one."""
    if isinstance(value, dict):
        usual = {name: field.default for name, field in Schedule.model_fields.items()} if "start" in value else {}
        changed = {key: item for key, item in value.items() if key not in usual or item not in (usual[key], [])}
        return f"{{{', '.join(f'{key}: {_flow(item)}' for key, item in changed.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_flow, value))}]"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


if __name__ == "__main__":
    main()
