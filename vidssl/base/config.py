"""Configs: YAML and KEY=VALUE in, a validated frozen model out; all mistakes are reported at once."""

import inspect
import json
import os
from collections.abc import Container, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache, lru_cache
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, Union, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from ruamel.yaml import YAML
from ruamel.yaml.constructor import SafeConstructor
from ruamel.yaml.error import YAMLError
from ruamel.yaml.events import AliasEvent, CollectionEndEvent, CollectionStartEvent, ScalarEvent

from vidssl.base.errors import ConfigError, hint_at_device
from vidssl.base.registry import Registry, did_you_mean

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)


class _Reported(ModelMetaclass):
    """Makes settings in Python with the errors of a file: `Config(second=1)` is a ConfigError with *did you mean*."""

    if not TYPE_CHECKING:  # which knows the fields of each class from pydantic

        def __call__(cls, *args: Any, **values: Any) -> Any:
            try:
                return super().__call__(*args, **values)
            except ValidationError as error:
                raise _config_error(error, values, cls, cls.__qualname__) from None


class Settings(BaseModel, metaclass=_Reported):
    """What every `Config` derives from: strict types, no unknown keys, no change once made."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")


_LARGEST = 1 << 18  # bytes of a YAML file: it is read at about 50 kB/s
_MOST = 10**6  # values and characters of their texts, with aliases written out
_DEEPEST = 100  # lists and mappings in each other
_NEEDS_TEXT = ("string_type", "model_type", "model_attributes_type")  # mistakes; some sections can be a text
# A setting that stands for others, which it replaces where it is set after them: sections and keys, and what they are.
STANDS_FOR = {
    "data.lists": {
        ("data", "train"): "{}/train.csv",
        ("evaluate", "gallery"): "{}/train.csv",
        ("evaluate", "query"): "{}/test.csv",
    }
}
ModelT = TypeVar("ModelT", bound=BaseModel)
Tree = dict[str, Any]


def choice(registry: Registry[Any]) -> Any:
    """Make the type of a field that names an entry of a registry and holds its config: `{name: sce, …}`.

    Of an entry of an app that was not named, see `load_named`, the name alone is known.
    """
    loaded = registry.loaded
    models = tuple(_named_config(loaded.get(name), name) for name in registry)
    return Annotated[Union[models], Field(discriminator="name")]  # noqa: UP007 - built at run time


@cache
def _named_config(entry: Any, name: str) -> Any:
    literal: Any = Literal[name]
    if entry is None:
        return create_model(f"{name}Config", name=(literal, ...))
    config = getattr(entry, "Config", None)
    if not isinstance(config, type) or not issubclass(config, Settings):
        raise ConfigError(f"{entry.__name__} has no class Config(vidssl.base.config.Settings), its settings")
    return create_model(f"{entry.__name__}Config", __base__=config, name=(literal, ...))


def bind_choice(registry: Registry[Any], tree: Tree, source: str) -> Any:
    """Validate plain data that names an entry of a registry and holds its config: `{"name": "sce", …}`."""
    if "name" in tree:
        registry[str(tree["name"])]  # raises a ConfigError with the nearest name
    return getattr(bind(_choice_of(registry), {registry.kind: tree}, source), registry.kind)


def _choice_of(registry: Registry[Any]) -> type[BaseModel]:
    return create_model("Choice", **{registry.kind: (choice(registry), ...)})  # type: ignore[call-overload,no-any-return]


class InnerMistakes(ValueError):
    """The mistakes in a section that a validator binds, each from the key in that section on."""

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__("; ".join(lines))
        self.lines = lines


def bind_inner(registry: Registry[Any], tree: Tree, key: str = "") -> Tree:
    """Add the defaults to a choice in a setting whose type is plain data, for a validator of that setting.

    `key` is that of the choice in the setting, if it is not the setting itself. Mistakes are reported with those of the
    whole config.
    """
    if isinstance(name := tree.get("name"), str) and name in registry:
        registry[name]  # loads the entry of an app
    schema, choices, start = _choice_of(registry), {registry.kind: tree}, f".{key}" if key else ""
    try:
        data = json.dumps(plain(choices, f"{registry.kind} {key}"))
        return getattr(schema.model_validate_json(data), registry.kind).model_dump(mode="json")  # type: ignore[no-any-return]
    except ValidationError as error:
        lines = _mistakes(error, choices, schema)
        raise InnerMistakes([start + line.removeprefix(registry.kind) for line in lines]) from None
    except ConfigError as error:
        raise InnerMistakes([f"{start}: {error}"]) from None


def build(registry: Registry[Any], config: Any, *parts: Any) -> Any:
    """Build the entry that a bound `choice` names: its class, called with the config and `parts`."""
    entry = registry[config.name]
    try:
        inspect.signature(entry).bind(config, *parts)
    except TypeError as error:
        takes = ", ".join(["self", "config", *(["backbone"] if parts else [])])
        raise ConfigError(f"{registry.kind} {entry.__name__}: {error}; its __init__ takes ({takes})") from None
    return entry(config, *parts)


def read(path: str | Path, overrides: Sequence[str] = ()) -> Tree:
    """Read a YAML 1.2 file as plain data, and apply overrides, see `override`."""
    try:
        with open(path, "rb") as file:
            tree = _parse(file.read(_LARGEST + 1), str(path))
    except OSError as error:
        raise ConfigError(f"cannot read config {path}: {error.strerror}; give a YAML file") from None
    except (YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not YAML: {' '.join(str(error).split())[:300]}") from None
    if not isinstance(tree, dict):
        raise ConfigError(f"{path} holds {type(tree).__name__}, not keys and values")
    for text in overrides:
        override(tree, text)
    return tree


class TypedValue(str):
    """A number, true or false that was typed as the value of `KEY=VALUE`: a setting that is text has the text."""


def override(tree: Tree, text: str) -> None:
    """Apply `a.b.0.c=VALUE` to a tree, in place: a number in the key is an index, missing sections are added.

    VALUE is text as it is, so that names with ` #` and dates stay as they are, unless it is a list, a mapping, quoted
    text, a number, true, false or null in YAML.
    """
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ConfigError(f"override '{text}' is not KEY=VALUE")
    set_value(tree, key, _parse_value(value, f"override '{text[:100]}'"), text)


def _parse_value(text: str, source: str) -> Any:
    if not text.strip():
        return None
    try:
        value = _parse(text, source)
    except (YAMLError, ValueError, RecursionError):
        return text
    kinds: dict[str, type] = {"[]": list, "{}": dict, "''": str, '""': str}
    if isinstance(value, kinds.get(text.strip()[0] + text.strip()[-1], ())):
        return value
    if value is None and text.strip().lower() in ("null", "~"):
        return None
    # What has a comment, or is nothing, in YAML is text.
    return text if value is None or isinstance(value, str | list | dict) or "#" in text else TypedValue(text)


def set_value(tree: Tree, key: str, value: Any, source: str) -> None:
    """Set `a.b.0.c` of a tree, in place: a number is an index, missing sections are added; `source` is for errors.

    What it `STANDS_FOR` is removed.
    """
    section: Any = tree
    *way, last = key.split(".")
    for part in way:
        key_or_index = _key_or_index(section, part, source)
        if isinstance(section, dict) and not isinstance(section.get(part), dict | list):
            section[part] = {}
        section = section[key_or_index]
    section[_key_or_index(section, last, source)] = value
    for name, replaced in STANDS_FOR.get(key, {}):
        if isinstance(tree.get(name), dict):
            tree[name].pop(replaced, None)


def in_home(value: Any) -> Any:
    """Return a path with the home folder for `~`, which shells leave in `--out=~/x`; of other data all such texts."""
    if isinstance(value, dict):
        return {key: in_home(part) for key, part in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(in_home, value))
    is_path = isinstance(value, str | Path) and str(value)[:2] in ("~", "~/")
    return type(value)(os.path.expanduser(value)) if is_path else value  # noqa: PTH111 - no error without a home


def bind(schema: type[ModelT], tree: Tree, source: str) -> ModelT:
    """Validate plain data of a source against a pydantic model; a ConfigError has all mistakes."""
    as_text = set[int]()
    while True:
        data = in_home(plain(tree, source, as_text))
        try:
            # Through JSON, for which pydantic's strict mode accepts lists as tuples.
            return schema.model_validate_json(json.dumps(data))
        except ValidationError as error:
            values = [_find(mistake, tree)[1] for mistake in error.errors() if mistake["type"] in _NEEDS_TEXT]
            typed = {id(value) for value in values if isinstance(value, TypedValue)} - as_text
            if not typed:
                raise _config_error(error, data, schema, source) from None
            as_text |= typed


def plain(tree: Any, source: str, as_text: Container[int] = ()) -> Any:
    """Copy settings as numbers, texts, lists and mappings.

    Each `TypedValue` is read as YAML, and as text if its id is in `as_text`. A ConfigError if there are values of other
    types, or too many, as in a file of weights whose config has one part in many places.
    """
    return _PlainCopy(source, as_text).of(tree)


@dataclass
class _PlainCopy:
    source: str
    as_text: Container[int]
    size: int = 0  # values and characters copied so far

    def of(self, value: Any, depth: int = 0) -> Any:
        self.size += 1 + (len(value) if isinstance(value, str) else 0)
        _check_extent(self.size, depth, self.source)
        if isinstance(value, TypedValue):
            return str(value) if id(value) in self.as_text else _yaml().load(value)
        if isinstance(value, dict):
            return {str(key): self.of(part, depth + 1) for key, part in value.items()}
        if isinstance(value, list | tuple):
            return [self.of(part, depth + 1) for part in value]
        if value is None or isinstance(value, str | int | float):
            return value
        raise ConfigError(f"{self.source} has a {type(value).__name__}: use numbers, strings, lists and mappings only")


def _check_extent(size: int, depth: int, source: str) -> None:
    if size > _MOST:
        raise ConfigError(f"{source} has more than {_MOST:,} characters and values, aliases (*name) written out")
    if depth > _DEEPEST:
        raise ConfigError(f"{source} is nested deeper than {_DEEPEST} lists and mappings")


def dump(config: BaseModel) -> str:
    """Write a bound config as YAML; `read` and `bind` restore it."""
    return to_yaml(config.model_dump(mode="json"))


def to_yaml(tree: Tree) -> str:
    """Write plain data as YAML."""
    text = StringIO()
    YAML().dump(tree, text)  # this type of YAML keeps the order of the fields
    return text.getvalue()


def config_differences(first: Any, second: Any, name: str = "") -> list[tuple[str, Any, Any]]:
    """List the differences of two trees of settings: dotted name and both values; None for a missing one."""
    if first == second:
        return []
    equally_long = isinstance(first, list) and isinstance(second, list) and len(first) == len(second)
    if isinstance(first, dict) and isinstance(second, dict):
        inner = [(str(key), first.get(key), second.get(key)) for key in dict.fromkeys((*first, *second))]
    elif equally_long and all(isinstance(part, dict) for part in (*first, *second)):  # lists of sections
        inner = [(str(index), *pair) for index, pair in enumerate(zip(first, second, strict=True))]
    else:
        return [(name, first, second)]
    return [line for key, a, b in inner for line in config_differences(a, b, f"{name}.{key}".lstrip("."))]


class _Constructor(SafeConstructor):
    """Makes plain data; dates are text, as in the core schema of YAML 1.2."""


_Constructor.add_constructor("tag:yaml.org,2002:timestamp", SafeConstructor.construct_yaml_str)


def _yaml() -> YAML:
    yaml = YAML(typ="safe", pure=True)  # YAML 1.2; duplicate keys and unknown tags are errors
    yaml.Constructor = _Constructor
    return yaml


def _parse(text: str | bytes, source: str) -> Any:
    """Parse YAML, each text once, as the runs of a study share their config; callers may change what is returned."""
    return deepcopy(_parsed(text, source))


@lru_cache(maxsize=256)
def _parsed(text: str | bytes, source: str) -> Any:
    """Parse YAML; a ConfigError if it is too large, or would be with each alias replaced by what it stands for."""
    if len(text) > _LARGEST:
        raise ConfigError(f"{source} is larger than {_LARGEST // 1024} KiB, the most that a config may have")
    text = text.decode() if isinstance(text, bytes) else text
    size, sizes, parents = 0, dict[str, int](), list[tuple[str | None, int]]()
    for event in _yaml().parse(text):
        before = size
        if isinstance(event, AliasEvent):
            if event.anchor not in sizes:
                raise ValueError(f"the alias *{event.anchor} stands for nothing before it, or for itself")
            size += sizes[event.anchor]
        elif isinstance(event, CollectionEndEvent):
            anchor, before = parents.pop()
            sizes[anchor or ""] = size - before
        elif isinstance(event, CollectionStartEvent):
            parents.append((event.anchor, before))
            size += 1
        elif isinstance(event, ScalarEvent):
            size += 1 + len(event.value)
            sizes[event.anchor or ""] = size - before
        _check_extent(size, len(parents), source)
    return _yaml().load(text)


def _key_or_index(section: Any, part: str, override: str) -> str | int:
    """Return a part of an override's key as a key or index of the section it is in."""
    if isinstance(section, dict):
        return part
    if not isinstance(section, list):
        raise ConfigError(f"override '{override}': what precedes '{part}' is a value, not a section")
    if not part.isdigit() or int(part) >= len(section):
        raise ConfigError(f"override '{override}': '{part}' is not an index of a list of {len(section)} (from 0)")
    return int(part)


