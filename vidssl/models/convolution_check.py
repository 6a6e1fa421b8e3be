"""Whether this machine computes convolutions correctly: some of oneDNN's kernels for AMX do not, nor some of cuDNN's.

On CPUs, wrong in bfloat16 are gradients of weights where the stride is greater than the kernel or the output one pixel
wide, and stems of three frames on clips of one; by size and channels, not in all layers. Sources: pytorch issue 169688
and pull request 188426, oneDNN pull request 5494; docs/results/performance.md lists what was measured.
"""

import re
from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from vidssl.base.errors import ConfigError

LIMIT = 0.01  # largest difference / largest value; correct kernels stay below 0.005, wrong ones differ by 0.02 or more
_DIRT = 1e4
_PASSES = 2  # an error that depends on what is in memory may be missed by the first
_Convolution = nn.Conv2d | nn.Conv3d
# A convolution, the size of its input (B, C, T, H, W) or (B, C, H, W), and whether its gradients are compared.
_Layer = tuple[_Convolution, tuple[int, ...], bool]
_Size = tuple[int, int, int]

# Convolutions of ResNet3D-18 and -50 and of torchvision's networks, on clips of 32 to 224 pixels: channels in and out,
# kernel, stride, input (T, H, W). The slowest takes some hundredths of a second.
SHAPES: tuple[tuple[int, int, _Size, _Size, _Size], ...] = (
    (3, 16, (1, 7, 7), (1, 2, 2), (4, 64, 64)),  # stems
    (3, 64, (1, 7, 7), (1, 2, 2), (2, 64, 64)),
    (3, 64, (3, 7, 7), (1, 2, 2), (4, 64, 64)),
    (3, 64, (3, 7, 7), (1, 2, 2), (1, 64, 64)),  # of single frames
    (16, 32, (1, 1, 1), (1, 2, 2), (4, 16, 16)),  # shortcuts: the stride is greater than the kernel
    (64, 128, (1, 1, 1), (1, 2, 2), (4, 28, 28)),
    (64, 128, (1, 1, 1), (2, 2, 2), (4, 28, 28)),
    (256, 512, (1, 1, 1), (1, 2, 2), (2, 28, 28)),
    (32, 64, (1, 3, 3), (1, 2, 2), (4, 8, 8)),
    (64, 64, (3, 1, 1), (1, 1, 1), (4, 14, 14)),  # bottlenecks
    (64, 128, (3, 3, 3), (1, 2, 2), (4, 2, 2)),  # outputs of one pixel
    (64, 128, (3, 3, 3), (1, 2, 2), (4, 1, 1)),
)


