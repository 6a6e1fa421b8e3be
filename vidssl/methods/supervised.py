"""Supervised training: from scratch, finetuning, and the linear probe."""

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional

from vidssl.base.config import Settings
from vidssl.base.types import Batch
from vidssl.losses import full, full_precision
from vidssl.methods.base import METHODS, Method
from vidssl.models.backbones import Backbone
from vidssl.models.layer_features import LayerFeatures, check_grid


@METHODS.register("supervised")
class Supervised(Method):
    """A linear classifier on the backbone (SCE, section D.3); with `init` of the run it is finetuning."""

    classifies = True

    class Config(Settings):
        classes: int = Field(ge=2)  # labels are 0 to classes - 1
        dropout: float = Field(default=0.0, ge=0, lt=1)  # before the classifier
        freeze: bool = False  # the linear probe: the backbone is not trained, and stays in eval mode
        layer: str | None = None  # of the linear probe; None: the backbone's output
        grid: int = Field(default=1, ge=1)  # its maps are averaged over grid x grid x grid_frames cells
        grid_frames: int = Field(default=1, ge=1)  # the same, in time

        @model_validator(mode="after")
        def _probes(self) -> "Supervised.Config":
            if self.layer is not None and not self.freeze:
                raise ValueError(f"layer: {self.layer} is for the linear probe: set freeze: true, or leave layer out")
            check_grid(self)
            return self

    def __init__(self, config: Config, backbone: Backbone) -> None:
        super().__init__(config, backbone)
        if config.freeze:
            backbone.requires_grad_(False)
        self.dropout = nn.Dropout(config.dropout)
        grid = config.grid, config.grid_frames
        probed = backbone if config.layer is None else LayerFeatures(backbone, config.layer, *grid)
        self._probed = (probed,)  # a tuple: not a submodule, as the backbone is one
        self.head = nn.Linear(probed.dim, config.classes)
        nn.init.normal_(self.head.weight, std=0.01)
        nn.init.zeros_(self.head.bias)

    def train(self, mode: bool = True) -> "Supervised":
        """Set the mode; a frozen backbone stays in eval mode."""
        super().train(mode)
        if self.config.freeze:
            self.backbone.eval()
        return self

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Compute cross-entropy and accuracy over all views; the loop has checked that labels are in [0, classes)."""
        label = batch.label.repeat(len(batch.views))
        features = torch.cat([self._probed[0](view) for view in batch.views])
        with full_precision(label.device):
            logits = self.head(self.dropout(full(features)))
            loss = functional.cross_entropy(logits, label)
        return {"loss": loss, "accuracy": (logits.argmax(dim=1) == label).float().mean()}

    def classify(self, features: Tensor) -> Tensor:
        """Compute class probabilities (B, classes) of backbone outputs (B, dim), or of the pooled maps of `layer`."""
        return torch.softmax(self.logits(features), dim=1)

    def logits(self, features: Tensor) -> Tensor:
        """Compute the class scores (B, classes) before the softmax of `classify`."""
        with full_precision(features.device):
            scores: Tensor = self.head(full(features))
        return scores
