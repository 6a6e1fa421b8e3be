"""Grad-CAM in space and time: where in a clip a network finds what raises a score (Selvaraju et al., 2017).

Shapes: B clips, T frames, H x W pixels; C channels of maps (T', H', W'); D features of a clip.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import rankdata
from torch import Tensor, nn
from torch.nn import functional

from vidssl.base.errors import ConfigError
from vidssl.losses import unit
from vidssl.models.backbones import Backbone
from vidssl.models.eval_mode import eval_mode

ClipScore = Callable[[Tensor], Tensor]  # features (B, D) to one score for each clip, or for each pair of clips


class GradCam(NamedTuple):
    """Maps and the scores that they explain."""

    maps: Tensor  # (B, T', H', W'), not negative
    scores: Tensor  # as the score returned them
    features: Tensor  # (B, D)


def grad_cam(network: Backbone, clips: Tensor, layer: str, score: ClipScore) -> GradCam:
    """Compute the maps of clips (B, 3, T, H, W) for a score of the network's output.

    A channel's weight is the mean over all positions, in time too, of the gradient of the score with respect to its
    map (Eq. 1); the map of a clip is the ReLU of the weighted sum of the channels (Eq. 2). The network is in eval mode,
    so that clips do not depend on one another. `layer` is a name or path as in `layer_module`.

    Raises:
        ConfigError: There is no such layer, it has no maps, or the features do not depend on it.
    """
    outputs: list[tuple[Tensor, tuple[Any, ...]]] = []  # the maps of the layer, and what it returns beside them
    hook = network.layer_module(layer).register_forward_hook(partial(_start_graph, outputs))
    try:
        with torch.enable_grad(), eval_mode(network):
            features = network(clips)
            scores = score(features)
    finally:
        hook.remove()
    if len(outputs) != 1:
        raise ConfigError(
            f"layer {layer} is computed {len(outputs)} times for the features, not once: name another one"
        )
    leaf, others = outputs[0]
    (gradient,) = torch.autograd.grad(scores.sum(), leaf, allow_unused=True)
    if gradient is None:
        raise ConfigError(f"the features do not depend on layer {layer}: name an earlier one")
    maps, slopes = (network.as_maps((t, *others) if others else t, len(clips)) for t in (leaf.detach(), gradient))
    weights = slopes.mean(dim=(2, 3, 4), keepdim=True)  # Eq. 1
    return GradCam((weights * maps).sum(dim=1).relu(), scores.detach(), features.detach())  # Eq. 2


def _start_graph(outputs: list[tuple[Tensor, tuple[Any, ...]]], module: nn.Module, inputs: object, output: Any) -> Any:
    """Start the graph at the output of a layer, which is noted in `outputs`: the pass back ends here.

    Without a graph below the layer frozen networks have gradients too.
    """
    maps, *others = output if isinstance(output, tuple) else (output,)
    leaf = maps.detach().requires_grad_()
    outputs.append((leaf, tuple(others)))
    copied = leaf.clone()  # for following modules that work in place
    return (copied, *others) if isinstance(output, tuple) else copied


def similarity_cam(network: Backbone, clips: Tensor, others: Tensor, layer: str) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the maps (B, T', H', W') of clips and of others for the cosine similarity of each pair, and that (B,)."""
    cam = grad_cam(network, torch.cat([clips, others]), layer, partial(_similarity, network))
    return *cam.maps.chunk(2), cam.scores  # type: ignore[return-value]


def _similarity(network: Backbone, features: Tensor) -> Tensor:
    first, second = unit(network.finish(features)).chunk(2)
    return (first * second).sum(dim=1)


def class_cam(
    network: Backbone, clips: Tensor, layer: str, logits: Callable[[Tensor], Tensor], classes: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the maps (B, T', H', W') of clips for the logit of a class, the classes (B,), and their probabilities.

    `logits` computes those of features (B, D). Without `classes` (B,) they are the predicted ones.
    """
    cam = grad_cam(network, clips, layer, partial(_class_score, logits, classes))
    with torch.no_grad():
        scores = logits(cam.features)
    label = scores.argmax(dim=1) if classes is None else classes
    return cam.maps, label, scores.softmax(dim=1).gather(1, label[:, None])[:, 0]


def _class_score(logits: Callable[[Tensor], Tensor], classes: Tensor | None, features: Tensor) -> Tensor:
    scores = logits(features)
    label = scores.argmax(dim=1) if classes is None else classes
    return scores.gather(1, label[:, None])[:, 0]


def upsampled(maps: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """Resize maps (B, T', H', W') to those of the clips, `shape` (T, H, W), with trilinear interpolation."""
    return functional.interpolate(maps[:, None], size=shape, mode="trilinear", align_corners=False)[:, 0]


def mass_inside(maps: NDArray[np.float32], inside: NDArray[np.float32]) -> tuple[float, float]:
    """Return the fraction of the mass of a map (T, H, W) that lies inside, and the fraction of the area that is inside.

    `inside` (T, H, W) is 1 inside of the box, 0 outside. Frames without a box do not count. The mass of a map that is
    zero everywhere, and both without any box, are NaN.
    """
    framed = inside.any(axis=(1, 2))
    mass, area = maps[framed].sum(dtype=np.float64), inside[framed].size
    part = (maps[framed] * inside[framed]).sum(dtype=np.float64)
    return (
        float(part / mass) if mass > 0 else float("nan"),
        float(inside[framed].sum(dtype=np.float64) / area) if area else float("nan"),
    )


def coarse(map: NDArray[np.float32], cells: tuple[int, int, int]) -> NDArray[np.float32]:
    """Average a map (T, H, W) over cells (T', H', W') and resize it back: what maps of so many cells can show of it."""
    pooled = functional.adaptive_avg_pool3d(torch.from_numpy(map)[None], cells)
    return upsampled(pooled, map.shape)[0].numpy()


def stages(network: Backbone) -> tuple[str, ...]:
    """Return the stages whose weights `randomized` replaces, from the last to the first.

    Raises:
        ConfigError: The network states none.
    """
    if not network.feature_layers:
        name = type(network).__name__
        raise ConfigError(f"{name} states no stages whose weights can be replaced: leave randomize=True out")
    return network.feature_layers[::-1]


def randomized(network: Backbone, untrained: Backbone) -> Iterator[str]:
    """Replace the weights of stages by untrained ones, in place, from the last to the first; yield the name after each.

    Cascading randomisation (Adebayo et al., Sanity Checks for Saliency Maps, 2018): a map that survives it does not
    depend on what the network has learned.
    """
    *later, first = stages(network)
    for name in later:
        network.layer_module(name).load_state_dict(untrained.layer_module(name).state_dict())
        yield name
    network.load_state_dict(untrained.state_dict())  # the first stage, and what belongs to none
    yield first


def rank_correlation(maps: NDArray[np.float32], others: NDArray[np.float32]) -> NDArray[np.float64]:
    """Compute Spearman's rank correlation (B,) of maps (B, …); ties have their mean rank. 0 where a map is constant."""
    a, b = (rankdata(x.reshape(len(x), -1), axis=1) for x in (maps, others))
    a, b = a - a.mean(axis=1, keepdims=True), b - b.mean(axis=1, keepdims=True)
    norm = np.sqrt((a**2).sum(axis=1) * (b**2).sum(axis=1))
    return np.asarray((a * b).sum(axis=1) / np.where(norm > 0, norm, 1.0))
