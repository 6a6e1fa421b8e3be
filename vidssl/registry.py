"""Registries: names to classes or functions, whose package is imported at the first look-up."""

import difflib
import importlib
import os
import pkgutil
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

from vidssl.errors import ConfigError

T = TypeVar("T")

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


class Registry(Generic[T]):
    """A mapping of names to entries of a kind; the modules of its package, which register them, are imported late."""

    def __init__(self, kind: str, package: str) -> None:
        self.kind, self._package = kind, package
        self._entries: dict[str, T] = {}
        self._loading = self._loaded = False
        self._failure: Exception | None = None

    def register(self, name: str) -> Callable[[T], T]:
        """Return a decorator that registers a class or function."""

        def add(entry: T) -> T:
            if name in self._entries:
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

    def __getitem__(self, name: str) -> T:
        entries = self._all()
        if name not in entries:
            known = ", ".join(sorted(entries))
            raise ConfigError(f"no {self.kind} '{name}'{did_you_mean(name, entries)}; there are: {known}")
        return entries[name]

    def __contains__(self, name: object) -> bool:
        return name in self._all()

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._all()))
