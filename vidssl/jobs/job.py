"""What all jobs have in common: the options of networks, the checks of arguments, and what is restored at the end."""

import inspect
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache, wraps
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, ParamSpec, TypedDict, TypeVar, get_args, get_origin, get_type_hints

import torch
from annotated_types import Ge, Gt
from torch import nn

from vidssl.base.command_line_and_notices import noticing
from vidssl.base.config import in_home
from vidssl.base.errors import ConfigError, Interrupted, hint_at_device
from vidssl.base.output_folder import remove_unused
from vidssl.base.plugins import import_modules
from vidssl.base.progress import Report, reporting
from vidssl.base.registry import did_you_mean
from vidssl.base.types import Count as Count
from vidssl.base.types import Natural as Natural
from vidssl.base.types import Positive as Positive
from vidssl.data.label_videos import label_videos
from vidssl.data.read_input import read_input
from vidssl.data.video_list import VideoList
from vidssl.evaluation.features import TestClips
from vidssl.models.eval_mode import usual_torch

P = ParamSpec("P")
_T = TypeVar("_T")

# Types of arguments. Commands make options of them: vidssl/cli/options_from_signatures.py.
File = str | Path
Videos = str | Path | Sequence[str | Path] | VideoList  # an input of `read_input`, or a list that was read
Folder = File  # an output that a command may lack: its content is printed
Queried = Videos  # files may be followed by a span, `FILE@START-END`


class LoadedEncoder:
    """An encoder in memory, with its clips: `vidssl.load_encoder` returns it, and jobs take it in place of a name."""


# A file, folder or name of `load_encoder`, `random`, or a module from clips to features.
Model = str | Path | nn.Module | LoadedEncoder


class EncoderOptions(TypedDict, total=False):
    """Options of every job that applies a network to videos; most have those of `NetworkOptions`.

    Attributes:
        cfg: Config, a YAML file or the name of one that is installed, as `small_cpu`: for `random` and for weights of
            other projects.
        settings: Settings that override the config's, `KEY=VALUE`.
        test: All settings of the clips at once, in place of those of the run and of the options below.
        clips: Clips per video (default: the run's evaluate.clips).
        crops: Crops per clip, along the longer side (default: the run's evaluate.crops).
        size: Side of the crops in pixels (default: the run's evaluate.size).
        short_side: Short side of the video before it is cropped, in pixels (default: the run's evaluate.short_side).
        batch_size: Videos per batch (default: the run's evaluate.batch_size).
        stream: Use only this stream of a network with several, such as rgb (default: all).
        layer: Layer whose maps are the features, such as layer3 (default: the run's evaluate.layer).
        grid: Average the maps of the layer over grid x grid cells (default: the run's evaluate.grid).
        grid_frames: And over so many parts of the clip (default: the run's evaluate.grid_frames).
        join: How the clips of a video become its features: their mean, or one after another in order (default: mean).
        precision: Precision of the forward pass (default: the run's evaluate.precision).
        workers: Worker processes (default: the run's data.workers).
        device: Device of the network (default auto); a module is used where its weights are, unless one is named.
        root: Folder of the videos of a list (default: the one in root.txt).
        allow_external: Accept paths outside of the root.
        allow_missing: Leave out videos that cannot be read also where a list with labels is measured; without it the
            first one of them is an error. Of all other inputs they are left out, and named.
        trust: Load a checkpoint with pickled objects; such a file can run any code.
        imports: Modules with your own methods, backbones, protocols …; those that weights name are not imported by
            themselves.
    """

    cfg: File
    settings: Sequence[str]
    test: TestClips
    clips: Count
    crops: Count
    size: Count
    short_side: Count
    batch_size: Count
    stream: str
    layer: str
    grid: Count
    grid_frames: Count
    join: Literal["mean", "order"]
    precision: Literal["float32", "bfloat16"]
    workers: Natural
    device: Literal["auto", "cpu", "cuda"]
    root: File
    allow_external: bool
    allow_missing: bool
    trust: bool
    imports: Sequence[str]


class NetworkOptions(EncoderOptions, total=False):
    """Options of a job that applies a network to videos, and reads the labels of these.

    Attributes:
        labels: Classes of all or some videos: a CSV file of two columns, path or name of the file and label, or
            FILE:COLUMN of several; a file of BORIS or Label Studio; `folders`, whatever their names; or `none`
            (default: those of the list).
    """

    labels: File


def job(function: Callable[P, _T]) -> Callable[P, _T]:
    """Make a job of a function: its arguments are checked, and what it changes in the process is restored.

    Those are logging of progress, random numbers and settings of torch, see `usual_torch`. A job that fails before it
    has written anything leaves no folder behind; Ctrl-C is a KeyboardInterrupt. Jobs may call jobs.
    """
    signature = inspect.signature(function)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> _T:
        bound = signature.bind(*args, **kwargs)
        bound.arguments = arguments = in_home(bound.arguments)
        check_arguments(function, arguments)
        options = arguments.get("options", {})
        import_modules(options.get("imports", arguments.get("imports", ())), "imports")
        report: Report = arguments.get("progress")
        # Without a report of its own, a job leaves that of the block around it.
        own_report = nullcontext() if report is None else reporting(report)
        with own_report, _torch_state_kept(), noticing(arguments.get("out")):
            try:
                return function(*bound.args, **bound.kwargs)
            except BaseException as error:
                remove_unused()
                if isinstance(error, Interrupted) and error.signal == signal.SIGINT:
                    raise KeyboardInterrupt from None  # what a notebook expects
                raise

    return call


