"""Eval mode, and the usual state of torch, for the time of a measurement."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import nn


@contextmanager
def usual_torch() -> Iterator[None]:
    """Let torch be as after its import in this block or function, and as it was after it.

    A program may have switched gradients off, or inference mode or autocast on, or chosen another default dtype or
    device.
    """
    dtype = torch.get_default_dtype()
    with ExitStack() as usual:
        if torch.get_default_device().type != "cpu":  # not always: it makes each operation slower
            usual.enter_context(torch.device("cpu"))
        usual.enter_context(torch.inference_mode(False))
        usual.enter_context(torch.enable_grad())
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):  # no context: in it casts of weights would be kept from step to step
                usual.callback(torch.set_autocast_cache_enabled, torch.is_autocast_cache_enabled())
                usual.callback(torch.set_autocast_enabled, kind, True)
                torch.set_autocast_cache_enabled(False)
                torch.set_autocast_enabled(kind, False)
        usual.callback(torch.set_default_dtype, dtype)
        torch.set_default_dtype(torch.float32)
        yield


@contextmanager
def eval_mode(network: nn.Module) -> Iterator[None]:
    """Put a network in eval mode in this block; then each of its modules has the mode that it had.

    `network.train()` would put frozen parts, which stay in eval mode while the rest is trained, in training mode.
    """
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        yield
    finally:
        network.train(modes[0][1])  # for modules that do more than set the mode
        for module, training in modes:
            module.training = training
