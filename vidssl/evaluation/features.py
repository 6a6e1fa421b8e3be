"""Features of a list of videos: backbone outputs, averaged over the clips and crops of each video."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field, PrivateAttr, model_validator
from torch import Tensor, nn
from typing_extensions import Self

from vidssl import distributed
from vidssl.config import Settings
from vidssl.data.clip_samplers import ClipSettings, Uniform
from vidssl.data.dataset import SKIPPING, ClipDataset, most_broken
from vidssl.data.loader import eval_loader
from vidssl.data.shared_decoding import file_numbers
from vidssl.data.to_device import fetch_later, normalised, on_device
from vidssl.data.video_list import VideoList
from vidssl.errors import CheckpointError, ConfigError, DataError, first_few, in_one_line
from vidssl.left_out import leave_out
from vidssl.models.backbones import Backbone
from vidssl.models.bfloat16_check import check_bfloat16
from vidssl.models.eval_mode import eval_mode
from vidssl.models.layer_features import LayerFeatures, check_grid
from vidssl.progress import progress
from vidssl.transforms.crops import View
from vidssl.transforms.recipes import Recipe, UniformCrops
from vidssl.types import Batch, Features, Frames
from vidssl.video.reader import DecodeSettings

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
    allow_missing: bool = False  # skip videos that cannot be read, whatever their number
    _few: bool = PrivateAttr(default=False)  # skip a few of them, as `skipping_few`

    def skipping_few(self) -> Self:
        """Return these settings for a job that reports no number on labels: it may skip `most_broken` of the videos."""
        settings = self.model_copy()
        settings._few = True
        return settings

    @property
    def skips(self) -> bool:
        """Whether a video that cannot be read is skipped; if not, the first one is an error."""
        return self.allow_missing or self._few

    def check_skipped(self, skipped: Iterable[tuple[str, str]], count: int, source: Path) -> None:
        """Raise a DataError if the videos skipped, path and reason, are too many of the `count` videos of `source`."""
        reasons = dict(skipped)  # a file may have several rows
        limit = count if self.allow_missing else most_broken(count) if self._few else 0
        if len(reasons) > limit:
            raise DataError(
                f"{len(reasons)} of {count} videos of {source} cannot be read: "
                f"{first_few(reasons.values(), separator='; ')}; at most {limit} may be left out here: {SKIPPING}"
            )

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
        return network if self.layer is None else LayerFeatures(network, self.layer, self.grid, self.grid_frames)

    def dataset(self, videos: VideoList) -> ClipDataset:
        """Build the dataset whose samples are all views of a video."""
        sampler = Uniform(Uniform.Config(**dict(self.clip), clips=self.clips))
        settings = UniformCrops.Config(size=self.size, short_side=self.short_side, crops=self.crops)
        return ClipDataset(videos, sampler, [UniformCrops(settings)], reading=self, skip=self.skips, remedy=SKIPPING)


class LibraryClips(TestClips):
    """Test settings of an encoder of another library, whose own preprocessing crops the frames."""

    crop: Any = Field(exclude=True, repr=False)  # frames (T, 3, H, W) to (T, 3, S, S), both uint8; None: vidssl's
    any_shape: bool = Field(default=False, exclude=True, repr=False)  # crops may have another shape
    library: str  # name and version

    def dataset(self, videos: VideoList) -> ClipDataset:
        """Build the dataset whose samples are the clips of a video."""
        if self.crop is None:
            return super().dataset(videos)
        sampler = Uniform(Uniform.Config(**dict(self.clip), clips=self.clips))
        crop = _LibraryCrop(self.crop, None if self.any_shape else self.size)
        return ClipDataset(videos, sampler, [crop], reading=self, skip=self.skips, remedy=SKIPPING)


class _LibraryCrop(Recipe):
    def __init__(self, crop: Callable[[Frames], Frames], size: int | None) -> None:
        super().__init__(Settings())
        self.crop, self.size = crop, size

    def __call__(self, frames: Frames, generator: np.random.Generator) -> list[View]:
        try:
            made, shape = self.crop(frames), (len(frames), 3, self.size, self.size)
        except Exception as error:  # of the crop
            raise ConfigError(
                f"the crop of the encoder fails for frames {frames.shape}: {in_one_line(error)}"
            ) from error
        found = f"{made.dtype} {made.shape}" if isinstance(made, np.ndarray) else type(made).__name__
        if found != f"uint8 {shape}" and self.size is not None:
            raise ConfigError(f"the crop of the encoder makes {found} of frames {frames.shape}, not uint8 {shape}")
        return [View(made, None)]


class BothDirections(nn.Module):
    """Encodes clips (B, C, T, S, S) and the same clips reversed: (B, 2 D), the features of the reversed ones last."""

    def __init__(self, encoder: Backbone) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, clips: Tensor) -> Tensor:
        """Encode the clips."""
        return torch.cat([self.encoder(clips), self.encoder(clips.flip(2))], dim=1)


def extract(
    encoder: Backbone,
    videos: VideoList,
    test: TestClips,
    device: torch.device,
    title: str = "features",
    shard: tuple[int, int] = (0, 1),
    check: Callable[[], None] = lambda: None,
    classify: Classifier | None = None,
    reverse: bool = False,
    rows: slice = slice(None),
) -> Features:
    """Average the features of all views of each video, as in `encode_videos`; the encoder is `test.encoder(backbone)`.

    Videos that cannot be read and are skipped have no row. With `classify` the class probabilities are
    appended to the features of each view. With `reverse` the reversed clips are encoded too, without decoding again.
    `shard` and `rows` select videos as in `encode_videos`.
    """
    dim = encoder.dim
    network = BothDirections(encoder) if reverse else encoder

    def average(batch: Batch, features: Iterator[Tensor]) -> tuple[Tensor]:
        rows = features if classify is None else (torch.cat([h, classify(h[:, :dim])], dim=1) for h in features)
        return (sum(rows, torch.zeros(())) / len(batch.views),)

    columns, missing = encode_videos(network, test.dataset(videos), test, device, average, title, shard, check, rows)
    index, x = columns or (torch.empty(0, dtype=torch.int64), torch.empty(0, dim * (1 + reverse)))  # an empty part
    targets = None if videos.targets is None else torch.from_numpy(videos.targets)[index]
    other = None
    if reverse:
        x, other = torch.cat([x[:, :dim], x[:, 2 * dim :]], dim=1), encoder.finish(x[:, dim : 2 * dim])
    x = finished(encoder, x)
    if not torch.isfinite(x).all():
        row = int(torch.isfinite(x).flatten(1).all(dim=1).int().argmin())
        path = videos.records[int(index[row])].path
        raise CheckpointError(f"{path}: a feature is not finite: the weights or the normalisation are damaged")
    label = torch.from_numpy(videos.labels)[index]
    numbers = {name: torch.from_numpy(column)[index] for name, column in videos.columns.items()}
    return Features(x, label, index, missing, targets, test.cells, other, videos.classes, numbers)


Extract = Callable[..., Features]  # with the arguments of `extract`


class KeptFeatures:
    """Extracts the features of each list once, of one network: with class probabilities, and of the reversed clips."""

    def __init__(self, classify: Classifier | None) -> None:
        self._classify = classify
        self._found: dict[tuple[str, str, str], Features] = {}

    def __call__(
        self,
        encoder: Backbone,
        videos: VideoList,
        test: TestClips,
        device: torch.device,
        title: str = "features",
        check: Callable[[], None] = lambda: None,
        classify: Classifier | None = None,
        reverse: bool = False,
    ) -> Features:
        """Return what `extract` does."""
        clips = test.model_dump_json(exclude={"batch_size", "workers", "timeout"})
        key = (videos.fingerprint, str(videos.root), clips)
        if key not in self._found:
            whole = self._classify if test.layer is None else None
            self._found[key] = extract(encoder, videos, test, device, title, check=check, classify=whole, reverse=True)
        kept = self._found[key]
        x = kept.x if classify is not None else kept.x[:, : encoder.dim]
        return replace(kept, x=x, reverse=kept.reverse if reverse else None)


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
    encode: Callable[[Batch, Iterator[Tensor]], tuple[Tensor, ...]],
    title: str,
    shard: tuple[int, int] = (0, 1),
    check: Callable[[], None] = lambda: None,
    rows: slice = slice(None),
) -> tuple[list[Tensor], tuple[tuple[str, str], ...]]:
    """Encode each video of a dataset once, in eval mode; the processes divide the videos among them.

    `encode` makes tensors with B rows from a batch of B videos with uint8 views, and from an iterator over the features
    (B, D) of each view: to save memory, only one view is float at a time. `shard` (i, n) takes the videos i, i + n,
    i + 2n, …, which may be none, and `rows` those at some positions among them. `check` is called before each batch; a
    VidsslError or Interrupted that it raises ends the work on all processes. Videos that the dataset skips are named at
    the end of the job.

    Returns the rows (N,) of the list, ascending, with the tensors of `encode` (nothing without videos), and path and
    reason of each skipped video, ordered by path. A DataError is raised if all are skipped, or more than the settings
    allow of those that are encoded here; a ConfigError if bfloat16 is wrong on this CPU.
    """
    if test.precision == "bfloat16":
        check_bfloat16(encoder, device)
    first, parts = shard
    mine = first + parts * distributed.rank(), parts * distributed.world()
    loader = eval_loader(dataset, test.batch_size, test.workers, *mine, test.timeout, rows)
    count_files = cache(lambda: len({*_paths(dataset, shard, rows)}))  # only if a video cannot be read
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=test.precision == "bfloat16")

    def work() -> tuple[list[Tensor], list[tuple[str, str]]]:
        encoded: list[list[Tensor]] = []
        missing: list[tuple[str, str]] = []
        with eval_mode(encoder):
            count, quiet = len(range(mine[0], len(dataset), mine[1])[rows]), not distributed.is_main()
            clips, start = 0, time.perf_counter()
            with (
                closing(on_device(loader, device)) as batches,
                progress(title=title, unit=dataset.videos.unit, total=count, disable=quiet, leave=False) as bar,
            ):
                waits: list[Callable[[], list[Tensor]]] = []  # for the last batch, while a GPU computes the next
                for batch in batches:
                    check()
                    if batch.replaced:
                        missing += batch.replaced
                        test.check_skipped(missing, count_files(), dataset.videos.path)
                    if len(batch.index):
                        features = (encoder(normalised(view, test.mean, test.std)).float() for view in batch.views)
                        with autocast:
                            waits.append(fetch_later([batch.index, *encode(batch, features)]))
                        encoded += [wait() for wait in waits[:-1]]
                        del waits[:-1]
                    bar.update(len(batch.index) + len(batch.replaced))
                    clips += len(batch.index) * len(batch.views)
                    bar.set_postfix_str(f"{clips / (time.perf_counter() - start):.0f} clips/s", refresh=False)
                encoded += [wait() for wait in waits]
        return _joined(encoded), missing

    found = distributed.gather_outcomes(work)
    missing = sorted(pair for _, pairs in found for pair in pairs)
    if len(missing) == len(dataset):
        path = dataset.videos.path
        if len(missing) == 1:
            raise DataError(f"the only video of {path} cannot be read: {missing[0][1]}")
        raise DataError(f"none of the {len(missing)} videos of {path} can be read; the first: {missing[0][1]}")
    if missing:
        test.check_skipped(missing, count_files(), dataset.videos.path)  # those of all processes
        if distributed.is_main():
            leave_out(missing)
    columns = _joined([columns for columns, _ in found if columns])
    return [column[columns[0].argsort()] for column in columns], tuple(missing)


def _paths(dataset: ClipDataset, shard: tuple[int, int], rows: slice) -> Iterator[str]:
    """Yield the files that are encoded by all processes together."""
    first, parts = shard
    for row in np.flatnonzero(file_numbers(dataset.videos) % parts == first)[rows].tolist():
        yield dataset.videos.records[row].path


def _joined(rows: list[list[Tensor]]) -> list[Tensor]:
    return [torch.cat(column) for column in zip(*rows, strict=True)]
