"""Load the network that a command measures: a checkpoint, third-party weights, or an untrained network."""

import argparse
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

from vidssl import distributed
from vidssl.atomic import file_hash
from vidssl.config import Tree, build, read
from vidssl.data.video_list import VideoList
from vidssl.distributed import choose_device
from vidssl.engine.config_schema import Run, bind_run, bind_stored, require_videos
from vidssl.engine.test_clips import classes_of, evaluation_clips
from vidssl.engine.trained_lists import trained_on
from vidssl.errors import ConfigError
from vidssl.evaluation.features import Classifier, TestClips
from vidssl.evaluation.overlap import TrainingVideos, measure_overlap, report_overlap
from vidssl.methods import METHODS, Method
from vidssl.models.backbones import BACKBONES, Backbone
from vidssl.models.layer_features import check_grid
from vidssl.models.weights import (
    InitialWeights,
    backbone_weights,
    is_checkpoint,
    load_initial,
    load_state,
    read_anything,
    weights_file,
)
from vidssl.transforms.recipes import check_short_side

_CLIP_OPTIONS = (
    "clips",
    "crops",
    "size",
    "short_side",
    "batch_size",
    "precision",
    "workers",
    "stream",
    "layer",
    "grid",
    "grid_frames",
)


@dataclass(frozen=True)
class LoadOptions:
    """Options of every command that extracts features.

    `checkpoint` is a checkpoint of vidssl, a file of third-party weights for the backbone of the config `cfg`, or
    `random` for the untrained backbone of `cfg`. Where an option of the clips is None, the run's `evaluate` decides.
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
    stream: str | None = None
    layer: str | None = None
    grid: int | None = None
    grid_frames: int | None = None
    device: Literal["auto", "cpu", "cuda"] = "auto"
    root: Path | None = None
    allow_external: bool = False
    allow_missing: bool = False
    trust_checkpoint: bool = False  # also load files that can run code


def network_options(parsed: argparse.Namespace) -> LoadOptions:
    """Collect the arguments of `add_network_options`."""
    names = {field.name for field in fields(LoadOptions)}
    return LoadOptions(**{name: value for name, value in vars(parsed).items() if name in names})


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
    origin: Tree  # for results.json: file, hash and step, or the seed of random weights
    weights: Tree  # identifies the weights, wherever their file is
    classify: Classifier | None = None  # its classifier, if it has one
    logits: Classifier | None = None  # its class scores before the softmax, if its method has them
    classes: int = 0  # of the classifier
    class_names: tuple[str, ...] = ()  # of the list that it was trained on, if that has names
    # Reads the list that it was trained on; None: untrained.
    training: Callable[[], TrainingVideos] | None = None

    def __post_init__(self) -> None:
        network = self.test.network(self.backbone)
        if self.test.layer is not None:
            network.check_layers((self.test.layer,))

    @property
    def encoder(self) -> Backbone:
        """The network whose features are measured: the backbone, or one of its layers."""
        return self.test.encoder(self.backbone)

    def request(self, **parts: Any) -> Tree:
        """What decides the results of a job: weights, clips and `parts`. Equal requests have equal results."""
        protocol = {name: value for name, value in self.describe()["protocol"].items() if name != "cache"}
        request: Tree = json.loads(json.dumps({"weights": self.weights, "protocol": protocol, **parts}))
        return request  # as it is read from a file: with lists for tuples

    def check_overlap(self, query: VideoList, gallery: VideoList | None = None) -> Tree:
        """Count the tested videos that a gallery or the network's training list has too, and report them."""
        overlap = measure_overlap(query, gallery, self.training)
        distributed.on_main(lambda: report_overlap(overlap, query.path))
        return overlap

    def describe(self) -> Tree:
        """Protocol, checkpoint and config, for results.json."""
        left_out = {"batch_size", "workers", "prefetch", "timeout"}
        if self.test.stream is None:
            left_out.add("stream")  # requests are those of before there were streams
        return {
            "protocol": self.test.model_dump(mode="json", exclude=left_out),
            "checkpoint": self.origin,
            "config": self.run.model_dump(mode="json"),
        }


