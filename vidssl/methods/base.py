"""The contract of a method: all that the training loop knows of it."""

from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from vidssl import distributed
from vidssl.config import Settings
from vidssl.errors import ConfigError
from vidssl.methods.branch import Branch, Encoded
from vidssl.models.backbones import Backbone
from vidssl.randomness import RngStream, generator
from vidssl.registry import Registry
from vidssl.types import Batch


class Method(nn.Module):
    """An objective around a backbone, built as `METHODS[name](config, backbone)`.

    A run builds it, calls `allocate`, and only then loads a checkpoint. All state that training changes is in
    parameters, buffers or extra state, as `progress` and `step` are, so that `state_dict()` is complete.

    Attributes:
        backbone: The network that is trained, saved and evaluated.
        branches: Terms that are added to the loss, in this order; see `vidssl.methods.branch`. Most methods have none.
        progress: Completed fraction of the run, in [0, 1]; schedules are functions of it.
        step: Completed optimizer steps.
        seed: Seed of the run.
        watched: Whether this step's scalars are logged; if not, `loss` alone is needed. Set by the loop.
        micro_batch: (n, count): the next batch is micro-batch n of `count` of a step. Set by the loop.
        needs_labels: Whether the method needs a label for every video of the list.
        classifies: Whether the method has a classifier on the backbone: then its config has `classes`, and it
            implements `classify`.
    """

    class Config(Settings):
        """Settings of the method; each method has its own."""

    needs_labels: ClassVar[bool] = False
    classifies: ClassVar[bool] = False
    backbone: Backbone

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.backbone = backbone
        self.branches = nn.ModuleDict()
        self.progress = 0.0
        self.step = 0
        self.seed = torch.initial_seed()  # the run seeds torch before it builds the method
        self.watched = True
        self.micro_batch = (0, 1)

    @property
    def target_backbone(self) -> Backbone:
        """The backbone that updates a run's tracks: that of the target network, if there is one."""
        return self.backbone

    def allocate(self, num_records: int) -> None:
        """Allocate state per record of the training list, such as a memory bank."""
        for branch in self._branches():
            branch.allocate(num_records)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Compute named scalars of a batch of float views (B, C, T, S, S); `"loss"` is the one to minimise."""
        raise NotImplementedError

    def compare(self, encoded: Encoded) -> Tensor:
        """Compute the method's own loss of embeddings; only for methods that have branches."""
        raise NotImplementedError

    def classify(self, features: Tensor) -> Tensor:
        """Compute class probabilities (B, classes) of backbone outputs (B, dim), if the method `classifies`."""
        raise NotImplementedError

    def after_step(self, progress: float) -> None:
        """Update state after an optimizer step; `progress` in [0, 1] includes that step."""
        self.progress = progress
        self.step += 1
        for branch in self._branches():
            branch.after_step(self)

    def set_branches(self, **branches: Branch | None) -> None:
        """Set the branches by name, in the order in which they are added to the loss."""
        self.branches = nn.ModuleDict({name: x for name, x in branches.items() if x is not None})

    def add_branches(self, loss: Tensor, batch: Batch, encoded: Encoded) -> dict[str, Tensor]:
        """Add the branches to the method's own loss; return it as `loss`, with their other scalars."""
        scalars = {"loss": loss}
        for branch in self._branches():
            scalars.update(branch(self, batch, encoded, scalars["loss"]))
        return scalars

    def shared_views(self, count: int) -> list[int]:
        """List the views that no branch reserves."""
        own = [branch.own_view for branch in self._branches() if branch.own_view is not None]
        if own and (max(own) >= count or count == 1):
            raise ConfigError(
                f"jigsaw.view {max(own)} and {count} views do not fit: data.views needs a recipe for it beside others"
            )
        return [view for view in range(count) if view not in own]

    def _branches(self) -> list[Branch]:
        return cast(list[Branch], [*self.branches.values()])

    def generator(self, stream: RngStream, view: int, device: torch.device) -> torch.Generator:
        """Make a generator on a device, equal on all processes: a function of seed, step, stream and view."""
        seed = generator(self.seed, self.step, view, stream).integers(2**63)
        return torch.Generator(device).manual_seed(int(seed))

    def uniform(self, samples: int, count: int, stream: RngStream, view: int, device: torch.device) -> Tensor:
        """Draw random numbers (samples, count) in [0, 1), float64, for the samples of this micro-batch.

        Every process draws those of the whole step and takes its slice, so that results depend neither on the number
        of processes nor on that of micro-batches.
        """
        n, micro_batches = self.micro_batch
        own = samples * micro_batches  # samples of this process in this step
        first = distributed.rank() * own + n * samples
        source = self.generator(stream, view, device)
        shape = distributed.world() * own, count
        drawn = torch.rand(shape, generator=source, device=device, dtype=torch.float64)
        return drawn[first : first + samples]

    def get_extra_state(self) -> dict[str, float]:
        """Save progress and step with the weights: the first step after a resume needs them."""
        return {"progress": self.progress, "step": self.step}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore progress and step."""
        self.progress, self.step = float(state["progress"]), int(state.get("step", 0))


METHODS: Registry[type[Method]] = Registry("method", "vidssl.methods")
