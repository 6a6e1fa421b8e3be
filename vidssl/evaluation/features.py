"""Features of a list of videos: a backbone over N clips x M crops of each, averaged."""

import logging
from collections.abc import Callable
from contextlib import closing

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
from vidssl.transforms.recipes import UniformCrops
from vidssl.types import Features

_log = logging.getLogger(__name__)


class TestClips(Reading):
    """What a network sees of a video when it is tested: clips at uniform starts, each cut into square crops."""

    __test__ = False  # no test, whatever pytest thinks of the name

    clip: ClipSettings
    clips: int
    crops: int  # of each clip, along the longer side; 1: the centre
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
        recipe = UniformCrops(UniformCrops.Config(size=self.size, crops=self.crops))
        return ClipDataset(videos, sampler, [recipe], reading=self, skip=self.allow_missing)


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
        shard: (i, n) takes the videos i, i + n, i + 2n, … only: the i-th of n parts, from 0. A part can be
            empty.
        check: Called before each batch; a VidsslError or Interrupted that it raises ends the work, everywhere.

    Returns:
        The same on every process.

    Raises:
        DataError: A video cannot be used, or none of the whole list can.
        PeerError: That happened on another process.
    """
    first, parts = shard
    loader = eval_loader(
        test.dataset(videos),
        test.batch_size,
        test.workers,
        first + parts * comm.rank(),
        parts * comm.world(),
        test.timeout,
    )

    def work() -> tuple[Tensor, Tensor, list[tuple[str, str]]]:
        rows = [torch.empty(0, backbone.dim)]  # this process may have no video at all
        indices = [torch.empty(0, dtype=torch.int64)]
        missing: list[tuple[str, str]] = []
        training = backbone.training
        backbone.eval()
        try:
            with closing(iter(loader)) as batches:
                for raw in progress(
                    batches,
                    total=len(loader),
                    title=title,
                    unit="batch",
                    disable=not comm.is_main(),
                    leave=False,
                ):
                    check()
                    missing += raw.replaced
                    if len(raw.index):
                        batch = to_device(raw, device, test.mean, test.std)
                        total = sum(backbone(view).float() for view in batch.views)
                        assert isinstance(total, Tensor)  # there is at least one view
                        rows.append((total / len(batch.views)).cpu())
                        indices.append(raw.index)
        finally:
            backbone.train(training)
        return torch.cat(rows), torch.cat(indices), missing

    found = comm.gather_outcomes(work)
    missing = sorted(pair for _, _, pairs in found for pair in pairs)
    for _, reason in missing if comm.is_main() else ():
        _log.warning("left out: %s", reason)
    if len(missing) == len(videos.records):
        raise DataError(
            f"none of the {len(missing)} videos of {videos.path} can be read; the first: {missing[0][1]}"
        )
    index, order = torch.sort(torch.cat([index for _, index, _ in found]))
    label = torch.tensor([record.label for record in videos.records])
    return Features(torch.cat([x for x, _, _ in found])[order], label[index], index, tuple(missing))
