"""Pages that are made from code: commands and the API from docstrings, scripts from their cells."""

import argparse
import ast
import importlib
import re
from itertools import takewhile
from pathlib import Path

from vidssl.cli import COMMANDS, Group, parser_of

# The page that explains a command.
GUIDES = {
    "prepare": ("data sets", "../data_sets.md"),
    "train": ("start", "../start.md"),
    "test": ("evaluation", "../evaluation.md"),
    "retrieval": ("evaluation", "../evaluation.md#retrieval"),
    "extract": ("evaluation", "../evaluation.md#features"),
    "map": ("map", "../map.md"),
    "export": ("weights", "../weights.md#export"),
    "track": ("tracking", "../tracking.md"),
    "analyze": ("analysis", "../analysis.md"),
    "check": ("videos", "../videos.md"),
    "shrink": ("videos", "../videos.md#shrink"),
    "compare": ("compare", "../compare.md"),
    "predict": ("predict", "../predict.md"),
    "show": ("data", "../data.md#look-at-the-views"),
    "launch": ("distributed", "../distributed.md"),
}
API = (
    *("vidssl", "vidssl.video", "vidssl.transforms", "vidssl.models", "vidssl.losses", "vidssl.data"),
    *("vidssl.methods", "vidssl.evaluation", "vidssl.tracking", "vidssl.base.types", "vidssl.apps.prepare"),
)
LANGUAGES = {".py": "python", ".sbatch": "bash"}
IMAGES = Path("docs/images/gallery")  # the image and the printed text of each example


# Commands ---------------------------------------------------------------------------------------------------


def command_pages() -> dict[str, str]:
    """Make a page for each command, and one that lists them: text by path."""
    rows, pages = [], {}
    for name, entry in COMMANDS.items():
        rows.append(f"| [`vidssl {name}`]({name}.md) | {_escaped(entry.summary)} |")
        pages[f"docs/commands/{name}.md"] = _command_page(name)
    head = "# Commands\n\nEach page is the `--help` of a command.\n\n| command | |\n|---|---|\n"
    note = "\n\nWhat they have in common: [the command line](../command_line.md).\n"
    return pages | {"docs/commands/index.md": head + "\n".join(rows) + note}


def _command_page(name: str) -> str:
    entry = COMMANDS[name]
    guide = "Guide: [{}]({}).\n\n".format(*GUIDES[name]) if name in GUIDES else ""
    head = f"# vidssl {name}\n\n"
    if not isinstance(entry, Group):
        return f"{head}{_description(entry.signature.description)}\n\n{guide}{_options(_parser(name))}"
    text = f"{head}{_description(entry.summary)}\n\n{guide}| | |\n|---|---|\n"
    for subcommand, job in entry.jobs.items():
        text += f"| [`{subcommand}`](#{_anchor(f'vidssl {name} {subcommand}')}) | {_escaped(job.summary)} |\n"
    for subcommand, job in entry.jobs.items():
        description, options = _description(job.signature.description), _options(_parser(f"{name} {subcommand}"))
        text += f"\n## vidssl {name} {subcommand}\n\n{description}\n\n{options}"
    return text


def _parser(command: str) -> argparse.ArgumentParser:
    _, parser, _ = parser_of(command, prog=f"vidssl {command}")
    return parser


def _options(parser: argparse.ArgumentParser) -> str:
    """Write the usage of a command, and a table of its arguments."""
    usage = parser.format_usage().removeprefix("usage: ")
    text = f"```text\n{usage}```\n"
    rows = [row for action in parser._actions if (row := _row(parser, action))]
    return text + "\n| argument | |\n|---|---|\n" + "\n".join(rows) + "\n" if rows else text


def _row(parser: argparse.ArgumentParser, action: argparse.Action) -> str | None:
    """Write the row of an argument; None for `--help`."""
    if action.dest == "help" or action.help == argparse.SUPPRESS:
        return None
    formatter = parser.formatter_class(prog=parser.prog)
    name = formatter._format_action_invocation(action)
    required = " Required." if action.option_strings and action.required else ""
    text = (action.help or "") % {**vars(action), "prog": parser.prog}
    choices = "" if action.choices is None or "{" in name else f" One of {', '.join(map(str, action.choices))}."
    return f"| `{name.replace('|', chr(92) + '|')}` | {_escaped(text)}{'.' * bool(required)}{required}{choices} |"


