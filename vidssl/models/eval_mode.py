"""Eval mode for the time of a measurement."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


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
