"""Features of a list of videos: backbone outputs, averaged over the clips and crops of each video."""

import csv
import hashlib
import io
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import chain, islice, repeat, starmap
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from pydantic import Field, PrivateAttr, SerializeAsAny, model_validator
from torch import Tensor, nn
from typing_extensions import Self

from vidssl.base import distributed
from vidssl.base.atomic import file_hash, replacing, sync, write_json, write_whole, writing
from vidssl.base.command_line_and_notices import leave_out
from vidssl.base.config import Settings, Tree
from vidssl.base.errors import CheckpointError, ConfigError, DataError, in_one_line
from vidssl.base.output_folder import check_files, claim
from vidssl.base.progress import progress
from vidssl.base.safe_parse import map_array, read_json
from vidssl.base.types import Batch, Features, Frames, VideoMeta, VideoRecord
from vidssl.data.allowed_paths import RealPath, existing_path
from vidssl.data.clip_samplers import Clip, ClipSettings, Sampler, Uniform
from vidssl.data.dataset import SKIPPING, ClipDataset
from vidssl.data.find_same_videos import content_hash
from vidssl.data.list_identity import state_of_file
from vidssl.data.loader import eval_loader
from vidssl.data.to_device import fetch_later, normalised, on_device
from vidssl.data.video_list import Records, VideoList
from vidssl.models.backbones import Backbone
from vidssl.models.convolution_check import check_bfloat16
from vidssl.models.eval_mode import eval_mode
from vidssl.models.joined_features import InOrder, Joined, unit_parts
from vidssl.models.layer_features import LayerFeatures, check_grid
from vidssl.transforms.crops import View
from vidssl.transforms.recipes import Recipe, UniformCrops
from vidssl.version import __version__
from vidssl.video.reader import DecodeSettings

_log = logging.getLogger(__name__)
EncodeBatch = Callable[[Batch, Iterator[Tensor]], tuple[Tensor, ...]]  # see `encode_videos`
Classifier = Callable[[Tensor], Tensor]  # backbone outputs (B, D) to class probabilities (B, classes)


class FeatureSettings(Settings):
    """What the features of a video are made of: of a run in `evaluate`, of a test in `TestClips`."""

    clips: int = Field(default=10, ge=1)
    crops: int = Field(default=3, ge=1)  # of each clip, along the longer side; 1: the centre
    # The short side is resized to this before cropping, pixels; None: size. ImageNet: 256 with size 224.
    short_side: int | None = Field(default=None, ge=1)
    batch_size: int = Field(default=8, ge=1)  # videos at a time
    precision: Literal["float32", "bfloat16"] = "float32"  # of the forward pass; sums over views are float32
    # The layer whose feature maps, averaged over grid x grid x grid_frames cells, are the features. None: that of the
    # run's classifier, if it has one, else the features of the backbone.
    layer: str | None = None
    grid: int = Field(default=1, ge=1)
    grid_frames: int = Field(default=1, ge=1)

    @model_validator(mode="after")
    def _has_layer(self) -> Self:
        check_grid(self)
        return self


