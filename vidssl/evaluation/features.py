"""Features of a list of videos: a backbone over N clips x M crops of each, averaged."""

import logging
from contextlib import closing
from typing import Literal

import torch
from torch import Tensor

from vidssl import comm
from vidssl.data.dataset import ClipDataset
from vidssl.data.loader import eval_loader, to_device
from vidssl.data.records import VideoList
from vidssl.data.samplers import ClipSettings, Uniform
from vidssl.data.video import Reading
from vidssl.errors import DataError
from vidssl.models.backbones import Backbone
from vidssl.progress import progress
from vidssl.transforms.recipes import CenterCrop, Recipe, ThreeCrops
from vidssl.types import Features

_log = logging.getLogger(__name__)


class TestClips(Reading):
    """What a network sees of a video when it is tested: clips at uniform starts, each cut into square crops."""

    __test__ = False  # no test, whatever pytest thinks of the name

    clip: ClipSettings
    clips: int
    crops: Literal[1, 3]  # 1: the centre; 3: along the longer side
    size: int  # short side of the video and side of the crops, pixels
    mean: tuple[float, ...]
    std: tuple[float, ...]
    batch_size: int = 8  # videos at a time
    workers: int = 2
    timeout: float = 120.0  # seconds that one video may take
    allow_missing: bool = False  # leave out videos that cannot be read; else they are an error

    def dataset(self, videos: VideoList) -> ClipDataset:
        """Make the data set whose samples are all views of a video."""
        clip = self.clip.model_dump(include=set(ClipSettings.model_fields))
        sampler = Uniform(Uniform.Config(**clip, clips=self.clips))
        recipe: Recipe = (
            CenterCrop(CenterCrop.Config(size=self.size))
            if self.crops == 1
            else ThreeCrops(ThreeCrops.Config(size=self.size))
        )
        return ClipDataset(videos, sampler, [recipe], reading=self, skip=self.allow_missing)


@torch.no_grad()
def extract(
    backbone: Backbone, videos: VideoList, test: TestClips, device: torch.device, title: str = "features"
) -> Features:
    """Average the features of all views of each video; each video is seen exactly once, over all processes.

    With `test.allow_missing` videos that cannot be read have no row: they are in `missing`, in the order of
    their paths, and a warning names each.

    The backbone is put into eval mode for this and back afterwards; no random number is drawn.

    Args:
        backbone: On the device.
        videos: The list.
        test: Which clips and crops.
        device: Where the backbone is.
        title: Of the progress bar.

    Raises:
        DataError: A video cannot be used, or none can.
    """
    loader = eval_loader(
        test.dataset(videos), test.batch_size, test.workers, comm.rank(), comm.world(), test.timeout
    )
    training = backbone.training
    backbone.eval()
    rows: list[Tensor] = []
    indices: list[Tensor] = []
    missing: list[tuple[str, str]] = []
    try:
        with closing(iter(loader)) as batches:
            for raw in progress(
                batches, total=len(loader), title=title, unit="batch", disable=not comm.is_main(), leave=False
            ):
                missing += raw.replaced
                if len(raw.index):
                    batch = to_device(raw, device, test.mean, test.std)
                    total = sum(backbone(view).float() for view in batch.views)
                    assert isinstance(total, Tensor)  # there is at least one view
                    rows.append((total / len(batch.views)).cpu())
                    indices.append(raw.index)
    finally:
        backbone.train(training)
    parts = comm.gather_objects((rows, indices, missing))
    every = sorted(pair for part in parts for pair in part[2])
    for _, reason in every if comm.is_main() else ():
        _log.warning("left out: %s", reason)
    if len(every) == len(videos.records):
        raise DataError(
            f"none of the {len(every)} videos of {videos.path} can be read; the first: {every[0][1]}"
        )
    x = torch.cat([row for part in parts for row in part[0]])
    index, order = torch.sort(torch.cat([row for part in parts for row in part[1]]))
    label = torch.tensor([record.label for record in videos.records])
    return Features(x[order], label[index], index, tuple(every))
