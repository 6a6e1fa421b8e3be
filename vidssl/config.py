"""Configs: YAML and KEY=VALUE in, a validated frozen model out; all mistakes are reported at once."""

import json
from collections.abc import Iterable, Sequence
from functools import lru_cache
from io import StringIO
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Protocol, TypeVar, Union

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from vidssl.errors import ConfigError
from vidssl.registry import Registry, did_you_mean


def _add_renamed(schema: dict[str, Any], model: Any) -> None:
    if model.renamed:
        schema["renamed"] = model.renamed


class Settings(BaseModel):
    """What every `Config` derives from: strict types, no unknown keys, no change once made."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", json_schema_extra=_add_renamed)
    renamed: ClassVar[dict[str, str]] = {}  # old key: new key; the error for the old one names the new one


class Configurable(Protocol):
    """A class that carries its own `Config`."""

    Config: type[Settings]


Model = TypeVar("Model", bound=BaseModel)
Tree = dict[str, Any]


def choice(registry: Registry[Any]) -> Any:
    """Make the type of a field that names an entry of a registry and holds its config: `{name: sce, …}`."""
    models = []
    for name in registry:
        literal: Any = Literal[name]
        entry = registry[name]
        models.append(create_model(f"{entry.__name__}Config", __base__=entry.Config, name=(literal, ...)))
    return Annotated[Union[tuple(models)], Field(discriminator="name")]  # noqa: UP007 - built at run time


def build(registry: Registry[Any], config: Any, *parts: Any) -> Any:
    """Build the entry that a bound `choice` names: its class, called with the config and `parts`."""
    return registry[config.name](config, *parts)


def read(path: str | Path, overrides: Sequence[str] = ()) -> Tree:
    """Read a YAML 1.2 file as plain data, and apply `KEY=VALUE` overrides.

    Args:
        path: The file. Keys must be unique; `1e-6` is a float; tags make no objects.
        overrides: `a.b.0.c=VALUE` with VALUE in YAML; a number is an index into a list. Missing sections are added.

    Raises:
        ConfigError: The file is missing or not a YAML mapping, or an override is invalid.
    """
    try:
        tree = _yaml().load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read config {path}: {error.strerror}; give a YAML file with --cfg") from None
    except (YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(tree, dict):
        raise ConfigError(f"{path} holds {type(tree).__name__}, not keys and values")
    for text in overrides:
        override(tree, text)
    return tree


def override(tree: Tree, text: str) -> None:
    """Apply `a.b.0.c=VALUE` to a tree, in place.

    Raises:
        ConfigError: There is no `=`, the value is not YAML, or the key does not lead to a section.
    """
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ConfigError(f"override '{text}' is not KEY=VALUE")
    try:
        parsed = _yaml().load(value)
    except YAMLError:
        raise ConfigError(f"override '{text}': the value is not YAML; quote it") from None
    here: Any = tree
    *way, last = key.split(".")
    for part in way:
        here = _step(here, part, text, create=True)
    if isinstance(here, list):
        _step(here, last, text)
        here[int(last)] = parsed
    elif isinstance(here, dict):
        here[last] = parsed
    else:
        raise ConfigError(f"override '{text}': what precedes '{last}' is a value, not a section")


def bind(schema: type[Model], tree: Tree, source: str) -> Model:
    """Validate a tree against a schema, and return the frozen model.

    Args:
        schema: A pydantic model.
        tree: Plain data, as `read` returns it.
        source: Where the tree comes from, for messages.

    Raises:
        ConfigError: One line for each mistake; an unknown key with the closest known one.
    """
    try:
        # Through JSON, for which pydantic's strict mode accepts lists as tuples.
        return schema.model_validate_json(json.dumps(tree))
    except TypeError as error:
        raise ConfigError(f"{source}: {error}; use numbers, strings, lists and mappings only") from None
    except ValidationError as error:
        errors = error.errors()
        # pydantic also reports a list with wrong items as too short: that is not a second mistake.
        inside = {m["loc"][:n] for m in errors for n in range(len(m["loc"]))}
        reported = [m for m in errors if m["type"] != "too_short" or m["loc"] not in inside]
        mistakes = dict.fromkeys(_explain(mistake, tree, schema) for mistake in reported)
        head = f"{source}: {len(mistakes)} mistake{'s' if len(mistakes) > 1 else ''}"
        raise ConfigError("\n".join([head, *(f"  {line}" for line in mistakes)])) from None


def dump(config: BaseModel) -> str:
    """Write a bound config as YAML; `read` and `bind` restore it."""
    text = StringIO()
    yaml = YAML()  # this type keeps the order of the fields
    yaml.dump(config.model_dump(mode="json"), text)
    return text.getvalue()


def differences(one: Any, other: Any, name: str = "") -> list[tuple[str, Any, Any]]:
    """List the differences of two trees of settings: dotted name and both values; None for a missing one."""
    if one == other:
        return []
    if isinstance(one, dict) and isinstance(other, dict):
        inner = [(str(key), one.get(key), other.get(key)) for key in dict.fromkeys((*one, *other))]
    elif _is_section(one) and _is_section(other) and len(one) == len(other):
        inner = [(str(place), *pair) for place, pair in enumerate(zip(one, other, strict=True))]
    else:
        return [(name, one, other)]
    return [line for key, a, b in inner for line in differences(a, b, f"{name}.{key}".lstrip("."))]


def _is_section(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(part, dict) for part in value)


def _yaml() -> YAML:
    return YAML(typ="safe", pure=True)  # YAML 1.2; duplicate keys and unknown tags are errors


def _step(here: Any, part: str, override: str, create: bool = False) -> Any:
    if isinstance(here, list):
        if not part.isdigit() or int(part) >= len(here):
            raise ConfigError(f"override '{override}': '{part}' is not an index of a list of {len(here)} (from 0)")
        return here[int(part)]
    if not isinstance(here, dict):
        raise ConfigError(f"override '{override}': what precedes '{part}' is a value, not a section")
    if create and not isinstance(here.get(part), dict | list):
        here[part] = {}
    return here[part]


def _explain(mistake: Any, tree: Tree, schema: type[BaseModel]) -> str:
    """Explain a mistake in one line: key, problem, value, remedy."""
    where: list[str] = []
    here: Any = tree
    section: Any = tree  # which holds the last part of the location
    for part in mistake["loc"]:
        if isinstance(here, dict) and part not in here and part == here.get("name"):
            continue  # the tag of a choice is in the location, but not in the file
        where.append(str(part))
        section = here
        try:
            here = here[part]
        except (KeyError, IndexError, TypeError):
            here = None
    place, kind, message = ".".join(where), mistake["type"], mistake["msg"]
    if kind == "extra_forbidden":
        keys = _keys(schema, mistake["loc"][:-1])
        if new := _resolve(*_node(schema, mistake["loc"][:-1])).get("renamed", {}).get(where[-1]):
            return f"{place}: was renamed to '{new}'"
        if swapped := _swapped(schema, mistake["loc"], ".".join(where[:-1]), section):
            return f"{swapped}; there are: {', '.join(keys)}"
        return f"{place}: unknown key{did_you_mean(where[-1], keys)}; there are: {', '.join(keys)}"
    if kind == "missing":
        return f"{place}: is required"
    if kind == "union_tag_not_found":
        return f"{place}: needs a 'name'"
    if kind == "union_tag_invalid":
        names = [name.strip(" '") for name in mistake["ctx"]["expected_tags"].split(",")]
        tag = mistake["ctx"]["tag"]
        return f"{place}.name: no '{tag}'{did_you_mean(tag, names)}; there are: {', '.join(names)}"
    value, message = mistake["input"], message.removeprefix("Value error, ")
    shown = f", got {json.dumps(value, default=str)[:60]}" if not isinstance(value, dict) else ""
    return f"{place}: {message}{shown}" if place else message


def _swapped(schema: Any, loc: Sequence[int | str], place: str, section: Tree) -> str | None:
    """Explain a key of another entry of the same choice: the name was changed, but not the other settings."""
    if len(loc) < 2:
        return None
    *way, name, key = loc
    options: dict[int | str, list[str]] = {other: _keys(schema, (*way, other)) for other in _names(schema, way)}
    if key not in {known for keys in options.values() for known in keys}:
        return None
    left = [key for key in section if key not in options[name] and any(key in keys for keys in options.values())]
    owners = [str(other) for other, keys in options.items() if {*left} <= {*keys}]
    of = f", which {' and '.join(owners[:2])} {'has' if len(owners) == 1 else 'have'}" if owners else ""
    return (
        f"{place}: {name} has no {', '.join(left)}{of}; each name has settings of its own: "
        f"replace the whole section, as '{place}={{name: {name}, …}}'"
    )


def _names(schema: Any, loc: Iterable[int | str]) -> list[str]:
    """List the names of the choice at a location; empty if there is no choice."""
    node = _resolve(*_node(schema, loc))
    return list(node.get("discriminator", {}).get("mapping", ()))


def _keys(schema: Any, loc: Iterable[int | str]) -> list[str]:
    """List the keys of a model at a location of its tree."""
    node, root = _node(schema, loc)
    return sorted(_resolve(node, root).get("properties", {}))


def _node(schema: Any, loc: Iterable[int | str]) -> tuple[Any, Any]:
    """Find a location of a model's tree in its JSON schema; returns the node and the schema, which it refers to."""
    root = _json_schema(schema)
    node: Any = root
    for part in loc:
        node = _resolve(node, root)
        if isinstance(part, int):
            node = node.get("items", {})
        elif "discriminator" in node and part in node["discriminator"]["mapping"]:
            node = {"$ref": node["discriminator"]["mapping"][part]}
        else:
            node = node.get("properties", {}).get(part, {})
    return node, root


@lru_cache(maxsize=1)
def _json_schema(schema: Any) -> Any:
    return schema.model_json_schema()


def _resolve(node: Any, root: Any) -> Any:
    for option in node.get("anyOf", []):
        if option.get("type") != "null":
            node = option
            break
    while "$ref" in node:
        node = root["$defs"][node["$ref"].rsplit("/", 1)[1]]
    return node
