"""The commands as functions: `vidssl.train`, `vidssl.extract`, `vidssl.search`.

They return what the commands write, raise a `VidsslError` where a command would end, and leave logging, random numbers
and settings of torch as they were.
"""

import copy
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypedDict

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from vidssl import distributed
from vidssl.commands.extract import windows_of
from vidssl.commands.load import LoadOptions, chosen_clips, load_subject
from vidssl.commands.train import settings_of_input
from vidssl.config import Tree, find_config, override, read, set_value
from vidssl.data.column_store import Records
from vidssl.data.overlap import compare, own_rows
from vidssl.data.read_input import read_input
from vidssl.data.time_windows import parse_windows
from vidssl.data.video_list import VideoList
from vidssl.distributed import choose_device
from vidssl.engine import train as engine
from vidssl.engine.config_schema import Run, bind_run, bind_stored, require_videos
from vidssl.errors import ConfigError, DataError, Interrupted
from vidssl.evaluation import features
from vidssl.evaluation.features import TestClips
from vidssl.evaluation.moments import nearest_moments
from vidssl.evaluation.overlap import describe, report_overlap
from vidssl.evaluation.search import Neighbours, check_k, join_pairs, nearest, rows_of
from vidssl.models.backbones import Backbone
from vidssl.models.weights import load_backbone
from vidssl.plugins import import_modules
from vidssl.progress import Report, reporting
from vidssl.registry import did_you_mean
from vidssl.types import Features

Videos = str | Path | Sequence[str | Path] | VideoList  # an input of `read_input`, or a list that was read


class ClipOptions(TypedDict, total=False):
    """Options of `extract` that replace settings of the run's `evaluate`, named as those of the command."""

    clips: int  # per video
    crops: int  # per clip
    size: int  # side of the crops, pixels
    short_side: int  # of the video before it is cropped, pixels
    batch_size: int  # videos
    precision: Literal["float32", "bfloat16"]
    workers: int
    stream: str  # the only one that is used, of a network with several
    layer: str  # whose maps are the features
    grid: int
    grid_frames: int
    allow_missing: bool  # skip unreadable videos; `missing` of the features lists them


def train(
    config: str | Path | Mapping[str, Any],
    *settings: str | Mapping[str, Any],
    videos: Videos | None = None,
    progress: Report = None,
) -> Path:
    """Train a config to its end, or continue a run that was interrupted; return the path of the last checkpoint.

    Args:
        config: A YAML file, the name of an installed config such as `sce_small`, or its content as a dictionary.
        settings: `"KEY=VALUE"`, as of the command, or dictionaries `{"optimizer.lr": 0.1}`; the last one counts.
        videos: What to train on instead of `data.train`: an input of `read_input`, or a list that was read.
        progress: Called with (steps done, all steps, title); False: no progress; None: a bar.

    Raises:
        VidsslError: The config, the videos or the training failed; the message has the remedy.
        KeyboardInterrupt: Ctrl-C or a notebook's stop button; the run is saved first. A second one ends the process.
        Interrupted: SIGTERM or SIGUSR1; the run is saved.
    """
    tree, source = _read_config(config, settings)
    if videos is not None:
        csv = isinstance(videos, str | Path) and Path(videos).suffix.lower() == ".csv"
        listed = Path(str(videos)) if csv else _listed(videos)
        for key, value in settings_of_input(tree, listed).items():
            set_value(tree, key, value, source)
    if "{split}" in str(tree):
        raise ConfigError(f"{source} is for several splits: replace {{split}} in its settings, and train each split")
    run = bind_run(tree, source)
    with reporting(progress), _torch_state_kept():
        try:
            return engine.train(run)
        except Interrupted as request:
            if request.signal == signal.SIGINT:
                raise KeyboardInterrupt from None
            raise


