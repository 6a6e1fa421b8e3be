"""Counts the code against the budget in pyproject.toml, for `make check`: who adds, removes.

    python tests/budget.py

Code lines are no blanks, comments or docstrings; words of docs are those of its Markdown pages. The difference is to
the last commit on main.
"""

import ast
import io
import subprocess
import sys
import tarfile
import tokenize
from collections.abc import Iterable
from pathlib import Path

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
COUNTED = ("vidssl", "tests", "docs")
_NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
_DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def code_lines(source: str) -> int:
    """Count the lines with code."""
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node) is not None:
            docstrings.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docstrings)


def count(files: Iterable[tuple[str, str]]) -> dict[str, int]:
    """Count files, by path and text, for each row of the budget."""
    counts = {"core": 0, "modules": 0, "tests": 0, "docs": 0}
    for path, text in files:
        folder, *rest = path.split("/")
        if folder == "docs":
            counts["docs"] += len(text.split()) if path.endswith(".md") else 0
        elif path.endswith(".py"):
            row = "tests" if folder == "tests" else f"apps.{rest[1]}" if rest[0] == "apps" and len(rest) > 2 else "core"
            counts[row] = counts.get(row, 0) + code_lines(text)
            counts["modules"] += folder == "vidssl"
    return counts


def checkout() -> Iterable[tuple[str, str]]:
    """Yield the files of the checkout that git does not ignore."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *COUNTED]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in filter(None, names):
        if name.endswith((".py", ".md")) and (ROOT / name).is_file():
            yield name, (ROOT / name).read_text(encoding="utf-8")


def last_commit() -> Iterable[tuple[str, str]]:
    """Yield the files of the last commit on main; none if there is no such branch."""
    for branch in ("main", "origin/main"):
        archive = subprocess.run(["git", "archive", branch, *COUNTED], cwd=ROOT, capture_output=True, check=False)
        if archive.returncode == 0:
            with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
                for member in files:
                    if member.name.endswith((".py", ".md")) and (file := files.extractfile(member)) is not None:
                        yield member.name, file.read().decode()
            return


def main() -> None:
    """Print the table; the exit status is 1 if a row is over its budget, or has none."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["vidssl"]["budget"]
    budget = {name: most for name, most in table.items() if name != "apps"}
    budget |= {f"apps.{app}": most for app, most in table["apps"].items()}
    now, before = count(checkout()), count(last_commit())
    print(f"{'code lines':<18}{'now':>8}{'budget':>8}   difference to main")
    for name in sorted({*now, *budget}, key=lambda name: (name.startswith("apps"), name)):
        change = f"{now.get(name, 0) - before.get(name, 0):+,}" if any(before.values()) else "not known"
        over = "" if now.get(name, 0) <= budget.get(name, 0) else "   over the budget: remove as much as was added"
        print(f"{name:<18}{now.get(name, 0):>8,}{budget.get(name, 0):>8,}   {change}{over}")
    if any(lines > budget.get(name, 0) for name, lines in now.items()):
        sys.exit(1)


if __name__ == "__main__":
    main()
