"""The network that a job measures: a checkpoint, weights of other projects, an untrained network, or any module."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from vidssl.base import distributed
from vidssl.base.atomic import file_hash
from vidssl.base.config import Tree, build, find_config, read
from vidssl.base.distributed import choose_device
from vidssl.base.errors import ConfigError
from vidssl.base.plugins import code_of
from vidssl.base.registry import entries_of
from vidssl.base.types import Features
from vidssl.data.clip_samplers import ClipSettings
from vidssl.data.video_list import Records, VideoList
from vidssl.engine.periodic_evaluation import classes_of, evaluation_clips
from vidssl.engine.run_config import Run, bind_run, bind_stored
from vidssl.engine.training_lists import trained_on
from vidssl.evaluation.features import (
    Classifier,
    Extract,
    JoinedClips,
    LibraryClips,
    TestClips,
    describe_network,
    extract_features,
    split_features,
)
from vidssl.evaluation.train_test_overlap import TrainingVideos, measure_overlap, report_overlap
from vidssl.jobs.job import LoadedEncoder, Model, NetworkOptions, job
from vidssl.methods import METHODS, Method
from vidssl.models.backbones import BACKBONES, Backbone, ModuleBackbone, device_of_weights
from vidssl.models.external import Encoder, facts_of, is_external, load_external
from vidssl.models.joined_features import EncoderPart, Joined, parts_of
from vidssl.models.layer_features import check_grid
from vidssl.models.match_checkpoints import InitialWeights, load_initial
from vidssl.models.read_and_write_weights import (
    Normalization,
    backbone_weights,
    is_checkpoint,
    load_state,
    own_weights,
    read_anything,
    weights_file,
)
from vidssl.transforms.recipes import check_short_side
from vidssl.video.reader import DecodeSettings

RANDOM = "random"  # the untrained network of a config
_OF_ALL = {"batch_size", "precision", "workers", "allow_missing"}  # options of clips that all parts of a sum take
_CLIP_OPTIONS = NetworkOptions.__annotations__.keys() & TestClips.model_fields.keys()


def class_hash(videos: VideoList) -> str | None:
    """Hash the class names of a list; None if it has none."""
    return hashlib.sha256("\n".join(videos.classes).encode()).hexdigest()[:16] if videos.classes else None


@dataclass(frozen=True)
class Subject(LoadedEncoder):
    """A network that is measured, and the clips that it is measured on."""

    backbone: Backbone
    test: TestClips
    device: torch.device
    origin: Tree  # for results.json: file, hash and step, or the seed of random weights
    weights: Tree  # identifies the weights, wherever their file is
    run: Run | None = None  # that trained it, or whose config it has; None: any module
    classify: Classifier | None = None  # its classifier, if it has one
    logits: Classifier | None = None  # its class scores before the softmax, if its method has them
    classes: int = 0  # of the classifier
    class_names: tuple[str, ...] = ()  # of the list that it was trained on, if that has names
    # Reads the list that it was trained on; None: untrained, or not known.
    training: Callable[[], TrainingVideos] | None = None
    extractor: Extract = extract_features  # one that keeps the features of each list, if several jobs need them

    def __post_init__(self) -> None:
        network = self.test.network(self.backbone)
        if self.test.layer is not None:
            network.check_layers((self.test.layer,))

    @property
    def encoder(self) -> Backbone:
        """The network whose features are measured: the backbone, or one of its layers."""
        return self.test.encoder(self.backbone)

    @property
    def name(self) -> str:
        """What it was loaded from."""
        return str(self.origin["path"])

    def __str__(self) -> str:
        return self.name

    __repr__ = __str__

    def made_by(self) -> Tree:
        """What decides whether features can be compared with those of this network: see `describe_network`."""
        request, same = self.request(), []
        if self.run is not None and not isinstance(self.backbone, ModuleBackbone):  # another file may hold them too
            same = [{"backbone": self.run.backbone.model_dump(mode="json"), "sha256": _hash_of_weights(self.backbone)}]
        return describe_network(self.name, request, *same)

    def skipping(self) -> "Subject":
        """Return the network for videos of which those that cannot be read are left out: see `TestClips.skipping`."""
        return replace(self, test=self.test.skipping())

    def extract(self, videos: VideoList, title: str = "features", classify: Classifier | None = None) -> Features:
        """Extract the features of videos, as `vidssl.evaluation.features.extract_features`."""
        return self.extractor(self.encoder, videos, self.test, self.device, title, classify=classify)

    def request(self, **parts: Any) -> Tree:
        """What decides the results of a job: weights, clips and `parts`. Equal requests have equal results."""
        protocol = {name: value for name, value in self.describe()["protocol"].items() if name != "cache"}
        classifier = entries_of(self.run.model_dump(include={"method"})) if self.run and self.classify else []
        code = code_of(*dict.fromkeys(map(type, self.backbone.modules())), *classifier, libraries=False)
        text = json.dumps({"weights": self.weights, "protocol": protocol, **code, **parts})
        request: Tree = json.loads(text)  # as it is read from a file: with lists for tuples
        return request

    def count_overlap(self, query: VideoList, gallery: VideoList | None = None) -> Tree:
        """Count the tested videos that a gallery or the network's training list has too, and report them."""
        overlap = measure_overlap(query, gallery, self.training)
        if distributed.is_main():
            report_overlap(overlap, query.path)
        return overlap

    def describe(self) -> Tree:
        """Protocol, checkpoint and config, for results.json."""
        return {
            "protocol": describe_clips(self.test),
            "checkpoint": self.origin,
            "config": None if self.run is None else self.run.model_dump(mode="json"),
        }

    def require_run(self, purpose: str) -> Run:
        """Return the run of the network; a ConfigError if it has none, as any module."""
        if self.run is None:
            raise ConfigError(f"{purpose} needs a network of a config, and {self.name} is a module: leave it out")
        return self.run


