"""Read safetensors files: a length, a header in JSON, and the numbers. Nothing in them can run."""

import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vidssl.errors import CheckpointError

_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip


def read_safetensors(path: str | Path) -> dict[str, Tensor]:
    """Read all tensors of a safetensors file onto the CPU.

    The format: 8 bytes with the length of the header, little-endian; the header, a JSON object of names to
    dtype, shape and place; then the numbers, little-endian, row by row.

    Raises:
        CheckpointError: The file is cut, or its header says what cannot be.
        OSError: It cannot be read.
    """
    content = memoryview(bytearray(Path(path).read_bytes()))
    length = int.from_bytes(content[:8], "little")
    numbers = content[8 + length :]
    try:
        header = json.loads(bytes(content[8 : 8 + length]))
        named = {name: entry for name, entry in header.items() if name != "__metadata__"}
        return {name: _tensor(entry, numbers) for name, entry in named.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = " ".join(str(error).split())[:120]
        raise CheckpointError(f"{path} is a damaged safetensors file ({reason}): take another one") from None


def _tensor(entry: dict[str, Any], numbers: memoryview) -> Tensor:
    dtype, shape = _DTYPES[entry["dtype"]], [int(size) for size in entry["shape"]]
    start, end = (int(place) for place in entry["data_offsets"])
    count = math.prod(shape)
    if min(shape, default=0) < 0 or not 0 <= start <= end <= len(numbers):
        raise ValueError(f"{shape} from byte {start} to {end} of {len(numbers)}")
    if count * dtype.itemsize != end - start:
        raise ValueError(f"{shape} of {entry['dtype']} in {end - start} bytes")
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(numbers[start:end], dtype=dtype).clone().reshape(shape)
