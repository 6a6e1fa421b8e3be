"""Registries: names to classes or functions, whose package is imported at the first look-up; and what apps add."""

import difflib
import importlib.util
import os
import pkgutil
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Generic, TypeVar

from vidssl.base.errors import ConfigError

_T = TypeVar("_T")

# What apps add, by its kind and name: the module below vidssl/apps that is imported when the name is asked for, and not
# before. What the core calls in it is named in a comment, or has the name of the entry.
_APPS: dict[str, dict[str, str]] = {
    "command": {
        **{name: name for name in ("show", "map", "export", "check", "shrink", "compare", "predict")},
        **{"retrieval": "search", "launch": "cluster.training_on_slurm"},
    },
    # analyze_NAME
    "analysis": {
        **{name: f"analysis.{name}" for name in ("invariance", "robustness")},
        "uniformity": "analysis.uniformity_and_class_distances",
        **{name: f"analysis.{name}" for name in ("background", "gradcam", "all")},
    },
    # prepare_NAME
    "data set": {
        "folder": "prepare.folder",
        **dict.fromkeys(("list", "chunks"), "prepare.other_projects"),
        **dict.fromkeys(("torchvision", "moving_digits", "voc_classes"), "prepare.torchvision_sets_and_digits"),
        **dict.fromkeys(("ucf101", "hmdb51", "kinetics", "ssv2", "trackingnet"), "prepare.official_sets"),
        **dict.fromkeys(("voc", "coco", "ava"), "detection.prepare_voc_coco_ava"),
        "colorful_moving_mnist": "views.colorful_moving_mnist",
    },
    "backbone": {
        "color_flow": "views.invertible_colors",
        "convnet_lstm": "views.colorful_moving_mnist",
        "two_encoders": "views.cmc",
    },
    "method": dict.fromkeys(("cmc", "view_learning"), "views.cmc"),
    "protocol": {"localization": "views.colorful_moving_mnist"},
    "column": dict.fromkeys(("x", "y"), "views.colorful_moving_mnist"),  # numbers, which the core does not read
    "export format": {"detectron2": "detectron2"},
    # Networks that a folder of outputs holds, by its kind, which `export` writes as graphs: network_of
    "network": {"predictions": "predict"},
    # Keys of a config that is of no method: bind_run, bind_stored, train.
    "run": dict.fromkeys(("detector", "action_detector"), "detection.train_and_test"),
    # Lists that `vidssl test` takes, by the end of their names: test.
    "test list": {".json": "detection.train_and_test"},
    # Of `vidssl doctor`, by what they are called: version
    "part": {
        "maps of features by UMAP": "map.layout_2d",
        "export to ONNX": "export",
        "object detection": "detection.average_precision",
    },
    "function": {"save_backbone": "export"},  # of Python, beside the commands
}


def _installed(module: str) -> bool:
    """Tell whether the folder of an app is there: without it the rest works, and its names are unknown."""
    try:
        return importlib.util.find_spec(f"vidssl.apps.{module.partition('.')[0]}") is not None
    except ImportError:
        return False


APPS = {
    kind: {name: f"vidssl.apps.{module}" for name, module in modules.items() if _installed(module)}
    for kind, modules in _APPS.items()
}

_REGISTRIES: list["Registry[Any]"] = []

# Held while modules are imported late. One lock for all registries: the modules of one may use another, and two threads
# that start with different registries would wait for each other. Re-entrant: modules may use their own registry.
# Registering does not take it: a thread that imports a module itself holds Python's lock of that module.
importing = threading.RLock()
# A process that is forked meanwhile would wait forever for the thread that holds the lock, which it does not have.
os.register_at_fork(before=importing.acquire, after_in_parent=importing.release, after_in_child=importing.release)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `" (did you mean 'x'?)"` for a known name of nearly the same letters or beginning, or an empty string."""
    word, plain = name.lstrip("-"), {text.lstrip("-"): text for text in known}
    near = difflib.get_close_matches(word, plain, n=1, cutoff=0.75 if len(word) > 4 else 0.65)  # 1 letter of 3 differs
    near += [text for text in plain if min(len(word), len(text)) > 2 and text[: len(word)] == word[: len(text)]]
    return f" (did you mean '{plain[near[0]]}'?)" if near else ""


def load_app(kind: str, name: str) -> Any:
    """Import the module of an app that adds `name`."""
    with importing:
        return importlib.import_module(APPS[kind][name])


def _names_in(tree: Any) -> Iterator[str]:
    """Yield the names of entries that plain data may have, at any depth: `{"name": "cmc", …}`."""
    if isinstance(tree, dict):
        yield str(tree.get("name"))
        tree = [*tree.values()]
    for part in tree if isinstance(tree, list | tuple) else ():
        yield from _names_in(part)


def load_named(tree: Any) -> None:
    """Import the apps whose entries of registries plain data names."""
    for name in _names_in(tree):
        for kind in ("backbone", "method", "protocol"):
            if name in APPS[kind]:
                load_app(kind, name)


def entries_of(tree: Any) -> list[Any]:
    """List the imported entries of registries that plain data names."""
    names = [*_names_in(tree)]
    return [registry._entries[name] for name in names for registry in _REGISTRIES if name in registry._entries]


class Registry(Generic[_T]):
    """A mapping of names to entries of a kind; the modules of its package, which register them, are imported late.

    Those of apps are imported when they are named.
    """

    def __init__(self, kind: str, package: str) -> None:
        self.kind, self._package = kind, package
        self._apps = APPS.get(kind, {})
        self._entries: dict[str, _T] = {}
        self._loading = self._loaded = False
        self._failure: Exception | None = None
        _REGISTRIES.append(self)

    def register(self, name: str) -> Callable[[_T], _T]:
        """Return a decorator that registers a class or function."""
        return partial(self._add, name)

    def _add(self, name: str, entry: _T) -> _T:
        owner = getattr(entry, "__module__", None)
        if name in self._entries or self._apps.get(name, owner) != owner:
            raise ConfigError(f"{self.kind} '{name}' is registered twice: choose another name")
        self._entries[name] = entry
        return entry

    def _all(self) -> dict[str, _T]:
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
    def loaded(self) -> dict[str, _T]:
        """The entries imported so far: those of apps only after their names were used."""
        return dict(self._all())

    def __getitem__(self, name: str) -> _T:
        entries = self._all()
        if name not in entries and name in self._apps:
            load_app(self.kind, name)
        if name not in entries:
            raise ConfigError(f"no {self.kind} '{name}'{did_you_mean(name, self)}; there are: {', '.join(self)}")
        return entries[name]

    def __contains__(self, name: object) -> bool:
        return name in self._all() or name in self._apps

    def __iter__(self) -> Iterator[str]:
        return iter(sorted({*self._all(), *self._apps}))

    def __repr__(self) -> str:
        return f"<{self.kind}s: {', '.join(self)}>"