def _config_error(error: ValidationError, tree: Tree, schema: type[BaseModel], source: str) -> ConfigError:
    """Return an error with all mistakes that pydantic found in a tree."""
    mistakes = _mistakes(error, tree, schema)
    count = f"{len(mistakes)} mistakes: " * (len(mistakes) > 1)
    return ConfigError(f"{source}: {count}{'; '.join(mistakes)}")


def _mistakes(error: ValidationError, tree: Tree, schema: type[BaseModel]) -> list[str]:
    errors = error.errors()
    # pydantic also reports a list with wrong items as too short: that is not a second mistake.
    inside = {m["loc"][:n] for m in errors for n in range(len(m["loc"]))}
    reported = [m for m in errors if m["type"] != "too_short" or m["loc"] not in inside]
    return list(dict.fromkeys(line for mistake in reported for line in _explain(mistake, tree, schema)))


def _explain(mistake: Any, tree: Tree, schema: type[BaseModel]) -> Sequence[str]:
    """Explain a mistake, or those of an inner section: key, problem, value, remedy."""
    key, _ = _find(mistake, tree)
    if isinstance(inner := mistake.get("ctx", {}).get("error"), InnerMistakes):
        return [key + line for line in inner.lines]
    return [_in_words(mistake, key, schema)]


