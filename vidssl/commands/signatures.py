"""The signature of a job, read from its source: its arguments, their types as text, defaults, and what they mean.

Commands have the arguments of their jobs as options. The source is read and not imported, because torch and all that a
job needs take seconds, and `--help` and a mistyped option are answered at once.
"""

import ast
import inspect
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

_PACKAGE = Path(__file__).parents[1]
_SECTIONS = ("Args", "Attributes", "Returns", "Raises", "Yields")
REQUIRED = object()  # the default of an argument without one


@dataclass(frozen=True)
class Argument:
    """One argument of a job."""

    name: str
    type: str  # as it is written, without `| None`
    default: Any  # REQUIRED, a literal, or None for what is not one
    text: str  # what it is
    positional: bool  # may be passed without its name


@dataclass(frozen=True)
class Signature:
    """A job."""

    summary: str  # the first paragraph of its docstring
    description: str  # the docstring without its sections
    arguments: tuple[Argument, ...]
    takes_settings: bool  # as *settings


@cache
def read_signature(module: str, name: str) -> Signature:
    """Read a function of a module of vidssl, such as `vidssl.api.test`, or of a file, `examples/x.py`."""
    tree = _tree(module)
    function = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name)
    paragraphs, texts = _parse(ast.get_docstring(function) or "")
    found: list[Argument] = []
    plain = [*function.args.posonlyargs, *function.args.args]
    defaults = [REQUIRED] * (len(plain) - len(function.args.defaults)) + [*map(_literal, function.args.defaults)]
    for argument, default in zip(plain, defaults, strict=True):
        found.append(_argument(argument.arg, argument.annotation, default, texts, positional=True))
    for argument, value in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True):
        default = REQUIRED if value is None else _literal(value)
        found.append(_argument(argument.arg, argument.annotation, default, texts, positional=False))
    if function.args.kwarg is not None and function.args.kwarg.annotation is not None:
        unpacked = ast.unparse(function.args.kwarg.annotation)
        found += _options(tree, module, unpacked.removeprefix("Unpack[").removesuffix("]"))
    description = "\n\n".join(paragraphs)
    return Signature(paragraphs[0], description, tuple(found), function.args.vararg is not None)


def _options(tree: ast.Module, module: str, name: str) -> list[Argument]:
    """Read the keys of a TypedDict, which is in the module or imported there."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            texts = _parse(ast.get_docstring(node) or "")[1]
            keys = [part for part in node.body if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)]
            return [_argument(part.target.id, part.annotation, None, texts, positional=False) for part in keys]  # type: ignore[union-attr]
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and any(alias.name == name for alias in node.names):
            return _options(_tree(str(node.module)), str(node.module), name)
    raise LookupError(f"{module} has no {name}")


@cache
def _tree(module: str) -> ast.Module:
    if module.endswith(".py"):
        return ast.parse(Path(module).read_text(encoding="utf-8"))
    path = _PACKAGE.joinpath(*module.split(".")[1:])
    return ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8"))


def _argument(
    name: str, annotation: ast.expr | None, default: Any, texts: dict[str, str], positional: bool
) -> Argument:
    kind = "" if annotation is None else ast.unparse(annotation).removesuffix(" | None")
    return Argument(name, kind.replace("'", '"'), default, texts.get(name, ""), positional)


def _literal(node: ast.expr | None) -> Any:
    """Return a default that is a literal; None for another, which the text states."""
    try:
        return None if node is None else ast.literal_eval(node)
    except ValueError:
        return None


def _parse(docstring: str) -> tuple[list[str], dict[str, str]]:
    """Split a docstring into its paragraphs before the sections, and the texts of `Args` or `Attributes` by name."""
    parts = re.split(rf"^({'|'.join(_SECTIONS)}):$", inspect.cleandoc(docstring), flags=re.MULTILINE)
    paragraphs = [" ".join(text.split()) for text in parts[0].split("\n\n") if text.strip()]
    texts: dict[str, str] = {}
    for title, body in zip(parts[1::2], parts[2::2], strict=True):
        if title in ("Args", "Attributes"):
            for entry in re.split(r"^ {4}(?=\S)", body, flags=re.MULTILINE)[1:]:
                name, _, text = entry.partition(":")
                texts[name.strip()] = " ".join(text.split())
    return paragraphs or [""], texts