def load_subject(options: LoadOptions) -> Subject:
    """Load the network and the settings of its clips."""
    device = choose_device(options.device)
    untrained = options.checkpoint == "random"
    path = Path(options.checkpoint) if untrained else weights_file(options.checkpoint)
    content = {} if untrained else read_anything(path, options.trust_checkpoint)
    if not is_checkpoint(content):
        return _load_by_config(options, device)
    if options.cfg is not None or options.overrides:
        raise ConfigError(f"{path} brings its own config: leave out cfg=FILE and KEY=VALUE")
    run = require_videos(bind_stored(content["config"], f"config of {path}", options.trust_checkpoint), str(path))
    backbone = build(BACKBONES, run.backbone)
    load_state(backbone, backbone_weights(content), str(path))
    digest = file_hash(path)
    classify, logits, classes = None, None, 0
    test = chosen_clips(options, run)
    test.network(backbone)  # raises an error if there is no such stream
    if classes_of(run, test) and not content.get("backbone_only"):
        whole = load_method(run, backbone, content, str(path)).to(device).eval()
        method = whole if test.stream is None else whole.stream(test.stream)
        if method is not None:
            classify, logits = method.classify, None if type(method).logits is Method.logits else method.logits
            classes = run.objective[1].classes
    # As it was given: where a network that comes with vidssl is installed is of no interest.
    origin = {"path": str(Path(options.checkpoint)), "sha256": digest, "step": content["step"]}
    weights = {"sha256": digest}  # covers the config too
    network = backbone.to(device).eval(), run, test, device, origin, weights
    trained = partial(trained_on, run, {name: content.get(name) for name in ("fingerprint", "data")})
    return Subject(*network, classify, logits, classes, tuple(content.get("classes", ())), trained)


def load_method(run: Run, backbone: Backbone, content: dict[str, Any], source: str) -> Method:
    """Build the method of a run around its backbone, with the weights of a checkpoint."""
    method: Method = build(METHODS, run.method, backbone)
    load_state(method, content["method"], source)
    return method


def _load_by_config(options: LoadOptions, device: torch.device) -> Subject:
    """Build the backbone of `options.cfg`, with random or third-party weights."""
    path = options.checkpoint
    if options.cfg is None:
        raise ConfigError(f"{path} needs a config, cfg=FILE: it names the backbone and the clips")
    if any("{split}" in text for text in options.overrides):
        raise ConfigError("the settings contain {split}; name the splits or seeds: splits=N")
    # Not load_run, which refuses a config whose lists contain {split}: they are not needed here.
    run = require_videos(bind_run(read(options.cfg, options.overrides), str(options.cfg)), str(options.cfg))
    torch.manual_seed(run.seed)
    backbone = build(BACKBONES, run.backbone)
    origin: Tree = {"path": path, "seed": run.seed}
    weights: Tree = {"seed": run.seed, "backbone": run.backbone.model_dump(mode="json")}
    trained = None
    if path != "random":
        # The config can map weight names, if its `init` is this file. Weights that the file lacks depend on the seed.
        initial = run.init if run.init is not None and run.init.file == path else InitialWeights(file=path)
        digest = file_hash(Path(path))
        matched = str(load_initial(backbone, initial, options.trust_checkpoint))
        origin = {"path": path, "sha256": digest, "matched": matched}
        weights |= {"sha256": digest, **initial.model_dump(mode="json", exclude={"file"})}
        reason = "weights of another project do not name it"
        trained = partial(TrainingVideos, path, None, reason)
    network = backbone.to(device).eval(), run, chosen_clips(options, run), device, origin, weights
    return Subject(*network, training=trained)


def chosen_clips(options: LoadOptions, run: Run) -> TestClips:
    """Return the clips of the options, and where those are None of the run."""
    given = {name: value for name in _CLIP_OPTIONS if (value := getattr(options, name)) is not None}
    settings = {**dict(evaluation_clips(run)), "allow_missing": options.allow_missing, **given}
    try:
        test = TestClips(**settings)
        check_short_side(test.size, test.short_side)
        check_grid(test)
    except (ConfigError, ValueError) as error:
        raise ConfigError(f"the options of the clips do not fit: {' '.join(str(error).split())}") from None
    return test
