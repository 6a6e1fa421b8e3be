"""The options of a command: its job's arguments. Here is how types become options, and how they are parsed."""

import argparse
import ast
import inspect
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, NoReturn

from vidssl.base.errors import ConfigError, hint_at_device
from vidssl.base.registry import did_you_mean

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
class JobSignature:
    """A job."""

    summary: str  # the first paragraph of its docstring
    description: str  # the docstring without its sections
    arguments: tuple[Argument, ...]
    takes_settings: bool  # as *settings


@cache
def read_signature(module: str, name: str) -> JobSignature:
    """Read a function of a module of vidssl, such as `vidssl.jobs.test`, or of a file, `examples/x.py`."""
    tree = _tree(module)
    function = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name)
    paragraphs, texts = _parse(ast.get_docstring(function) or "")
    parameters = function.args
    positional = [*parameters.posonlyargs, *parameters.args]
    missing = [None] * (len(positional) - len(parameters.defaults))  # as in `kw_defaults`
    defaults = [*missing, *parameters.defaults, *parameters.kw_defaults]
    arguments: list[Argument] = []
    for parameter, node in zip([*positional, *parameters.kwonlyargs], defaults, strict=True):
        default = REQUIRED if node is None else _literal(node)
        arguments.append(_argument(parameter.arg, parameter.annotation, default, texts, parameter in positional))
    if parameters.kwarg is not None and parameters.kwarg.annotation is not None:
        unpacked = ast.unparse(parameters.kwarg.annotation)
        arguments += _options(tree, module, unpacked.removeprefix("Unpack[").removesuffix("]"))
    return JobSignature(paragraphs[0], "\n\n".join(paragraphs), tuple(arguments), parameters.vararg is not None)


