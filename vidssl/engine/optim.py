"""Optimizers, and which parameters have weight decay."""

from collections.abc import Callable
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor
from torch.optim import SGD, AdamW, Optimizer

from vidssl.base.config import Settings
from vidssl.base.schedule import Scheduled
from vidssl.methods.base import Method
from vidssl.models.batch_norms import norm_parameters


class _Shared(Settings):
    lr: Scheduled
    base_batch: int | None = Field(default=None, ge=1)  # lr is for this batch size, and scaled linearly to the run's
    weight_decay: float = Field(default=0.0, ge=0)
    # Learning rate of the backbone, relative to that of the heads.
    backbone_scale: float = Field(default=1.0, gt=0)


class _WithMomentum(_Shared):
    sgd_momentum: float = Field(default=0.9, ge=0, lt=1)
    nesterov: bool = False

    @model_validator(mode="after")
    def _nesterov_has_momentum(self) -> "_WithMomentum":
        if self.nesterov and not self.sgd_momentum:
            raise ValueError("nesterov needs an sgd_momentum above 0")
        return self


class LARSConfig(_WithMomentum):
    """LARS, without decay and trust scaling for biases and norms (SCE's code, section D.3)."""

    name: Literal["lars"]
    trust: float = Field(default=0.001, gt=0)


class SGDConfig(_WithMomentum):
    """SGD with momentum; all parameters decay, with `decay_norms: false` all but those of norms."""

    name: Literal["sgd"]
    decay_norms: bool = True


class AdamWConfig(_Shared):
    """AdamW; biases and norms do not decay."""

    name: Literal["adamw"]
    betas: tuple[float, float] = (0.9, 0.999)


OptimizerConfig = Annotated[LARSConfig | SGDConfig | AdamWConfig, Field(discriminator="name")]


class LARS(Optimizer):
    """SGD with momentum, with gradients scaled to a fraction of the norm of their weights (You et al., 2017).

    For parameters with more than one dimension: `g += wd * p`, then `g *= trust * |p| / |g|` (1 if a norm is 0).
    """

    def __init__(
        self, params: Any, lr: float, momentum: float, weight_decay: float, trust: float, nesterov: bool = False
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust})
        self.nesterov = nesterov

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Update the weights, by `_foreach` functions; the gradients of matrices are scaled in place."""
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
            if self.nesterov:
                buffers = torch._foreach_add(gradients, buffers, alpha=group["momentum"])  # type: ignore[assignment]
            torch._foreach_add_(params, buffers, alpha=-group["lr"])


def build_optimizer(config: OptimizerConfig, method: Method) -> Optimizer:
    """Make the optimizer of a method's trainable parameters; `set_lr` sets its learning rate before each step."""
    if isinstance(config, LARSConfig):
        groups = _groups(config, method, lambda p: True)
        return LARS(groups, 0.0, config.sgd_momentum, config.weight_decay, config.trust, config.nesterov)
    optimizer: Optimizer
    # Fused: one pass over the parameters, on CPUs too.
    if isinstance(config, SGDConfig):
        norms = set() if config.decay_norms else {id(p) for p in norm_parameters(method)}
        groups = _groups(config, method, lambda p: id(p) not in norms)
        optimizer = SGD(groups, 0.0, config.sgd_momentum, nesterov=config.nesterov, fused=True)
    else:
        groups = _groups(config, method, lambda p: p.ndim > 1)
        optimizer = AdamW(groups, lr=0.0, betas=config.betas, fused=True)
    optimizer.register_load_state_dict_post_hook(_follow_layout)
    return optimizer


def _groups(config: OptimizerConfig, method: Method, decays: Callable[[Tensor], bool]) -> list[dict[str, Any]]:
    """Group the trainable parameters by the scale of their learning rate and by weight decay."""
    backbone = set() if config.backbone_scale == 1.0 else {id(p) for p in method.backbone.parameters()}
    groups: dict[tuple[float, float], list[Tensor]] = {}
    for p in method.parameters():
        if p.requires_grad:
            scale = config.backbone_scale if id(p) in backbone else 1.0
            groups.setdefault((scale, config.weight_decay if decays(p) else 0.0), []).append(p)
    return [{"params": ps, "scale": scale, "weight_decay": decay} for (scale, decay), ps in groups.items()]


def _follow_layout(optimizer: Optimizer) -> None:
    """Give loaded state the memory format of its parameters: fused steps read both in memory order, unchecked."""
    for p, state in optimizer.state.items():
        for name, value in state.items():
            if isinstance(value, Tensor) and value.shape == p.shape and value.stride() != p.stride():
                state[name] = torch.empty_like(p, dtype=value.dtype).copy_(value)


def set_lr(optimizer: Optimizer, config: OptimizerConfig, progress: float, batch_size: int) -> float:
    """Set the learning rate of the next step and return it, without `backbone_scale`."""
    lr = config.lr.at(progress) * (batch_size / config.base_batch if config.base_batch else 1.0)
    for group in optimizer.param_groups:
        group["lr"] = lr * group["scale"]
    return lr
