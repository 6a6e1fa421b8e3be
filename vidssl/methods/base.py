"""The contract of a method, all that the loop knows of it."""

from typing import Any, ClassVar

from torch import Tensor, nn

from vidssl.config import Settings
from vidssl.models.backbones import Backbone
from vidssl.registry import Registry
from vidssl.types import Batch


class Method(nn.Module):
    """An objective around a backbone.

    Built as `METHODS[name](config, backbone)`. All state that training changes is in parameters, buffers
    or extra state, as `progress` and `step` are, so that `state_dict()` is the whole of it.

    Attributes:
        backbone: What is learned, saved and evaluated.
        progress: Fraction of the run that lies behind, in [0, 1]; schedules are functions of it.
        step: Optimizer steps that lie behind.
        watched: Whether this step's scalars are logged; where not, `loss` alone is needed.
        needs_labels: Whether it learns from labels without a classifier: a list with videos that have none is refused.
        classifies: Whether the method has a classifier on the backbone, which tests can ask: then its config has
            `classes`, and it has `classify`.
    """

    class Config(Settings):
        """Settings of the method; each method has its own."""

    needs_labels: ClassVar[bool] = False
    classifies: ClassVar[bool] = False
    backbone: Backbone

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.backbone = backbone
        self.progress = 0.0
        self.step = 0
        self.watched = True

    @property
    def target_backbone(self) -> Backbone:
        """The backbone that a run's tracks are made anew with: of a method with a target network, the target's."""
        return self.backbone

    def allocate(self, num_records: int) -> None:
        """Learn how many records the run trains on, before a state is loaded: to make room for what is kept of each."""

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Compute named scalars of a batch of float views (B, C, T, S, S); `"loss"` is the one to minimise."""
        raise NotImplementedError

    def classify(self, features: Tensor) -> Tensor:
        """Give class probabilities (B, classes) of backbone outputs (B, dim), where the method `classifies`."""
        raise NotImplementedError

    def after_step(self, progress: float) -> None:
        """Do what follows an optimizer step; `progress` in [0, 1] includes that step."""
        self.progress = progress
        self.step += 1

    def get_extra_state(self) -> dict[str, float]:
        """Save the progress with the weights: the first step after a resume needs it."""
        return {"progress": self.progress, "step": self.step}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Take the progress back."""
        self.progress, self.step = float(state["progress"]), int(state.get("step", 0))


METHODS: Registry[type[Method]] = Registry("method", "vidssl.methods")
