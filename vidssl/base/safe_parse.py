"""Parse files that may be damaged or not what they seem: whatever is wrong with them is a ValueError of one line."""

import json
import math
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from vidssl.base.errors import in_one_line


def parse_json(text: str | bytes) -> Any:
    """Parse JSON."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("its brackets are nested too deeply") from None


def read_json(path: Path) -> Any:
    """Read a JSON file, UTF-8; an OSError if it cannot be read."""
    return parse_json(path.read_text(encoding="utf-8"))


def read_arrays(file: Path | IO[bytes]) -> dict[str, NDArray[Any]]:
    """Read all arrays of an npz file, without objects, which could run code; an OSError if it cannot be read."""
    try:
        with np.load(file, allow_pickle=False) as arrays:
            return dict(arrays)
    except OSError:
        raise
    except Exception as error:  # numpy, zipfile and zlib let errors of a dozen types out of a damaged file
        raise ValueError(f"not the arrays of numpy: {in_one_line(error, 120)}") from None


def map_array(path: Path) -> NDArray[Any]:
    """Map an npy file into memory, copied on write; an OSError if it cannot be read."""
    try:
        array = np.load(path, mmap_mode="c", allow_pickle=False)
    except OSError:
        raise
    except Exception as error:  # the header is Python text, which numpy's parser refuses in many ways
        raise ValueError(f"not an array of numpy: {in_one_line(error, 120)}") from None
    if not isinstance(array, np.ndarray):
        raise ValueError("not an array of numpy")
    return array


def whole_number(value: Any, least: int = 0, most: int = 2**31 - 1) -> int:
    """Check a number of a file: whole, also as 3.0, and in the range; a ValueError has the value."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value != int(value):
        raise ValueError(f"{str(value)[:40]!r} is not a whole number")
    if not least <= value <= most:
        raise ValueError(f"{str(value)[:40]} is not in {least} to {most}")
    return int(value)