class TestClips(FeatureSettings, DecodeSettings):
    """Test settings: clips at uniform starts, each cut into square crops."""

    __test__ = False  # not a test of pytest

    clip: ClipSettings
    size: int = Field(default=224, ge=1)  # side of the crops, pixels
    mean: tuple[float, ...] = (0.45,)  # of pixels in [0, 1]; one value, or one per channel
    std: tuple[float, ...] = (0.225,)
    workers: int = Field(default=2, ge=0)
    timeout: float = 120.0  # seconds per video
    stream: str | None = None  # of a backbone with streams, the one that is measured; None: all
    join: Literal["mean", "order"] = "mean"  # of the clips of a video, or their features one after another
    allow_missing: bool = False  # skip videos that cannot be read, also of a list with labels that is measured
    _skips: bool = PrivateAttr(default=False)  # skip them, and decide no number: no part of the protocol

    def skipping(self) -> Self:
        """Return these settings for videos of which nobody said that all are measured: see `VideoList.is_test_set`."""
        settings = self.model_copy()
        settings._skips = True
        return settings

    @property
    def skips(self) -> bool:
        """Whether videos that cannot be read are skipped; if not, the first one is an error."""
        return self.allow_missing or self._skips

    @property
    def cells(self) -> int:
        """Positions of the maps that the features consist of; 1 without a layer."""
        return 1 if self.layer is None else self.grid_frames * self.grid**2

    def network(self, backbone: Backbone) -> Backbone:
        """Return the network that is measured: the backbone, or one of its streams."""
        return backbone if self.stream is None else backbone.stream(self.stream)

    def encoder(self, backbone: Backbone) -> Backbone:
        """Return the network whose features are measured: that of `network`, or one of its layers."""
        network = self.network(backbone)
        network = network if self.layer is None else LayerFeatures(network, self.layer, self.grid, self.grid_frames)
        return network if self.join == "mean" else InOrder(network, self.clips, self.clip.frames)

    def dataset(self, videos: VideoList) -> ClipDataset:
        """Build the dataset whose samples are all views of a video."""
        sampler, recipe = AllClips([self]), self.recipe()
        return ClipDataset(videos, sampler, [recipe], reading=self, skip=self.skips, remedy=SKIPPING)

    @property
    def num_views(self) -> int:
        """Views of a video; clips that are joined in order are one."""
        return self.crops * (self.clips if self.join == "mean" else 1)

    def recipe(self) -> Recipe:
        """Return what crops the clips."""
        return UniformCrops(UniformCrops.Config(size=self.size, short_side=self.short_side, crops=self.crops))

    def encode(self, encoder: Callable[..., Tensor], views: Iterable[Tensor]) -> Iterator[Tensor]:
        """Encode uint8 views (B, T, 3, S, S) of the dataset one after another, as features (B, D)."""
        return (encoder(normalised(view, self.mean, self.std)).float() for view in views)

    def average(self, views: Iterator[Tensor], dims: Sequence[int]) -> Tensor:
        """Return the mean of the features (B, D) of all views."""
        return mean_of([*views])


class LibraryClips(TestClips):
    """Test settings of an encoder of another library, whose own preprocessing crops the frames."""

    crop: Any = Field(exclude=True, repr=False)  # frames (T, 3, H, W) to (T, 3, S, S), both uint8; None: vidssl's
    any_shape: bool = Field(default=False, exclude=True, repr=False)  # crops may have another shape
    library: str  # name and version

    def recipe(self) -> Recipe:
        """Return what crops the clips."""
        return _LibraryCrop(self.crop, None if self.any_shape else self.size) if self.crop else super().recipe()


