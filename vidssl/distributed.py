"""Processes of one run: rank, world, and what they tell each other. With one process everything is the identity.

Collectives are called by all processes in the same order. Tensors on a GPU go by nccl, all else by gloo.
"""

import os
import re
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function

from vidssl.errors import Interrupted, PeerError, VidsslError

T = TypeVar("T")

_MEETING = timedelta(minutes=10)  # importing from a slow network drive takes some


def start(device: torch.device) -> None:
    """Join the processes that torchrun or srun started; do nothing where there is only this one."""
    adopt_slurm(os.environ)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized():
        if device.type == "cuda":
            torch.cuda.set_device(device)
        # torchrun keeps its store when it restarts processes: without a name of their own the new ones would find
        # the addresses of the dead ones in it.
        try:
            store, number, count = next(dist.rendezvous("env://", timeout=_MEETING))  # type: ignore[attr-defined]
        except (RuntimeError, ValueError) as error:
            number, count, host, port = (
                os.environ.get(name, "?") for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
            )
            raise PeerError(
                f"process {number} of {count} did not meet the others at {host}:{port} "
                f"({str(error).splitlines()[0][:120]}); start all of them, with the same MASTER_ADDR and MASTER_PORT"
            ) from None
        store = dist.PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store)  # type: ignore[attr-defined]
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=store, rank=number, world_size=count)


def stop() -> None:
    """Leave the group of processes."""
    if dist.is_initialized():
        dist.destroy_process_group()


@contextmanager
def joined(device: torch.device) -> Iterator[None]:
    """Be one of the processes that were started together; within another such block nothing changes.

    Raises:
        PeerError: Another process is gone.
    """
    outer = dist.is_initialized()
    start(device)
    # nccl leaves only with the others of its machine, who wait for this process if it fails alone: they are free when
    # it ends. A signal ends all.
    leaves = device.type != "cuda"
    try:
        with lost_peers_reported():
            yield
        leaves = True
    except Interrupted:
        leaves = True
        raise
    finally:
        if leaves and not outer:
            stop()


@contextmanager
def lost_peers_reported() -> Iterator[None]:
    """Say in one line that other processes are gone, where torch says it in many.

    Raises:
        PeerError: They are.
    """
    try:
        yield
    except RuntimeError as error:
        if world() > 1 and _is_lost_peer(error):
            raise PeerError(
                f"process {rank()} of {world()} lost the others ({str(error).splitlines()[0][:160]}); "
                "the message of the one that ended first says why"
            ) from error
        raise


def adopt_slurm(environment: MutableMapping[str, str]) -> None:
    """Where srun started this process and nobody else did, tell torch so: rank, world, and where to meet.

    A plain `python` inside of a batch script is one process: only srun sets SLURM_STEP_NUM_TASKS.
    """
    if "RANK" in environment or int(environment.get("SLURM_STEP_NUM_TASKS", "1")) < 2:
        return
    # The first name of `node[03-07,11],other`, which is where rank 0 is.
    nodes = environment["SLURM_STEP_NODELIST"]
    found = re.match(r"([^,\[]+)(?:\[(\d+)[^\]]*\]([^,\[]*))?", nodes)
    first = "".join(part or "" for part in found.groups()) if found else nodes
    # Two steps of one job, or two jobs on one node, should not meet at the same port.
    number = int(environment.get("SLURM_JOB_ID", "0")) * 7 + int(environment.get("SLURM_STEP_ID", "0"))
    told = {
        "RANK": environment["SLURM_PROCID"],
        "WORLD_SIZE": environment["SLURM_STEP_NUM_TASKS"],
        "LOCAL_RANK": environment["SLURM_LOCALID"],
        "MASTER_ADDR": first,
        "MASTER_PORT": str(15000 + number % 15000),
    }
    for name, value in told.items():
        environment.setdefault(name, value)


def rank() -> int:
    """Number of this process, from 0."""
    return dist.get_rank() if dist.is_initialized() else 0


def world() -> int:
    """Number of processes."""
    return dist.get_world_size() if dist.is_initialized() else 1


def local_rank() -> int:
    """Number of this process on its machine, from 0."""
    adopt_slurm(os.environ)
    return int(os.environ.get("LOCAL_RANK", "0"))


def is_main() -> bool:
    """Whether this is the process that writes files and prints, also before and after the processes are joined."""
    adopt_slurm(os.environ)
    return (rank() if dist.is_initialized() else int(os.environ.get("RANK", "0"))) == 0


def gather(x: Tensor) -> Tensor:
    """Concatenate (N, …) tensors of equal shape of all processes in rank order: (world * N, …), without gradient."""
    return gather_later(x)().flatten(0, 1)


