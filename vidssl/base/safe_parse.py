"""Parse files that may be damaged or not what they seem: whatever is wrong with them is a ValueError of one line."""

import json
import math
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray


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
        with np.load(file, allow_pickle=False) as found:
            return {name: found[name] for name in found.files}
    except OSError:
        raise
    except Exception as error:  # numpy, zipfile and zlib let errors of a dozen types out of a damaged file
        raise ValueError(f"not the arrays of numpy: {_line(error)}") from None


def map_array(path: Path) -> NDArray[Any]:
    """Map an npy file into memory, copied on write; an OSError if it cannot be read."""
    try:
        found = np.load(path, mmap_mode="c", allow_pickle=False)
    except OSError:
        raise
    except Exception as error:  # the header is Python text, which numpy's parser refuses in many ways
        raise ValueError(f"not an array of numpy: {_line(error)}") from None
    if not isinstance(found, np.ndarray):
        raise ValueError("not an array of numpy")
    return found


def whole_number(value: Any, least: int = 0, most: int = 2**31 - 1) -> int:
    """Check a number of a file: whole, also as 3.0, and in the range; a ValueError has the value."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value != int(value):
        raise ValueError(f"{str(value)[:40]!r} is not a whole number")
    if not least <= value <= most:
        raise ValueError(f"{str(value)[:40]} is not in {least} to {most}")
    return int(value)


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
