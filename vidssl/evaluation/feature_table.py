"""Features as a table for pandas, R and the like, CSV or Parquet: a row for each video or window."""

import csv
import importlib.util
import io
from pathlib import Path
from typing import Any, BinaryIO

from vidssl.base.atomic import replacing, writing
from vidssl.base.errors import ConfigError
from vidssl.base.types import Features

_COLUMNS = ("path", "class", "start", "end")  # before x0, x1, …
_BLOCK_ROWS = 8192  # of a row group of Parquet


def check_table(to: str) -> None:
    """Raise a ConfigError if a table cannot be written here."""
    if to == "parquet" and importlib.util.find_spec("pyarrow") is None:
        raise ConfigError("to=\"parquet\" needs pyarrow: pip install 'vidssl[parquet]'")


def write_table(features: Features, path: Path) -> None:
    """Write path, class, start and end in seconds, and the features x0, x1, … of each row; the name says the format.

    Paths are those of the list, or below the folder; what is not known is empty, in Parquet null. The features may be
    memory-mapped: they are read row by row, or in blocks.
    """
    write = {".csv": _write_csv, ".parquet": _write_parquet}[path.suffix]
    with writing(path), replacing(path) as file:
        write(features, file)


def _write_csv(features: Features, file: BinaryIO) -> None:
    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow((*_COLUMNS, *(f"x{n}" for n in range(features.x.shape[1]))))
    # Of numpy's float32 the text is the shortest that is read as the same number.
    rows.writerows((*row, *x) for row, x in zip(features.rows(), features.x.numpy(), strict=True))
    text.detach()  # flushed; the file is closed by who opened it


def _write_parquet(features: Features, file: BinaryIO) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    types = zip(_COLUMNS, (pa.string(), pa.string(), pa.float64(), pa.float64()), strict=True)
    schema = pa.schema([*types, *((f"x{n}", pa.float32()) for n in range(features.x.shape[1]))])
    rows = features.rows()
    with parquet.ParquetWriter(file, schema) as writer:
        for start in range(0, len(features), _BLOCK_ROWS):
            x = features.x[start : start + _BLOCK_ROWS].numpy()
            described = [*zip(*(next(rows) for _ in x), strict=True)]
            columns: list[Any] = [*described, *x.T]
            arrays = [pa.array(column, kind) for column, kind in zip(columns, schema.types, strict=True)]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
