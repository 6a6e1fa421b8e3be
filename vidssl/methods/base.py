"""The contract of a method, all that the training loop knows of it, and of a branch, a term of a method's loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vidssl.base import distributed
from vidssl.base.config import Settings
from vidssl.base.errors import ConfigError
from vidssl.base.keyed_generators import RngStream, generator
from vidssl.base.registry import Registry
from vidssl.base.safe_parse import whole_number
from vidssl.base.types import Batch
from vidssl.models.backbones import Backbone

# Applies a network to the central clip of each training video, in eval mode. Returns the records that can be read (N,),
# the same on all processes, and the outputs (N, d).
Encode = Callable[[nn.Module], tuple[Tensor, Tensor]]


class Method(nn.Module):
    """An objective around a backbone, built as `METHODS[name](config, backbone)`.

    A run builds it, calls `allocate`, and only then loads a checkpoint. All state that training changes is in
    parameters, buffers or extra state, as `progress` and `step` are, so that `state_dict()` is complete.
    """

    class Config(Settings):
        """Settings of the method; each method has its own."""

    needs_labels = False  # whether every video of the list needs one
    averages_labelled = False  # whether a term of its loss is a mean over the labelled clips of a step
    in_batch = False  # whether its loss compares all clips of a step: then it implements `embed`, `group`, `contrast`
    classifies = False  # whether it has a classifier: then its config has `classes`, and it implements `classify`
    branches: dict[str, Branch]  # terms that are added to the loss, in this order

    def __init__(self, config: Any, backbone: Backbone | None = None) -> None:
        super().__init__()
        if backbone is None:
            raise ConfigError(f"{type(self).__name__}.__init__ must call super().__init__(config, backbone)")
        if not isinstance(getattr(backbone, "dim", None), int):
            raise ConfigError(f"backbone {type(backbone).__name__} does not set self.dim, the length of its features")
        self.config = config
        self.backbone = backbone  # is trained, saved and evaluated
        self.branches = nn.ModuleDict()  # type: ignore[assignment]
        self.progress = 0.0  # completed fraction of the run, in [0, 1]; schedules are functions of it
        self.step = 0  # completed optimizer steps
        self.seed = torch.initial_seed()  # that of the run, which seeds torch before it builds the method
        # Set by the loop:
        self.watched = True  # whether this step's scalars are logged; if not, `loss` alone is needed
        self.micro_batch = (0, 1)  # (n, count): the next batch is micro-batch n of `count` of a step
        self.labelled: Tensor | None = None  # (), their mean number of labelled clips, if it `averages_labelled`

    @classmethod
    def innermost(cls, config: Settings) -> tuple[type[Method], Settings]:
        """Return class and config of the method that is applied to clips: these, unless it holds another method."""
        return cls, config

    @property
    def parts(self) -> list[Method]:
        """The methods that are applied to clips: this one, unless it holds others."""
        return [self]

    def stream(self, name: str) -> Method | None:
        """Return the method of a stream of the backbone; None if this one is of all streams together."""
        return None

    @property
    def target_backbone(self) -> Backbone:
        """The backbone that updates a run's tracks: that of the target network, if there is one."""
        return self.backbone

    def allocate(self, num_records: int) -> None:
        """Allocate state per record of the training list, such as a memory bank."""
        for branch in self.branches.values():
            branch.allocate(num_records)

    @property
    def key_network(self) -> nn.Module:
        """The network from clips to keys (B, d), before they are normalised; only for methods that have branches."""
        raise NotImplementedError

    def begin(self, encode: Encode) -> None:
        """Prepare state that needs the initial weights, before the first step; a resumed run does not repeat it."""
        for branch in self.branches.values():
            branch.begin(self, encode)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Compute named scalars of a batch of float views (B, C, T, S, S); `"loss"` is the one to minimise."""
        raise ConfigError(f"method {type(self).__name__} has no forward(batch): see docs/extend.md")

    def embed(self, batch: Batch) -> Tensor:
        """Compute the embeddings (B, …) of a micro-batch, if the method is `in_batch`."""
        raise NotImplementedError

    def group(self, batch: Batch) -> Tensor:
        """Group the samples (B,): clips of equal number are positives of each other, if the method is `in_batch`."""
        raise NotImplementedError

    def contrast(self, embedding: Tensor, group: Tensor) -> dict[str, Tensor]:
        """Compute the scalars of a step from all its embeddings (B, …) on this process, if the method is `in_batch`."""
        raise NotImplementedError

    def compare(self, encoded: Encoded) -> Tensor:
        """Compute the method's own loss of embeddings; only for methods that have branches."""
        raise NotImplementedError

    def classify(self, features: Tensor) -> Tensor:
        """Compute class probabilities (B, classes) of backbone outputs (B, dim), if the method `classifies`."""
        raise NotImplementedError

    def logits(self, features: Tensor) -> Tensor:
        """Compute the class scores (B, classes) before the softmax of `classify`; only Grad-CAM needs them."""
        raise NotImplementedError

    def after_step(self, progress: float) -> None:
        """Update state after an optimizer step; `progress` in [0, 1] includes that step."""
        self.progress = progress
        self.step += 1
        for branch in self.branches.values():
            branch.after_step(self)

    def compare_with_branches(self, batch: Batch, encoded: Encoded) -> dict[str, Tensor]:
        """Compute the method's own loss and add the branches to it; return it as `loss`, with their other scalars."""
        scalars = {"loss": self.compare(encoded)}
        for branch in self.branches.values():
            scalars |= branch(self, batch, encoded, scalars["loss"])
        return scalars

    def shared_views(self, count: int) -> list[int]:
        """List the views that no branch reserves."""
        taken = [branch.own_view for branch in self.branches.values() if branch.own_view is not None]
        if taken and (max(taken) >= count or count == 1):
            raise ConfigError(f"jigsaw.view {max(taken)} does not fit {count} views: data.views needs a recipe for it")
        return [view for view in range(count) if view not in taken]

    def generator(self, stream: RngStream, view: int, device: torch.device) -> torch.Generator:
        """Make a generator on a device, equal on all processes: a function of seed, step, stream and view."""
        seed = generator(self.seed, self.step, view, stream).integers(2**63)
        return torch.Generator(device).manual_seed(int(seed))

    def uniform(self, samples: int, count: int, stream: RngStream, view: int, device: torch.device) -> Tensor:
        """Draw random numbers (samples, count) in [0, 1), float64, for the samples of this micro-batch."""
        # Every process draws those of the whole step and takes its slice: results depend neither on the number of
        # processes nor on that of micro-batches.
        n, micro_batches = self.micro_batch
        per_process = samples * micro_batches  # in this step
        start = distributed.rank() * per_process + n * samples
        source = self.generator(stream, view, device)
        total = distributed.world() * per_process
        numbers = torch.rand(total, count, generator=source, device=device, dtype=torch.float64)
        return numbers[start : start + samples]

    def get_extra_state(self) -> dict[str, float]:
        """Save progress and step with the weights: the first step after a resume needs them."""
        return {"progress": self.progress, "step": self.step}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore progress and step."""
        if not isinstance(state, dict) or not isinstance(state.get("progress"), int | float):
            raise ValueError("its extra state has no progress")
        self.progress, self.step = float(state["progress"]), whole_number(state.get("step", 0))


@dataclass(frozen=True)
class Encoded:
    """Embeddings of a batch, as unit rows (N, d), by the number of their view."""

    queries: dict[int, Tensor]  # of the online network, with gradient
    keys: dict[int, Tensor]  # the positives, without gradient; NPID has one for all views, of its bank: number -1
    negatives: Tensor | None = None  # (N, K) rows of NPID's bank
    patches: Encoded | None = None  # the same for the tracked region in each view; only with patch pairs

    def pairs(self) -> list[tuple[int, int]]:
        """List all ordered pairs of a query view and another key view."""
        return [(q, k) for q in self.queries for k in self.keys if q != k]


class Branch(nn.Module):
    """A term of the loss of a method, its host, which is a `MomentumMethod` or `NPID`.

    It may encode clips with `host.backbone`, and apply the host's loss to them with `host.compare`. Its parameters and
    buffers are trained and saved with those of the host, which also calls `allocate` and `after_step`.
    """

    own_view: int | None = None  # a view that the host does not encode, because this branch does

    def forward(self, host: Method, batch: Batch, encoded: Encoded, loss: Tensor) -> dict[str, Tensor]:
        """Return the new `loss`, given that of the host and the branches before this one, and more scalars to log."""
        raise NotImplementedError

    def allocate(self, num_records: int) -> None:
        """Allocate state per record of the training list."""

    def begin(self, host: Method, encode: Encode) -> None:
        """Prepare state that needs the initial weights, before the first step of a fresh run."""

    def after_step(self, host: Method) -> None:
        """Update state after an optimizer step, which `host.step` includes."""


METHODS: Registry[type[Method]] = Registry("method", "vidssl.methods")
