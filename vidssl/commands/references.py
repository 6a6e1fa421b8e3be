"""The published numbers and the rows that are expected: what `references.yaml` may say."""

from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from vidssl.commands.results import TITLES, Kind, column
from vidssl.config import Settings, bind, read

REFERENCES = Path(__file__).with_name("references.yaml")


class Published(Settings):
    """A published protocol: the settings that a result is compared with, by their path in results.json."""

    title: str
    kinds: tuple[Kind, ...]
    numbers: tuple[str, ...]  # it is about these
    settings: dict[str, Any]


class Entry(Settings):
    """A row that is expected or was published; None fits every result."""

    kind: Kind
    method: str | None = None
    backbone: str | None = None
    frames: int | None = None
    size: int | None = None  # of the training views, pixels
    test_size: int | None = None
    pretrained: str | None = None  # key of a data set
    subset: dict[str, Any] | None = None  # of the labels
    config: str | None = None  # what reproduces it
    measures: tuple[str, ...] = ()  # numbers that it gives, where they are not those that were published
    published: dict[str, float | str] = Field(default_factory=dict)  # in percent
    source: str | None = None
    note: str | None = None


class DataSet(Settings):
    """A section of the report."""

    title: str
    names: tuple[str, ...] = ()  # other names of the folder of its lists
    protocols: tuple[str, ...] = ()
    columns: tuple[str, ...] | None = None  # None: every number that a row has
    tested: tuple[int, ...] = ()  # videos of the official test lists
    entries: tuple[Entry, ...] = ()


class References(Settings):
    """All that `references.yaml` holds."""

    protocols: dict[str, Published]
    data_sets: dict[str, DataSet]

    @model_validator(mode="after")
    def _names_exist(self) -> "References":
        for key, data_set in self.data_sets.items():
            for name in data_set.protocols:
                if name not in self.protocols:
                    raise ValueError(f"{key}: no protocol '{name}'; there are: {', '.join(self.protocols)}")
            for entry in data_set.entries:
                if entry.pretrained is not None and entry.pretrained not in self.data_sets:
                    raise ValueError(f"{key}: pretrained is no data set of this file: '{entry.pretrained}'")
                if bool(entry.published) != bool(entry.source):
                    raise ValueError(f"{key}: published numbers and their source go together")
                for name in (*entry.published, *entry.measures):
                    if column(name) is None:
                        raise ValueError(f"{key}: no number '{name}'; there are: {', '.join(TITLES)}")
        return self

    def key(self, name: str) -> str:
        """Find the key of a data set by any of its names; another name is its own key."""
        keys = (key for key, data_set in self.data_sets.items() if name.lower() in (key, *data_set.names))
        return next(keys, name)


def read_references(path: Path = REFERENCES) -> References:
    """Read the published numbers and the rows that are expected.

    Raises:
        ConfigError: All mistakes of the file at once.
    """
    return bind(References, read(path), str(path))
