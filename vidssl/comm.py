"""Processes of one run: rank, world, and what they tell each other. With one process everything is the identity."""

import os
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.nn import functional as with_grad


def start(device: torch.device) -> None:
    """Join the processes that torchrun started; do nothing where there is only this one."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized():
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")


def stop() -> None:
    """Leave the group of processes."""
    if dist.is_initialized():
        dist.destroy_process_group()


def rank() -> int:
    """Number of this process, from 0."""
    return dist.get_rank() if dist.is_initialized() else 0


def world() -> int:
    """Number of processes."""
    return dist.get_world_size() if dist.is_initialized() else 1


def local_rank() -> int:
    """Number of this process on its machine, from 0."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def is_main() -> bool:
    """Whether this is the process that writes files and prints."""
    return rank() == 0


def barrier() -> None:
    """Wait for all processes."""
    if world() > 1:
        dist.barrier()


def gather(x: Tensor) -> Tensor:
    """Concatenate (N, …) tensors of equal shape of all processes in rank order: (world * N, …), without gradient."""
    if world() == 1:
        return x
    parts = [torch.empty_like(x) for _ in range(world())]
    dist.all_gather(parts, x.contiguous())
    return torch.cat(parts)


def gather_with_grad(x: Tensor) -> Tensor:
    """Concatenate as `gather` does; gradients flow back to the process that each row came from."""
    return x if world() == 1 else torch.cat(with_grad.all_gather(x.contiguous()))  # type: ignore[no-untyped-call]


def gather_objects(value: Any) -> list[Any]:
    """List the picklable values of all processes in rank order."""
    if world() == 1:
        return [value]
    values: list[Any] = [None] * world()
    dist.all_gather_object(values, value)
    return values


def mean(x: Tensor) -> Tensor:
    """Average a tensor over all processes."""
    if world() == 1:
        return x
    x = x.clone()
    dist.all_reduce(x)
    return x / world()
