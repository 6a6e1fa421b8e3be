"""Schema of `references.yaml`: published numbers, the settings they were measured with, and expected results."""

from pathlib import Path
from typing import Any

from pydantic import Field, model_validator
from results import TITLES, Kind, column_order

from vidssl.base.config import Settings, bind, read

REFERENCES = Path(__file__).with_name("references.yaml")


class PublishedProtocol(Settings):
    """Settings of a published protocol, by their dotted path in results.json."""

    title: str
    kinds: tuple[Kind, ...]
    numbers: tuple[str, ...]  # the protocol applies to rows that have one of these
    settings: dict[str, Any]


class Entry(Settings):
    """An expected or published row; a field that is None matches every result."""

    kind: Kind
    method: str | None = None
    backbone: str | None = None
    frames: int | None = None
    size: int | None = None  # of the training views, pixels
    test_size: int | None = None
    pretrained: str | None = None  # key of a data set
    subset: dict[str, Any] | None = None  # of the labels
    config: str | None = None  # reproduces the row
    measures: tuple[str, ...] = ()  # numbers that the config yields, where they differ from `published`
    published: dict[str, float | str] = Field(default_factory=dict)  # in percent
    source: str | None = None
    note: str | None = None


class DataSet(Settings):
    """A section of the report."""

    title: str
    names: tuple[str, ...] = ()  # other folder names of its lists
    protocols: tuple[str, ...] = ()
    columns: tuple[str, ...] | None = None  # None: all numbers that any row has
    tested: tuple[int, ...] = ()  # videos in the official test lists
    entries: tuple[Entry, ...] = ()


class References(Settings):
    """The content of `references.yaml`."""

    protocols: dict[str, PublishedProtocol]
    data_sets: dict[str, DataSet]

    @model_validator(mode="after")
    def _names_exist(self) -> "References":
        for key, data_set in self.data_sets.items():
            for name in data_set.protocols:
                if name not in self.protocols:
                    raise ValueError(f"{key}: unknown protocol '{name}'; known: {', '.join(self.protocols)}")
            for entry in data_set.entries:
                if entry.pretrained is not None and entry.pretrained not in self.data_sets:
                    raise ValueError(f"{key}: unknown data set in pretrained: '{entry.pretrained}'")
                if bool(entry.published) != bool(entry.source):
                    raise ValueError(f"{key}: published numbers and their source go together")
                for name in (*entry.published, *entry.measures):
                    if column_order(name) is None:
                        raise ValueError(f"{key}: unknown number '{name}'; known: {', '.join(TITLES)}")
        return self

    def key(self, name: str) -> str:
        """Key of the data set that has this name; an unknown name is its own key."""
        keys = (key for key, data_set in self.data_sets.items() if name.lower() in (key, *data_set.names))
        return next(keys, name)


def read_references(path: Path = REFERENCES) -> References:
    """Read and validate the file; a `ConfigError` lists all its errors."""
    return bind(References, read(path), str(path))
