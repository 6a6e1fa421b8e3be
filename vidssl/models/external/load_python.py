"""Encoders that a function of the user's returns: `python:PACKAGE.MODULE:FUNCTION`."""

import importlib
from functools import partial
from typing import Any

from torch import nn

from vidssl.errors import ConfigError
from vidssl.models.external import Encoder
from vidssl.models.external.facts import Facts
from vidssl.models.external.load_onnx import crop

_OWN = ("size", "short_side", "licence", "training", "source")


def load(name: str, trust: bool = False) -> Encoder:
    """Call the function, which returns a module and a dictionary; see `vidssl.models.external`.

    Its keys are fields of `Encoder`, of which `size` is needed, `licence`, `training` and `source`; without `crop` the
    crop is vidssl's, of the short side `short_side`.
    """
    module, _, function = name.partition(":")
    if not function:
        raise ConfigError(f"python:{name} is not python:PACKAGE.MODULE:FUNCTION")
    try:
        made: Any = getattr(importlib.import_module(module), function)()
    except AttributeError as error:
        raise ConfigError(f"python:{name}: {error}") from None
    network, stated = made if isinstance(made, tuple) and len(made) == 2 else (made, {})
    known = {*Encoder.__dataclass_fields__, *_OWN} - {"network", "facts"}
    if not isinstance(network, nn.Module) or "size" not in stated or not stated.keys() <= known:
        raise ConfigError(
            f"python:{name} returns a module and a dictionary with size, and of {', '.join(sorted(known))}: see "
            "docs/encoders.md"
        )
    facts = {key: stated[key] for key in ("licence", "training", "source") if key in stated}
    fields = {key: value for key, value in stated.items() if key not in ("short_side", *facts)}
    cut = partial(crop, size=stated["size"], short_side=stated.get("short_side", stated["size"]))
    defaults = {"crop": cut, "mean": (0.0,), "std": (1.0,)}
    return Encoder(network=network, facts=Facts(**facts), **{**defaults, **fields})
