"""Learning with labels: from scratch, finetuning, and the linear probe."""

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from vidssl.config import Settings
from vidssl.errors import ConfigError
from vidssl.methods.base import METHODS, Method
from vidssl.methods.parts import full_precision
from vidssl.models.backbones import Backbone
from vidssl.models.weights import backbone_weights, load_weights, read_checkpoint
from vidssl.types import Batch


@METHODS.register("supervised")
class Supervised(Method):
    """A linear classifier on the backbone, trained by cross-entropy (SCE, section D.3).

    With `init` it is finetuning, with `init` and `freeze` the linear probe: the backbone then stays in eval
    mode, its batch norms frozen too.
    """

    class Config(Settings):
        """Settings of the classifier."""

        classes: int = Field(ge=2)
        dropout: float = Field(default=0.0, ge=0, lt=1)
        freeze: bool = False
        init: str | None = None  # a checkpoint, whose backbone is the start

    def __init__(self, config: Config, backbone: Backbone) -> None:
        super().__init__(backbone)
        self.config = config
        if config.init is not None:
            load_weights(backbone, backbone_weights(read_checkpoint(config.init)), config.init)
        if config.freeze:
            backbone.requires_grad_(False)
        self.dropout = nn.Dropout(config.dropout)
        self.head = nn.Linear(backbone.dim, config.classes)
        nn.init.normal_(self.head.weight, std=0.01)
        nn.init.zeros_(self.head.bias)

    def train(self, mode: bool = True) -> "Supervised":
        """Switch to training, or not; a frozen backbone stays as it is."""
        super().train(mode)
        if self.config.freeze:
            self.backbone.eval()
        return self

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Cross-entropy and accuracy, over all views of the batch."""
        label = batch.label.repeat(len(batch.views))
        if int(label.min()) < 0 or int(label.max()) >= self.config.classes:
            raise ConfigError(
                f"labels {int(label.min())} to {int(label.max())} do not fit method.classes {self.config.classes}; "
                "-1 means that the list has no labels"
            )
        logits = self.head(self.dropout(torch.cat([self.backbone(view) for view in batch.views])))
        with full_precision(label.device):
            loss = functional.cross_entropy(logits.float(), label)
        return {"loss": loss, "accuracy": (logits.argmax(dim=1) == label).float().mean()}

    @torch.no_grad()
    def predict(self, clips: Tensor) -> Tensor:
        """Give class probabilities (B, classes) of clips (B, C, T, S, S)."""
        return torch.softmax(self.head(self.backbone(clips)).float(), dim=1)
