"""Optimizers, and which tensors decay."""

from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from vidssl.config import Settings
from vidssl.schedule import Scheduled


class _Shared(Settings):
    lr: Scheduled
    base_batch: int | None = Field(default=None, ge=1)  # the batch that lr is meant for; it scales linearly
    weight_decay: float = Field(default=0.0, ge=0)


class LARSConfig(_Shared):
    """LARS; neither decay nor trust scaling for biases and norms (SCE's code, section D.3)."""

    name: Literal["lars"]
    sgd_momentum: float = Field(default=0.9, ge=0, lt=1)
    trust: float = Field(default=0.001, gt=0)


class SGDConfig(_Shared):
    """SGD with momentum; all tensors decay."""

    name: Literal["sgd"]
    sgd_momentum: float = Field(default=0.9, ge=0, lt=1)


class AdamWConfig(_Shared):
    """AdamW; biases and norms do not decay."""

    name: Literal["adamw"]
    betas: tuple[float, float] = (0.9, 0.999)


OptimizerConfig = Annotated[LARSConfig | SGDConfig | AdamWConfig, Field(discriminator="name")]


class LARS(Optimizer):
    """SGD with momentum whose gradients are scaled to a share of the norm of their weights (You et al., 2017).

    For tensors with more than one dimension: `g += wd * p`, then `g *= trust * |p| / |g|` (1 if either norm
    is 0).
    """

    def __init__(
        self, params: Iterable[Tensor], lr: float, momentum: float, weight_decay: float, trust: float
    ) -> None:
        super().__init__(
            params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust}
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Update the weights once."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                g = p.grad
                if p.ndim > 1:
                    g = g.add(p, alpha=group["weight_decay"])
                    p_norm, g_norm = p.norm(), g.norm()
                    scale = torch.where((p_norm > 0) & (g_norm > 0), group["trust"] * p_norm / g_norm, 1.0)
                    g = g * scale
                state = self.state[p]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(p)
                buffer = state["momentum_buffer"].mul_(group["momentum"]).add_(g)
                p.add_(buffer, alpha=-group["lr"])


def build_optimizer(config: OptimizerConfig, method: nn.Module) -> Optimizer:
    """Make the optimizer of the weights that ask for gradients; its lr is set before each step by `set_lr`."""
    params = [p for p in method.parameters() if p.requires_grad]
    if isinstance(config, LARSConfig):
        return LARS(params, 0.0, config.sgd_momentum, config.weight_decay, config.trust)
    if isinstance(config, SGDConfig):
        return SGD(params, lr=0.0, momentum=config.sgd_momentum, weight_decay=config.weight_decay)
    groups = [
        {"params": [p for p in params if p.ndim > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in params if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return AdamW(groups, lr=0.0, betas=config.betas)


def set_lr(optimizer: Optimizer, config: OptimizerConfig, progress: float, batch_size: int) -> float:
    """Set the learning rate of the next step, and give it."""
    lr = config.lr.at(progress) * (batch_size / config.base_batch if config.base_batch else 1.0)
    for group in optimizer.param_groups:
        group["lr"] = lr
    return lr
