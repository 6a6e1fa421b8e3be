"""CMC: Tian et al., *Contrastive Multiview Coding* (2020): two views of a clip, two encoders, negatives of the batch.

Splits of a clip into two views are colour channels, frequencies and learned colours (*What Makes for Good Views for
Contrastive Learning?*, 2020, B.2, B.3, B.5); view learning is that of its sections 4.2 and B.5. Colour spaces have RGB
in [0, 1], and each channel is scaled to about [-1, 1]; the values before scaling are those of `skimage.color`: ITU-R
BT.601 for YUV and YDbDr, D65 for Lab.

Shapes: B clips, T frames, H x W pixels; dim features of a clip; clips and views (B, 3, T, H, W). A view of one or two
channels has zeros in the others: a convolution of three channels then computes what one of fewer channels would, since
zeros contribute nothing.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from vidssl.apps.views.invertible_colors import ColorFlow
from vidssl.base import distributed
from vidssl.base.config import Settings, bind_choice, build
from vidssl.base.errors import ConfigError
from vidssl.base.schedule import Temperature, constant
from vidssl.base.types import Batch
from vidssl.losses import full, full_precision, unit
from vidssl.methods.base import METHODS, Method
from vidssl.methods.in_batch import InBatchMethod
from vidssl.models.backbones import BACKBONES, Backbone, build_backbone
from vidssl.models.heads import Head, check_batch_norm, mlp

Space = Literal["rgb", "yuv", "ydbdr", "hsv", "lab"]

_YUV = ((0.299, 0.587, 0.114), (-0.14714119, -0.28886916, 0.43601035), (0.61497538, -0.51496512, -0.10001026))
_YDBDR = ((0.299, 0.587, 0.114), (-0.45, -0.883, 1.333), (-1.333, 1.116, 0.217))
_XYZ = ((0.412453, 0.357580, 0.180423), (0.212671, 0.715160, 0.072169), (0.019334, 0.119193, 0.950227))
_WHITE = (0.95047, 1.0, 1.08883)  # D65, 2 degrees


def _channels(x: Tensor, *values: float) -> Tensor:
    return x.new_tensor(values).view(3, 1, 1, 1)


def _multiply(matrix: tuple[tuple[float, ...], ...], x: Tensor) -> Tensor:
    return torch.einsum("dc,bcthw->bdthw", x.new_tensor(matrix), x)


def rgb(x: Tensor) -> Tensor:
    """Return red, green, blue."""
    return 2 * x - 1


def yuv(x: Tensor) -> Tensor:
    """Return luma and the two differences of colour of PAL."""
    return (_multiply(_YUV, x) - _channels(x, 0.5, 0, 0)) / _channels(x, 0.5, 0.436, 0.615)


def ydbdr(x: Tensor) -> Tensor:
    """Return luma and the two differences of colour of SECAM."""
    return (_multiply(_YDBDR, x) - _channels(x, 0.5, 0, 0)) / _channels(x, 0.5, 1.333, 1.333)


def hsv(x: Tensor) -> Tensor:
    """Return hue, saturation and value; the hue is a number in [0, 1), red is 0."""
    high, largest = x.max(dim=1)
    chroma = high - x.amin(dim=1)
    red, green, blue = x.unbind(dim=1)
    safe = torch.where(chroma > 0, chroma, 1.0)
    sixths = torch.stack([(green - blue) / safe, 2 + (blue - red) / safe, 4 + (red - green) / safe])
    hue = sixths.gather(0, largest[None])[0] / 6 % 1.0
    saturation = chroma / torch.where(high > 0, high, 1.0)
    return 2 * torch.stack([hue, saturation, high], dim=1) - 1


def lab(x: Tensor) -> Tensor:
    """Return lightness, and the axes green to red and blue to yellow, of CIE Lab."""
    linear = torch.where(x > 0.04045, ((x + 0.055) / 1.055).clamp(min=0) ** 2.4, x / 12.92)
    relative = _multiply(_XYZ, linear) / _channels(x, *_WHITE)
    f = torch.where(relative > 0.008856, relative.clamp(min=1e-6) ** (1 / 3), 7.787 * relative + 16 / 116)
    fx, fy, fz = f.unbind(dim=1)
    values = torch.stack([116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)], dim=1)
    return (values - _channels(x, 50, 0, 0)) / _channels(x, 50, 128, 128)


SPACES: dict[str, Callable[[Tensor], Tensor]] = {"rgb": rgb, "yuv": yuv, "ydbdr": ydbdr, "hsv": hsv, "lab": lab}


class Channels(Settings):
    """The first channel of a colour space, and the other two (section B.2)."""

    name: Literal["channels"]
    space: Space = "lab"


class Frequency(Settings):
    """A Gaussian blur, and the rest: v1 = Blur(x, sigma), v2 = x - v1 (section B.3)."""

    name: Literal["frequency"]
    sigma: float = Field(default=1.0, gt=0)  # pixels


class Learned(Settings):
    """The first channel, and the other two, of the output of a `color_flow`, which is not trained.

    `init` loads its weights; the settings are those that it was trained with.
    """

    name: Literal["learned"]
    flow: ColorFlow.Config = ColorFlow.Config()


SplitConfig = Annotated[Channels | Frequency | Learned, Field(discriminator="name")]


class Split(nn.Module):
    """Makes two views of a clip."""

    def __init__(self, config: Channels | Frequency | Learned) -> None:
        super().__init__()
        self.config = config
        if isinstance(config, Learned):
            self.flow = ColorFlow(config.flow).requires_grad_(False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Split a clip (B, 3, T, H, W) into two, in its own precision: autocast does not apply."""
        with torch.autocast(x.device.type, enabled=False):
            if isinstance(self.config, Frequency):
                low = blur_images(x, self.config.sigma)
                return low, x - low
            if isinstance(self.config, Learned):
                return first_and_others(self.flow.transform(x))
            if x.min() < -1e-3 or x.max() > 1 + 1e-3:
                pixels = f"pixels in [0, 1], got {x.min():.2f} to {x.max():.2f}"
                raise ConfigError(f"the split channels needs {pixels}: set data.mean=[0.0] and data.std=[1.0]")
            return first_and_others(SPACES[self.config.space](x))