def describe_clips(test: TestClips) -> Tree:
    """Describe all settings that decide the features, as plain data."""
    if isinstance(test, JoinedClips):
        parts = [describe_clips(part) for part in test.parts]
        return {"parts": parts, "precision": test.precision, "allow_missing": test.allow_missing}
    left_out = {"batch_size", "workers", "timeout"}
    # Requests are those of before there were streams and orders.
    left_out |= {name for name, usual in (("stream", None), ("join", "mean")) if getattr(test, name) == usual}
    return test.model_dump(mode="json", exclude=left_out)


def device_of(model: Model, options: NetworkOptions) -> torch.device:
    """Choose the device: that of a module's weights, unless one is named."""
    device = options.get("device", "auto")
    if isinstance(model, Subject):
        return model.device
    if isinstance(model, nn.Module) and device == "auto":
        return device_of_weights(model)
    return choose_device(device)


def load_subject(model: Model, options: NetworkOptions, *, shared_config: bool = False) -> Subject:
    """Load the network and the settings of its clips.

    With `shared_config` the config of the options is for several networks: those that have their own ignore it.

    Raises:
        CheckpointError: The weights cannot be loaded.
        ConfigError: Network and options do not fit each other.
    """
    if isinstance(model, LoadedEncoder):
        return _with_options(cast(Subject, model), options)
    device, clips = device_of(model, options), options.keys() & _CLIP_OPTIONS
    if "test" in options and (clips or "cfg" in options):
        raise ConfigError("test has all settings of the clips: leave out cfg and the other options, or test")
    if isinstance(model, nn.Module):
        return _load_module(model, options, device)
    if parts := parts_of(model):
        return _load_parts(str(model), parts, options, shared_config)
    if is_external(model):
        if ("cfg" in options or options.get("settings")) and not shared_config:
            raise ConfigError(f"{model} brings its own settings: leave out cfg=FILE and KEY=VALUE")
        # A floor beside networks leaves out the options that are meant for them.
        lenient = shared_config and str(model).startswith("floor:")
        return _load_external(str(model), options, device, strict=not lenient)
    path = Path(model) if model == RANDOM else weights_file(model)
    content = {} if model == RANDOM else read_anything(path, options.get("trust", False))
    if not is_checkpoint(content):
        return _load_by_config(str(model), options, device)
    if ("cfg" in options or options.get("settings")) and not shared_config:
        raise ConfigError(f"{path} brings its own config: leave out cfg=FILE and KEY=VALUE")
    return _load_checkpoint(str(Path(model)), path, content, options, device)


