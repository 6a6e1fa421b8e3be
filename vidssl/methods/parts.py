"""The parts that methods are composed of."""

from collections.abc import Callable
from typing import Annotated

import torch
from pydantic import AfterValidator
from torch import Tensor, nn
from torch.nn import functional

from vidssl import distributed
from vidssl.errors import ConfigError
from vidssl.schedule import Schedule, Scheduled


def _above_zero(value: Schedule) -> Schedule:
    values = [value.start, value.end, *([value.warmup_start] if value.warmup else [])]
    if not min(values) > 0:
        raise ValueError(
            "must be above 0 all the time: start, end, and with a warmup its warmup_start (default 0)"
        )
    return value


def _share(value: Schedule) -> Schedule:
    values = value.start, value.end, value.warmup_start
    if not 0 <= min(values) <= max(values) <= 1:
        raise ValueError("must stay between 0 and 1")
    return value


Temperature = Annotated[Scheduled, AfterValidator(_above_zero)]
UnitInterval = Annotated[Scheduled, AfterValidator(_share)]  # the target's momentum, the weight of a target


def full(x: Tensor) -> Tensor:
    """Convert to float32; float64 stays."""
    return x if x.dtype == torch.float64 else x.float()


def unit(x: Tensor) -> Tensor:
    """Scale rows (…, d) to length 1, in float32 at least: losses are never computed in half precision."""
    return functional.normalize(full(x), dim=-1)


def full_precision(device: torch.device) -> torch.autocast:
    """Switch autocast off: under it even float32 matrices are multiplied in bfloat16."""
    return torch.autocast(device.type, enabled=False)


def check_batch_norm(heads: nn.Module, rows: int) -> None:
    """See whether the batch norms of heads have rows to compare: those of this process, or synchronised ones.

    Raises:
        ConfigError: There is one row only.
    """
    if rows == 1 and any(isinstance(part, nn.BatchNorm1d) and part.training for part in heads.modules()):
        raise ConfigError(
            "batch norm in a head compares clips, and a process has 1 at a time: 2 are the fewest; raise batch_size or "
            "micro_batch_size, or choose norm: none for projector and predictor"
        )


@torch.no_grad()
def move_towards(target: nn.Module, online: nn.Module, momentum: float) -> None:
    """Update target weights to `momentum * target + (1 - momentum) * online` (SCE, Eq. 2).

    Buffers are left alone: the target's batch norms see the target's own activations.
    """
    torch._foreach_lerp_(list(target.parameters()), list(online.parameters()), 1.0 - momentum)


class KeyQueue(nn.Module):
    """The last K keys of all processes, unit rows; the same on every process, and saved with the weights.

    Keys are held while a step's micro-batches run and enter together when it ends. Any batch fits any queue:
    writing wraps around. A queue of size 0 takes nothing.
    """

    keys: Tensor  # (K, d)
    pointer: Tensor  # (), where the next key goes

    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        self.register_buffer("keys", unit(torch.randn(size, dim)))
        self.register_buffer("pointer", torch.zeros((), dtype=torch.int64))
        self._held: list[Callable[[], Tensor]] = []

    def hold(self, keys: Tensor) -> None:
        """Keep keys (N, …, d), of N samples of this process, for the end of the step; they travel meanwhile."""
        if len(self.keys):
            self._held.append(distributed.gather_later(keys.detach()))

    @torch.no_grad()
    def enqueue(self) -> None:
        """Write the held keys of all processes over the oldest ones, in the order of the step's global batch."""
        if not len(self.keys):
            return
        held = torch.cat([wait() for wait in self._held], dim=1)  # (world, N, …, d)
        self._held = []
        keys = held.flatten(0, -2)[-len(self.keys) :]
        places = (self.pointer + torch.arange(len(keys), device=keys.device)) % len(self.keys)
        # A new tensor, not a write in place: the graph of this step may still hold the old one.
        self.keys = self.keys.index_copy(0, places, keys)
        self.pointer = (self.pointer + len(keys)) % len(self.keys)


def shuffled(encoder: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """Encode inputs (N, …) so that each process's batch holds rows of all, and give each its own rows back.

    Batch norms of this process then tell nothing of which rows belong together (MoCo, section 3.3). With one
    process there is nobody to exchange with.
    """
    if distributed.world() == 1:
        return encoder(*inputs)
    rows = len(inputs[0])
    order = distributed.broadcast(torch.randperm(distributed.world() * rows))
    encoded = distributed.gather(encoder(*(distributed.exchange(x, order) for x in inputs)))
    return encoded[torch.argsort(order)[distributed.rank() * rows :][:rows].to(encoded.device)]


@torch.no_grad()
def key_statistics(query: Tensor, key: Tensor, negatives: Tensor, one_each: Tensor) -> dict[str, Tensor]:
    """Measure whether keys still differ from video to video, from the first step on.

    Args:
        query: (N, d).
        key: (N, d), the positives.
        negatives: (K, d), of which the first 4,096 are used. With none, the other keys of the batch are the negatives.
        one_each: (V, d), one key of each video.

    Returns:
        `positive_similarity`, mean of query · key; `negative_similarity` and `negative_spread`, mean and
        standard deviation of key · negative; `key_rank`, the effective rank of `one_each`, and `key_rank_limit`, its
        highest possible value, min(V, d). Similarity and spread of fewer than two pairs are 0.
    """
    similarity = key @ (negatives[:4096] if len(negatives) else key).T
    if not len(negatives):
        similarity = similarity[~torch.eye(len(key), dtype=torch.bool, device=key.device)]
    if similarity.numel() < 2:
        similarity = similarity.new_zeros(2)  # not NaN: logs are JSON
    return {
        "positive_similarity": (query * key).sum(dim=1).mean(),
        "negative_similarity": similarity.mean(),
        "negative_spread": similarity.std(),
        "key_rank": effective_rank(one_each),
        "key_rank_limit": key.new_tensor(min(one_each.shape)),
    }


@torch.no_grad()
def effective_rank(rows: Tensor) -> Tensor:
    """Compute the exponential of the entropy of the normalised singular values of rows (N, d).

    It goes from 1, all on one line, to min(N, d) (Roy & Vetterli, 2007).
    """
    # svdvals raises on NaN, without naming steps and videos: the loss check of the loop reports it.
    share = torch.linalg.svdvals(torch.nan_to_num(rows))
    return torch.exp(torch.special.entr(share / share.sum()).sum())