def gather_later(x: Tensor) -> Callable[[], Tensor]:
    """Begin to gather (N, …) tensors of equal shape; the function that is given waits for (world, N, …).

    What is computed in between hides the transfer.
    """
    if world() == 1:
        return lambda: x[None]
    every = x.new_empty(world(), *x.shape)
    work = dist.all_gather(list(every.unbind()), x.detach().contiguous(), async_op=True)

    def wait() -> Tensor:
        if work is not None:
            work.wait()
        return every

    return wait


def gather_with_grad(x: Tensor) -> Tensor:
    """Concatenate as `gather` does; each row's gradients of all processes flow back to where the row came from."""
    return x if world() == 1 else _Gather.apply(x)


def mean(x: Tensor) -> Tensor:
    """Average a tensor over all processes."""
    if world() == 1:
        return x
    x = x.clone()
    dist.all_reduce(x)
    return x / world()


def broadcast(x: Tensor) -> Tensor:
    """Give the main process's tensor to all; theirs must have its shape and type."""
    if world() > 1:
        dist.broadcast(x, 0)
    return x


def exchange(x: Tensor, order: Tensor) -> Tensor:
    """Deal the rows of all processes out anew; each row travels once.

    Args:
        x: (N, …), of equal shape on all processes.
        order: A permutation (world * N,) of the rows of all in rank order, the same everywhere.

    Returns:
        (N, …), the rows `order[rank * N : (rank + 1) * N]`.
    """
    if world() == 1:
        return x[order.to(x.device)]
    n = len(x)
    wanted = order[rank() * n : (rank() + 1) * n]
    given = [part[part // n == rank()] - rank() * n for part in torch.split(order, n)]
    sent = x[torch.cat(given).to(x.device)].contiguous()
    received = torch.empty_like(sent)
    counts = torch.bincount(wanted // n, minlength=world())
    dist.all_to_all_single(received, sent, counts.tolist(), [len(part) for part in given])
    # They came by sender, each sender's in the order of `wanted`.
    places = torch.argsort(wanted // n, stable=True)
    return received[torch.argsort(places).to(x.device)]


def union(bits: int) -> int:
    """Give the bits that are set on any process."""
    if world() == 1:
        return bits
    every = torch.tensor(bits)
    dist.all_reduce(every, dist.ReduceOp.BOR)
    return int(every)


def gather_objects(value: T) -> list[T]:
    """List the picklable values of all processes in rank order."""
    if world() == 1:
        return [value]
    values: list[Any] = [None] * world()
    dist.all_gather_object(values, value)
    return values


def together(work: Callable[[], T]) -> T:
    """Do the work on every process; give this one's result.

    No process goes on alone: what the work raised on one, all raise once all have come to its end.

    Raises:
        VidsslError: What the work raised here.
        PeerError: It raised a VidsslError elsewhere.
        Interrupted: A process was asked to stop.
    """
    if world() == 1:
        return work()
    result: T | None = None
    failure: VidsslError | Interrupted | None = None
    try:
        result = work()
    except (VidsslError, Interrupted) as error:
        failure = error
    interrupted = failure.signal if isinstance(failure, Interrupted) else None
    said = str(failure) if isinstance(failure, VidsslError) else None
    every = gather_objects((said, interrupted))
    if isinstance(failure, VidsslError):
        raise failure
    for number, (message, _) in enumerate(every):
        if message is not None:
            raise PeerError(f"process {number}: {message}")
    for _, signal in every:
        if signal is not None:
            raise Interrupted(signal)
    return cast(T, result)  # without a failure it is one


def gather_outcomes(work: Callable[[], T]) -> list[T]:
    """Do the work on every process, as `together` does; list the results in rank order."""
    return gather_objects(together(work))


def on_main(work: Callable[[], T]) -> T:
    """Do the work on the main process while the others wait; all get its result, or raise what it raised."""
    return cast(T, gather_outcomes(lambda: work() if is_main() else None)[0])


class _Gather(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.rows = len(x)
        return gather(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        gradient = gradient.contiguous().clone()
        dist.all_reduce(gradient)
        return gradient[rank() * ctx.rows : (rank() + 1) * ctx.rows]


def _is_lost_peer(error: RuntimeError) -> bool:
    # torch gives gloo's failures no type of their own.
    signs = (
        "Connection closed by peer",
        "Connection reset by peer",
        "Broken pipe",
        "Timed out waiting",
        "Gloo",
    )
    return isinstance(error, dist.DistError) or any(sign in str(error) for sign in signs)