@contextmanager
def _torch_state_kept() -> Iterator[None]:
    """Restore what a run sets for the whole process: random numbers, deterministic algorithms, cuDNN's benchmark."""
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    benchmark = torch.backends.cudnn.benchmark
    used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    devices = [torch.cuda.current_device()] if used else []
    try:
        with usual_torch(), torch.random.fork_rng(devices):
            yield
    finally:
        if torch.are_deterministic_algorithms_enabled() != deterministic:  # setting it imports torch's compiler: 1 s
            torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        torch.backends.cudnn.benchmark = benchmark


# Checks of arguments ----------------------------------------------------------------------------------------


@cache
def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the types of the arguments of a job; those of its options are among them."""
    hints = get_type_hints(function, include_extras=True)
    hints.pop("return", None)
    unpacked = hints.pop("options", None)
    return hints | ({} if unpacked is None else get_type_hints(get_args(unpacked)[0], include_extras=True))


def check_arguments(function: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    """Check numbers and choices among the arguments of a job.

    Raises:
        ConfigError: An argument is out of range, or none of its choices.
        TypeError: There is no such option.
    """
    hints = _hints(function)
    options = arguments.get("options", {})
    if unknown := next((name for name in options if name not in hints), None):
        hint = did_you_mean(unknown, hints)
        raise TypeError(f"{function.__name__} has no option '{unknown}'{hint}; there are: {', '.join(sorted(hints))}")
    for name, value in {**arguments, **options}.items():
        kind = _checked_type(hints.get(name))
        if value is not None and kind is not None:
            _check_one(name, value, kind)


def _checked_type(hint: Any) -> Any:
    """Return the type that is checked, of `X` and of `X | None`; None of other unions, which are not checked."""
    parts = [part for part in get_args(hint) if part is not NoneType]
    if len(parts) == 1 and NoneType in get_args(hint):
        return parts[0]
    return hint if get_origin(hint) in (Annotated, Literal) or hint in (int, float, bool) else None


def _check_one(name: str, value: Any, kind: Any) -> None:
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            choices = ", ".join(map(str, get_args(kind)))
            raise ConfigError(f"{name} is {value!r}: choose one of {choices}{hint_at_device(name)}")
        return
    base, *limits = get_args(kind) if get_origin(kind) is Annotated else (kind,)
    allowed = {int: (int,), float: (int, float)}.get(base)
    if allowed is not None and (not isinstance(value, allowed) or isinstance(value, bool)):
        raise ConfigError(f"{name} is {value!r}, and it is {'a whole number' if base is int else 'a number'}")
    for limit in limits:
        if isinstance(limit, Ge) and value < limit.ge:
            raise ConfigError(f"{name}={value} is less than {limit.ge}")
        if isinstance(limit, Gt) and not limit.gt < value < float("inf"):
            raise ConfigError(f"{name}={value:g} is not above {limit.gt}")


# Inputs -----------------------------------------------------------------------------------------------------


def read_videos(videos: Videos, options: NetworkOptions, required: bool = True) -> VideoList:
    """Read the videos of a job, unless they are a list that was read, and label them as `label_videos`.

    Raises:
        DataError: As of `read_input` and `label_videos`.
        ConfigError: Options for reading a list do not fit one that was read.
    """
    root, external = options.get("root"), options.get("allow_external", False)
    if not isinstance(videos, VideoList):
        videos = read_input(videos, root, external)
    elif root is not None or external:
        raise ConfigError("root and allow_external are for reading a list, and this one was read: leave them out")
    return label_videos(videos, options.get("labels"), required)


def reading(root: File | None, allow_external: bool = False) -> NetworkOptions:
    """Return the options of `read_videos`, of a job without a network."""
    options: NetworkOptions = {"allow_external": allow_external}
    if root is not None:
        options["root"] = root
    return options


def path_of(videos: Videos | None) -> Path | None:
    """Return the file or folder of videos, for the record of what an output was made of; None of several files."""
    if isinstance(videos, VideoList):
        return videos.path
    return Path(videos) if isinstance(videos, str | Path) else None


def file_of(model: Model) -> Path | None:
    """Return the file or folder that a model is, if it is one."""
    return Path(model) if isinstance(model, str | Path) else None


def models(model: Model | Sequence[Model]) -> list[Model]:
    """Return the networks of a job for one or several."""
    return [model] if isinstance(model, str | Path | nn.Module | LoadedEncoder) else [*model]