def _find(mistake: Any, tree: Any) -> tuple[str, Any]:
    """Return the key of a mistake in a tree, and the value there."""
    keys: list[str] = []
    for part in mistake["loc"]:
        missing = mistake["type"] == "missing"
        absent = not isinstance(tree, dict) or (part not in tree and (not missing or part == tree.get("name")))
        if absent and isinstance(part, str):
            continue  # the tag of a choice is in the location, but not in the file
        keys.append(str(part))
        try:
            tree = tree[part]
        except (KeyError, IndexError, TypeError):
            tree = None
    return ".".join(keys), tree


def _in_words(mistake: Any, key: str, schema: type[BaseModel]) -> str:
    loc, kind = mistake["loc"], mistake["type"]
    if kind == "extra_forbidden":
        known = sorted(_model_at(schema, loc[:-1]).model_fields)
        return f"{key}: unknown key{did_you_mean(loc[-1], known)}; there are: {', '.join(known)}"
    if kind in ("missing", "union_tag_not_found"):
        return f"{key}: is required" if kind == "missing" else f"{key}: needs a 'name'"
    if kind == "union_tag_invalid":
        names = [name.strip(" '") for name in mistake["ctx"]["expected_tags"].split(",")]
        tag = mistake["ctx"]["tag"]
        return f"{key}.name: no '{tag}'{did_you_mean(tag, names)}; there are: {', '.join(names)}"
    value, message = mistake["input"], mistake["msg"].removeprefix("Value error, ")
    got = "" if isinstance(value, dict) else f", got {json.dumps(value, default=str)[:60]}"
    hint = hint_at_device(key) if kind == "literal_error" else ""
    return f"{key}: {message}{got}{hint}" if key else message


