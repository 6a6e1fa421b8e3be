"""The way of batches to the device: copies that overlap with computation, augmentation there, and normalisation."""

import functools
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import chain

import torch
from torch import Tensor

from vidssl.base.types import Batch
from vidssl.data.loader import Loader
from vidssl.transforms.batched import apply_batched


def on_device(
    loader: Loader, device: torch.device, mean: Sequence[float] | None = None, std: Sequence[float] = (1.0,)
) -> Generator[Batch, None, None]:
    """Yield the batches of a loader on a device, as `to_device` does.

    On a GPU each batch is copied as uint8 from pinned memory, augmented and normalised on a separate stream, while the
    previous one is used.
    """
    move = partial(to_device, device=device, mean=mean, std=std)
    with closing(iter(loader)) as batches:
        if device.type != "cuda":
            yield from map(move, batches)
            return
        side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

        def copy(batch: Batch) -> tuple[Batch, torch.cuda.Event]:
            with torch.cuda.stream(side):
                return move(batch.map(Tensor.pin_memory)), side.record_event()

        previous: tuple[Batch, torch.cuda.Event] | None = None
        for copied in chain(map(copy, batches), [None]):
            if previous is not None:
                yield _arrived(*previous, torch.cuda.current_stream(device))
            previous = copied


def _arrived(batch: Batch, copied: torch.cuda.Event, stream: torch.cuda.Stream) -> Batch:
    """Let a stream wait for the copy of a batch, and return the batch for use in it."""
    stream.wait_event(copied)
    for tensor in (*batch.views, batch.label, batch.index, batch.boxes, batch.mask):
        if tensor is not None:
            tensor.record_stream(stream)
    return batch


def to_device(
    batch: Batch, device: torch.device, mean: Sequence[float] | None = None, std: Sequence[float] = (1.0,)
) -> Batch:
    """Move a batch to the device, and apply its operations there.

    Masks become int64 and, unless `mean` is None, the views are normalised: from uint8 (B, T, C, S, S) to float
    (B, C, T, S, S).
    """
    moved = batch.map(lambda tensor: tensor.to(device, non_blocking=True))
    views = moved.views
    if moved.operations:
        views = tuple(map(apply_batched, views, moved.operations))
    if mean is not None:
        views = tuple(normalised(view, mean, std) for view in views)
    return replace(moved, views=views, mask=None if moved.mask is None else moved.mask.long(), operations=())


def fetch_later(tensors: Sequence[Tensor]) -> Callable[[], list[Tensor]]:
    """Start copying tensors to the CPU; the function that is returned waits for this, and returns them."""
    copies = [tensor.to("cpu", non_blocking=True) for tensor in tensors]
    if not any(tensor.is_cuda for tensor in tensors):
        return lambda: copies
    copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
    copied.record()

    def wait() -> list[Tensor]:
        copied.synchronize()
        return [copy.clone() for copy in copies]  # not pinned: results of a long list would lock its memory

    return wait


def normalised(view: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Convert a uint8 view (B, T, C, S, S) to normalised float (B, C, T, S, S), `channels_last_3d` in memory.

    `mean` and `std` are those of values in [0, 1]: one for each channel, or one for all.
    """
    shift, scale = _constant(tuple(mean), view.device), _constant(tuple(std), view.device)
    return (view.permute(0, 2, 1, 3, 4).float() / 255 - shift) / scale


@functools.cache
def _constant(values: tuple[float, ...], device: torch.device) -> Tensor:
    """Make a tensor (1, C, 1, 1, 1), once: a copy of plain numbers to a GPU waits for it."""
    with torch.inference_mode(False):
        return torch.tensor(values, device=device).view(1, -1, 1, 1, 1)
