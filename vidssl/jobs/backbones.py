"""The backbone that a tool is asked to look at: a trained one, or the untrained one of a config."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

import vidssl
from vidssl.engine import checkpoint as checkpoints
from vidssl.engine.run import Run, bind_run, choose_device, load_run
from vidssl.engine.train import build_backbone, render, test_clips
from vidssl.errors import ConfigError
from vidssl.evaluation.features import TestClips
from vidssl.models.backbones import Backbone
from vidssl.models.weights import backbone_weights, load_weights, read_checkpoint


@dataclass(frozen=True)
class Options:
    """What every tool that extracts features can be told.

    `checkpoint` is a file, or `random` for the untrained backbone of the config `cfg`. Where `clips`,
    `crops`, `size`, `batch_size` or `workers` is None, the run's own `evaluate` section decides.
    """

    checkpoint: str
    cfg: Path | None = None
    overrides: Sequence[str] = ()
    clips: int | None = None
    crops: Literal[1, 3] | None = None
    size: int | None = None
    batch_size: int | None = None
    workers: int | None = None
    device: Literal["auto", "cpu", "cuda"] = "auto"
    root: Path | None = None
    allow_external: bool = False
    allow_missing: bool = False
    trust_checkpoint: bool = False  # load what can run code


@dataclass(frozen=True)
class Subject:
    """A backbone that is to be measured, and how."""

    backbone: Backbone
    run: Run
    test: TestClips
    device: torch.device
    origin: dict[str, Any]  # for results.json: file, hash and step, or what the random weights came from

    def describe(self) -> dict[str, Any]:
        """Tell the protocol, the weights, the config and the versions, as plain data."""
        return {
            "protocol": self.test.model_dump(mode="json", exclude={"batch_size", "workers", "timeout"}),
            "checkpoint": self.origin,
            "config": self.run.model_dump(mode="json"),
            "versions": {"vidssl": vidssl.__version__, "torch": torch.__version__},
        }


def load_subject(options: Options) -> Subject:
    """Find the backbone and the protocol that the options ask for.

    Raises:
        ConfigError: `random` without a config, or a config beside a checkpoint.
        CheckpointError: The checkpoint is missing or damaged.
        TrainingError: A GPU was asked for and is absent.
    """
    if options.checkpoint == "random":
        if options.cfg is None:
            raise ConfigError("--checkpoint random needs --cfg FILE: it names the backbone and the clips")
        run = load_run(options.cfg, options.overrides)
        torch.manual_seed(run.seed)
        backbone = build_backbone(run)
        origin: dict[str, Any] = {"path": "random", "seed": run.seed}
    else:
        if options.cfg is not None or options.overrides:
            raise ConfigError(
                "--cfg and KEY=VALUE go with --checkpoint random: a checkpoint brings its own config"
            )
        path = Path(options.checkpoint)
        content = read_checkpoint(path, options.trust_checkpoint)
        run = bind_run(content["config"], f"config of {path}")
        backbone = build_backbone(run)
        load_weights(backbone, backbone_weights(content), str(path))
        origin = {"path": str(path), "sha256": checkpoints.file_hash(path), "step": content["step"]}
    device = choose_device(options.device)
    render(run)
    told = {name: getattr(options, name) for name in ("clips", "crops", "size", "batch_size", "workers")}
    test = TestClips(
        **{
            **dict(test_clips(run)),
            "allow_missing": options.allow_missing,
            **{name: value for name, value in told.items() if value is not None},
        }
    )
    return Subject(backbone.to(device).eval(), run, test, device, origin)
