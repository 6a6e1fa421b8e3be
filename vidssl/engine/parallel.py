"""A method on several processes: batch norm, gradients, and the check that all hold the same state."""

import hashlib
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from vidssl.base import distributed
from vidssl.base.errors import ConfigError, TrainingError
from vidssl.engine.run_config import SyncBN
from vidssl.methods.base import Method
from vidssl.methods.momentum_method import MomentumMethod
from vidssl.models.backbones import compile_backbone
from vidssl.models.batch_norms import batch_norms, synchronise

BatchNorm = Literal["none", "sync", "shuffle", "local"]


def set_batch_norm(method: Method, sync_bn: SyncBN, device: torch.device) -> tuple[Method, BatchNorm]:
    """Set over what batch norms take their statistics, as `sync_bn` asks; return the method, and what was set.

    `sync`: the micro-batch of all processes. `shuffle`: that of one process, with the keys shuffled over the processes
    (MoCo, section 3.3). `local`: that of one process. `auto` is `sync`; with one process all are `local`.
    """
    parts = [part for part in method.parts if isinstance(part, MomentumMethod)]
    if sync_bn == "shuffle" and not parts:
        raise ConfigError("sync_bn: shuffle needs a method with a target network; set sync_bn to sync or local")
    if not batch_norms(method):
        return method, "none"
    if distributed.world() == 1 or sync_bn == "local":
        return method, "local"
    if sync_bn == "shuffle":
        for part in parts:
            part.shuffle = True
        return method, "shuffle"
    method = synchronise(method, device)  # type: ignore[assignment]
    return method, "sync"


def compile_backbones(method: Method, backend: str | Callable[..., Any] = "inductor") -> None:
    """Compile the backbone in place, and that of the target network."""
    for backbone in {network for part in method.parts for network in (part.backbone, part.target_backbone)}:
        compile_backbone(backbone, backend)


def over_processes(method: Method, device: torch.device, exact: bool) -> nn.Module:
    """Wrap a method in DistributedDataParallel, which averages gradients during the backward pass.

    Not with one process, and not with `exact`: DDP changes its gradient buckets after its first step, and sums over
    other buckets round differently, so a resumed run would differ in the last bit. Then `average_gradients` averages
    them after the backward pass.
    """
    if distributed.world() == 1 or exact:
        return method
    with warnings.catch_warnings():
        # torch 2.15 renames `broadcast_buffers`.
        warnings.simplefilter("ignore", FutureWarning)
        return DistributedDataParallel(
            method,
            device_ids=[device.index] if device.type == "cuda" else None,
            broadcast_buffers=False,  # they are equal by construction, and a queue is 67 MB
            gradient_as_bucket_view=True,
        )


def without_averaging(parallel: nn.Module) -> AbstractContextManager[None]:
    """Accumulate the gradients of a micro-batch; DDP averages them with the last one of the step."""
    return parallel.no_sync() if isinstance(parallel, DistributedDataParallel) else nullcontext()


def average_gradients(parallel: nn.Module) -> None:
    """Average the gradients over all processes, unless DDP has done so."""
    if not isinstance(parallel, DistributedDataParallel):
        distributed.average([p.grad for p in parallel.parameters() if p.grad is not None])


def check_equal(step: int, method: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Raise a TrainingError if the state of method or optimizer differs between processes, by checksum."""
    state = {f"method.{name}": value for name, value in method.state_dict().items()}
    for number, moments in optimizer.state_dict()["state"].items():
        state |= {f"optimizer.state.{number}.{name}": value for name, value in moments.items()}
    every = distributed.gather_objects({name: _digest(x) for name, x in state.items() if isinstance(x, Tensor)})
    different = [name for name in sorted(set().union(*every)) if len({digests.get(name) for digests in every}) > 1]
    if different:
        first = different[0]
        ranks = [rank for rank, digests in enumerate(every) if digests.get(first) != every[0].get(first)]
        counts = f"{len(different)} of {len(every[0])} tensors differ between processes"
        which = f"the first is {first}: process {', '.join(map(str, ranks))} differs from 0"
        raise TrainingError(f"after step {step}, {counts}; {which}; the last checkpoint is untouched")


def _digest(x: Tensor) -> bytes:
    content = x.detach().cpu().contiguous().flatten().view(torch.uint8)
    return hashlib.blake2b(content.numpy().tobytes(), digest_size=16).digest()


def gradient_norm(method: nn.Module) -> Tensor:
    """Return the L2 norm of all gradients; not finite if one of them is not."""
    return torch.nn.utils.get_total_norm([p.grad for p in method.parameters() if p.grad is not None])
