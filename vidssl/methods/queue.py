"""The queue of keys that MoCo-style methods use as negatives."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from vidssl import distributed
from vidssl.losses import unit


class KeyQueue(nn.Module):
    """The last K keys of all processes: unit rows, equal on every process, written when a step ends."""

    keys: Tensor  # (K, d)
    pointer: Tensor  # (), where the next key goes

    def __init__(self, size: int, dim: int) -> None:  # of size 0 it ignores keys
        super().__init__()
        self.register_buffer("keys", unit(torch.randn(size, dim)))
        self.register_buffer("pointer", torch.zeros((), dtype=torch.int64))
        self._held: list[Callable[[], Tensor]] = []  # wait for the keys of one micro-batch

    def hold(self, keys: Tensor) -> None:
        """Collect keys (N, …, d) of N samples of this process; the gather overlaps with the backward pass."""
        if len(self.keys):
            self._held.append(distributed.gather_later(keys.detach()))

    @torch.no_grad()
    def enqueue(self) -> None:
        """Replace the oldest keys by the collected ones of all processes, in the order of the step's global batch."""
        if not self._held:
            return
        held = torch.cat([wait() for wait in self._held], dim=1)  # (world, N, …, d)
        self._held = []
        keys = held.flatten(0, -2)[-len(self.keys) :]
        places = (self.pointer + torch.arange(len(keys), device=keys.device)) % len(self.keys)
        # A new tensor, not a write in place: the graph of this step may still hold the old one.
        self.keys = self.keys.index_copy(0, places, keys)
        self.pointer = (self.pointer + len(keys)) % len(self.keys)