@job
def load_encoder(model: Model, **options: Unpack[NetworkOptions]) -> LoadedEncoder:
    """Load an encoder once, for many calls of `vidssl.extract` and of other jobs, which take it in place of a name.

    Args:
        model: A file, folder or name as of `vidssl.extract`, also of a sum or of an encoder of another library.
        options: Those of clips, device and config; jobs take `workers`, `batch_size` and `allow_missing` too.
    """
    return load_subject(model, options)


def _with_options(subject: Subject, options: NetworkOptions) -> Subject:
    changed = {"workers", "batch_size", "allow_missing"}
    if fixed := sorted(options.keys() & {*_CLIP_OPTIONS - changed, "test", "cfg", "settings", "device"}):
        raise ConfigError(f"{subject.name} is loaded already: give {fixed[0]} to vidssl.load_encoder")
    changes = {name: value for name, value in options.items() if name in changed}
    return replace(subject, test=subject.test.model_copy(update=changes))


def brings_config(model: Model, options: NetworkOptions) -> bool:
    """Whether a network has a config of its own: then it ignores one that several networks share."""
    if isinstance(model, nn.Module | LoadedEncoder) or model == RANDOM:
        return isinstance(model, LoadedEncoder)
    return is_external(model) or is_checkpoint(read_anything(weights_file(model), options.get("trust", False)))


def _load_parts(name: str, parts: Sequence[EncoderPart], options: NetworkOptions, shared_config: bool) -> Subject:
    """Load the networks of a sum, or a stream of one network."""
    single = [option for option in sorted({*_CLIP_OPTIONS, "test"} - _OF_ALL) if options.get(option) is not None]
    if len(parts) == 1:
        if "stream" in options:
            raise ConfigError(f"{name} names a stream, and so does stream={options['stream']}: leave one out")
        return load_subject(parts[0].name, {**options, "stream": str(parts[0].stream)}, shared_config=shared_config)
    if single and not shared_config:
        clips = "its parts have their own clips"
        raise ConfigError(f"{name} is a sum, and {clips}: leave {single[0]} out, or name one of them")
    loaded = load_parts(parts, options)
    weights = [part.weight for part in parts]
    origins = [subject.origin for subject in loaded]
    return Subject(
        backbone=Joined([subject.encoder for subject in loaded], weights).eval(),
        test=joined_clips([subject.test for subject in loaded]),
        device=loaded[0].device,
        origin={
            "path": name,
            "parts": origins,
            "licence": "; ".join(dict.fromkeys(origin.get("licence", "not stated") for origin in origins)),
            "training": [*dict.fromkeys(name for origin in origins for name in origin.get("training", ()))],
        },
        weights={"parts": [subject.weights for subject in loaded], "weights": weights},
        training=partial(_all_training, [subject.training for subject in loaded if subject.training is not None]),
    )


def load_parts(parts: Sequence[EncoderPart], options: NetworkOptions) -> list[Subject]:
    """Load the networks of a sum, each with its own clips."""
    subjects = []
    for part in parts:
        if part.stream is not None and is_external(part.name):
            raise ConfigError(f"{part.model}: {part.name} has no streams: leave #{part.stream} out")
        stream: NetworkOptions = {} if part.stream is None else {"stream": part.stream}
        subjects.append(load_subject(part.name, {**options, **stream}, shared_config=True))
    return subjects


def extract_together(
    subjects: Sequence[Subject],
    videos: VideoList,
    title: str = "features",
    check: Callable[[], None] = lambda: None,
    reverse: bool = False,
) -> list[Features]:
    """Extract the features of several networks, each with its own clips, on the device of the first one.

    Each video is decoded once for all of them. `check` and `reverse` are those of `extract_features`.
    """
    device, clips = subjects[0].device, joined_clips([subject.test for subject in subjects])
    clips = clips.skipping() if subjects[0].test.skips else clips
    joined = Joined([subject.encoder for subject in subjects]).to(device).eval()
    features = extract_features(joined, videos, clips, device, title, check=check, reverse=reverse)
    return split_features(features, joined.dims)


