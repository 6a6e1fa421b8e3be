"""Names to classes or functions, with the folder of a room imported only when the first name is asked for."""

import difflib
import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

from vidssl.errors import ConfigError

T = TypeVar("T")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Say which known name is meant: `" (did you mean 'x'?)"`, or nothing where none is near."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f" (did you mean '{near[0]}'?)" if near else ""


class Registry(Generic[T]):
    """A mapping that decorators fill; iterating gives the names in order.

    Args:
        kind: What the entries are, for messages: "method".
        package: The package whose modules register entries; imported at the first look-up, not before.
    """

    def __init__(self, kind: str, package: str) -> None:
        self.kind = kind
        self._package = package
        self._entries: dict[str, T] = {}
        self._loaded = False
        self._failure: Exception | None = None

    def register(self, name: str) -> Callable[[T], T]:
        """Decorate an entry with its name.

        Raises:
            ConfigError: The name is taken.
        """

        def add(entry: T) -> T:
            if name in self._entries:
                raise ConfigError(f"{self.kind} '{name}' is registered twice: choose another name")
            self._entries[name] = entry
            return entry

        return add

    def _all(self) -> dict[str, T]:
        if self._failure is not None:  # else names of modules that were not imported would be unknown ones
            raise self._failure
        if not self._loaded:
            self._loaded = True  # before the imports: modules of the room may look at the registry
            try:
                package = importlib.import_module(self._package)
                for module in pkgutil.iter_modules(getattr(package, "__path__", [])):
                    importlib.import_module(f"{self._package}.{module.name}")
            except Exception as error:
                self._failure = error
                raise
        return self._entries

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

    def __len__(self) -> int:
        return len(self._all())
