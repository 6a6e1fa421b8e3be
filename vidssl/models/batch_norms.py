"""Batch norm of clips, and over several processes.

Shapes: N samples of this process, C channels; world processes.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from vidssl.base import distributed

_NORMS = (_BatchNorm, nn.GroupNorm, nn.LayerNorm)


class BatchNorm3d(nn.BatchNorm3d):
    """Batch norm of (N, C, T, H, W), fast for maps on a GPU that are channels last.

    torch's kernels for channels last know four dimensions only. With five, others take their place, which take half of
    a training step on an H100 and return gradients in another layout.
    """

    def _check_input_dim(self, input: Tensor) -> None:
        if input.ndim not in (4, 5):
            raise ValueError(f"BatchNorm3d needs input (N, C, T, H, W), got {tuple(input.shape)}")

    def forward(self, input: Tensor) -> Tensor:
        """Normalise."""
        if input.is_cuda and input.is_contiguous(memory_format=torch.channels_last_3d):
            return self.in_four_dimensions(input)
        return super().forward(input)

    def in_four_dimensions(self, input: Tensor) -> Tensor:
        """Normalise with time and height as one dimension: for channels last a view, not a copy."""
        return super().forward(input.flatten(2, 3)).view(input.shape)


class SyncBatchNorm(_BatchNorm):
    """Batch norm of (N, C, …) with mean and variance over the batches of all processes, on any device.

    Gradients flow through the statistics to all processes. torch's own is faster, but works on CUDA only.
    """

    def _check_input_dim(self, input: Tensor) -> None:
        if input.ndim < 2:
            raise ValueError(f"BatchNorm needs input (N, C, …), got {tuple(input.shape)}")

    def forward(self, input: Tensor) -> Tensor:
        """Normalise: with the statistics of all processes in training, else with the running statistics."""
        if not self.training or distributed.world() == 1:
            return super().forward(input)
        x = input if input.dtype == torch.float64 else input.float()  # never in half precision
        dims = [0, *range(2, x.ndim)]
        shape = (1, -1, *(1 for _ in dims[1:]))
        variance, mean = torch.var_mean(x, dims, correction=0)
        local = torch.cat([mean, variance, x.new_tensor([x.numel() / x.shape[1]])])
        gathered = distributed.gather_with_grad(local[None])  # (world, 2 C + 1), one message
        means, variances, counts = torch.split(gathered, [len(mean), len(mean), 1], dim=1)
        count = counts.sum().detach()
        weights = counts.detach() / count
        mean = (weights * means).sum(dim=0)
        # Variance within the processes plus that between them: E[x²] - E[x]² loses all digits where the mean is large.
        variance = (weights * (variances + (means - mean).square())).sum(dim=0)
        y = (x - mean.view(shape)) * torch.rsqrt(variance + self.eps).view(shape)
        if self.affine:
            y = y * self.weight.view(shape) + self.bias.view(shape)
        if self.track_running_stats:
            self._update_running(mean.detach(), variance.detach() * count / (count - 1))
        return y.to(input.dtype)

    @torch.no_grad()
    def _update_running(self, mean: Tensor, variance: Tensor) -> None:
        assert self.running_mean is not None and self.running_var is not None and self.num_batches_tracked is not None
        self.num_batches_tracked += 1
        weight = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean, weight)
        self.running_var.lerp_(variance, weight)


def synchronise(module: nn.Module, device: torch.device) -> nn.Module:
    """Convert all batch norms of a module to synchronised ones; weights, statistics and names stay."""
    if device.type == "cuda":
        return nn.SyncBatchNorm.convert_sync_batchnorm(module)  # type: ignore[no-any-return,no-untyped-call]
    for norm in batch_norms(module):
        norm.__class__ = SyncBatchNorm  # same parameters and buffers, another forward
    return module


def batch_norms(module: nn.Module) -> list[_BatchNorm]:
    """Return the batch norms of a module."""
    return [part for part in module.modules() if isinstance(part, _BatchNorm)]


@contextmanager
def statistics_kept(module: nn.Module) -> Iterator[None]:
    """Do not update running statistics within the context; batches are normalised as usual."""
    norms = [norm for norm in batch_norms(module) if norm.training and norm.track_running_stats]
    for norm in norms:
        norm.track_running_stats = False
    try:
        yield
    finally:
        for norm in norms:
            norm.track_running_stats = True


def norm_parameters(module: nn.Module) -> list[nn.Parameter]:
    """Return the weights and biases of all normalisation layers of a module."""
    layers = (part for part in module.modules() if isinstance(part, _NORMS))
    return [p for layer in layers for p in layer.parameters()]


def average_statistics(module: nn.Module) -> None:
    """Replace running statistics by their mean over processes; for batch norms that are not synchronised.

    Frozen batch norms (in eval mode) are left out: they are equal already, and their mean would differ by rounding.
    """
    trained = [norm for norm in batch_norms(module) if norm.training]
    statistics = (statistic for norm in trained for statistic in (norm.running_mean, norm.running_var))
    distributed.average([statistic for statistic in statistics if statistic is not None])
