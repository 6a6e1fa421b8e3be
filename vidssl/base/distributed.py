"""Processes of one run: rank, world size, collectives, and errors that reach all. With one process all are no-ops."""

import functools
import itertools
import os
import re
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist

# Its functions have the process group as default argument. Imported later, as by pytorchvideo, they would keep a group
# alive that was left: its threads, which need Python, would then crash the process at its end.
import torch.distributed.nn.functional
from torch import Tensor
from torch.autograd import Function

from vidssl.base.errors import Interrupted, PeerError, TrainingError, VidsslError

_T = TypeVar("_T")

_MEETING = timedelta(minutes=10)  # imports from a slow network drive take minutes
_WAITING = timedelta(days=365)  # for the main process, which may compute for hours; if it ends, the others know at once
_groups = itertools.count()  # of this process; all processes join equally often
_alone: list[Any] = []  # the group in which the others wait for the main process, while the processes are joined


@contextmanager
def joined(device: torch.device) -> Iterator[None]:
    """Join the processes that torchrun or srun started, in this block; nested blocks do nothing."""
    outer = dist.is_initialized()
    adopt_slurm(os.environ)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not outer:
        _start(device)
    failed = False
    try:
        yield
    except RuntimeError as error:
        failed = True
        # gloo's failures for processes that have ended are plain RuntimeErrors.
        signs = "Connection closed by peer|Connection reset by peer|Broken pipe|Timed out waiting|Gloo"
        if world() > 1 and (isinstance(error, dist.DistError) or re.search(signs, str(error))):
            raise PeerError(
                f"process {rank()} of {world()} lost the others ({str(error).splitlines()[0][:160]}); "
                "the process that ended first has logged why"
            ) from error
        raise
    except BaseException as error:
        failed = not isinstance(error, Interrupted)
        raise
    finally:
        # Leaving an nccl group waits for the other processes of the machine. If this one fails alone they wait for it
        # in a collective, so it must not leave, but end. A signal ends all of them.
        if not outer and dist.is_initialized() and not (failed and device.type == "cuda"):
            _alone.clear()
            dist.destroy_process_group()


def _start(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.set_device(device)
    store, number, count = _meet()
    # A group must not find the addresses of one that was left, nor, as torchrun keeps its store when it restarts
    # processes, those of dead processes.
    prefix = f"{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}.{next(_groups)}"
    store = dist.PrefixStore(prefix, store)  # type: ignore[attr-defined]
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=number, world_size=count)
    _alone.append(dist.new_group(backend="gloo", timeout=_WAITING))


@functools.cache  # the store is kept: a process that joins again must not meet the others at one that is being closed
def _meet() -> tuple[Any, int, int]:
    try:
        store, number, count = next(dist.rendezvous("env://", timeout=_MEETING))  # type: ignore[attr-defined]
    except (RuntimeError, ValueError) as error:
        names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
        number, count, host, port = (os.environ.get(name, "?") for name in names)
        raise PeerError(
            f"process {number} of {count} did not meet the others at {host}:{port} "
            f"({str(error).splitlines()[0][:120]}); start all of them with the same MASTER_ADDR and MASTER_PORT"
        ) from None
    return store, number, count


def adopt_slurm(environment: MutableMapping[str, str]) -> None:
    """Set the variables that torch needs (rank, world size, address) if srun started this process, but not torchrun."""
    # A plain `python` in a batch script is one process: only srun sets SLURM_STEP_NUM_TASKS.
    if "RANK" in environment or int(environment.get("SLURM_STEP_NUM_TASKS", "1")) < 2:
        return
    # Rank 0 is on the first node of `node[03-07,11],other`.
    match = re.match(r"([^,\[]+)(?:\[(\d+)[^\]]*\]([^,\[]*))?", environment["SLURM_STEP_NODELIST"])
    node = "".join(match.groups("")) if match else environment["SLURM_STEP_NODELIST"]
    # Two steps of one job, or two jobs on one node, need different ports.
    number = int(environment.get("SLURM_JOB_ID", "0")) * 7 + int(environment.get("SLURM_STEP_ID", "0"))
    environment["RANK"] = environment["SLURM_PROCID"]
    environment.setdefault("WORLD_SIZE", environment["SLURM_STEP_NUM_TASKS"])
    environment.setdefault("LOCAL_RANK", environment["SLURM_LOCALID"])
    environment.setdefault("MASTER_ADDR", node)
    environment.setdefault("MASTER_PORT", str(15000 + number % 15000))


def rank() -> int:
    """Number of this process, from 0."""
    return dist.get_rank() if dist.is_initialized() else 0


def world() -> int:
    """Number of processes (world size)."""
    return dist.get_world_size() if dist.is_initialized() else 1


def local_rank() -> int:
    """Number of this process on its machine, from 0."""
    adopt_slurm(os.environ)
    return int(os.environ.get("LOCAL_RANK", "0"))


def is_main() -> bool:
    """Whether this process writes files and prints; also known before the processes are joined."""
    adopt_slurm(os.environ)
    return (rank() if dist.is_initialized() else int(os.environ.get("RANK", "0"))) == 0