def _description(docstring: str | None) -> str:
    """Return the paragraphs of a docstring as Markdown."""
    text = "\n".join(line.strip() for line in (docstring or "").strip().splitlines())
    return _escaped(text if text.endswith(".") else f"{text}.")


def _sentence(docstring: str | None) -> str:
    return (docstring or "").strip().split("\n\n")[0]


def _escaped(text: str) -> str:
    """Escape what Markdown would change in a help text, outside of `code`."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if number % 2 else re.sub(r"([\\*_<|\[])", r"\\\1", part) for number, part in enumerate(parts))


def _anchor(heading: str) -> str:
    return heading.lower().replace(" ", "-")


# API --------------------------------------------------------------------------------------------------------


def api_pages() -> dict[str, str]:
    """Make a page for each module with public names, and one that lists them: text by path."""
    rows, pages = [], {}
    for name in API:
        module = importlib.import_module(name)
        names = public_names(name)
        links = " ".join(f"[`{member}`]({name}.md#{name}.{member})" for member in names)
        rows.append(f"| [`{name}`]({name}.md) | {_escaped(_sentence(module.__doc__))} | {links} |")
        entries = "\n".join(f"::: {name}.{member}\n" for member in names)
        pages[f"docs/api/{name}.md"] = f"# {name}\n\n{_escaped(module.__doc__ or '')}\n\n{entries}"
    head = (
        "# Python API\n\nThe public names, from their docstrings. How the packages fit together, and your own methods, "
        "recipes and more: [extend](../extend.md).\n\n"
    )
    return pages | {
        "docs/api/index.md": head + "| module | content | names |\n|---|---|---|\n" + "\n".join(rows) + "\n"
    }


def public_names(module: str) -> list[str]:
    """List the public functions and classes of a module: those of its table or `__all__`, or those it defines."""
    imported = importlib.import_module(module)
    names = sorted(getattr(imported, "_PUBLIC", ())) or getattr(imported, "__all__", None)
    if names:
        return [name for name in names if callable(getattr(imported, name))]
    tree = ast.parse(Path(str(imported.__file__)).read_text(encoding="utf-8"))
    return [
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
    ]


# Code -------------------------------------------------------------------------------------------------------


def code_page(path: Path, root: Path) -> str:
    """Make the page of a file that is not Markdown: its text, or the cells of an example of the gallery."""
    name, text = path.relative_to(root), path.read_text(encoding="utf-8")
    if "\n# %%" in text:
        return _example_page(name, text, root)
    return f"# {name.name}\n\n`{name}`\n\n{_fenced(text, LANGUAGES.get(path.suffix, 'text'))}"


def _example_page(name: Path, text: str, root: Path) -> str:
    """Make the page of an example: its docstring, image, cells and what it prints."""
    docstring = ast.get_docstring(ast.parse(text)) or ""
    up = "../" * (len(name.parts) - 1)
    page = f"{docstring}\n\n![{docstring.splitlines()[0].lstrip('# ')}]({up}{IMAGES / name.stem}.png)\n\n"
    _, *cells = re.split(r"^# %%.*\n", text, flags=re.MULTILINE)
    for cell in cells:
        lines = cell.splitlines(keepends=True)
        comment = [*takewhile(lambda line: line.startswith("#"), lines)]
        code = "".join(lines[len(comment) :])
        page += "".join(line[1:].removeprefix(" ") for line in comment) + "\n"
        page += _fenced(code, "python") if code.strip() else ""
    printed = (root / IMAGES / f"{name.stem}.txt").read_text(encoding="utf-8")
    return f"{page}It prints:\n\n{_fenced(printed, 'text')}\nRun it: `python {name}`.\n"


def _fenced(text: str, language: str) -> str:
    return f"~~~{language}\n{text.strip()}\n~~~\n\n"
