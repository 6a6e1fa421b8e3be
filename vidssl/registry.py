"""Registries: names to classes or functions, whose package is imported at the first look-up; and what projects add."""

import difflib
import importlib
import os
import pkgutil
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from vidssl.errors import ConfigError

T = TypeVar("T")

# What projects add, by its kind and name: the module that is imported when the name is asked for, and not before. What
# the core calls in it is named in a comment, or has the name of the entry.
_VIEWS, _DETECTION = "vidssl.projects.views", "vidssl.projects.detection"
PROJECTS: dict[str, dict[str, str]] = {
    "backbone": {
        "color_flow": f"{_VIEWS}.invertible_colors",
        **{"convnet_lstm": f"{_VIEWS}.convnet_lstm", "two_encoders": f"{_VIEWS}.cmc"},
    },
    "method": {name: f"{_VIEWS}.{name}" for name in ("cmc", "view_learning")},
    "protocol": {"localization": f"{_VIEWS}.localization"},
    "column": {"x": f"{_VIEWS}.localization", "y": f"{_VIEWS}.localization"},  # numbers, which the core does not read
    "export format": {"detectron2": "vidssl.projects.detectron2"},
    # prepare_NAME
    "data set": {
        **{name: f"{_DETECTION}.prepare_{name}" for name in ("voc", "coco", "ava")},
        "colorful_moving_mnist": f"{_VIEWS}.colorful_moving_mnist",
    },
    # Keys of a config that is of no method: bind_run, bind_stored, train.
    "run": dict.fromkeys(("detector", "action_detector"), f"{_DETECTION}.train"),
    "test list": {".json": f"{_DETECTION}.test"},  # lists that `vidssl test` takes, by the end of their names: test
    "part": {"object detection": f"{_DETECTION}.average_precision"},  # of `vidssl doctor`: version
    "command": {"launch": "vidssl.projects.slurm"},
}

_REGISTRIES: list["Registry[Any]"] = []

# Held while modules are imported late. One lock for all registries: the modules of one may use another, and two threads
# that start with different registries would wait for each other. Re-entrant: modules may use their own registry.
# Registering does not take it: a thread that imports a module itself holds Python's lock of that module.
importing = threading.RLock()
# A process that is forked meanwhile would wait forever for the thread that holds the lock, which it does not have.
os.register_at_fork(before=importing.acquire, after_in_parent=importing.release, after_in_child=importing.release)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `" (did you mean 'x'?)"` for the closest known name, or an empty string."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f" (did you mean '{near[0]}'?)" if near else ""


def load_project(kind: str, name: str) -> Any:
    """Import the module of a project that adds `name`."""
    with importing:
        return importlib.import_module(PROJECTS[kind][name])


def load_named(tree: Any) -> None:
    """Import the projects whose entries of registries plain data names: `{"name": "cmc", …}`, at any depth."""
    if isinstance(tree, dict):
        for kind in ("backbone", "method", "protocol"):
            if str(tree.get("name")) in PROJECTS[kind]:
                load_project(kind, tree["name"])
    for value in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list | tuple) else ():
        load_named(value)


def entries_of(tree: Any) -> list[Any]:
    """List the imported entries of registries that plain data names: `{"name": "cmc", …}`, at any depth."""
    if isinstance(tree, dict):
        name = str(tree.get("name"))
        here = [registry._entries[name] for registry in _REGISTRIES if name in registry._entries]
        return here + [entry for value in tree.values() for entry in entries_of(value)]
    return [entry for value in tree for entry in entries_of(value)] if isinstance(tree, list | tuple) else []


class Registry(Generic[T]):
    """A mapping of names to entries of a kind; the modules of its package, which register them, are imported late.

    Those of projects are imported when they are named.
    """

    def __init__(self, kind: str, package: str) -> None:
        self.kind, self._package = kind, package
        self._projects = PROJECTS.get(kind, {})
        self._entries: dict[str, T] = {}
        self._loading = self._loaded = False
        self._failure: Exception | None = None
        _REGISTRIES.append(self)

    def register(self, name: str) -> Callable[[T], T]:
        """Return a decorator that registers a class or function."""

        def add(entry: T) -> T:
            owner = getattr(entry, "__module__", None)
            if name in self._entries or self._projects.get(name, owner) != owner:
                raise ConfigError(f"{self.kind} '{name}' is registered twice: choose another name")
            self._entries[name] = entry
            return entry

        return add

    def _all(self) -> dict[str, T]:
        if not self._loaded:  # other threads wait here until all names are known
            with importing:
                if not (self._loaded or self._loading or self._failure):
                    self._load()
        if self._failure is not None:  # not "unknown name" for one whose module could not be imported
            raise self._failure
        return self._entries

    def _load(self) -> None:
        self._loading = True  # the modules may use the registry while they are imported
        try:
            package = importlib.import_module(self._package)
            for module in pkgutil.iter_modules(getattr(package, "__path__", [])):
                importlib.import_module(f"{self._package}.{module.name}")
            self._loaded = True
        except Exception as error:
            self._failure = error
        finally:
            self._loading = False

    @property
    def loaded(self) -> dict[str, T]:
        """The entries imported so far: those of projects only after their names were used."""
        return dict(self._all())

    def __getitem__(self, name: str) -> T:
        entries = self._all()
        if name not in entries and name in self._projects:
            load_project(self.kind, name)
        if name not in entries:
            raise ConfigError(f"no {self.kind} '{name}'{did_you_mean(name, self)}; there are: {', '.join(self)}")
        return entries[name]

    def __contains__(self, name: object) -> bool:
        return name in self._all() or name in self._projects

    def __iter__(self) -> Iterator[str]:
        return iter(sorted({*self._all(), *self._projects}))

    def __repr__(self) -> str:
        return f"<{self.kind}s: {', '.join(self)}>"