def one_network(subject: Subject) -> Subject:
    """Return a network for a job that chooses its clips; a ConfigError if it joins networks or clips in order."""
    if isinstance(subject.test, JoinedClips) or subject.test.join == "order":
        raise ConfigError(f"{subject.name} joins networks or clips, and this needs one clip of one network: name one")
    return subject


def joined_clips(tests: Sequence[TestClips]) -> JoinedClips:
    """Return settings of clips by which several networks encode each video, which is decoded once."""
    of_all = {*TestClips.model_fields} - {"stream", "layer", "grid", "grid_frames", "join"}
    first = tests[0].model_dump(include=of_all) | {"clip": tests[0].clip}
    first["batch_size"] = min(test.batch_size for test in tests)
    for name, usual in {"precision": None, **dict(DecodeSettings())}.items():  # one part may state how videos are read
        stated = dict.fromkeys(value for test in tests if (value := getattr(test, name)) != usual)
        if len(stated) > 1:
            remedy = "give one for all" if name == "precision" else "leave one of them out"
            raise ConfigError(f"the parts of a sum have one {name}, not {' and '.join(map(str, stated))}: {remedy}")
        first[name] = next(iter(stated), usual)
    return JoinedClips(**first | {"parts": tuple(tests)})


def _all_training(lists: Sequence[Callable[[], TrainingVideos]]) -> TrainingVideos:
    """Return the videos that any of several networks was trained on, as far as they are known."""
    read_lists = [read() for read in lists]
    name = " and ".join(training.name for training in read_lists)
    reasons = "; ".join(training.reason for training in read_lists if training.reason)
    known = [training.videos for training in read_lists if training.videos is not None]
    if not known:
        return TrainingVideos(name, None, reasons)
    records = Records(known[0].root)
    for videos in known:
        for n, row in enumerate(map(videos.records.row, range(len(videos)))):
            row = replace(row, label=-1, label_set=None, mask=None)
            records.append(row, videos.records.root_of(n))
    return TrainingVideos(name, replace(known[0], records=records, joined=()), reasons)


def _load_checkpoint(
    name: str, path: Path, content: dict[str, Any], options: NetworkOptions, device: torch.device
) -> Subject:
    trust = options.get("trust", False)
    run = bind_stored(content["config"], f"config of {path}", trust)
    backbone = load_network(run, content, str(path))
    digest = file_hash(path)  # a second read, of what the system has in memory: torch.load returns no hash
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
    origin = {"path": name, "sha256": digest, "step": content["step"]}
    if path == own_weights().get(name):
        origin |= facts_of(f"vidssl {name}")
    return Subject(
        backbone=backbone.to(device).eval(),
        test=test,
        device=device,
        origin=origin,
        weights={"sha256": digest},  # covers the config too
        run=run,
        classify=classify,
        logits=logits,
        classes=classes,
        class_names=tuple(content.get("classes", ())),
        training=partial(trained_on, run, {key: content.get(key) for key in ("fingerprint", "data")}),
    )


def load_network(run: Run, content: dict[str, Any], source: str) -> Backbone:
    """Build the backbone of a run, with the weights of a checkpoint."""
    backbone: Backbone = build(BACKBONES, run.backbone)
    load_state(backbone, backbone_weights(content), source)
    return backbone


def load_method(run: Run, backbone: Backbone, content: dict[str, Any], source: str) -> Method:
    """Build the method of a run around its backbone, with the weights of a checkpoint."""
    method: Method = build(METHODS, run.method, backbone)
    load_state(method, content["method"], source)
    return method