def processor() -> str:
    """Return the name of this machine's processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else "CPU"


def wrong_shapes() -> list[str]:
    """Name the `SHAPES` that this CPU computes wrongly in bfloat16, and the part that is wrong."""
    layers: list[_Layer] = [
        (nn.Conv3d(c, out, k, stride, (k[0] // 2, k[1] // 2, k[2] // 2), bias=False), (1, c, *size), True)
        for c, out, k, stride, size in SHAPES
    ]
    return list(_wrong(layers))


def check_bfloat16(network: nn.Module, device: torch.device) -> None:
    """Compare the convolutions of the next forward pass of a network in bfloat16 with float32, if it runs on a CPU.

    At the end of that pass each of them gets random input of the size that it had, of one sample; those that gradients
    flow through are compared in their gradients too. If one is wrong, the pass raises a ConfigError.
    """
    if device.type == "cpu":
        _NextPass(network)


class _NextPass:
    """Notes the convolutions of the next forward pass of a network, and compares them at its end."""

    def __init__(self, network: nn.Module) -> None:
        self.layers: dict[str, _Layer] = {}
        self.hooks = [m.register_forward_hook(self.note) for m in network.modules() if isinstance(m, _Convolution)]
        self.hooks.append(network.register_forward_hook(self.end))

    def note(self, layer: _Convolution, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        size = (1, *inputs[0].shape[1:])
        if output.dtype == torch.bfloat16:
            name = f"{layer} {size}"
            _, _, trains = self.layers.get(name, (layer, size, False))  # one of those that are alike
            self.layers[name] = layer, size, trains or output.requires_grad

    def end(self, *_: Any) -> None:
        for hook in self.hooks:
            hook.remove()
        if wrong := _wrong([*self.layers.values()]):
            name = max(wrong, key=wrong.__getitem__)
            raise ConfigError(
                f"bfloat16 is wrong on this CPU ({processor()}, torch {torch.__version__}) in {len(wrong)} of the "
                f"network's {len(self.layers)} different convolutions: {name} differs from float32 by "
                f"{100 * wrong[name]:.2g} % of the largest value; the limit is {100 * LIMIT:g} %; use precision float32"
            )


def _wrong(layers: Sequence[_Layer]) -> dict[str, float]:
    """Name the layers of which a part is wrong, with its error."""
    wrong = {}
    torch.full((1 << 21,), _DIRT)  # from here on the allocator reuses freed memory of this size
    for layer, size, gradients in layers:
        errors = _errors(layer, size, gradients)
        part = max(errors, key=errors.__getitem__)
        if errors[part] > LIMIT:
            shape, kernel, stride = ("x".join(map(str, sides)) for sides in (size, layer.kernel_size, layer.stride))
            channels = f"{layer.in_channels} -> {layer.out_channels} channels"
            wrong[f"{part} of {channels}, kernel {kernel}, stride {stride}, on {shape}"] = errors[part]
    return wrong


@torch.enable_grad()
def _errors(layer: _Convolution, size: tuple[int, ...], gradients: bool) -> dict[str, float]:
    """Compute the largest difference / largest value of the output and both gradients, on random numbers."""
    source = torch.Generator().manual_seed(0)  # the random state of the run is not touched
    layout = torch.channels_last_3d if len(size) == 5 else torch.channels_last  # that of clips
    x = torch.randn(size, generator=source).bfloat16().contiguous(memory_format=layout)
    weight = torch.randn(layer.weight.shape, generator=source) / layer.weight[0].numel() ** 0.5
    weight = weight.bfloat16().contiguous(memory_format=layout)
    parts: list[list[Tensor]] = []
    for dtype in (torch.float32, *[torch.bfloat16] * _PASSES):  # the same numbers, exact in both
        inputs = x.to(dtype).detach().requires_grad_(), weight.to(dtype).detach().requires_grad_()
        bias = {} if layer.bias is None else {"bias": torch.zeros(len(weight), dtype=dtype)}
        _fill_free_memory()
        with torch.autocast("cpu", enabled=False):
            output = functional_call(layer, {"weight": inputs[1]} | bias, inputs[:1])
        parts.append([output.detach()])
        if gradients:
            to_output = torch.randn(output.shape, generator=source.manual_seed(1)).bfloat16().to(dtype)
            _fill_free_memory()
            parts[-1] += torch.autograd.grad(output, inputs, to_output.contiguous(memory_format=layout))
    full, *half = parts
    names = ("the output", "the gradient of the input", "the gradient of the weight")
    return {name: max(_error(outputs[n], full[n]) for outputs in half) for n, name in enumerate(names[: len(full)])}


def _error(half: Tensor, full: Tensor) -> float:
    """Return the largest difference, in units of the largest value; infinite if a number is not finite."""
    difference = (half.float() - full).abs().max() / full.abs().max().clamp(min=1e-30)
    return difference.item() if torch.isfinite(difference) else inf


def _fill_free_memory() -> None:
    """Write numbers into memory that is free: wrong kernels read some that they did not write, often still zeros."""
    blocks = [torch.full((1 << size,), _DIRT) for size in range(6, 18) for _ in range(2)]
    del blocks  # together: each must have had memory of its own


def conv3d_fault(half: bool) -> str | None:
    """Return what is wrong with 3D convolutions in bfloat16 (`half`) or float32 on this machine's GPUs, or None.

    Sources: pytorch issues 163539, 166122 and 166643, pull requests 163581, 166480, 167024 and 167111.
    """
    cudnn, tf32 = cudnn_version(), torch.backends.cudnn.allow_tf32
    release = tuple(map(int, re.findall(r"\d+", torch.__version__)[:3]))
    named = f"torch {torch.__version__} with cuDNN {cudnn // 10000}.{cudnn // 100 % 100}.{cudnn % 100}"
    remedy = "install torch 2.10 or newer, or torch 2.9.1 with nvidia-cudnn 9.15 or newer"
    if half and ((release >= (2, 9) and 90800 <= cudnn < 91500) or ((2, 9) <= release < (2, 9, 1) and cudnn >= 90800)):
        return f"{named} computes 3D convolutions in bfloat16 without cuDNN, about 4 times as slow: {remedy}"
    if half and 90800 <= cudnn < 91500:
        return f"{named} has wrong 3D convolutions of large inputs in bfloat16: {remedy}"
    if not half and tf32 and release < (2, 9, 1) and 91002 <= cudnn < 91600:
        return f"{named} has wrong 3D convolutions in TF32: {remedy}, or set torch.backends.cudnn.allow_tf32 = False"
    return None


def cudnn_version() -> int:
    """Return the version of cuDNN, 91002 for 9.10.2; 0 without it."""
    version: int | None = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    return version or 0
