"""Load the network that a command measures: a checkpoint, third-party weights, or an untrained network."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

import vidssl
from vidssl.atomic import file_hash
from vidssl.config import Tree, build, read
from vidssl.data.video_list import VideoList
from vidssl.engine.config_schema import Run, bind_run, choose_device
from vidssl.engine.periodic_evaluation import evaluation_clips
from vidssl.errors import ConfigError
from vidssl.evaluation.features import TestClips
from vidssl.evaluation.measure import Classifier
from vidssl.methods import METHODS, Method
from vidssl.models.backbones import BACKBONES, Backbone
from vidssl.models.weights import (
    InitialWeights,
    backbone_weights,
    is_checkpoint,
    load_initial,
    load_state,
    read_anything,
)
from vidssl.transforms.recipes import check_short_side

_CLIP_OPTIONS = ("clips", "crops", "size", "short_side", "batch_size", "precision", "workers")


@dataclass(frozen=True)
class LoadOptions:
    """Options of every command that extracts features.

    `checkpoint` is a checkpoint of vidssl, a file of third-party weights for the backbone of the config `cfg`, or
    `random` for the untrained backbone of `cfg`. Where `clips`, `crops`, `size`, `short_side`, `batch_size`,
    `precision` or `workers` is None, the `evaluate` section of the run decides.
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
    trust_checkpoint: bool = False  # also load files that can run code

    def of_split(self, split: int) -> "LoadOptions":
        """Put the number of a split for `{split}` in the checkpoint and the settings."""
        overrides = [fill_split(split, text) for text in self.overrides]
        return replace(self, checkpoint=fill_split(split, self.checkpoint), overrides=overrides)


def fill_split(split: int, text: str | Path) -> str:
    """Put the number of a split for `{split}`."""
    return str(text).replace("{split}", str(split))


def format_count(found: int, missing: Sequence[object]) -> str:
    """Format a count, with the total if some are missing: `58 of 60 (2 missing)`."""
    return f"{found} of {found + len(missing)} ({len(missing)} missing)" if missing else str(found)


def class_hash(videos: VideoList) -> str | None:
    """Hash the class names of a list; None if it has none."""
    return hashlib.sha256("\n".join(videos.classes).encode()).hexdigest()[:16] if videos.classes else None


@dataclass(frozen=True)
class Subject:
    """A network that is measured, and the clips that it is measured on."""

    backbone: Backbone
    run: Run
    test: TestClips
    device: torch.device
    origin: dict[str, Any]  # for results.json: file, hash and step, or the seed of random weights
    classify: Classifier | None = None  # its classifier, if it has one
    classes: int = 0  # of the classifier
    class_names: tuple[str, ...] = ()  # of the list that it was trained on, if that has names
    initial: InitialWeights | None = None  # how third-party weights were read

    @property
    def weights(self) -> Tree:
        """What identifies the weights, wherever their file is.

        The sha256 of a checkpoint of vidssl covers its config. The backbone for other files comes from a config, as
        does the mapping of weight names; weights that the file lacks depend on the seed.
        """
        digest = self.origin.get("sha256")
        if "step" in self.origin:
            return {"sha256": digest}
        built = {"seed": self.run.seed, "backbone": self.run.model_dump(mode="json")["backbone"]}
        if self.initial is None:
            return built
        return {"sha256": digest, **built, **self.initial.model_dump(mode="json", exclude={"file"})}

    @property
    def made_with(self) -> Tree:
        """What decides the features of a video, which the speed of reading does not."""
        protocol = {name: value for name, value in self.describe()["protocol"].items() if name != "cache"}
        return {"weights": self.weights, "protocol": protocol}

    def request(self, settings: Tree, videos: VideoList, data: Tree) -> Tree:
        """What decides the results of a measurement; results of an equal request are not measured again.

        Args:
            settings: Of the measurement.
            videos: The list.
            data: Its files, as `identify` describes them.
        """
        listed = {"list": videos.fingerprint, "classes": class_hash(videos), "data": data}
        return {**self.made_with, **settings, **listed}

    def describe(self) -> Tree:
        """Protocol, checkpoint, config and versions, for results.json."""
        fast = {"batch_size", "workers", "prefetch", "timeout"}
        return {
            "protocol": self.test.model_dump(mode="json", exclude=fast),
            "checkpoint": self.origin,
            "config": self.run.model_dump(mode="json"),
            "versions": {"vidssl": vidssl.__version__, "torch": torch.__version__},
        }