def _load_by_config(name: str, options: NetworkOptions, device: torch.device) -> Subject:
    """Build the backbone of a config, with random or third-party weights."""
    if "cfg" not in options:
        raise ConfigError(f"{name} needs a config, cfg=FILE: it names the backbone and the clips")
    settings = options.get("settings", ())
    if any("{split}" in text for text in settings):
        raise ConfigError("the settings contain {split}; name the splits or seeds: splits=N")
    # The lists of the config may contain {split}: they are not read here.
    run = _run_of_config(options["cfg"], settings)
    backbone, origin, weights = _build_untrained(run)
    origin["path"] = name
    training = None
    if name != RANDOM:
        # The config can map weight names, if its `init` is this file. Weights that the file lacks depend on the seed.
        initial = run.init if run.init is not None and run.init.file == name else InitialWeights(file=name)
        digest = file_hash(Path(name))
        pixels = Normalization(run.data.mean, run.data.std)
        matched = load_initial(backbone, initial, options.get("trust", False), run.backbone.name, pixels)
        origin = {"path": name, "sha256": digest, "matched": str(matched)}
        added = {"inflate": True} if initial.inflate else {}
        weights |= {"sha256": digest, "partial": initial.partial, "keys": initial.keys, **added}
        training = partial(TrainingVideos, name, None, "weights of another project do not name it")
    backbone = backbone.to(device).eval()
    return Subject(backbone, chosen_clips(options, run), device, origin, weights, run, training=training)


def _build_untrained(run: Run) -> tuple[Backbone, Tree, Tree]:
    """Build the backbone of a run with the random weights of its seed; also return what states and identifies them."""
    torch.manual_seed(run.seed)
    backbone = build(BACKBONES, run.backbone)
    backbone_settings = run.backbone.model_dump(mode="json")
    return backbone, {"path": RANDOM, "seed": run.seed}, {"seed": run.seed, "backbone": backbone_settings}


def untrained(subject: Subject) -> Subject:
    """Return the untrained network of a subject's run, with the same clips, as `random` and the config of the run give.

    Raises:
        ConfigError: There is none, as the subject is untrained itself, or a module without a config.
    """
    if subject.name == RANDOM:
        raise ConfigError("the network is untrained itself")
    run = subject.require_run("the untrained network")
    backbone, origin, weights = _build_untrained(run)
    return Subject(backbone.to(subject.device).eval(), subject.test, subject.device, origin, weights, run)


def _run_of_config(cfg: str | Path, settings: Sequence[str] = ()) -> Run:
    path = find_config(str(cfg))
    return bind_run(read(path, settings), str(path))


def run_of_module(module: nn.Module, cfg: str | Path | None, settings: Sequence[str] = ()) -> Run | None:
    """Return the run of a config, else of the one that a backbone of `load_backbone` brings; None without both."""
    if cfg is not None:
        return _run_of_config(cfg, settings)
    stored = module.run_config if isinstance(module, Backbone) else None
    return None if stored is None else bind_stored(stored, "the config of the backbone")


def _load_module(module: nn.Module, options: NetworkOptions, device: torch.device) -> Subject:
    """Take a module as it is, with the clips of its run if it is a backbone that vidssl loaded."""
    if any(p.dtype == torch.float64 for p in module.parameters()):
        raise ConfigError(f"this {type(module).__name__} has float64 weights, clips are float32: give module.float()")
    run = run_of_module(module, options.get("cfg"), options.get("settings", ()))
    if "test" in options:
        test = options["test"]
    elif run is not None:
        test = chosen_clips(options, run)
    else:
        raise ConfigError(
            f"this {type(module).__name__} does not state its clips: give test=vidssl.TestClips(…), or cfg, a config"
        )
    backbone = module if isinstance(module, Backbone) else ModuleBackbone(module, test.clip.frames, test.size)
    kind = f"{type(module).__module__}.{type(module).__qualname__}"
    origin = {"path": kind, "module": True}
    weights = {"module": kind, "sha256": _hash_of_weights(module), "settings": _hash_of_settings(module)}
    training = partial(TrainingVideos, kind, None, "a module does not name it")
    return Subject(backbone.to(device), test, device, origin, weights, run, training=training)


