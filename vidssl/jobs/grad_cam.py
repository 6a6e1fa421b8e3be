"""Grad-CAM in space and time: where in a clip a network finds what raises a score (Selvaraju et al., 2017).

The maps of the videos of a list, and of pairs of videos, stand beside the frames that the network saw. A video can have
several versions, whose frames have numbers of their own: one decode gives the frames of all.

Shapes: B clips, T frames, H x W pixels; C channels of maps (T', H', W'); D features of a clip.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import rankdata
from torch import Tensor, nn
from torch.nn import functional

from vidssl.base.command_line_and_notices import leave_out
from vidssl.base.errors import ConfigError
from vidssl.base.types import Batch, Frames, VideoMeta, VideoRecord
from vidssl.data.clip_samplers import COPY, Clip, ClipSettings, Sampler, Uniform
from vidssl.data.dataset import ClipDataset
from vidssl.data.loader import eval_loader
from vidssl.data.read_instance_boxes import InstanceBoxes, pixels_of
from vidssl.data.to_device import normalised, on_device
from vidssl.data.video_list import VideoList
from vidssl.evaluation.features import TestClips
from vidssl.jobs.load_network import Subject, one_network
from vidssl.losses import unit
from vidssl.models.backbones import Backbone
from vidssl.models.eval_mode import eval_mode
from vidssl.models.two_streams import TwoStreams
from vidssl.video.reader import DecodeSettings, Video

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
        raise ConfigError(f"layer {layer} is computed {len(outputs)} times for the features: name another one")
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


class VersionRequest(NamedTuple):
    """Which frames of a version to make, and what they are made of."""

    video: Video
    record: VideoRecord
    version: int  # c > 0
    numbers: NDArray[np.int64]  # (N,)
    frames: Frames  # (N, C, H, W) of the video itself, which must not be changed


Make = Callable[[VersionRequest], Frames]  # makes the frames of a version


def version_of(clip: Clip, version: int) -> Clip:
    """Return the frames of a clip in a version."""
    first = version * COPY
    return Clip(clip.indices + first, clip.first + first, clip.last + first)


def with_versions(reading: DecodeSettings, make: Make) -> DecodeSettings:
    """Return the settings that open videos with versions."""
    return _VersionSettings(**reading.model_dump(include={*DecodeSettings.model_fields}), make=make)


class _VersionSettings(DecodeSettings):
    changes_frames: ClassVar[bool] = True
    make: Any  # Make

    def open(self, record: VideoRecord) -> Video:
        """Open the video of a record."""
        return _VersionedVideo(super().open(record), record, self.make)


class _VersionedVideo(Video):
    def __init__(self, video: Video, record: VideoRecord, make: Make) -> None:
        vars(self).update(vars(video))  # the open file is this video's now
        self._record, self._make = record, make

    def frames(self, indices: Sequence[int] | NDArray[np.int64]) -> Frames:
        """Return frames by number; each frame of the file is decoded once."""
        numbers, rows = np.unique(np.asarray(indices, dtype=np.int64), return_inverse=True)
        versions, numbers = np.divmod(numbers, COPY)
        needed, places = np.unique(numbers, return_inverse=True)
        images = super().frames(needed).transpose(0, 2, 3, 1)[places]  # a copy, channels last
        for version in np.unique(versions[versions > 0]).tolist():
            here = versions == version
            request = VersionRequest(self, self._record, version, numbers[here], images[here].transpose(0, 3, 1, 2))
            images[here] = self._make(request).transpose(0, 2, 3, 1)
        return images[rows].transpose(0, 3, 1, 2)


class UniformVersions(Sampler):
    """A sampler: uniform clips, each in some versions."""

    def __init__(self, clip: ClipSettings, clips: int, versions: Sequence[int]) -> None:
        self._uniform = Uniform(Uniform.Config(**dict(clip), clips=clips))
        self._versions = versions

    def __call__(self, meta: VideoMeta, generators: Sequence[np.random.Generator]) -> list[Clip]:
        """Choose the clips."""
        return [version_of(clip, c) for clip in self._uniform(meta, generators) for c in self._versions]


_CELLS = 4  # fewest of a side of the maps that are chosen by default


@dataclass(frozen=True)
class ClipMap:
    """A clip, as the network saw it, and its map."""

    frames: Frames  # (T, 3, S, S)
    map: NDArray[np.float32]  # (T, S, S), not negative
    cells: tuple[int, int, int]  # (T', H', W'), of the map before it was resized


def one_clip(subject: Subject) -> Subject:
    """Return the network with a single clip for each video, the central one, in float32."""
    test = one_network(subject).test
    return replace(subject, test=test.model_copy(update={"clips": 1, "crops": 1, "precision": "float32"}))


@torch.no_grad()
def layers_of_maps(subject: Subject, layer_name: str | None) -> list[str]:
    """Return the layer `layer_name`, which must exist, or the last one whose maps have 4 x 4 cells or more.

    Of a network with streams it is one layer of each.
    """
    encoder, test = subject.encoder, subject.test
    if layer_name:
        encoder.layer_module(layer_name)
        return [layer_name]
    clip = torch.zeros(1, 3, test.clip.frames, test.size, test.size, device=subject.device)
    if isinstance(encoder, TwoStreams):
        layer_of = {name: _layer_of_maps(network, clip) for name, network in encoder.streams()}
        layers = [f"{name}.{layer}" for name, layer in layer_of.items() if _has_module(encoder.stream(name), layer)]
    else:
        layers = [layer] if (layer := _layer_of_maps(encoder, clip)) else []
    if not layers:
        raise ConfigError(f"{subject.name} states no layer with maps: name a module of it with layer=PATH")
    return layers


def _layer_of_maps(network: Backbone, clip: Tensor) -> str:
    layers = network.feature_layers
    maps = network.features(clip, layers) if layers else []
    large = [layer for layer, layer_maps in zip(layers, maps, strict=True) if min(layer_maps.shape[-2:]) >= _CELLS]
    return large[-1] if large else network.last_maps


def _has_module(network: Backbone, layer: str) -> bool:
    with suppress(ConfigError):
        return bool(layer) and network.layer_module(layer) is not None
    return False


def pair_maps(
    subject: Subject, videos: VideoList, others: VideoList, layer: str
) -> Iterator[tuple[int, ClipMap, ClipMap, float]]:
    """Compute the maps of pairs of videos for their cosine similarity.

    Row n of both lists is a pair; yields n, both maps and the similarity. Pairs of which a video cannot be read are
    left out if the test settings allow it.
    """
    test, encoder = subject.test, subject.encoder
    halves = [_batches(test.dataset(part), test, subject.device) for part in (videos, others)]
    with closing(halves[0]), closing(halves[1]):
        for first, second in zip(*halves, strict=True):
            common = sorted({*first.index.tolist()} & {*second.index.tolist()})
            if not common:
                continue
            a, b = (_rows(batch, common) for batch in (first, second))
            clips = [normalised(view, test.mean, test.std) for view in (a, b)]
            maps = similarity_cam(encoder, clips[0], clips[1], layer)
            mine, theirs = _clip_maps(a, maps[0]), _clip_maps(b, maps[1])
            yield from zip(common, mine, theirs, maps[2].tolist(), strict=True)


def class_maps(
    subject: Subject, videos: VideoList, layer: str, classes: Mapping[int, int] | None = None
) -> Iterator[tuple[int, ClipMap, int, float]]:
    """Compute the maps of videos for the logit of a class: the predicted one, or that of `classes`, by row.

    Yields row, map, class and its probability.
    """
    test, logits = subject.test, subject.logits
    if logits is None:
        path, stream = subject.origin["path"], "" if test.stream is None else f"the stream {test.stream} of "
        remedy = " or leave stream out, if there is one of all streams" if stream else ""
        raise ConfigError(f'{stream}{path} has no classifier with logits: use target="similarity"{remedy}')
    with closing(_batches(test.dataset(videos), test, subject.device)) as batches:
        for batch in batches:
            rows = batch.index.tolist()
            if not rows:
                continue
            targets = None if classes is None else torch.tensor([classes[n] for n in rows], device=subject.device)
            clips = normalised(batch.views[0], test.mean, test.std)
            maps, label, probability = class_cam(subject.encoder, clips, layer, logits, targets)
            mine = _clip_maps(batch.views[0], maps)
            yield from zip(rows, mine, label.tolist(), probability.tolist(), strict=True)


def box_masks(
    subject: Subject, videos: VideoList, boxes: Mapping[str, InstanceBoxes]
) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """Yield rows, and masks (T, S, S) of the boxes in the clips that the network sees: 1 inside, 0 outside."""
    test = subject.test
    reading = with_versions(test, partial(_show_boxes, boxes))
    masks = replace(test.dataset(videos), sampler=UniformVersions(test.clip, test.clips, [1]), reading=reading)
    with closing(_batches(masks, test, torch.device("cpu"))) as batches:
        for batch in batches:
            for n, view in zip(batch.index.tolist(), batch.views[0] if len(batch.index) else (), strict=True):
                yield n, view[:, 0].numpy().astype(np.float32) / 255


def _batches(dataset: ClipDataset, test: TestClips, device: torch.device) -> Generator[Batch, None, None]:
    """Load clips; videos that cannot be read are left out, if the settings allow it."""
    with closing(on_device(eval_loader(dataset, test.batch_size, test.workers, 0, 1, test.timeout), device)) as batches:
        for batch in batches:
            leave_out(batch.replaced)
            yield batch


def _rows(batch: Batch, rows: list[int]) -> Tensor:
    """Select the clips (B, T, 3, S, S) of some rows of the list."""
    order = batch.index.tolist()
    return batch.views[0][[order.index(n) for n in rows]]


def _clip_maps(views: Tensor, maps: Tensor) -> list[ClipMap]:
    """Resize the maps (B, T', H', W') of clips (B, T, 3, S, S)."""
    whole = upsampled(maps, (views.shape[1], *views.shape[3:])).cpu().numpy()
    cells = maps.shape[1], maps.shape[2], maps.shape[3]
    return [ClipMap(frames.cpu().numpy(), clip_map, cells) for frames, clip_map in zip(views, whole, strict=True)]


def fill_boxes(
    request: VersionRequest,
    frames: Frames,
    boxes: Mapping[str, InstanceBoxes],
    gray: int,
    fraction: float | None = None,
) -> Frames:
    """Fill each box, or a fraction of it from the left, with a gray value, in place; `boxes` are by path."""
    for frame, rows, columns in pixels_of(boxes.get(request.record.path, {}), request.numbers, fraction):
        frames[frame, :, rows, columns] = gray
    return frames


def _show_boxes(boxes: Mapping[str, InstanceBoxes], request: VersionRequest) -> Frames:
    """Make a version that shows the boxes. Frames without a box are black."""
    return fill_boxes(request, np.zeros_like(request.frames), boxes, 255)  # the size is known after decoding only