def load_subject(options: LoadOptions) -> Subject:
    """Load the network and the settings of its clips.

    Raises:
        ConfigError: `random` or third-party weights without a config, or a config with a checkpoint of vidssl.
        CheckpointError: The checkpoint is missing, damaged or does not fit.
        TrainingError: A GPU is requested and there is none.
    """
    device = choose_device(options.device)
    random = options.checkpoint == "random"
    path = Path(options.checkpoint)
    content = {} if random else read_anything(path, options.trust_checkpoint)
    origin: dict[str, Any] = {"path": str(path)}
    if not random:
        origin["sha256"] = file_hash(path)
    if not is_checkpoint(content):
        run, backbone, initial = _build_from_config(options, origin)
        return Subject(backbone.to(device).eval(), run, _clips(options, run), device, origin, initial=initial)
    if options.cfg is not None or options.overrides:
        raise ConfigError(
            "--cfg and KEY=VALUE are for --checkpoint random or third-party weights: a checkpoint of vidssl brings "
            "its own config"
        )
    run = bind_run(content["config"], f"config of {path}")
    backbone = build(BACKBONES, run.backbone)
    load_state(backbone, backbone_weights(content), str(path))
    origin["step"] = content["step"]
    classify, classes = None, 0
    if METHODS[run.method.name].classifies:
        classify = load_method(run, backbone, content, str(path)).to(device).eval().classify
        classes = run.method.classes
    test, names = _clips(options, run), tuple(content.get("classes", ()))
    return Subject(backbone.to(device).eval(), run, test, device, origin, classify, classes, names)


def load_method(run: Run, backbone: Backbone, content: dict[str, Any], source: str) -> Method:
    """Build the method of a run around its backbone, with the weights of a checkpoint.

    Raises:
        CheckpointError: The weights do not fit.
    """
    method: Method = build(METHODS, run.method, backbone)
    load_state(method, content["method"], source)
    return method


def _build_from_config(options: LoadOptions, origin: dict[str, Any]) -> tuple[Run, Backbone, InitialWeights | None]:
    """Build the backbone of `options.cfg`, with random or third-party weights, which are added to `origin`."""
    path, random = origin["path"], options.checkpoint == "random"
    if options.cfg is None:
        raise ConfigError(
            f"--checkpoint {path} needs --cfg FILE: it names the backbone and the clips"
            + ("" if random else ", which a checkpoint of another project does not contain")
        )
    if any("{split}" in text for text in options.overrides):
        raise ConfigError("the settings contain {split}; name the splits or seeds: --splits 1 2 3")
    # Not load_run, which refuses a config whose lists contain {split}: they are not needed here.
    run = bind_run(read(options.cfg, options.overrides), str(options.cfg))
    torch.manual_seed(run.seed)
    backbone = build(BACKBONES, run.backbone)
    if random:
        origin["seed"] = run.seed
        return run, backbone, None
    # The config can map weight names, if its `init` is this file.
    initial = run.init if run.init is not None and run.init.file == path else InitialWeights(file=path)
    origin["matched"] = str(load_initial(backbone, initial, options.trust_checkpoint))
    return run, backbone, initial


def _clips(options: LoadOptions, run: Run) -> TestClips:
    given = {name: value for name in _CLIP_OPTIONS if (value := getattr(options, name)) is not None}
    settings = {**dict(evaluation_clips(run)), "allow_missing": options.allow_missing, **given}
    try:
        check_short_side(settings["size"], settings["short_side"])
    except ValueError as error:
        raise ConfigError(f"--size, --short-side: {error}") from None
    return TestClips(**settings)
