"""Modules of plug-ins, and who may have them imported: importing a module runs its code.

A user names modules, with `imports` in a config that is passed or with `--imports`. A config that lies in a file of
weights is data: the modules that it names are used if they are imported already, and imported if the file is trusted.
"""

import hashlib
import importlib
import logging
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vidssl.errors import ConfigError, first_few

_log = logging.getLogger(__name__)
_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


def import_modules(names: Iterable[str], source: str) -> None:
    """Import modules that register methods, backbones, samplers, recipes or protocols; a user has named them."""
    for name in names:
        try:
            importlib.import_module(name)
        except (ImportError, ValueError, TypeError) as error:  # the latter two: names that no module can have
            remedy = "name the module, and have its folder on PYTHONPATH"
            raise ConfigError(f"{source}: cannot import '{name}': {error}; {remedy}") from None


def modules_of(tree: Any, source: str) -> list[str]:
    """Return the names in `imports` of a config, checked."""
    names = tree.get("imports") or []
    if not isinstance(names, list | tuple) or not all(isinstance(n, str) and _NAME.fullmatch(n) for n in names):
        raise ConfigError(f"{source}: imports is a list of modules, such as [my_methods], not {str(names)[:100]!r}")
    return [*names]


def code_of(*entries: Any) -> dict[str, str]:
    """Return the hash of the files that classes and functions of a plug-in are in, as `code`; not of vidssl and torch.

    It is part of the request of results: those of code that was edited since are measured again.
    """
    modules = dict.fromkeys(str(getattr(entry, "__module__", "")) for entry in entries)
    own = [sys.modules.get(name) for name in modules if name.partition(".")[0] not in ("vidssl", "torch")]
    files = [Path(file) for module in own if (file := getattr(module, "__file__", None)) is not None]
    return {"code": hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()} if files else {}


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
