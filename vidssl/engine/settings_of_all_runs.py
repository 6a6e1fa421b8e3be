"""The settings that all runs have."""

from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from vidssl.config import Settings
from vidssl.engine.optim import OptimizerConfig
from vidssl.models.initial_weights import Initial

SyncBN = Literal["auto", "sync", "shuffle", "local"]


class Checkpoints(Settings):
    """When the run is saved; the last step always is."""

    every: int = Field(default=1000, ge=1)  # steps
    keep: int = Field(default=2, ge=2)  # older ones are deleted
    # If a checkpoint or a line of the log cannot be written, `stop` ends the run, `continue` warns. If the last
    # checkpoint cannot be written, the run always ends with an error.
    on_error: Literal["stop", "continue"] = "stop"
    trust: bool = False  # load checkpoints that hold objects, which can run code
    changed_code: bool = False  # continue a run although the code of its `imports` was changed; the log has the step


class RunSettings(Settings):
    """What the configs of all runs have. Fields of type `Any` get theirs from the registries, see `schema`."""

    # The files and folders that a run writes to its output: glob patterns.
    outputs: ClassVar[tuple[str, ...]] = ("config.yaml", "metrics.jsonl", "checkpoints", "not-finite-step-*.json")

    imports: tuple[str, ...] = ()  # your modules that register methods, backbones, samplers, recipes or protocols
    output: str
    seed: int = Field(default=0, ge=0)
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["float32", "bfloat16"] = "float32"
    deterministic: bool = False  # bit-exact on a GPU too; slower
    sync_bn: SyncBN = "auto"  # batch norm with several processes, see `set_batch_norm`
    verify_every: int | None = Field(default=None, ge=1)  # steps between comparisons of the state of all processes
    epochs: float | None = Field(default=None, gt=0)  # length of the run: set either epochs or steps
    steps: int | None = Field(default=None, ge=1)
    init: Initial | None = None  # file of initial weights of the backbone
    batch_size: int = Field(ge=1)  # global
    micro_batch_size: int | None = Field(default=None, ge=1)  # of one process; None: no gradient accumulation
    backbone: Any
    optimizer: OptimizerConfig
    checkpoint: Checkpoints = Checkpoints()
    log_every: int = Field(default=10, ge=1)  # steps

    @model_validator(mode="after")
    def _has_length(self) -> "RunSettings":
        if (self.epochs is None) == (self.steps is None):
            raise ValueError("set exactly one of epochs and steps")
        return self

    @property
    def decoder(self) -> str | None:
        """What decodes its videos, one of the backends; its version is saved. None: it is trained on images."""
        return None

    def total_steps(self, samples_per_epoch: int) -> int:
        """Length of the run in optimizer steps."""
        return self.steps or max(1, round((self.epochs or 0) * samples_per_epoch / self.batch_size))