def _model_at(schema: Any, loc: Sequence[str | int]) -> Any:
    """Find the model at a location: names of fields, indices of lists, tags of choices."""
    models = [schema]
    for part in loc:
        if isinstance(part, str):
            named = [model for model in models if "name" in model.model_fields]
            tagged = [model for model in named if part in get_args(model.model_fields["name"].annotation)]
            field = models[0].model_fields.get(part)  # None: the tag of a type that is not a model
            models = tagged or (_models(field.annotation) if field else models)
    return models[0]


def _models(kind: Any) -> list[Any]:
    """List the models in the type of a field: one, a choice of several, a list of them."""
    if parts := get_args(kind):
        return [model for part in parts for model in _models(part)]
    return [kind] if isinstance(kind, type) and issubclass(kind, BaseModel) else []


def installed_configs() -> dict[str, Path]:
    """Return the files of the configs that vidssl installs, by names such as `pretrain/small_cpu`."""
    package = Path(__file__).parents[1]
    folder = package / "configs"
    if not folder.is_dir():  # a checkout: the folder is beside the package
        folder = package.parent / "configs"
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in folder.rglob("*.yaml")}


def find_config(text: str) -> Path:
    """Find a config: a path, or the name of one that vidssl installs (`small_cpu`, `pretrain/small_cpu`)."""
    if os.path.isfile(path := Path(in_home(text))):  # noqa: PTH113 - no error for a name that is too long
        return path
    known = installed_configs()
    name = text.removesuffix(".yaml").removeprefix("configs/")
    matches = [name] if name in known else sorted(config for config in known if config.endswith(f"/{name}"))
    if len(matches) > 1:
        raise ConfigError(f"{text} is the name of {len(matches)} configs: {', '.join(matches)}")
    if not matches:
        hint = did_you_mean(name, [*known, *(config.rpartition("/")[2] for config in known)])
        raise ConfigError(f"{text} is neither a file nor the name of a config{hint}")
    return known[matches[0]]
