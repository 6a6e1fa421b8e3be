"""Features of a list of videos: backbone outputs, averaged over the clips and crops of each video."""

import logging
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Literal

import torch
from pydantic import model_validator
from torch import Tensor

from vidssl import distributed
from vidssl.data.dataset import ClipDataset
from vidssl.data.loader import eval_loader, normalised, on_device
from vidssl.data.samplers import ClipSettings, Uniform
from vidssl.data.video_list import VideoList
from vidssl.errors import DataError
from vidssl.models.backbones import Backbone
from vidssl.progress import progress
from vidssl.transforms.recipes import UniformCrops, check_short_side
from vidssl.types import Features
from vidssl.video.reader import DecodeSettings

_log = logging.getLogger(__name__)


class TestClips(DecodeSettings):
    """Test settings: clips at uniform starts, each cut into square crops."""

    __test__ = False  # not a test of pytest

    clip: ClipSettings
    clips: int
    crops: int  # per clip, along the longer side; 1: the centre
    size: int  # side of the crops, pixels
    short_side: int | None = None  # of the video before cropping, pixels; None: size
    mean: tuple[float, ...]
    std: tuple[float, ...]
    batch_size: int = 8  # videos
    workers: int = 2
    prefetch: int = 2  # batches per worker, loaded in advance
    timeout: float = 120.0  # seconds per video
    precision: Literal["float32", "bfloat16"] = "float32"  # of the forward pass; sums over views are float32
    allow_missing: bool = False  # skip videos that cannot be read; otherwise they are an error

    @model_validator(mode="after")
    def _crop_fits(self) -> "TestClips":
        check_short_side(self.size, self.short_side)
        return self

    def dataset(self, videos: VideoList) -> ClipDataset:
        """Build the dataset whose samples are all views of a video."""
        clip = self.clip.model_dump(include=set(ClipSettings.model_fields))
        sampler = Uniform(Uniform.Config(**clip, clips=self.clips))
        settings = UniformCrops.Config(size=self.size, short_side=self.short_side, crops=self.crops)
        return ClipDataset(videos, sampler, [UniformCrops(settings)], reading=self, skip=self.allow_missing)


@torch.no_grad()
def extract(
    backbone: Backbone,
    videos: VideoList,
    test: TestClips,
    device: torch.device,
    title: str = "features",
    shard: tuple[int, int] = (0, 1),
    check: Callable[[], None] = lambda: None,
) -> Features:
    """Average the features of all views of each video; the processes divide the videos among them.

    With `test.allow_missing` videos that cannot be read have no row: they are in `missing`, ordered by path, and are
    logged. The backbone is in eval mode meanwhile; no random number is drawn.

    Args:
        backbone: On the device.
        videos: The list.
        test: Clips and crops.
        device: Device of the backbone.
        title: Title of the progress bar.
        shard: (i, n) takes only the videos i, i + n, i + 2n, …: the i-th of n parts, from 0. It can be empty.
        check: Called before each batch; a VidsslError or Interrupted that it raises ends the work on all processes.

    Raises:
        DataError: A video cannot be used, or all of the list cannot.
        PeerError: That happened on another process.
    """
    first, parts = shard
    loader = eval_loader(
        test.dataset(videos),
        test.batch_size,
        test.workers,
        first + parts * distributed.rank(),
        parts * distributed.world(),
        test.timeout,
        test.prefetch,
    )

    def work() -> tuple[Tensor, Tensor, list[tuple[str, str]]]:
        rows = [torch.empty(0, backbone.dim)]  # a process may have no videos
        indices = [torch.empty(0, dtype=torch.int64)]
        missing: list[tuple[str, str]] = []
        training = backbone.training
        backbone.eval()
        try:
            with closing(on_device(loader, device)) as batches:
                quiet = not distributed.is_main()
                bar = progress(batches, total=len(loader), title=title, unit="batch", disable=quiet, leave=False)
                for batch in bar:
                    check()
                    missing += batch.replaced
                    if len(batch.index):
                        rows.append(_mean_features(backbone, batch.views, test).cpu())
                        indices.append(batch.index.cpu())
        finally:
            backbone.train(training)
        return torch.cat(rows), torch.cat(indices), missing

    found = distributed.gather_outcomes(work)
    missing = sorted(pair for _, _, pairs in found for pair in pairs)
    for _, reason in missing if distributed.is_main() else ():
        _log.warning("skipped: %s", reason)
    if len(missing) == len(videos.records):
        raise DataError(f"none of the {len(missing)} videos of {videos.path} can be read; the first: {missing[0][1]}")
    index, order = torch.sort(torch.cat([index for _, index, _ in found]))
    label = torch.tensor(videos.labels)
    return Features(torch.cat([x for x, _, _ in found])[order], label[index], index, tuple(missing))


def _mean_features(backbone: Backbone, views: Sequence[Tensor], test: TestClips) -> Tensor:
    """Average features over uint8 views (B, T, C, S, S); to save memory only one of them is float at a time."""
    total = torch.zeros(())
    for view in views:
        clips = normalised(view, test.mean, test.std)
        with torch.autocast(view.device.type, torch.bfloat16, enabled=test.precision == "bfloat16"):
            features = backbone(clips).float()
        total = total + features
    return total / len(views)
