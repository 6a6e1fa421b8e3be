"""What could be added to finetuning, compared in finetuning.yaml: a supervised method with three settings.

    PYTHONPATH=examples/two_streams vidssl train --cfg configs/finetune/small.yaml imports='[finetuning]' \
        method.method.name=finetuned method.method.classes=6 method.method.layer_decay=0.5 init=RUN

Shapes: N videos, D features.
"""

from pathlib import Path
from typing import Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from vidssl.base.types import Batch
from vidssl.data.video_list import read_list
from vidssl.methods.base import METHODS, Encode
from vidssl.methods.supervised import Supervised
from vidssl.models.backbones import Backbone
from vidssl.models.batch_norms import batch_norms

COSTS = tuple(10.0**n for n in range(-5, 2))  # of the logistic regression
FOLDS = 5
LAST = 0.05  # fraction of the run over which statistics are averaged


@METHODS.register("finetuned")
class Finetuned(Supervised):
    """Supervised training of a network that was trained before."""

    class Config(Supervised.Config):
        # Learning rate of a layer of the backbone, relative to that of the layer after it.
        layer_decay: float = Field(default=1.0, gt=0, le=1)
        # The list of data.train, without data.subset: the classifier starts as a logistic regression on frozen features
        # (Kumar et al., 2022).
        probe: Path | None = None
        # frozen: statistics of the batch norms stay those of the pre-training. averaged: those of the last steps alone.
        norms: Literal["trained", "frozen", "averaged"] = "trained"

        @model_validator(mode="after")
        def _trains(self) -> "Finetuned.Config":
            if self.freeze:
                raise ValueError("freeze: true trains no layers: use the method supervised")
            return self

    config: Config

    def __init__(self, config: Config, backbone: Backbone) -> None:
        super().__init__(config, backbone)
        self.before: dict[nn.Parameter, Tensor] = {}  # weights before the step
        self.scales: dict[nn.Parameter, float] = {}
        modules = [backbone.layer_module(layer) for layer in backbone.feature_layers]
        for depth, module in enumerate(reversed(modules)):
            self.scales |= dict.fromkeys(module.parameters(), config.layer_decay**depth)

    def begin(self, encode: Encode) -> None:
        """Start the classifier as the probe."""
        super().begin(encode)
        if self.config.probe is not None:
            with torch.random.fork_rng(devices=()):
                rows, features = encode(self.backbone)
            labels = torch.from_numpy(read_list(self.config.probe).labels)[rows]
            weight, bias = probe(features, labels, self.config.classes)
            with torch.no_grad():
                self.head.weight.copy_(weight)
                self.head.bias.copy_(bias)

    def train(self, mode: bool = True) -> "Finetuned":
        """Set the mode; frozen batch norms stay in eval mode."""
        super().train(mode)
        if self.config.norms == "frozen":
            for norm in batch_norms(self.backbone):
                norm.eval()
        return self

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Keep the weights of layers with another learning rate."""
        if self.config.layer_decay < 1:
            self.before = {p: p.detach().clone() for p, scale in self.scales.items() if scale < 1}
        return super().forward(batch)

    def after_step(self, progress: float) -> None:
        """Scale the changes of the step: that of AdamW is proportional to the learning rate."""
        with torch.no_grad():
            for p, before in self.before.items():
                p.copy_(torch.lerp(before, p, self.scales[p]))
        if self.config.norms == "averaged" and progress >= 1 - LAST:
            for norm in batch_norms(self.backbone):
                if norm.momentum is not None:
                    norm.reset_running_stats()
                    norm.momentum = None  # the mean over all batches from now on
        super().after_step(progress)


def probe(features: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Fit a logistic regression on standardised features (N, D); return it as the weight and bias of a linear layer."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV, StratifiedKFold

    mean, deviation = features.mean(dim=0), features.std(dim=0, correction=0).clamp_min(1e-12)
    x, y = ((features - mean) / deviation).double().numpy(), labels.numpy()
    folds = StratifiedKFold(min(FOLDS, int(labels.unique(return_counts=True)[1].min())), shuffle=True, random_state=0)
    search = GridSearchCV(LogisticRegression(max_iter=5000), {"C": COSTS}, cv=folds).fit(x, y)
    weight, bias = torch.zeros(classes, features.shape[1]), torch.full((classes,), -1e4)
    class_numbers = torch.from_numpy(search.best_estimator_.classes_)
    weight[class_numbers] = torch.from_numpy(search.best_estimator_.coef_).float() / deviation
    bias[class_numbers] = torch.from_numpy(search.best_estimator_.intercept_).float() - weight[class_numbers] @ mean
    return weight, bias