class JoinedClips(TestClips):
    """Test settings of several networks, each with its own clips, whose videos are decoded once."""

    parts: tuple[SerializeAsAny[TestClips], ...]  # the other settings are those of the first one

    def dataset(self, videos: VideoList) -> ClipDataset:
        """Build the dataset whose samples are all views of a video for all networks."""
        recipes = [part.recipe() for part in self.parts for _ in range(part.num_views // part.crops)]
        return ClipDataset(videos, AllClips(self.parts), recipes, reading=self, skip=self.skips, remedy=SKIPPING)

    def encode(self, encoder: Callable[..., Tensor], views: Iterable[Tensor]) -> Iterator[Tensor]:
        """Encode the views of each network by it."""
        views = iter(views)
        for number, part in enumerate(self.parts):
            yield from part.encode(partial(encoder, number=number), islice(views, part.num_views))

    def average(self, views: Iterator[Tensor], dims: Sequence[int]) -> Tensor:
        """Return the means of the features (B, D) of all views of each network, side by side."""
        means = [mean_of([*islice(views, part.num_views)]) for part in self.parts]
        # Of both directions those of all networks come first, then all of the reversed clips.
        directions = [mean.reshape(len(mean), -1, dim) for mean, dim in zip(means, dims, strict=True)]
        return torch.cat(directions, dim=2).flatten(1)


def mean_of(views: Sequence[Tensor]) -> Tensor:
    """Return the mean of tensors."""
    return sum(views, torch.zeros(())) / len(views)


class AllClips(Sampler):
    """A sampler: the clips of several settings, one after another; those that are joined in order are one clip."""

    def __init__(self, tests: Sequence[TestClips]) -> None:
        samplers = [Uniform(Uniform.Config(**dict(test.clip), clips=test.clips)) for test in tests]
        self._samplers = [(sampler, test.join) for sampler, test in zip(samplers, tests, strict=True)]

    def __call__(self, meta: VideoMeta, generators: Sequence[np.random.Generator]) -> list[Clip]:
        """Choose the clips."""
        all_clips = list[Clip]()
        for sampler, join in self._samplers:
            clips = sampler(meta, generators)
            if join == "order":
                clips = [Clip(np.concatenate([clip.indices for clip in clips]), clips[0].first, clips[-1].last)]
            all_clips += clips
        return all_clips


class _LibraryCrop(Recipe):
    def __init__(self, crop: Callable[[Frames], Frames], size: int | None) -> None:
        super().__init__(Settings())
        self.crop, self.size = crop, size

    def __call__(self, frames: Frames, generator: np.random.Generator) -> list[View]:
        try:
            crop, shape = self.crop(frames), (len(frames), 3, self.size, self.size)
        except Exception as error:  # of the crop
            raise ConfigError(f"the encoder cannot crop frames {frames.shape}: {in_one_line(error)}") from error
        kind = f"{crop.dtype} {crop.shape}" if isinstance(crop, np.ndarray) else type(crop).__name__
        if kind != f"uint8 {shape}" and self.size is not None:
            raise ConfigError(f"the crop of the encoder makes {kind} of frames {frames.shape}, not uint8 {shape}")
        return [View(crop, None)]


class BothDirections(nn.Module):
    """Encodes clips (B, C, T, S, S) and the same clips reversed: (B, 2 D), the features of the reversed ones last."""

    def __init__(self, encoder: Backbone) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, clips: Tensor, **part: int) -> Tensor:
        """Encode the clips."""
        return torch.cat([self.encoder(clips, **part), self.encoder(clips.flip(2), **part)], dim=1)


def extract_features(
    encoder: Backbone,
    videos: VideoList,
    test: TestClips,
    device: torch.device,
    title: str = "features",
    check: Callable[[], object] = lambda: None,
    classify: Classifier | None = None,
    reverse: bool = False,
    rows: Sequence[int] | None = None,
    keep: Callable[[Features], object] = lambda part: None,
) -> Features:
    """Average the features of all views of each video, as in `encode_videos`; the encoder is `test.encoder(backbone)`.

    Videos that cannot be read and are skipped have no row. With `classify` the class probabilities are
    appended to the features of each view. With `reverse` the reversed clips are encoded too, without decoding again.
    `rows` are those of `encode_videos`, `check` and `keep` too, which here takes the features of a part.
    """
    dim, dims = encoder.dim, encoder.dims if isinstance(encoder, Joined) else [encoder.dim]
    network = BothDirections(encoder) if reverse else encoder

    def average(batch: Batch, features: Iterator[Tensor]) -> tuple[Tensor]:
        views = features if classify is None else (torch.cat([h, classify(h[:, :dim])], dim=1) for h in features)
        return (test.average(views, dims),)

    def features_of(columns: list[Tensor], missing: tuple[tuple[str, str], ...] = ()) -> Features:
        index, x = columns or (torch.empty(0, dtype=torch.int64), torch.empty(0, dim * (1 + reverse)))  # an empty part
        targets = None if videos.targets is None else torch.from_numpy(videos.targets)[index]
        reversed_x = None
        if reverse:  # the columns: features, those of the reversed clips, class probabilities
            x, reversed_x = torch.cat([x[:, :dim], x[:, 2 * dim :]], dim=1), encoder.finish(x[:, dim : 2 * dim])
        x = finished(encoder, x)
        if not torch.isfinite(x).all():
            row = int(torch.isfinite(x).flatten(1).all(dim=1).int().argmin())
            path = videos.records[int(index[row])].path
            raise CheckpointError(f"{path}: a feature is not finite: the weights or the normalisation are damaged")
        label = torch.from_numpy(videos.labels)[index]
        numbers = {name: torch.from_numpy(column)[index] for name, column in videos.columns.items()}
        return Features(x, label, index, missing, targets, test.cells, reversed_x, videos.classes, numbers)

    arguments = network, test.dataset(videos), test, device, average, title, check, rows
    return features_of(*encode_videos(*arguments, keep=lambda columns: keep(features_of(columns))))


def split_features(features: Features, dims: Sequence[int]) -> list[Features]:
    """Return those of each network of `Joined` networks, as `extract` makes them of it alone."""
    x = torch.split(features.x, [*dims], dim=1)
    reverse = [None] * len(x) if features.reverse is None else torch.split(features.reverse, [*dims], dim=1)
    return [replace(features, x=part.contiguous(), reverse=r) for part, r in zip(x, reverse, strict=True)]


def join_features(parts: Sequence[Features], weights: Sequence[float]) -> Features:
    """Return the features of a sum of networks, each a unit vector times its weight, of those of the same rows."""
    x = torch.cat([part.x for part in parts], dim=1)
    return replace(parts[0], x=unit_parts(x, [part.x.shape[1] for part in parts], weights))


def describe_network(name: str, request: Tree, *same: Tree) -> dict[str, Any]:
    """Describe in words what makes features comparable: the network, and the part of its clips that all must share.

    `request` is that of `Subject.request`, and `same` are other trees that identify its weights.
    """
    protocol, code = request["protocol"], request.get("code")
    identities = [json.dumps([weights, code], sort_keys=True).encode() for weights in (request["weights"], *same)]
    network = {"network": name, "weights": [hashlib.sha256(identity).hexdigest() for identity in identities]}
    if "parts" not in protocol:
        return network | _describe_clips(protocol)
    parts = [_describe_clips(part).items() for part in protocol["parts"]]
    return network | {f"{key} of part {n}": value for n, part in enumerate(parts, 1) for key, value in part}


def _describe_clips(protocol: Tree) -> dict[str, Any]:
    clip, size = protocol["clip"], protocol["size"]
    joined = {"clips in order": protocol["clips"]} if protocol.get("join") == "order" else {}
    return {
        **{key: protocol.get(key) for key in ("stream", "layer", "grid", "grid_frames")},
        **joined,
        "size": size,
        "short side": protocol.get("short_side") or size,
        **{key: [*protocol[key]] * (3 if len(protocol[key]) == 1 else 1) for key in ("mean", "std")},
        "frames of a clip": clip["frames"],
        "seconds of a clip": clip["seconds"],
        "sampling rate of a clip": clip["sampling_rate"],
        "target_fps of a clip": clip["target_fps"],
    }


def feature_difference(first: Mapping[str, Any], second: Mapping[str, Any]) -> str:
    """Name in words why features of two networks are not comparable; empty if they are, or it is not known."""
    differences = []
    if first and second and not {*first["weights"]} & {*second["weights"]}:
        same = " with other weights" if first["network"] == second["network"] else ""
        differences.append(f"network {first['network']} and {second['network']}{same}")
    for name in [key for key in first if key in second and key not in ("network", "weights")]:
        if first[name] != second[name]:
            values = ("none" if of[name] is None else str(of[name]) for of in (first, second))
            differences.append(f"{name} {' and '.join(values)}")
    return ", ".join(differences)


Extract = Callable[..., Features]  # with the arguments of `extract`


class KeptFeatures:
    """Extracts the features of each list once, of one network: with class probabilities, and of the reversed clips."""

    def __init__(self, classify: Classifier | None) -> None:
        self._classify = classify
        self._kept: dict[tuple[str, str, str], Features] = {}

    def __call__(self, encoder: Backbone, videos: VideoList, test: TestClips, *rest: Any, **options: Any) -> Features:
        """Return what `extract_features` does."""
        clips = test.model_dump_json(exclude={"batch_size", "workers", "timeout"})
        key = (videos.fingerprint, str(videos.root), clips)
        if key not in self._kept:
            whole = self._classify if test.layer is None else None
            of_all = {**options, "classify": whole, "reverse": True}
            self._kept[key] = extract_features(encoder, videos, test, *rest, **of_all)
        kept = self._kept[key]
        x = kept.x if options.get("classify") is not None else kept.x[:, : encoder.dim]
        return replace(kept, x=x, reverse=kept.reverse if options.get("reverse") else None)


def finished(encoder: Backbone, x: Tensor) -> Tensor:
    """Finish the features of videos (…, D), the first columns of `x`, after the average over clips; in place."""
    x[..., : encoder.dim] = encoder.finish(x[..., : encoder.dim])
    return x


@torch.no_grad()
def encode_videos(
    encoder: nn.Module,
    dataset: ClipDataset,
    test: TestClips,
    device: torch.device,
    encode: EncodeBatch,
    title: str,
    check: Callable[[], object] = lambda: None,
    rows: Sequence[int] | None = None,
    keep: Callable[[list[Tensor]], object] = lambda columns: None,
) -> tuple[list[Tensor], tuple[tuple[str, str], ...]]:
    """Encode each video of a dataset once, in eval mode; the processes divide the videos among them.

    `encode` makes tensors with B rows from a batch of B videos with uint8 views, and from an iterator over the features
    (B, D) of each view: to save memory, only one view is float at a time. `check` is called before each batch; a
    VidsslError or Interrupted that it raises ends the work on all processes. If it returns true, a part ends with
    this batch; when it has on all processes, `keep` is called there with the tensors. Videos that the dataset skips are
    named at the end of the job.

    `rows` are the rows to be encoded, which may be none. Then a video that is alone in its batch is encoded twice at
    once, as products of one row are rounded otherwise: on CPUs no bit depends on that. Libraries may
    round batches of other sizes otherwise too, by about 1e-7.

    Returns the rows (N,) of the list, ascending, with the tensors of `encode` (nothing without videos) for the last
    part, which may be all, and path and reason of each skipped video of all parts, ordered by path. A DataError is
    raised if all are skipped, a ConfigError if bfloat16 is wrong on this CPU.
    """
    if test.precision == "bfloat16":
        check_bfloat16(encoder, device)
    share = distributed.rank(), distributed.world()
    loader = eval_loader(dataset, test.batch_size, test.workers, *share, test.timeout, rows)

    def encode_batch(batch: Batch) -> tuple[Tensor, ...]:
        count, half = len(batch.index), test.precision == "bfloat16"
        twice = rows is not None and test.batch_size > 1 and count == 1
        views = (view.expand(2, *view.shape[1:]) if twice else view for view in batch.views)
        features = (h[:count] for h in test.encode(encoder, views))
        with torch.autocast(batch.index.device.type, torch.bfloat16, enabled=half):
            return encode(batch, features)

    def of_process() -> Generator[tuple[list[Tensor], list[tuple[str, str]], bool], None, None]:
        """Yield the columns of each part, the skipped videos, and whether it is the last part."""
        missing: list[tuple[str, str]] = []
        waits: list[Callable[[], list[Tensor]]] = []  # for the last batch, while a GPU computes the next
        count, unit = sum(map(len, loader.batches)), dataset.videos.unit
        encoded = _Columns(count)
        with (
            closing(on_device(loader, device)) as batches,
            progress(title=title, unit=unit, total=count, disable=not distributed.is_main(), leave=False) as bar,
        ):
            clips, start = 0, time.perf_counter()
            for batch in batches:
                ends = bool(check())
                missing += batch.replaced
                if len(batch.index):
                    waits.append(fetch_later([batch.index, *encode_batch(batch)]))
                for _ in range(len(waits) - 1 + ends):
                    encoded.add(waits.pop(0)())
                if ends:
                    yield [rows.clone() for rows in encoded.rows()], missing, False  # not the memory of all rows
                    encoded, missing = _Columns(count), []
                bar.update(len(batch.index) + len(batch.replaced))
                clips += len(batch.index) * len(batch.views)
                bar.set_postfix_str(f"{clips / (time.perf_counter() - start):.0f} clips/s", refresh=False)
            for wait in waits:
                encoded.add(wait())
        yield encoded.rows(), missing, True

    all_missing, are_last = list[tuple[str, str]](), (False,)
    with eval_mode(encoder), closing(of_process()) as parts:
        while not all(are_last):
            outcomes = distributed.gather_outcomes(partial(next, parts, ([], [], True)))
            of_processes, gaps, are_last = zip(*outcomes, strict=True)
            columns = [torch.cat(column) for column in zip(*filter(None, of_processes), strict=True)]
            columns = [column[columns[0].argsort()] for column in columns]
            all_missing += chain(*gaps)
            if not all(are_last):
                keep(columns)
    check_missing(all_missing, len(dataset), dataset.videos.path)
    return columns, tuple(sorted(all_missing))


def check_missing(missing: Sequence[tuple[str, str]], count: int, path: Path) -> None:
    """Note skipped videos, path and reason; a DataError if they are all of the so many videos of a list."""
    if len(missing) == count:
        none = "the only video cannot" if count == 1 else f"none of the {count} videos of {path} can"
        raise DataError(f"{none} be read{'' if count == 1 else '; the first'}: {min(missing)[1]}")
    if distributed.is_main():
        leave_out(missing)


class _Columns:
    """Rows of several tensors, in memory that is taken once.

    Small results that live on between the large tensors of the batches would scatter the memory that these need again,
    and a part of a batch would keep the memory of all of it.
    """

    def __init__(self, count: int) -> None:
        self._count, self._columns, self._used = count, list[Tensor](), 0

    def add(self, parts: Sequence[Tensor]) -> None:
        """Copy rows of each tensor."""
        if not self._columns:
            self._columns = [part.new_empty((self._count, *part.shape[1:])) for part in parts]
        for column, part in zip(self._columns, parts, strict=True):
            column[self._used : self._used + len(part)] = part
        self._used += len(parts[0])

    def rows(self) -> list[Tensor]:
        """Return the rows so far; no tensors if there are none."""
        return [column[: self._used] for column in self._columns]


_FORMAT = 1
_ARRAY, _ROWS, _META = "features.npy", "rows.csv", "meta.json"
NEW_FILES = ".new"  # folder below, for the files until they are complete
_TABLES = ("features.csv", "features.parquet")  # of `write_table`
NEAR_COPIES = "near_copies.json"  # that `vidssl map` keeps beside the features
_BESIDE = {_ARRAY, _ROWS, NEAR_COPIES, *_TABLES}
_SPAN = ("start", "end", "fps")
# What the content of a damaged folder raises.
_DAMAGED = (csv.Error, AttributeError, EOFError, FileNotFoundError, LookupError, OverflowError, TypeError, ValueError)
_BLOCK_ROWS = 8192  # rows of the array that are written at a time


class DamagedFolderError(DataError):
    """A folder of features is incomplete, or its files changed after they were written."""


class FileState(NamedTuple):
    """Tells whether a file is still the one that was read."""

    size: int = -1  # bytes; of a folder of images a number that depends on theirs; -1: there is no file
    changed: int = 0  # modification time in nanoseconds; of a folder of images a hash of names, sizes and times
    content: str = ""  # the first 32 digits of `content_hash`; empty: not known


class Files:
    """The files of videos as they are now, by real path: each is inspected once, and read if its content decides."""

    def __init__(self, videos: VideoList, rows: Iterable[int] | None = None) -> None:
        self.real_path = cache(RealPath())  # what a link meant when its file was inspected
        paths = (videos.records[n].path for n in (range(len(videos)) if rows is None else rows))
        self.states = {path: _state(path) for path in dict.fromkeys(map(self.real_path, paths))}

    def content(self, path: str) -> str:
        """Return the hash of the content of a file, by real path."""
        state = self.states[path]
        if not state.content:
            self.states[path] = state = state._replace(content=(content_hash(path) or "")[:32])
        return state.content

    def have(self, stored: Mapping[str, FileState]) -> bool:
        """Whether all stored files are among these, as they were, or at least with the same content."""
        return all(self._is(self.real_path(path), state) for path, state in stored.items())

    def _is(self, path: str, stored: FileState) -> bool:
        now = self.states.get(path)
        if now is None or now[:2] == stored[:2]:
            return now is not None and (stored.size <= 0 or bool(stored.content))  # else it could not be read
        return now.size == stored.size and stored.content == self.content(path) != ""

    def read(self, path: str) -> FileState:
        """Return the state of a file with its content; one that no file has if it changed after it was inspected."""
        path = self.real_path(path)
        self.content(path)
        state = self.states[path]
        return state if _state(path) == (*state[:2], "") else FileState(0)


def _state(path: str) -> FileState:
    try:
        sizes, changed = state_of_file(path)
    except (OSError, ValueError):  # ValueError: a name that no file can have
        return FileState()
    return FileState(sum(sizes), changed)


def claim_features(path: Path, read: Sequence[Path | None] = ()) -> None:
    """Decide that features may be written to a folder, which is empty or has features; see `vidssl.base.output_folder`.

    A complete folder of features is left to those who extract: if it has what they want, it may be read-only.
    """
    with suppress(OSError, ValueError, AttributeError):
        if {"format", "sha256", "request"} <= read_json(path / _META).keys():
            return
    claim(path, "features", read=read)


@dataclass(frozen=True)
class FeatureFolder:
    """Features of a list of videos, with all that is needed to use them without the list."""

    path: Path
    request: Tree  # what decides the features: weights, list, files and protocol
    features: Features  # memory-mapped
    records: Records  # file and span of each row, as in the list
    classes: tuple[str, ...]  # empty if the list has no class names
    files: Mapping[str, FileState]  # by full path, also of missing videos

    @property
    def root(self) -> Path:
        """The folder that the paths are relative to."""
        return self.records.roots[0]

    def videos(self, rows: Sequence[int], root: Path | None = None) -> VideoList:
        """List the videos of some rows; `root` replaces the stored one if the videos were moved."""
        records = Records(self.root if root is None else root, map(self.records.row, rows))
        return VideoList(self.path, records, self.classes)


class Piece(NamedTuple):
    """Some rows of features, and the rows of the list that they are of."""

    x: Tensor  # (n, D), may be memory-mapped
    rows_of_x: Tensor  # (m,)
    rows: Tensor  # (m,) rows of the list, ascending

    @classmethod
    def of(cls, features: Features) -> "Piece":
        """Return all rows of features."""
        return cls(features.x, torch.arange(len(features)), features.index)


def _span(record: VideoRecord) -> tuple[float | None, float | None, float | None]:
    return record.start, record.end, record.fps


def write_folder(
    path: Path,
    request: Tree,
    listed: Callable[[list[int]], VideoList],
    pieces: Sequence[Piece],
    missing: Iterable[tuple[str, str]],
    state_of: Callable[[str], FileState],
    made_by: Mapping[str, Any],
) -> None:
    """Write the rows of all pieces, sorted by index; `listed` selects rows of the list, `state_of` has their files.

    The arrays of the pieces are read in blocks. A process that is killed leaves the features of before, or these.
    """
    index, new = torch.cat([piece.rows for piece in pieces]).sort().values, path / NEW_FILES
    videos = listed(index.tolist())
    spans = [*map(_span, videos.records)]
    used = 3 if any(span[2] for span in spans) else 2 if any(span[:2] != (None, None) for span in spans) else 0
    groups = [[record.group] for record in videos.records] if any(r.group for r in videos.records) else repeat([])
    rows = zip(index.tolist(), videos.names, videos.records, spans, groups)  # noqa: B905 - of any length
    lines = ((name, row.label, n, *span[:used], *group, *state_of(row.path)) for n, name, row, span, group in rows)
    header = ("path", "label", "index", *_SPAN[:used], *["group"] * isinstance(groups, list), *FileState._fields)
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *lines])
    with writing(path), ExitStack() as on_error:
        _move_into_place(path)  # what a process that was killed left
        on_error.callback(shutil.rmtree, new, ignore_errors=True)
        new.mkdir(parents=True)
        with replacing(new / _ARRAY) as file:
            shape = len(index), pieces[0].x.shape[1]
            np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
            positions_of_pieces = [torch.searchsorted(index, piece.rows) for piece in pieces]  # in the file, ascending
            for start in range(0, len(index), _BLOCK_ROWS):
                block = torch.empty(min(_BLOCK_ROWS, len(index) - start), shape[1])
                for (x, rows_of_x, _), positions in zip(pieces, positions_of_pieces, strict=True):
                    first, last = torch.searchsorted(positions, torch.tensor([start, start + len(block)])).tolist()
                    block[positions[first:last] - start] = x[rows_of_x[first:last]]
                file.write(block.numpy().astype("<f4").data)
        write_whole(new / _ROWS, text.getvalue().encode())
        content = {
            "format": _FORMAT,
            "sha256": {name: file_hash(new / name) for name in (_ARRAY, _ROWS)},
            "request": request,
            "root": str(videos.root.resolve()),
            "classes": videos.classes,
            "network": made_by["network"],
            "made_by": made_by,
            "missing": [
                {"path": name, "reason": reason, **state_of(name)._asdict()} for name, reason in sorted(missing)
            ],
            "versions": {"vidssl": __version__, "torch": torch.__version__},
        }
        write_json(new / _META, content)
        on_error.pop_all()
        _remove_tables(path)
        _move_into_place(path)


