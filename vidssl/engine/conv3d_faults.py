"""Releases of torch and cuDNN whose 3D convolutions are slow or wrong on GPUs."""

import re

import torch


def conv3d_fault(
    half: bool, torch_version: str = torch.__version__, cudnn: int | None = None, tf32: bool | None = None
) -> str | None:
    """Return what is wrong with 3D convolutions in bfloat16 (`half`) or float32 on this machine's GPUs, or None.

    `cudnn` is as `torch.backends.cudnn.version()`, 91002 for 9.10.2, and `tf32` whether convolutions may use it;
    default: those of this machine. Sources: pytorch issues 163539, 166122 and 166643, pull requests 163581, 166480,
    167024 and 167111.
    """
    cudnn = cudnn_version() if cudnn is None else cudnn
    tf32 = torch.backends.cudnn.allow_tf32 if tf32 is None else tf32
    release = tuple(map(int, re.findall(r"\d+", torch_version)[:3]))
    named = f"torch {torch_version} with cuDNN {cudnn // 10000}.{cudnn // 100 % 100}.{cudnn % 100}"
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
    found: int | None = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    return found or 0