def first_and_others(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first channel and the other two, each with zeros in place of the rest."""
    first = _channels(x, 1, 0, 0)
    return x * first, x * (1 - first)


def blur_images(x: Tensor, sigma: float) -> Tensor:
    """Blur the frames of clips (B, C, T, H, W), reflected at their border; the kernel ends at 4 sigma."""
    rows, columns = (_blur_matrix(side, sigma).to(x) for side in x.shape[3:])
    return rows @ x @ columns.T


@cache
def _blur_matrix(side: int, sigma: float) -> Tensor:
    """Return the blur along one axis as a matrix (side, side): unlike a padded convolution of any kernel length."""
    radius = math.ceil(4 * sigma)
    offsets = np.arange(-radius, radius + 1)
    weights = np.exp(-0.5 * (offsets / sigma) ** 2)
    rows, period = np.arange(side)[:, None], max(2 * side - 2, 1)
    columns = side - 1 - np.abs((rows + offsets) % period - (side - 1))  # reflected at the centre of the border pixel
    matrix = np.zeros((side, side))
    for row, column in zip(matrix, columns, strict=True):
        np.add.at(row, column, weights / weights.sum())
    return torch.from_numpy(matrix)


@BACKBONES.register("two_encoders")
class TwoEncoders(Backbone):
    """Two networks of one kind with separate weights; the features are those of both, joined.

    The split belongs to the network, so that tests see the views that it was trained on.
    """

    class Config(Settings):
        encoder: dict[str, Any] = Field(default={"name": "resnet18"})  # a backbone and its settings
        split: SplitConfig | None = None  # None: each encoder sees whole clips

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.split = None if config.split is None else Split(config.split)
        encoder = bind_choice(BACKBONES, config.encoder, "encoder")
        first, second = build(BACKBONES, encoder), build(BACKBONES, encoder)
        self.encoders = nn.ModuleList([first, second])
        self.dims = first.dim, second.dim
        self.dim = sum(self.dims)

    def forward(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        """Encode clips (B, 3, T, H, W) as features (B, dim); the second encoder sees `other` if it is given."""
        views = self._views(x, other)
        return torch.cat([encoder(view) for encoder, view in zip(self.encoders, views, strict=True)], dim=1)

    def features(self, x: Tensor, out: Sequence[str]) -> list[Tensor]:
        """Compute the feature maps (B, C, T', H', W') of layers of both encoders, joined along C."""
        maps = []
        for encoder, view in zip(self.encoders, self._views(x), strict=True):
            assert isinstance(encoder, Backbone)
            maps.append(encoder.features(view, out))
        return [torch.cat(pair, dim=1) for pair in zip(*maps, strict=True)]

    def _views(self, x: Tensor, other: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return what each encoder sees."""
        if self.split is None:
            return x, x if other is None else other
        whole = self.split(x)
        return whole if other is None else (whole[0], self.split(other)[1])


def two_view_nce(embedding: Tensor, group: Tensor, temperature: float) -> Tensor:
    """InfoNCE between two views of N videos, the mean of both directions (Tian et al., CMC, 2020, Eq. 3, 4).

    `embedding` (N, 2, d) has the unit rows of all processes; the mean is over those of this process. Each view is
    contrasted with the other view of all videos, never with its own kind; videos of equal number in `group` (N,) are
    one video.
    """
    count = len(embedding) // distributed.world()
    anchors = slice(distributed.rank() * count, (distributed.rank() + 1) * count)
    positive = (group[anchors, None] == group).to(embedding.dtype)
    terms = []
    for anchor, contrasted in ((0, 1), (1, 0)):
        similarity = embedding[anchors, anchor] @ embedding[:, contrasted].T / temperature
        mean = (similarity * positive).sum(dim=1) / positive.sum(dim=1)
        terms.append((torch.logsumexp(similarity, dim=1) - mean).mean())
    return (terms[0] + terms[1]) / 2


@METHODS.register("cmc")
class CMC(InBatchMethod):
    """Two encoders, one for each view; each view is compared with the other views of all videos (Eq. 3, 4).

    One view in the batch is split by the backbone. Of two each encoder sees one; a backbone with a split takes its part
    of each.
    """

    class Config(InBatchMethod.Config):
        """Settings; the paper has a linear layer of 128 outputs and a temperature of 0.07."""

        projector: Head = Head(layers=1, out=128, norm="none")
        temperature: Temperature = constant(0.07)  # tau

    config: Config

    def __init__(self, config: Config, backbone: Backbone) -> None:
        if not isinstance(backbone, TwoEncoders):
            raise ConfigError("cmc needs an encoder for each view: set backbone.name=two_encoders")
        super().__init__(config, backbone)
        self.dims = list(backbone.dims)
        self.projector = nn.Sequential(*(mlp(dim, config.projector) for dim in self.dims))  # one for each view

    def embed(self, batch: Batch) -> Tensor:
        """Compute the embeddings (B, 2, d) of both views, unit rows."""
        count, split = len(batch.views), getattr(self.backbone, "split", None)
        if count > 2 or (count == 1 and split is None):
            raise ConfigError(f"cmc compares two views, got {count}: set two in data.views, or one and backbone.split")
        check_batch_norm(len(batch.index), self.projector)
        features = self.backbone(*batch.views).split(self.dims, dim=1)
        return unit(torch.stack([head(x) for head, x in zip(self.projector, features, strict=True)], dim=1))

    def objective(self, embedding: Tensor, group: Tensor) -> dict[str, Tensor]:
        """InfoNCE of this process's rows, in both directions; `i_nce` in nats, at most log(N)."""
        scalars = {"loss": two_view_nce(embedding, group, self.config.temperature.at(self.progress))}
        if self.watched:
            scalars["i_nce"] = math.log(len(embedding)) - scalars["loss"].detach()
        return scalars


@METHODS.register("view_learning")
class ViewLearning(Method):
    """Train a `color_flow` whose two views share little: it minimises the I_NCE that two encoders maximise.

    With `classes` it is semi-supervised: two more encoders classify the labelled clips of the batch by one view each,
    and the flow minimises their loss too. All are updated in the same step, the flow by the reversed gradient of
    InfoNCE. Negatives are those of a micro-batch, of all processes; the classification loss is the mean over the
    labelled clips of the step.
    """

    averages_labelled = True

    class Config(Settings):
        """Settings; the learning rate of the flow is `optimizer.backbone_scale` times that of the encoders."""

        encoder: dict[str, Any] = Field(default={"name": "resnet18"})  # of a view: a backbone and its settings
        projector: Head = Head(layers=1, out=128, norm="none")
        temperature: Temperature = constant(0.07)  # tau
        classes: int | None = Field(default=None, ge=2)  # of the labelled clips; None: unsupervised

    def __init__(self, config: Config, backbone: Backbone) -> None:
        if not isinstance(backbone, ColorFlow):
            raise ConfigError("view_learning trains a generator of views: set backbone.name=color_flow")
        super().__init__(config, backbone)
        self.encoders = nn.ModuleList([_network(config, None) for _ in range(2)])
        count = 0 if config.classes is None else 2
        self.classifiers = nn.ModuleList([_network(config, config.classes) for _ in range(count)])

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Compute InfoNCE of the two views of the first clip, and the cross-entropy of the labelled ones."""
        if len(batch.views) > 1:
            raise ConfigError(f"view_learning splits one view, got {len(batch.views)}: give one recipe in data.views")
        check_batch_norm(len(batch.index), *self.encoders)
        with full_precision(batch.index.device):  # as `color_flow` splits the clips of methods that use the views
            (mapped,) = self.backbone.features(full(batch.views[0]), ("views",))
        reversed_views = first_and_others(2 * mapped.detach() - mapped)  # the values of `mapped`, the negated gradient
        embedding = torch.stack([unit(f(v)) for f, v in zip(self.encoders, reversed_views, strict=True)], dim=1)
        with full_precision(batch.index.device):
            every, group = distributed.gather_with_grad(embedding), distributed.gather(batch.index)
            loss = two_view_nce(every, group, self.config.temperature.at(self.progress))
        scalars = {"loss": loss, "i_nce": math.log(len(every)) - loss.detach()}
        if self.config.classes is not None:
            logits = [c(v) for c, v in zip(self.classifiers, first_and_others(mapped), strict=True)]
            scalars |= self._classify(logits, batch.label)
            scalars["loss"] = loss + scalars["classification_loss"]
            scalars["classification_loss"] = scalars["classification_loss"].detach()
        return scalars

    def _classify(self, logits: list[Tensor], label: Tensor) -> dict[str, Tensor]:
        """Cross-entropy of both views, summed, over the labelled clips; 0 without any; their accuracy by view.

        The loop averages over processes and micro-batches, some of which may have few labelled clips or none: each sum
        is divided by the mean number of theirs.
        """
        known = label >= 0
        count = distributed.mean((known.sum() if self.labelled is None else self.labelled).double()).float()
        count = torch.where(count > 0, count, 1.0)
        terms = [functional.cross_entropy(full(x), label, ignore_index=-1, reduction="sum") / count for x in logits]
        right = [((x.argmax(dim=1) == label) & known).sum() / count for x in logits]
        return {"classification_loss": terms[0] + terms[1], "accuracy_first": right[0], "accuracy_others": right[1]}


def _network(config: ViewLearning.Config, classes: int | None) -> nn.Sequential:
    """Build an encoder with a projector, or with a linear classifier."""
    encoder = build_backbone(**config.encoder)
    head = mlp(encoder.dim, config.projector) if classes is None else nn.Linear(encoder.dim, classes)
    return nn.Sequential(encoder, head)