def _move_into_place(path: Path) -> None:
    """Move the files of `write_folder` into their folder if they are complete; until then `read_folder` finds them."""
    if (path / NEW_FILES / _META).exists():
        (path / _META).unlink(missing_ok=True)
        for name in (_ARRAY, _ROWS, _META):
            with suppress(FileNotFoundError):  # it is there already
                os.replace(path / NEW_FILES / name, path / name)
        sync(path)
    shutil.rmtree(path / NEW_FILES, ignore_errors=True)


def _remove_tables(path: Path) -> None:
    """Remove the tables of the former features from a folder; what vidssl did not write, or was changed, stays."""
    for table in (path / name for name in _TABLES if os.path.lexists(path / name)):
        unknown = [table]
        with suppress(DataError):  # a link, or a folder
            unknown = check_files(path, [table.name])
        if unknown:
            _log.warning("%s stays as it is, though the features are new: vidssl did not write it so", table)
        else:
            table.unlink()
            _log.info("%s was of the former features and is removed: to=%s writes it", table, table.suffix[1:])


def read_folder(path: Path, remedy: str, verify: bool = True) -> FeatureFolder:
    """Open a folder of features, memory-mapped; `verify` compares the checksums of its files, which reads all of them.

    Raises:
        DamagedFolderError: It is incomplete, or a file was cut or changed.
        DataError: It is not a folder of features; the message ends with `remedy`.
        OSError: It cannot be read.
    """
    unlike = f"{path} is not a folder of features of format {_FORMAT}: {remedy}"
    files_of = {name: path / name for name in (_ARRAY, _ROWS, _META)}
    if not files_of[_META].exists():  # the process was killed while it moved the new ones into place, or before
        files_of |= {name: new for name in files_of if (new := path / NEW_FILES / name).exists()}
    if not files_of[_META].exists():
        if {file.name for file in path.iterdir() if not file.name.startswith(".")} - _BESIDE:
            raise DataError(unlike)
        raise DamagedFolderError(f"{path} is incomplete: it has no {_META}")
    try:
        meta = read_json(files_of[_META])
        if not isinstance(meta, dict) or meta.get("format") != _FORMAT or "sha256" not in meta:
            raise DataError(unlike)
        for name in (_ARRAY, _ROWS) if verify else ():
            if file_hash(files_of[name]) != meta["sha256"][name]:
                raise ValueError(f"{name} was changed")
        x = torch.from_numpy(map_array(files_of[_ARRAY]))  # "c": torch warns of read-only arrays
        with open(files_of[_ROWS], encoding="utf-8", newline="") as file:
            lines = csv.reader(file)
            columns: dict[str, list[str]] = {name: [] for name in next(lines, [])}
            for line in lines:  # with millions of lines much faster than zip(*lines)
                for column, text in zip(columns.values(), line, strict=True):
                    column.append(text)
        label, index = (torch.from_numpy(np.fromiter(map(int, columns[key]), np.int64)) for key in ("label", "index"))
        missing = tuple((gap["path"], gap["reason"]) for gap in meta["missing"])
        feature_difference(meta["made_by"], meta["made_by"])  # is complete
        spans = (map(_number, columns[key]) if key in columns else repeat(None) for key in _SPAN)
        groups = (text or None for text in columns.get("group", [""] * len(label)))
        unused = repeat(None), repeat(None), repeat(dict[str, float]())
        root, rows = Path(meta["root"]), zip(columns["path"], label.tolist(), *spans, *unused, groups)  # noqa: B905
        files = {gap["path"]: FileState(gap["size"], gap["changed"], gap["content"]) for gap in meta["missing"]}
        for name, size, changed, content in zip(*(columns[key] for key in ("path", *FileState._fields)), strict=True):
            files[existing_path(root, name)] = FileState(int(size), int(changed), content)
        return FeatureFolder(
            path,
            meta["request"],
            Features(x, label, index, missing, made_by=meta["made_by"]),
            Records(root, starmap(VideoRecord, rows)),
            tuple(meta["classes"]),
            files,
        )
    except _DAMAGED as error:
        raise DamagedFolderError(f"{path} is damaged ({type(error).__name__}: {error})") from None


def _number(text: str) -> float | None:
    return float(text) if text else None


def find_rows(
    stored: Sequence[FeatureFolder], videos: VideoList, rows: Iterable[int], files: Files
) -> dict[int, tuple[int, int]]:
    """Find the features of rows of a list: number of the folder and row there, where file and span are equal."""
    known: dict[tuple[object, ...], tuple[int, int, str]] = {}  # folder, row and content, by file and by content
    sizes = set()
    for number, folder in enumerate(stored):
        for row, record in enumerate(folder.records):
            state, span = folder.files.get(record.path, FileState()), _span(record)
            entry = number, row, state.content
            known[files.real_path(record.path), state[:2], span] = known[state.content, span] = entry
            sizes.add(state.size)
    matches = {}
    for n in rows:
        record = videos.records[n]
        path, span = files.real_path(record.path), _span(record)
        now = files.states[path]
        same = known.get((path, now[:2], span))
        if same is None and now.size in sizes and (content := files.content(path)):
            same = known.get((content, span))
        if same is not None and now.size >= 0:
            matches[n] = same[:2]
            files.states[path] = now._replace(content=same[2])  # known: it is not read again
    return matches
