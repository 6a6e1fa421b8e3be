"""Modules of plug-ins, and who may have them imported: importing a module runs its code.

A user names modules, with `imports` in a config that is passed or with `--imports`. A config that lies in a file of
weights is data: the modules that it names are used if they are imported already, and imported if the file is trusted.
"""

import ast
import hashlib
import importlib.util
import logging
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pydantic import PydanticUserError

from vidssl.base.errors import ConfigError, first_few

_log = logging.getLogger(__name__)
_STANDARD_LIBRARY = Path(ast.__file__).parent
_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


def import_modules(names: Iterable[str], source: str) -> None:
    """Import modules that register methods, backbones, samplers, recipes or protocols; a user has named them."""
    for name in names:
        try:
            importlib.import_module(name)
        except (ImportError, ValueError, TypeError) as error:  # the latter two: names that no module can have
            remedy = "name the module, and have its folder on PYTHONPATH"
            raise ConfigError(f"{source}: cannot import '{name}': {error}; {remedy}") from None
        except PydanticUserError as error:  # the settings of a plug-in
            raise ConfigError(f"{source}: a Config in '{name}' is wrong: {error.message}") from None


def modules_of(tree: Any, source: str) -> list[str]:
    """Return the names in `imports` of a config, checked."""
    names = tree.get("imports") or []
    if not isinstance(names, list | tuple) or not all(isinstance(n, str) and _NAME.fullmatch(n) for n in names):
        raise ConfigError(f"{source}: imports is a list of modules, such as [my_methods], not {str(names)[:100]!r}")
    return [*names]


def code_of(*entries: Any, libraries: bool = True) -> dict[str, str]:
    """Return the hash of the code of classes and functions of plug-ins as `code`, see `own_code`; {} if there is none.

    It is part of the request of results: those of code that was changed since are measured again.
    """
    code = own_code((str(getattr(entry, "__module__", "")) for entry in entries), libraries)
    return {"code": hashlib.sha256("".join(code.values()).encode()).hexdigest()} if code else {}


def own_code(modules: Iterable[str], libraries: bool = True) -> dict[str, str]:
    """Return the hash of each of a user's modules and of those that they import from the same folder, by name.

    That is the folder of the top-level package or module. Comments, docstrings and layout do not count. Modules of
    installed libraries are hashed without what they import, and only with `libraries`; vidssl and torch have none.
    """
    code: dict[str, str] = {}
    waiting = [module for name in modules if (module := _locate(name)) is not None]
    while waiting:
        name, folder = waiting.pop()
        file = _source(name, folder)
        if name in code or file is None or name.partition(".")[0] in ("vidssl", "torch"):
            continue
        installed = bool({"site-packages", "dist-packages"} & {*file.parts}) or _STANDARD_LIBRARY in file.parents
        if installed and not libraries:
            continue
        source, imported = file.read_bytes(), list[str]()
        with suppress(SyntaxError, ValueError):  # what is not Python cannot be imported
            tree = ast.parse(source)
            imported = [] if installed else _imports(tree, name, file.stem == "__init__")
            source = _without_docstrings(tree).encode()
        for used in (name, *imported):
            parts = used.split(".")  # a package is imported before its modules
            waiting += [(".".join(parts[:n]), folder) for n in range(1, len(parts) + 1)]
        code[name] = hashlib.sha256(source).hexdigest()
    return dict(sorted(code.items()))


def changed_files(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """List the files that differ between two results of `own_code`; of those that are gone the names of the modules."""
    names = [name for name in sorted({*before, *now}) if before.get(name) != now.get(name)]
    files = [None if (module := _locate(name)) is None else _source(*module) for name in names]
    return [name if file is None else str(file) for name, file in zip(names, files, strict=True)]


def _locate(name: str) -> tuple[str, Path] | None:
    """Return the name of a module, and the folder of its top-level package or module; None if there are no files."""
    if name == "__main__":
        script = sys.modules[name]
        if script.__spec__ is None:
            file = getattr(script, "__file__", None)
            return None if file is None else (Path(file).stem, Path(file).parent)
        name = script.__spec__.name  # of `python -m NAME`
    try:
        spec = importlib.util.find_spec(name.partition(".")[0])
    except ValueError:  # no name, or a module that no file defines
        return None
    if spec is not None and spec.submodule_search_locations:
        return name, Path(next(iter(spec.submodule_search_locations))).parent
    return (name, Path(str(spec.origin)).parent) if spec is not None and spec.has_location else None


def _source(name: str, folder: Path) -> Path | None:
    *packages, last = name.split(".")
    inside = folder.joinpath(*packages)
    return next((file for file in (inside / f"{last}.py", inside / last / "__init__.py") if file.is_file()), None)


def _imports(tree: ast.Module, name: str, is_package: bool) -> list[str]:
    """List the modules that a module imports, anywhere in it, and what may be modules: `from package import x`."""
    package = name.split(".") if is_package else name.split(".")[:-1]
    imported = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            imported += [".".join(filter(None, [*above, node.module, alias.name])) for alias in node.names]
    return imported


def _without_docstrings(tree: ast.Module) -> str:
    """Write code without comments and docstrings, in one layout."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            texts = [part for part in node.body if isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant)]
            node.body = [part for part in node.body if part not in texts] or [ast.Pass()]
    return ast.unparse(tree)


def not_imported(names: Iterable[str]) -> list[str]:
    """Return the modules of a config in a file of weights that a user has not had imported."""
    return [name for name in names if name not in sys.modules]


def remedy(modules: Sequence[str]) -> str:
    """Say why modules were not imported, and how a user has them imported."""
    names = first_few(modules, separator=" ")
    listed = first_few([f"'{name}'" for name in modules])
    return (
        f"the file names modules that are not imported, as weights run no code: {names}; if you trust them: "
        f"vidssl COMMAND --imports {names} (Python: imports=[{listed}])"
    )


@contextmanager
def explaining(modules: Sequence[str]) -> Iterator[None]:
    """Add the remedy to a ConfigError, such as an unknown name, if some modules were not imported; it is one line."""
    try:
        yield
    except ConfigError as error:
        if not modules:
            raise
        mistakes = "; ".join(line.strip() for line in str(error).splitlines()[:4])
        raise ConfigError(f"{mistakes}; {remedy(modules)}") from None


@contextmanager
def stored_imports(tree: Any, source: str, trust: bool) -> Iterator[None]:
    """Bind a config that lies in a file of weights, in this block, without running code that it names, unless trusted.

    A ConfigError says which modules were not imported if that is why a name is unknown; else a warning does.
    """
    if not isinstance(tree, dict):
        raise ConfigError(f"{source} is {type(tree).__name__}, not keys and values: the file is damaged")
    names = modules_of(tree, source)
    if trust:
        import_modules(names, f"{source}: imports")
    left_out = not_imported(names)
    with explaining(left_out):
        yield
    if left_out:
        _log.warning("%s: %s", source, remedy(left_out))
