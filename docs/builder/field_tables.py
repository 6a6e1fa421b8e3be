"""A Griffe extension: each class of the API has a table of its fields, whose comments are their descriptions."""

import ast
import sys
from pathlib import Path
from typing import Any

import griffe

sys.path.insert(0, str(Path(__file__).parent))
from comments import describe

_BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}  # arguments of pydantic's Field


class FieldTables(griffe.Extension):
    """Append the table to the docstring of each class."""

    def on_class_members(self, *, node: ast.ClassDef, cls: griffe.Class, **_: Any) -> None:
        """Describe the fields of a class, once its members are known."""
        settings = {
            ast.unparse(line.target)
            for line in node.body
            if isinstance(line, ast.AnnAssign) and "ClassVar" not in ast.unparse(line.annotation)
        }
        rows = []
        for field in cls.members.values():
            if isinstance(field, griffe.Attribute) and not field.name.startswith(("_", "model_")):
                rows += _row(field, field.name in settings)
        if rows:
            docstring = "Settings." if cls.docstring is None else cls.docstring.value  # a nested Config has none
            cls.docstring = griffe.Docstring("\n".join([docstring, "", "Attributes:", *rows]), parent=cls)


def _row(field: griffe.Attribute, is_setting: bool) -> list[str]:
    """Describe a field: its comment, and the bounds and default of a setting. Other fields need a comment."""
    if "property" in field.labels or field.lineno is None or field.endlineno is None:
        return []
    text = describe(field.filepath, field.lineno, field.endlineno)
    if not text and not is_setting:
        return []
    words = [f"{text[:1].upper()}{text[1:]}{'' if text.endswith(('.', '?')) else '.'}"] if text else []
    if is_setting:
        words += _limits_and_default(field)
    return [f"    {field.name}: {' '.join(words) or 'Required.'}"]


def _limits_and_default(field: griffe.Attribute) -> list[str]:
    value = None if field.value is None else ast.parse(str(field.value), mode="eval").body
    limits: list[str] = []
    if isinstance(value, ast.Call) and ast.unparse(value.func) in ("Field", "field"):
        arguments = {word.arg: word.value for word in value.keywords}
        limits = [f"{text} {ast.unparse(arguments[name])}" for name, text in _BOUNDS.items() if name in arguments]
        factory = arguments.get("default_factory")
        value = arguments.get("default") if factory is None else ast.Call(factory, [], [])
    sentences = [f"{' and '.join(limits).capitalize()}."] if limits else []
    return sentences + ([] if value is None else [f"Default: `{ast.unparse(value)}`."])