def _options(tree: ast.Module, module: str, name: str) -> list[Argument]:
    """Read the keys of a TypedDict, which is in the module or imported there, after those that it inherits."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            texts = _parse(ast.get_docstring(node) or "")[1]
            keys = [part for part in node.body if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)]
            bases = [base.id for base in node.bases if isinstance(base, ast.Name) and base.id != "TypedDict"]
            options = [option for base in bases for option in _options(tree, module, base)]
            return options + [_argument(key.target.id, key.annotation, None, texts, positional=False) for key in keys]  # type: ignore[union-attr]
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


def _literal(node: ast.expr) -> Any:
    """Return a default that is a literal; None for another, which the text states."""
    try:
        return ast.literal_eval(node)
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


# Arguments of Python, and what commands call them.
OTHER_NAMES = {"model": "checkpoint", "trust": "trust-checkpoint"}
_MODEL = (
    "a run's folder, a file of weights, a name such as vidssl-small, torchvision:r3d_18 or timm:NAME "
    "(docs/encoders.md), or 'random' for the untrained backbone of --cfg"
)
_INPUT = "videos: a list (*.csv, `vidssl prepare` writes it), a folder, a quoted pattern, or one file"


class Parser(argparse.ArgumentParser):
    """Parses without abbreviations; a mistake is a ConfigError, which names the option that is near an unknown one."""

    def __init__(self, prog: str | None = None, **settings: Any) -> None:
        super().__init__(prog=prog, allow_abbrev=False, **settings)

    def error(self, message: str) -> NoReturn:
        """Raise the mistake that argparse has noticed."""
        if unknown := re.match(r"unrecognized arguments: (--[\w-]+)", message):
            message += did_you_mean(unknown[1], self._option_string_actions)
        if re.match("argument --device: invalid choice", message):
            message += hint_at_device("device")
        raise ConfigError(f"{message}; see {self.prog} --help")


def _limited(kind: type[int] | type[float], limit: int, text: str) -> float:
    """Parse an integer of at least `limit`, or a number above it."""
    whole = kind is int
    try:
        number = kind(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text} is not {'an integer' if whole else 'a number'}") from None
    if number < limit or (not whole and not limit < number < float("inf")):
        raise argparse.ArgumentTypeError(f"{text} is {'less than' if whole else 'not above'} {limit}")
    return number


def at_least(least: int) -> Callable[[str], float]:
    """Make the type of an option that is an integer of at least `least`."""
    return partial(_limited, int, least)


above_zero = partial(_limited, float, 0)


def config_file(text: str) -> Path:
    """Find a config by its path or name, as `find_config`."""
    from vidssl.base.config import find_config  # late: pydantic takes longer than a help text

    return find_config(text)


def _count_or_all(text: str) -> int | str:
    return text if text == "all" else int(text)


_MODELS = ("Model | Sequence[Model]", "Model | Sequence[Model] | Mapping[str, Model]")
_NUMBERS = ("Sequence[int]", "Collection[int]")
# By the type of an argument, as it is written. Arguments of other types cannot be options, such as functions.
_TYPES: dict[str, dict[str, Any]] = {
    **{kind: {"type": str} for kind in ("str", "Model")},
    "int": {"type": int},
    "float": {"type": float},
    "Count": {"type": at_least(1)},
    "Natural": {"type": at_least(0)},
    "Positive": {"type": above_zero},
    "Annotated[int, Ge(2)]": {"type": at_least(2)},
    **{kind: {"type": Path} for kind in ("Path", "File", "Folder", "Videos")},
    "Config": {"type": config_file},
    "bool": {"action": "store_true"},
    "bool | Count": {"nargs": "?", "const": True, "type": at_least(1), "metavar": "N"},
    "bool | str": {"nargs": "?", "const": True, "type": str},
    'int | Literal["all"]': {"type": _count_or_all, "metavar": "N"},
    **{kind: {"type": str, "nargs": "+"} for kind in _MODELS},
    "Sequence[File]": {"type": Path, "nargs": "+", "metavar": "FILE"},
    "Sequence[str]": {"type": str, "nargs": "+"},
    "Queried": {"type": str, "nargs": "+", "metavar": "FILE"},
    **{kind: {"type": str, "nargs": "+", "metavar": "N"} for kind in _NUMBERS},  # settings after it are moved: `parse`
    "Sequence[str | Mapping[str, Any]]": {"type": str, "nargs": "+", "metavar": ("NAME", "KEY=VALUE")},
}
_WORDS = ("Sequence[str]", "Queried", *_NUMBERS)  # take all words that follow, and settings among them


def option_of(argument: Argument) -> dict[str, Any] | None:
    """Return what argparse needs for an argument; None if it cannot be an option."""
    if literal := re.fullmatch(r"(Sequence\[)?Literal\[(.*?)\]+", argument.type):
        choices = {"choices": ast.literal_eval(f"({literal[2]},)")}
        return choices | {"nargs": "+"} if literal[1] else choices
    return _TYPES.get(argument.type)


def option_name(argument: str) -> str:
    """Return the option of an argument: `--batch-size` of `batch_size`."""
    return f"--{OTHER_NAMES.get(argument, argument).replace('_', '-')}"


def add_options(parser: argparse.ArgumentParser, signature: JobSignature) -> None:
    """Add an option for each argument, `--quiet` and `--json`; what is not given is not in the result of parsing."""
    first = next((a for a in signature.arguments if a.positional and a.name not in ("model", "cfg", "out")), None)
    for argument in signature.arguments:
        kind = option_of(argument)
        if kind is None or argument.name == "settings":
            continue
        text = _help(argument)
        if argument is first:
            optional: dict[str, Any] = {} if argument.default is REQUIRED else {"nargs": "?"}
            metavar = "INPUT" if argument.name == "videos" else argument.name.upper()
            text = _INPUT if argument.type == "Videos" else text
            # No default SUPPRESS: an optional one that is not given would be a path of this name.
            parser.add_argument(argument.name, metavar=metavar, help=text, **optional, **kind)
            continue
        if argument.type == "Videos" and argument.name == "videos" and signature.takes_settings:
            continue  # among the settings
        required = argument.default is REQUIRED or (argument.name == "out" and argument.type != "Folder")
        settings = {"dest": argument.name, "required": required, "default": argparse.SUPPRESS, **kind}
        parser.add_argument(option_name(argument.name), help=text, **settings)
    if _has_settings(signature):
        text = "settings that override the config's"
        if signature.takes_settings and any(argument.name == "videos" for argument in signature.arguments):
            text += "; one may be an input, a folder or pattern of videos, which replaces data.train"
        parser.add_argument("settings", nargs="*", default=[], metavar="KEY=VALUE", help=text)
    parser.add_argument("--quiet", action="store_true", help="log warnings only, without progress bars")
    parser.add_argument("--json", action="store_true", help="print one JSON object: the results, or error and status")


def _has_settings(signature: JobSignature) -> bool:
    return signature.takes_settings or any(argument.name == "settings" for argument in signature.arguments)


def _help(argument: Argument) -> str:
    """Write the text of an option: that of the argument as a phrase, and the default, if the text does not state it."""
    text = argument.text.removesuffix(".")
    text = text[:1].lower() + text[1:] if text[1:2].islower() else text
    if argument.name == "model":
        text = _MODEL + "; several are compared" * argument.type.endswith("]")
    default = argument.default
    if "(default" not in text and not isinstance(default, bool) and default not in (REQUIRED, None, (), ""):
        default = " ".join(map(str, default)) if isinstance(default, tuple) else default
        text += f" (default {default:g})" if isinstance(default, float) else f" (default {default})"
    return text.replace("`", "").replace("%", "%%")


def parse(parser: argparse.ArgumentParser, signature: JobSignature, arguments: Sequence[str] | None) -> dict[str, Any]:
    """Parse options and settings in any order: the arguments of the job, and `json`; apply `--quiet`."""
    options = vars(parser.parse_intermixed_args(arguments))
    if options.pop("quiet"):  # hides progress bars too
        logging.getLogger("vidssl").setLevel(logging.WARNING)
    parsed = {name: value for name, value in options.items() if value is not None}
    settings = [str(word) for word in parsed.pop("settings", ())]
    kinds = {argument.name: argument.type for argument in signature.arguments}
    for name in [name for name in parsed if kinds.get(name) in _WORDS and name != "settings"]:
        values = parsed[name]
        if _has_settings(signature):
            moved = [value for value in values if "=" in value and not Path(value).exists()]
            settings, values = settings + moved, [value for value in values if value not in moved]
        option = option_name(name)
        if not values or len({*values}) < len(values):
            raise ConfigError(f"{option} needs different values, got {' '.join(values) or 'none'}")
        if kinds[name] in _NUMBERS:
            if wrong := [value for value in values if not re.fullmatch("[0-9]{1,4}", value)]:
                raise ConfigError(f"{option}: {wrong[0]} is not a number: write {option} 1 2 3")
            values = [int(value) for value in values]
        parsed[name] = values
    return {**parsed, "settings": settings} if settings else parsed
