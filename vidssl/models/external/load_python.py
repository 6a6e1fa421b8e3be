"""Encoders of users: `python:PACKAGE.MODULE:FUNCTION`."""

import importlib
from typing import Any

from pydantic import ValidationError
from torch import nn

from vidssl.errors import ConfigError
from vidssl.models.external import Encoder
from vidssl.plugins import code_of


def load_python(name: str, trust: bool) -> Encoder:
    """Call a function, which returns a module and a dictionary of fields of `Encoder`, `size` among them."""
    module, _, function = name.partition(":")
    if not function:
        raise ConfigError(f"python:{name} is not python:PACKAGE.MODULE:FUNCTION")
    try:
        load = getattr(importlib.import_module(module), function)
    except AttributeError as error:
        raise ConfigError(f"python:{name}: {error}") from None
    made: Any = load()
    network, stated = made if isinstance(made, tuple) and len(made) == 2 else (made, {})
    known = Encoder.__dataclass_fields__.keys() - {"network", "code", "test"}
    if not isinstance(network, nn.Module) or "size" not in stated or not stated.keys() <= known:
        given, keys = f"{type(network).__name__} and {[*stated]}", ", ".join(sorted(known - {"size", "version"}))
        raise ConfigError(f"python:{name} gave {given}, not a module and a dictionary: size, and any of {keys}")
    entries = [load, stated.get("crop"), *(type(each) for each in network.modules())]
    try:
        return Encoder(network, **stated, code=code_of(*entries).get("code", ""))
    except ValidationError as error:
        wrong = [f"{each['loc'][0]} is {each['input']!r} ({each['msg'].lower()})" for each in error.errors()]
        raise ConfigError(f"python:{name}: {', '.join(dict.fromkeys(wrong))}") from None
