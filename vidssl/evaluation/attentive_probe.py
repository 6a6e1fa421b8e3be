"""The attentive probe: a small attention head on frozen feature maps, with several learning rates at once.

Shapes: N videos, P positions of the feature maps, C channels.
"""

from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from vidssl.config import Settings
from vidssl.errors import ConfigError
from vidssl.evaluation import metrics
from vidssl.evaluation.protocols import PROTOCOLS, EvaluationProtocol, Measured, accuracies, check_classes
from vidssl.evaluation.search import check_finite
from vidssl.keyed_generators import generator
from vidssl.progress import progress
from vidssl.types import Features


class AttentiveHead(nn.Module):
    """A block of cross-attention from a learned query to all positions, and a classifier: (N, P, C) to (N, classes).

    The pooling of V-JEPA's probe (Bardes et al., 2024, section 4.1): attention and an MLP of four times the width, each
    with layer norm before it and, as in their code, a residual connection. Positions have a learned embedding.
    """

    def __init__(self, channels: int, positions: int, classes: int, heads: int) -> None:
        super().__init__()
        self.query = nn.Parameter(0.02 * torch.randn(1, 1, channels))
        self.position = nn.Parameter(0.02 * torch.randn(1, positions, channels))
        self.norm, self.mlp_norm = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.attention = nn.MultiheadAttention(channels, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(channels, 4 * channels), nn.GELU(), nn.Linear(4 * channels, channels))
        self.classifier = nn.Linear(channels, classes)

    def forward(self, maps: Tensor) -> Tensor:
        """Compute the logits."""
        at = self.norm(maps + self.position)
        query = self.query.expand(len(maps), -1, -1)
        pooled = query + self.attention(query, at, at, need_weights=False)[0]
        pooled = pooled + self.mlp(self.mlp_norm(pooled))
        logits: Tensor = self.classifier(pooled[:, 0])
        return logits


@PROTOCOLS.register("attentive")
class Attentive(EvaluationProtocol):
    """Accuracy of an attention head on the frozen feature maps of a layer, as V-JEPA's frozen evaluation.

    A head of each learning rate is trained on a part of the gallery, all in one pass over it; the rate with the highest
    accuracy on the rest trains the tested head on the whole gallery. Channels are standardised with the gallery's mean
    and deviation.
    """

    learns: ClassVar[bool] = True
    maps: ClassVar[bool] = True

    class Config(Settings):
        rates: tuple[Annotated[float, Field(gt=0)], ...] = Field(default=(1e-4, 3e-4, 1e-3, 3e-3), min_length=1)
        weight_decay: float = Field(default=0.01, ge=0)
        epochs: int = Field(default=20, ge=1)
        batch_size: int = Field(default=32, ge=1)
        heads: int = Field(default=8, ge=1)  # of the attention; they divide the channels
        held_out: float = Field(default=0.2, gt=0, lt=1)  # fraction of each class that chooses the rate
        seed: int = Field(default=0, ge=0)  # of initial weights, order and held-out videos

    def __call__(self, gallery: Features, query: Features, exclude: Tensor) -> Measured:
        """Return `attentive` and `attentive_mean_class`; `details` hold the rate and the accuracies that chose it."""
        self.check(gallery.label)
        for name, features in (("gallery", gallery), ("query", query)):
            check_finite(name, features.x)
        maps, label = _positions(gallery), gallery.label
        mean, std = maps.mean(dim=(0, 1)), maps.std(dim=(0, 1)).clamp(min=1e-6)
        maps, queries = (maps - mean) / std, (_positions(query) - mean) / std
        rates, accuracy = sorted({*self.config.rates}), {}
        if len(rates) > 1:
            held = self._held_out(label.numpy())
            heads = train_heads(maps[~held], label[~held], rates, int(label.max()) + 1, self.config)
            found = [metrics.accuracy(_predict(head, maps[held]), label[held]) for head in heads]
            accuracy = dict(zip(map(str, rates), found, strict=True))
            rates = [rates[int(np.argmax(found))]]  # of equal accuracies the lowest rate
        (head,) = train_heads(maps, label, rates, int(label.max()) + 1, self.config)
        predicted = _predict(head, queries)
        details = {"rate": rates[0], "held_out_accuracy": accuracy}
        return Measured(accuracies("attentive", predicted, query.label), predicted, details)

    def check(self, label: Tensor) -> None:
        """Check that there are two classes, with a video to train on and one to hold out."""
        check_classes("attentive", label, 2 if len({*self.config.rates}) > 1 else 1, "give one rate")

    def _held_out(self, label: np.ndarray) -> Tensor:
        """Draw the videos (N,) bool that choose the rate: of each class the fraction `held_out`, at least one."""
        held = torch.zeros(len(label), dtype=torch.bool)
        for n in np.unique(label).tolist():
            rows = generator(self.config.seed, n).permutation(np.flatnonzero(label == n))
            held[rows[: min(max(1, round(self.config.held_out * len(rows))), len(rows) - 1)]] = True
        return held


def train_heads(maps: Tensor, label: Tensor, rates: list[float], classes: int, config: Any) -> list[AttentiveHead]:
    """Train a head with each learning rate on maps (N, P, C), all from the same weights and with the same batches.

    AdamW, with a linear warm-up over a tenth of the steps and a cosine to 0. The heads share nothing, so each is what
    it would be if it were trained alone. A ConfigError is raised if the attention heads do not divide the channels.
    """
    if maps.shape[2] % config.heads:
        raise ConfigError(
            f"{config.heads} attention heads do not divide {maps.shape[2]} channels: set heads to a divisor"
        )
    heads = []
    with torch.random.fork_rng(devices=[]):
        for _ in rates:
            torch.default_generator.manual_seed(config.seed)  # not that of a GPU, which is not restored
            heads.append(AttentiveHead(maps.shape[2], maps.shape[1], classes, config.heads))
    groups = [{"params": list(head.parameters()), "lr": rate} for head, rate in zip(heads, rates, strict=True)]
    optimizer = torch.optim.AdamW(groups, weight_decay=config.weight_decay)
    steps = config.epochs * -(-len(maps) // config.batch_size)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _fraction(step, steps))
    with torch.enable_grad():
        for epoch in progress(range(config.epochs), title="attentive probe", unit="epoch", leave=False):
            order = torch.from_numpy(generator(config.seed, epoch, 0).permutation(len(maps)))
            for rows in torch.split(order, config.batch_size):
                losses = [functional.cross_entropy(head(maps[rows]), label[rows]) for head in heads]
                optimizer.zero_grad()
                torch.autograd.backward(losses)
                optimizer.step()
                schedule.step()
    return [head.eval() for head in heads]


def _fraction(step: int, steps: int) -> float:
    """Return the fraction of the learning rate at a step."""
    warmup = max(1, steps // 10)
    if step < warmup:
        return (step + 1) / warmup
    return float(0.5 * (1 + np.cos(np.pi * (step - warmup) / max(1, steps - warmup))))


def _positions(features: Features) -> Tensor:
    """Separate the positions of the maps: (N, C * P), channels first, to (N, P, C)."""
    return features.x.reshape(len(features.x), -1, features.cells).transpose(1, 2)


@torch.no_grad()
def _predict(head: AttentiveHead, maps: Tensor) -> Tensor:
    return torch.cat([head(part).argmax(dim=1) for part in torch.split(maps, 256)])
