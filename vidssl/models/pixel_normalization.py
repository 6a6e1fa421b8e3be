"""The mean and standard deviation of pixels that weights were trained with, and those of a run."""

import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Normalization(NamedTuple):
    """The input of a network is (x / 255 - mean) / std; one value, or one per colour. `str()` has the settings."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __str__(self) -> str:
        mean, std = (json.dumps(list(dict.fromkeys(v)) if len(set(v)) == 1 else list(v)) for v in self)
        return f"'data.mean={mean}' 'data.std={std}'"

    def tensors(self) -> tuple[Tensor, Tensor]:
        """Return mean and std (3,) in double precision."""
        mean, std = (torch.tensor(values, dtype=torch.float64).expand(3) for values in self)
        return mean, std

    def is_close(self, other: "Normalization") -> bool:
        """Whether both are the same but for rounding."""
        return all(torch.allclose(a, b, atol=1e-6) for a, b in zip(self.tensors(), other.tensors(), strict=True))


def normalization_of(config: Mapping[str, Any]) -> Normalization | None:
    """Return the normalisation that the stored config of a run states; None if it states none."""
    data = config.get("data")
    values: list[Any] = [data.get(name) for name in ("mean", "std")] if isinstance(data, Mapping) else []
    for each in values:  # a file may hold anything
        if not isinstance(each, list | tuple) or len(each) not in (1, 3):
            return None
        if not all(isinstance(x, float | int) and math.isfinite(x) for x in each):
            return None
    return Normalization(tuple(values[0]), tuple(values[1])) if values else None
