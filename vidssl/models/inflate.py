"""Inflate 2D ResNets: a 3D ResNet that computes the same on a still video (Carreira and Zisserman, 2017).

Unlike there, a kernel lies in the middle of its time and is not repeated: repeated, it would lose a part at the first
and last frame, where time is padded with zeros.
"""

from collections.abc import Mapping

from torch import Tensor

from vidssl.errors import CheckpointError
from vidssl.models.backbones import Backbone
from vidssl.models.checkpoint_layouts import Network
from vidssl.models.match_backbone import Shapes
from vidssl.models.resnet3d import ResNet3D

# Why other backbones cannot compute the same.
_REASONS = {
    "r3d_18": "its stem has no max pooling",
    "mc3_18": "its stem has no max pooling",
    "r2plus1d_18": "its kernels are split into space and time, and its stem has no max pooling",
}


def check_inflatable(backbone: Backbone, name: str, source: str) -> None:
    """Raise a CheckpointError if no 2D ResNet can be inflated into a backbone."""
    reason = None
    if not isinstance(backbone, ResNet3D):
        reason = _REASONS.get(name, "it is no 3D ResNet of vidssl")
    elif backbone.frame_differences:
        reason = "with frame_differences it does not see frames"
    if reason:
        raise CheckpointError(
            f"{source} cannot be inflated into {name}: {reason}; use resnet3d18 (for resnet18) or resnet3d50 "
            "(for resnet50)"
        )


def check_same_shape(network: Network, weights: Mapping[str, Tensor], own: Shapes, source: str) -> None:
    """Raise a CheckpointError if the 2D network in a file has other blocks, stages or another stem than the backbone.

    `own` has the shapes of the backbone's weights.
    """
    theirs = {name: tuple(weights[old].shape) for name, old in network.names.items()}
    two, three = _describe(theirs), _describe(own)
    different = [f"{two[part]}, not {three[part]}" for part in two if two[part] != three[part]]
    if different:
        raise CheckpointError(
            f"{source} cannot be inflated into the backbone: it has {'; '.join(different)}; choose the backbone and "
            "width that fit"
        )


def _describe(shapes: Shapes) -> dict[str, str]:
    bottleneck = any(name.endswith(".branch2.conv_c.weight") for name in shapes)
    blocks = {tuple(name.split(".")[2:5:2]) for name in shapes if ".res_blocks." in name}  # stage and number
    counts = [sum(stage == str(n) for stage, _ in blocks) for n in (1, 2, 3, 4)]
    stem = shapes.get("net.blocks.0.conv.weight", (0, 0, 0))
    return {
        "kind": "bottlenecks" if bottleneck else "basic blocks",
        "blocks": f"{'-'.join(map(str, counts))} blocks",
        "stem": f"a stem of {' x '.join(map(str, stem[-2:]))}",
        "width": f"{stem[0]} channels in the stem",
    }


def inflate(network: Network, weights: Mapping[str, Tensor], own: Shapes) -> dict[str, Tensor]:
    """Return `weights` with the kernels (O, I, H, W) of a network as (O, I, T, H, W): in the middle of T, zeros beside.

    T is that of the kernel in the backbone, whose weights have the shapes `own`. Kernels of other shapes stay.
    """
    inflated = dict(weights)
    for name, old in network.names.items():
        shape, kernel = own.get(name, ()), weights[old]
        if len(shape) == 5 and kernel.shape == (*shape[:2], *shape[3:]) and shape[2] % 2 == 1:
            inflated[old] = kernel.new_zeros(shape)
            inflated[old][:, :, shape[2] // 2] = kernel
    return inflated
