"""A method on several processes: batch norm, gradients, and the proof that all hold the same."""

import hashlib
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from vidssl import distributed
from vidssl.engine.run_config import SyncBN
from vidssl.errors import ConfigError, TrainingError
from vidssl.methods.base import Method
from vidssl.methods.momentum import MomentumMethod
from vidssl.models.backbones import compile_backbone
from vidssl.models.norms import batch_norms, synchronise

BatchNorm = Literal["none", "sync", "shuffle", "local"]


def set_batch_norm(method: Method, wanted: SyncBN, device: torch.device) -> tuple[Method, BatchNorm]:
    """Make the batch norms of a method what `sync_bn` asks for; give it, and what they became.

    `sync` takes the statistics of the whole micro-batch of all processes; `shuffle` those of one process, with the
    keys' batches shuffled over the processes (MoCo); `local` those of one process. `auto` is `sync`. With one
    process all are `local`.

    Raises:
        ConfigError: There are no keys to shuffle.
    """
    if wanted == "shuffle" and not isinstance(method, MomentumMethod):
        raise ConfigError(
            "sync_bn: shuffle is for methods that encode keys with a target network; choose sync or local"
        )
    if not batch_norms(method):
        return method, "none"
    if distributed.world() == 1:
        return method, "local"
    if wanted in ("auto", "sync"):
        method = synchronise(method, device)  # type: ignore[assignment]
        return method, "sync"
    if wanted == "shuffle":
        method.shuffle = True  # type: ignore[assignment]
        return method, "shuffle"
    return method, "local"


def compile_backbones(method: Method, backend: str | Callable[..., Any] = "inductor") -> None:
    """Compile the backbone in place, and that of the target network, which encodes as many clips."""
    for backbone in {method.backbone, method.target_backbone}:
        compile_backbone(backbone, backend)


def over_processes(method: Method, device: torch.device, exact: bool) -> nn.Module:
    """Have gradients averaged over all processes while they are computed.

    With `exact` nothing is done here: `average_gradients` follows the backward pass. torch groups gradients anew
    after its first step, and sums of other groups round otherwise: a resumed run would differ in the last bit.
    """
    if distributed.world() == 1 or exact:
        return method
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", FutureWarning
        )  # `broadcast_buffers` has another name from torch 2.15 on
        return DistributedDataParallel(
            method,
            device_ids=[device.index] if device.type == "cuda" else None,
            broadcast_buffers=False,  # the queue is equal by construction, and 67 MB large
            gradient_as_bucket_view=True,
        )


def without_averaging(parallel: nn.Module) -> AbstractContextManager[None]:
    """Keep the gradients of a micro-batch for the average of the step's last one."""
    return parallel.no_sync() if isinstance(parallel, DistributedDataParallel) else nullcontext()


@torch.no_grad()
def average_gradients(parallel: nn.Module) -> None:
    """Average the gradients of a step over all processes where that is not done yet."""
    if distributed.world() > 1 and not isinstance(parallel, DistributedDataParallel):
        gradients = [p.grad for p in parallel.parameters() if p.grad is not None]
        mean = distributed.mean(torch.cat([gradient.flatten() for gradient in gradients]))
        parts = torch.split(mean, [gradient.numel() for gradient in gradients])
        torch._foreach_copy_(
            gradients, [part.view(g.shape) for part, g in zip(parts, gradients, strict=True)]
        )


def check_equal(step: int, method: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Compare weights, statistics, queue and optimizer state of all processes by checksum.

    Raises:
        TrainingError: They differ; the message names what, and in which processes.
    """
    every = distributed.gather_objects(
        dict(_digests({"method": method.state_dict(), "optimizer": optimizer.state_dict()}))
    )
    different = {
        name: [rank for rank, digests in enumerate(every) if digests.get(name) != every[0].get(name)]
        for name in sorted(set().union(*every))
    }
    different = {name: ranks for name, ranks in different.items() if ranks}
    if different:
        name, ranks = next(iter(different.items()))
        raise TrainingError(
            f"after step {step}, {len(different)} of {len(every[0])} tensors are not the same on all processes; first "
            f"{name}, other on process {', '.join(map(str, ranks))} than on 0; the last checkpoint is untouched"
        )


def _digests(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, Tensor):
        content = value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        yield name, hashlib.blake2b(content, digest_size=16).hexdigest()
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _digests(inner, f"{name}.{key}".lstrip("."))
    elif isinstance(value, list | tuple):
        for place, inner in enumerate(value):
            yield from _digests(inner, f"{name}.{place}")


def gradient_norm(method: nn.Module) -> Tensor:
    """Give the length of all gradients together: not finite where one of them is not."""
    gradients = [p.grad for p in method.parameters() if p.grad is not None]
    norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    return norm