def extract(
    model: str | Path | nn.Module,
    videos: Videos,
    *,
    cfg: str | Path | None = None,
    test: TestClips | None = None,
    window: float | None = None,
    stride: float | None = None,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    root: str | Path | None = None,
    allow_external: bool = False,
    trust: bool = False,
    imports: Sequence[str] = (),
    progress: Report = None,
    **options: Unpack[ClipOptions],
) -> Features:
    """Encode videos: one row of features for each, averaged over its clips and crops, as `vidssl extract` writes them.

    `records` of the features has the file of each row and its span, start and end in seconds.

    Args:
        model: A file, folder or name, as `load_backbone` takes; `random` for the untrained backbone of `cfg`; a
            backbone of `load_backbone`; or any module from clips (B, 3, T, S, S) to features (B, D).
        videos: An input of `read_input`, several files, or a list that was read.
        cfg: The config whose clips are used, for weights that vidssl did not train.
        test: All settings of the clips at once, instead of those of the run and of `options`.
        window: Cut the videos into windows of this length, seconds: one row of features for each window.
        stride: Seconds from the start of a window to that of the next; by default the window.
        device: A module is used where its parameters are, unless a device is named, to which it is moved.
        root: Folder of the videos of a list; `allow_external` accepts paths outside of it.
        allow_external: See `root`.
        trust: Load a checkpoint with objects that can run code; see `read_anything` in vidssl/models/weights.py.
        imports: Modules with your own methods, backbones or recipes that the checkpoint needs: they are not imported
            because its config names them.
        progress: Called with (videos done, all videos, title); False: no progress; None: a bar.
        options: Settings of the clips that replace those of the run: see `ClipOptions`.

    Raises:
        VidsslError: The network, its clips or a video cannot be used; the message has the remedy.
    """
    if unknown := next(iter(options.keys() - ClipOptions.__annotations__.keys()), None):
        known = sorted(ClipOptions.__annotations__)
        raise TypeError(
            f"extract has no option '{unknown}'{did_you_mean(unknown, known)}; there are: {', '.join(known)}"
        )
    if test is not None and (options or cfg is not None):
        raise ConfigError("test has all settings of the clips: leave out cfg and the other options, or test")
    import_modules(imports, "imports")
    windows, listed = parse_windows(window, stride), _listed(videos, root, allow_external)
    chosen = LoadOptions(
        str(model) if isinstance(model, str | Path) else "a module",
        cfg=None if cfg is None else find_config(str(cfg)),
        device=device,
        trust_checkpoint=trust,
        **options,
    )
    where = _device_of(model) if isinstance(model, nn.Module) and device == "auto" else choose_device(device)
    with reporting(progress), _torch_state_kept(), distributed.joined(where):
        encoder, clips = _network(model, chosen, test)
        if windows is not None:
            listed = windows_of(listed, windows, clips)
        found = features.extract(encoder.to(where), listed, clips, where)
    return replace(found, records=listed.rows(found.index.tolist()).records, windows=windows is not None)


def search(
    gallery: Features | Tensor,
    query: Features | Tensor | None = None,
    k: int = 10,
    *,
    center: bool = False,
    exclude: Tensor | None = None,
    one_per_video: bool = False,
) -> Neighbours:
    """Find the k rows of the gallery with the highest cosine similarity to each query, as `vidssl retrieval` does.

    Features of `extract` know their videos: a query does not find a span of its own file that overlaps it, and in a
    gallery of windows a row that overlaps a nearer one is left out. Copies of a query under other names are found, with
    a warning.

    Args:
        gallery: Features of `extract`, or any (N, D) float32 tensor on the CPU.
        query: Likewise (Q, D); None: each row of the gallery, which does not find itself.
        k: Neighbours of each query, nearest first; equal similarities are ordered by row.
        center: Subtract the mean of the queries and that of the gallery first.
        exclude: (P, 2) int64, more pairs of a query and a gallery row that it must not find.
        one_per_video: Return only the nearest row of each file.

    Raises:
        DataError: The features have no rows, other shapes than (N, D), different lengths, or are not finite.
        ConfigError: k is not 1 or more; `one_per_video` of a gallery whose files are not known; other types.
    """
    check_k(k)
    asked, g = gallery if query is None else query, rows_of("gallery", gallery)
    q = g if query is None else rows_of("query", query)
    pairs = [] if exclude is None else [exclude]
    if query is None:
        pairs.append(torch.arange(len(g)).unsqueeze(1).expand(-1, 2))
        if len(g) == 1:
            raise DataError("the gallery has one row, which does not find itself: give a query, or more videos")
        k = min(k, len(g) - 1)  # not itself, even if there is nothing else
    if isinstance(asked, Features) and isinstance(gallery, Features):
        pairs.append(own_rows(gallery, asked))
        if asked.records and gallery.records:
            _report_copies(asked, gallery)
    exclude = join_pairs(pairs)
    if isinstance(gallery, Features) and gallery.records and (gallery.windows or one_per_video):
        records = gallery.records
        return nearest_moments(
            q, g, lambda rows: [records[n] for n in rows], k, exclude, center=center, one_per_video=one_per_video
        )
    if one_per_video:
        raise ConfigError("one_per_video needs the files of the gallery: give features of vidssl.extract")
    return nearest(q, g, k, exclude, center=center)


