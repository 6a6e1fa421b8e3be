"""Encoders that a function of the user's returns: `python:PACKAGE.MODULE:FUNCTION`."""

import importlib
from typing import Any

from torch import nn

from vidssl.errors import ConfigError
from vidssl.models.external import Encoder
from vidssl.models.external.facts import Facts


def load(name: str, trust: bool = False) -> Encoder:
    """Call the function, which returns a module and a dictionary; see `vidssl.models.external`.

    Its keys are fields of `Encoder`, of which `size` is needed, and `licence`, `training` and `source`.
    """
    module, _, function = name.partition(":")
    if not function:
        raise ConfigError(f"python:{name} is not python:PACKAGE.MODULE:FUNCTION")
    try:
        made: Any = getattr(importlib.import_module(module), function)()
    except AttributeError as error:
        raise ConfigError(f"python:{name}: {error}") from None
    network, stated = made if isinstance(made, tuple) and len(made) == 2 else (made, {})
    known = {*Encoder.__dataclass_fields__, "licence", "training", "source"} - {"network", "facts"}
    if not isinstance(network, nn.Module) or "size" not in stated or not stated.keys() <= known:
        raise ConfigError(
            f"python:{name} returns a module and a dictionary with size, and of {', '.join(sorted(known))}: see "
            "docs/encoders.md"
        )
    facts = {key: stated[key] for key in ("licence", "training", "source") if key in stated}
    return Encoder(network=network, facts=Facts(**facts), **{k: v for k, v in stated.items() if k not in facts})
