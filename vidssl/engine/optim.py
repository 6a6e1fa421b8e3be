"""Optimizers, and which tensors decay."""

from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.optim import SGD, AdamW, Optimizer

from vidssl.config import Settings
from vidssl.methods.base import Method
from vidssl.schedule import Scheduled


class _Shared(Settings):
    lr: Scheduled
    base_batch: int | None = Field(default=None, ge=1)  # the batch that lr is meant for; it scales linearly
    weight_decay: float = Field(default=0.0, ge=0)
    # Learning rate of the backbone over that of the rest, its classifier or projector.
    backbone_scale: float = Field(default=1.0, gt=0)


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
        self, params: Iterable[Any], lr: float, momentum: float, weight_decay: float, trust: float
    ) -> None:
        super().__init__(
            params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust}
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Update the weights once; the gradients of matrices are scaled in place.

        Each line is one call for all tensors, and none waits for the device.
        """
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            gradients = [p.grad for p in params]
            matrices = [p for p in params if p.ndim > 1]
            if matrices:
                scaled = [p.grad for p in matrices]
                torch._foreach_add_(scaled, matrices, alpha=group["weight_decay"])
                p_norm, g_norm = (torch.stack(torch._foreach_norm(x)) for x in (matrices, scaled))
                scale = torch.where((p_norm > 0) & (g_norm > 0), group["trust"] * p_norm / g_norm, 1.0)
                torch._foreach_mul_(scaled, scale.unbind())
            for p in params:
                if "momentum_buffer" not in self.state[p]:
                    self.state[p]["momentum_buffer"] = torch.zeros_like(p)
            buffers = [self.state[p]["momentum_buffer"] for p in params]
            torch._foreach_mul_(buffers, group["momentum"])
            torch._foreach_add_(buffers, gradients)
            torch._foreach_add_(params, buffers, alpha=-group["lr"])


def build_optimizer(config: OptimizerConfig, method: Method) -> Optimizer:
    """Make the optimizer of the weights that ask for gradients; its lr is set before each step by `set_lr`."""
    groups = _groups(config, method)
    if isinstance(config, LARSConfig):
        return LARS(groups, 0.0, config.sgd_momentum, config.weight_decay, config.trust)
    optimizer: Optimizer
    # Fused: one pass over the weights, on CPUs too.
    if isinstance(config, SGDConfig):
        optimizer = SGD(groups, 0.0, config.sgd_momentum, weight_decay=config.weight_decay, fused=True)
    else:
        split = [
            {**group, "params": [p for p in group["params"] if (p.ndim > 1) == decays], "weight_decay": decay}
            for group in groups
            for decays, decay in ((True, config.weight_decay), (False, 0.0))
        ]
        optimizer = AdamW(split, lr=0.0, betas=config.betas, fused=True)
    optimizer.register_load_state_dict_post_hook(_follow_layout)
    return optimizer


def _groups(config: OptimizerConfig, method: Method) -> list[dict[str, Any]]:
    """Weights that share a learning rate; `scale` is what it is multiplied with."""
    params = [p for p in method.parameters() if p.requires_grad]
    if config.backbone_scale == 1.0:
        return [{"params": params, "scale": 1.0}]
    inside = {id(p) for p in method.backbone.parameters()}
    groups: list[dict[str, Any]] = [
        {"params": [p for p in params if id(p) in inside], "scale": config.backbone_scale},
        {"params": [p for p in params if id(p) not in inside], "scale": 1.0},
    ]
    return [group for group in groups if group["params"]]


def _follow_layout(optimizer: Optimizer) -> None:
    """Give loaded state the memory format of its weights: fused steps read both as they lie in memory, unchecked."""
    for p, state in optimizer.state.items():
        for name, value in state.items():
            if isinstance(value, Tensor) and value.shape == p.shape and value.stride() != p.stride():
                state[name] = torch.empty_like(p, dtype=value.dtype).copy_(value)


def set_lr(optimizer: Optimizer, config: OptimizerConfig, progress: float, batch_size: int) -> float:
    """Set the learning rate of the next step, and give it: that of all but the backbone, where they differ."""
    lr = config.lr.at(progress) * (batch_size / config.base_batch if config.base_batch else 1.0)
    for group in optimizer.param_groups:
        group["lr"] = lr * group["scale"]
    return lr