def _report_copies(query: Features, gallery: Features) -> None:
    """Warn of copies of the queries in the gallery, and of other videos of their recordings."""
    q, g = (_list_of(features) for features in (query, gallery))
    labelled = len(q.records) > 1 and bool((query.label >= 0).all() and (gallery.label >= 0).all())
    overlap = {"gallery": describe(q, g, compare(q, g)), "training": None}
    report_overlap(overlap, q.path, measured=labelled, remedy="`exclude` leaves out pairs")


def _list_of(features: Features) -> VideoList:
    records = features.records
    listed = records if isinstance(records, Records) else Records(Path(), records)
    return VideoList(listed.roots[0], listed, features.classes)


def _read_config(
    config: str | Path | Mapping[str, Any], settings: Sequence[str | Mapping[str, Any]]
) -> tuple[Tree, str]:
    """Return a config with settings as plain data, and its name for errors."""
    if isinstance(config, Mapping):
        tree, source = copy.deepcopy(dict(config)), "the config"
    else:
        path = find_config(str(config))
        tree, source = read(path), str(path)
    for setting in settings:
        if isinstance(setting, str):
            override(tree, setting)
        else:
            for key, value in setting.items():
                set_value(tree, key, str(value) if isinstance(value, Path) else value, f"{key}={value}")
    return tree, source


def _listed(videos: Videos, root: str | Path | None = None, allow_external: bool = False) -> VideoList:
    if not isinstance(videos, VideoList):
        return read_input(videos, root, allow_external)
    if root is not None or allow_external:
        raise ConfigError("root and allow_external are for reading a list, and this one was read: leave them out")
    return videos


def _network(model: str | Path | nn.Module, options: LoadOptions, test: TestClips | None) -> tuple[Backbone, TestClips]:
    """Return the network whose features are wanted, and its clips."""
    if not isinstance(model, nn.Module):
        if test is None:
            subject = load_subject(options)
            return subject.encoder, subject.test
        model = load_backbone(model, trust=options.trust_checkpoint)
    if test is None:
        test = chosen_clips(options, _run_of(model, options.cfg))
    if not isinstance(model, Backbone):
        model = _ModuleBackbone(model, test)
    return test.encoder(model), test


def _run_of(model: nn.Module, cfg: Path | None) -> Run:
    """Return the run whose clips a module is used with."""
    if cfg is not None:
        return require_videos(bind_run(read(cfg), str(cfg)), str(cfg))
    config = model.run_config if isinstance(model, Backbone) else None
    if config is None:
        raise ConfigError(
            f"this {type(model).__name__} does not state its clips: give test=vidssl.TestClips(…), or cfg, a config"
        )
    return require_videos(bind_stored(config, "the config of the backbone"), "the config of the backbone")


class _ModuleBackbone(Backbone):
    """Any module from clips to features as a backbone."""

    def __init__(self, module: nn.Module, test: TestClips) -> None:
        super().__init__()
        self.module, training = module, module.training
        clip = torch.zeros(1, 3, test.clip.frames, test.size, test.size, device=_device_of(module))
        with torch.no_grad():
            found: Any = module.eval()(clip)
        module.train(training)
        self.train(training)
        if not isinstance(found, Tensor) or found.ndim != 2 or len(found) != 1:
            shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise ConfigError(
                f"{type(module).__name__} makes {shape} of a clip {tuple(clip.shape)}, not features (1, D): wrap it in "
                "a module that does"
            )
        self.dim = found.shape[1]

    def forward(self, x: Tensor) -> Tensor:
        """Encode clips."""
        features: Tensor = self.module(x)
        return features


def _device_of(module: nn.Module) -> torch.device:
    tensors = (*module.parameters(), *module.buffers())
    return tensors[0].device if tensors else torch.device("cpu")


@contextmanager
def _torch_state_kept() -> Iterator[None]:
    """Restore what a run sets for the whole process: random numbers, deterministic algorithms, cuDNN's benchmark."""
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    benchmark = torch.backends.cudnn.benchmark
    used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    devices = [torch.cuda.current_device()] if used else []
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        torch.backends.cudnn.benchmark = benchmark