def _load_external(name: str, options: NetworkOptions, device: torch.device, strict: bool) -> Subject:
    """Load an encoder of another library, with the clips that it is used with there."""
    encoder, backbone = load_external(name, options.get("trust", False))
    test = options.get("test") or _library_clips(name, encoder, options, strict)
    facts = {name: getattr(encoder, name) for name in ("licence", "training", "source", "features")}
    origin = {"path": name, "library": encoder.version, **facts}
    weights = {"encoder": name, "library": encoder.version, "sha256": _hash_of_weights(backbone)}
    weights |= {"code": encoder.code} if encoder.code else {}
    # Requests of all others are those of before it was stated.
    weights |= {"features": encoder.features} if encoder.features not in ("output", "pooled output") else {}
    training = partial(TrainingVideos, name, None, f"trained on: {', '.join(encoder.training)}")
    return Subject(backbone.to(device), test, device, origin, weights, training=training)


def _library_clips(name: str, encoder: Encoder, options: NetworkOptions, strict: bool) -> LibraryClips:
    """Return the clips of a library; other options are a ConfigError if `strict`, else left out."""
    for option in ("size", "short_side", "crops", "layer", "grid", "grid_frames", "stream"):
        if strict and options.get(option) not in (None, 1):
            reason = "it is measured as a whole"
            if option in ("size", "short_side", "crops"):
                reason = f"its library's preprocessing makes one crop of {encoder.size} pixels"
            raise ConfigError(f"{name} has no {option}: {reason}: leave it out")
    kept = ("clips", "batch_size", "precision", "workers", "allow_missing")
    settings: dict[str, Any] = {"clips": 4, "crops": 1, "batch_size": 4}
    settings |= {name: getattr(encoder, name) for name in ("size", "short_side", "mean", "std", "crop", "any_shape")}
    settings |= {**encoder.test, **{key: value for key, value in options.items() if key in kept and value is not None}}
    if encoder.any_shape:
        settings["batch_size"] = 1
    if encoder.seconds == "whole" and not encoder.test:  # all clips would be the same
        settings["clips"] = 1
    clip = ClipSettings(frames=encoder.frames, seconds=encoder.seconds)
    return LibraryClips(**{"clip": clip, "library": encoder.version, **settings})


def _hash_of_settings(module: nn.Module) -> str:
    """Hash the plain attributes of a module and its parts, such as how it pools: its weights do not hold them."""
    parts = [(path, name, value) for path, part in module.named_modules() for name, value in vars(part).items()]
    plain = (bool, int, float, str, tuple, type(None))
    lines = [f"{path}.{name}={value!r}" for path, name, value in parts if name[0] != "_" and isinstance(value, plain)]
    return hashlib.sha256("\n".join(sorted(line for line in lines if ".training=" not in line)).encode()).hexdigest()


def _hash_of_weights(module: nn.Module) -> str:
    digest = hashlib.sha256()
    for name, weight in module.state_dict().items():
        digest.update(name.encode())
        if isinstance(weight, Tensor):
            digest.update(f"{weight.dtype} {tuple(weight.shape)}".encode())
            digest.update(weight.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def chosen_clips(options: NetworkOptions, run: Run) -> TestClips:
    """Return the clips of the options, and where those do not say of the run."""
    if "test" in options:
        return options["test"]
    chosen = {name: value for name, value in options.items() if name in _CLIP_OPTIONS and value is not None}
    settings = {**dict(evaluation_clips(run)), "allow_missing": False, **chosen}
    if (stream := settings["stream"]) is not None and settings["layer"] is not None:
        of_stream, dot, layer = settings["layer"].partition(".")
        if of_stream == stream and dot:  # the same layer by its name in the stream
            settings["layer"] = layer
        elif "layer" not in chosen and stream in getattr(run.backbone, "streams", {}):
            raise ConfigError(
                f"the run is measured on {settings['layer']}, which is no layer of {stream}: name one of {stream} too, "
                'such as layer="layer4"'
            )
    try:
        test = TestClips(**settings)
        check_short_side(test.size, test.short_side)
        check_grid(test)
    except (ConfigError, ValueError) as error:
        raise ConfigError(f"the options of the clips do not fit: {' '.join(str(error).split())}") from None
    return test