def gather(x: Tensor) -> Tensor:
    """Concatenate (N, …) tensors of equal shape of all processes in rank order: (world * N, …), no gradient."""
    return gather_later(x)().flatten(0, 1)


def gather_later(x: Tensor) -> Callable[[], Tensor]:
    """Start to gather (N, …) tensors of equal shape; the returned function waits for the result (world, N, …)."""
    if world() == 1:
        return lambda: x[None]
    gathered = x.new_empty(world(), *x.shape)
    work = dist.all_gather(list(gathered.unbind()), x.detach().contiguous(), async_op=True)
    return functools.partial(_wait, work, gathered)


def _wait(work: Any, gathered: Tensor) -> Tensor:
    work.wait()
    return gathered


def gather_with_grad(x: Tensor) -> Tensor:
    """Like `gather`, with gradients: a row's gradient is the sum over all processes."""
    return x if world() == 1 else _Gather.apply(x)


def mean(x: Tensor) -> Tensor:
    """Average a tensor over all processes."""
    if world() == 1:
        return x
    x = x.clone()
    dist.all_reduce(x)
    return x / world()


@torch.no_grad()
def average(tensors: Sequence[Tensor]) -> None:
    """Replace tensors by their means over all processes, which are sent together."""
    if tensors and world() > 1:
        parts = torch.split(mean(torch.cat([x.flatten() for x in tensors])), [x.numel() for x in tensors])
        torch._foreach_copy_([*tensors], [part.view(x.shape) for part, x in zip(parts, tensors, strict=True)])


def broadcast(x: Tensor) -> Tensor:
    """Copy the main process's tensor to all, in place; shapes and types must be equal."""
    if world() > 1:
        dist.broadcast(x, 0)
    return x


def exchange(x: Tensor, order: Tensor) -> Tensor:
    """Permute the rows of the (N, …) tensors of all processes; each row is sent once.

    `order` (world * N,), equal on all, is the permutation of all rows in rank order.
    """
    if world() == 1:
        return x[order.to(x.device)]
    n = len(x)
    senders = order[rank() * n : (rank() + 1) * n] // n  # of the rows that this process receives
    rows = [part[part // n == rank()] - rank() * n for part in torch.split(order, n)]  # for each process
    sent = x[torch.cat(rows).to(x.device)].contiguous()
    received = torch.empty_like(sent)
    counts = torch.bincount(senders, minlength=world())
    dist.all_to_all_single(received, sent, counts.tolist(), [len(part) for part in rows])
    # Received rows are grouped by sender, within a sender in the order of `order`.
    return received[torch.argsort(torch.argsort(senders, stable=True)).to(x.device)]


def union(bits: int) -> int:
    """Combine flags: the bits that are set on any process."""
    if world() == 1:
        return bits
    combined = torch.tensor(bits)
    dist.all_reduce(combined, dist.ReduceOp.BOR)
    return int(combined)


def gather_objects(value: _T, group: Any = None) -> list[_T]:
    """List the picklable values of all processes in rank order."""
    if world() == 1:
        return [value]
    values: list[Any] = [None] * world()
    dist.all_gather_object(values, value, group)
    return values


def together(work: Callable[[], _T], group: Any = None) -> _T:
    """Call a function on every process and return this one's result; if it raises on one, all raise, and none waits.

    A VidsslError of another process is raised as a PeerError, an Interrupted as itself.
    """
    result: _T | None = None
    failure: VidsslError | Interrupted | None = None
    try:
        result = work()
    except (VidsslError, Interrupted) as error:
        failure = error
    if isinstance(failure, VidsslError):
        gather_objects((str(failure), type(failure), None), group)
        raise failure
    outcomes = gather_objects(("", None, failure.signal if failure else None), group)
    for number, (message, kind, _) in enumerate(outcomes):
        if kind is not None:
            raise PeerError(f"process {number}: {message}", kind, message)
    for *_, signal in outcomes:
        if signal is not None:
            raise Interrupted(signal)
    return cast(_T, result)  # without a failure it is one


def gather_outcomes(work: Callable[[], _T]) -> list[_T]:
    """Like `together`; returns the results of all processes in rank order."""
    return gather_objects(together(work))


def on_main(work: Callable[[], _T]) -> _T:
    """Call a function on the main process while the others wait, however long; all return its result, or raise."""
    return cast(_T, from_main(lambda: work() if is_main() else None))


def from_main(work: Callable[[], _T]) -> _T:
    """Call a function on every process; return the result of the main one, or raise what one of them raises, on all.

    The function may do on the main process alone what comes after its last collective: the others wait, however long.
    What fails before that must fail on all processes, or inside of `together`: else those in a collective wait for it.
    """
    group = _alone[0] if _alone else None
    return gather_objects(together(work, group), group)[0]


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


def choose_device(name: str) -> torch.device:
    """Return the device of this process; a TrainingError if `cuda` is requested and there is no GPU."""
    if name == "cuda" and not torch.cuda.is_available():
        raise TrainingError("device: cuda was asked for and torch sees no GPU here; use device: auto or cpu")
    if name == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    # srun may make only its own GPU visible to each process.
    return torch.device("cuda", local_rank() % torch.cuda.device_count())
