"""The network that a tool is asked to look at: a trained one, or the untrained one of a config."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

import vidssl
from vidssl.config import build, read
from vidssl.engine import checkpoint as checkpoints
from vidssl.engine.run_config import Run, bind_run, choose_device
from vidssl.engine.train import build_backbone, test_clips
from vidssl.errors import ConfigError
from vidssl.evaluation.features import TestClips
from vidssl.evaluation.measure import Classifier
from vidssl.methods import METHODS, Method
from vidssl.models.backbones import Backbone
from vidssl.models.weights import (
    InitialWeights,
    backbone_weights,
    is_checkpoint,
    load_initial,
    load_state,
    load_weights,
    read_anything,
)
from vidssl.transforms.recipes import check_short_side


@dataclass(frozen=True)
class Options:
    """What every tool that extracts features can be told.

    `checkpoint` is a checkpoint of vidssl; or a file of third-party weights, for the backbone of the config `cfg`;
    or `random` for the untrained backbone of `cfg`. Where `clips`, `crops`, `size`, `short_side`, `batch_size`,
    `precision` or `workers` is None, the run's own `evaluate` section decides.
    """

    checkpoint: str
    cfg: Path | None = None
    overrides: Sequence[str] = ()
    clips: int | None = None
    crops: int | None = None
    size: int | None = None
    short_side: int | None = None
    batch_size: int | None = None
    precision: Literal["float32", "bfloat16"] | None = None
    workers: int | None = None
    device: Literal["auto", "cpu", "cuda"] = "auto"
    root: Path | None = None
    allow_external: bool = False
    allow_missing: bool = False
    trust_checkpoint: bool = False  # load what can run code

    def of_split(self, split: int) -> "Options":
        """Put the number of a split for `{split}` into the checkpoint and the settings."""
        settings = [of(split, text) for text in self.overrides]
        return replace(self, checkpoint=of(split, self.checkpoint), overrides=settings)


def of(split: int, text: str | Path) -> str:
    """Put the number of a split for `{split}`."""
    return str(text).replace("{split}", str(split))


@dataclass(frozen=True)
class Subject:
    """A network that is to be measured, and how."""

    backbone: Backbone
    run: Run
    test: TestClips
    device: torch.device
    origin: dict[str, Any]  # for results.json: file, hash and step, or what the random weights came from
    classify: Classifier | None = None  # its classifier, if it has one
    classes: int = 0  # of the classifier
    class_names: tuple[str, ...] = ()  # what the checkpoint was trained on, if that had names
    initial: InitialWeights | None = None  # how third-party weights were read

    @property
    def weights(self) -> dict[str, Any]:
        """Identify the weights, wherever their file lies.

        The sha256 of a checkpoint of vidssl covers its config. Of other files the backbone and how the names of its
        weights were mapped come from a config, and what does not fit stays as the seed made it.
        """
        digest = self.origin.get("sha256")
        if "step" in self.origin:
            return {"sha256": digest}
        made = {"seed": self.run.seed, "backbone": self.run.model_dump(mode="json")["backbone"]}
        if self.initial is None:
            return made
        return {"sha256": digest, **made, **self.initial.model_dump(mode="json", exclude={"file"})}

    @property
    def made_with(self) -> dict[str, Any]:
        """Tell what decides the features of a video: not how fast they are read."""
        protocol = {name: value for name, value in self.describe()["protocol"].items() if name != "cache"}
        return {"weights": self.weights, "protocol": protocol}

    def describe(self) -> dict[str, Any]:
        """Tell the protocol, the weights, the config and the versions, as plain data."""
        return {
            "protocol": self.test.model_dump(
                mode="json", exclude={"batch_size", "workers", "prefetch", "timeout"}
            ),
            "checkpoint": self.origin,
            "config": self.run.model_dump(mode="json"),
            "versions": {"vidssl": vidssl.__version__, "torch": torch.__version__},
        }


def load_subject(options: Options) -> Subject:
    """Find the network and the test clips that the options ask for.

    Raises:
        ConfigError: `random` or third-party weights without a config, or a config beside a checkpoint of vidssl.
        CheckpointError: The checkpoint is missing, damaged or does not fit.
        TrainingError: A GPU was asked for and is absent.
    """
    device = choose_device(options.device)
    path = Path(options.checkpoint)
    random = options.checkpoint == "random"
    content = {} if random else read_anything(path, options.trust_checkpoint)
    origin: dict[str, Any] = {"path": str(path)}
    initial: InitialWeights | None = None
    if not random:
        origin["sha256"] = checkpoints.file_hash(path)
    if is_checkpoint(content):
        if options.cfg is not None or options.overrides:
            raise ConfigError(
                "--cfg and KEY=VALUE go with --checkpoint random, or third-party weights: a checkpoint of vidssl "
                "brings its own config"
            )
        run = bind_run(content["config"], f"config of {path}")
        backbone = build_backbone(run)
        load_weights(backbone, backbone_weights(content), str(path))
        origin["step"] = content["step"]
    else:
        if options.cfg is None:
            raise ConfigError(
                f"--checkpoint {path} needs --cfg FILE: it names the backbone and the clips"
                + ("" if random else ", which a checkpoint of another project does not bring")
            )
        if any("{split}" in text for text in options.overrides):
            raise ConfigError("the settings hold {split}; name the splits or seeds: --splits 1 2 3")
        # Not load_run: the lists that a config names, for one split or several, are not read here.
        run = bind_run(read(options.cfg, options.overrides), str(options.cfg))
        torch.manual_seed(run.seed)
        backbone = build_backbone(run)
        if random:
            origin["seed"] = run.seed
        else:
            initial = InitialWeights(file=str(path))
            if run.init is not None and run.init.file == str(
                path
            ):  # what else the config says of this very file
                initial = run.init
            origin["matched"] = str(load_initial(backbone, initial, options.trust_checkpoint))
    classifies = is_checkpoint(content) and METHODS[run.method.name].classifies
    method = load_method(run, backbone, content, str(path)) if classifies else None
    names = ("clips", "crops", "size", "short_side", "batch_size", "precision", "workers")
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    settings = {**dict(test_clips(run)), "allow_missing": options.allow_missing, **given}
    try:
        check_short_side(settings["size"], settings["short_side"])
    except ValueError as error:
        raise ConfigError(f"--size, --short-side: {error}") from None
    test = TestClips(**settings)
    return Subject(
        backbone.to(device).eval(),
        run,
        test,
        device,
        origin,
        None if method is None else method.to(device).eval().classify,
        0 if method is None else run.method.classes,
        tuple(content.get("classes", ())) if is_checkpoint(content) else (),
        initial,
    )


def load_method(run: Run, backbone: Backbone, content: dict[str, Any], source: str) -> Method:
    """Build the method of a run around its backbone, with the weights of a checkpoint.

    Raises:
        CheckpointError: The weights do not fit.
    """
    method: Method = build(METHODS, run.method, backbone)
    load_state(method, content["method"], source)
    return method
