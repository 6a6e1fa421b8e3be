"""The one dataset: (epoch, index) to a sample, and what happens when a video is broken."""

from collections.abc import Sequence

import cv2

from vidssl.data.records import VideoList
from vidssl.data.samplers import Sampler
from vidssl.data.video import Reading
from vidssl.data.views import make_views
from vidssl.errors import DataError, DecodeError
from vidssl.randomness import generator
from vidssl.transforms import Recipe
from vidssl.types import Sample
from vidssl.workers import Desk


class ClipDataset:
    """Clips of the videos of a list.

    Args:
        videos: The list.
        sampler: Chooses the clips of a video.
        recipes: One for each view, or one for all clips.
        seed: Every random choice of a sample is a function of (seed, epoch, index, view).
        replace: How many broken videos in a row the next ones may stand in for. 0, for evaluation: a broken
            video is an error.
        reading: How videos are read.
        skip: Instead of an error, a broken video gives a sample without views; `replaced` names it.
    """

    def __init__(
        self,
        videos: VideoList,
        sampler: Sampler,
        recipes: Sequence[Recipe],
        seed: int = 0,
        replace: int = 0,
        reading: Reading | None = None,
        skip: bool = False,
    ) -> None:
        self.videos = videos
        self.replace = replace
        self.skip = skip
        self._sampler = sampler
        self._recipes = list(recipes)
        self._seed = seed
        self._reading = reading or Reading()

    def __len__(self) -> int:
        return len(self.videos.records)

    def __getitem__(self, key: tuple[int, int]) -> Sample:
        """Make the sample of (epoch, index), as `sample` does."""
        return self.sample(key, Desk())

    def sample(self, key: tuple[int, int], desk: Desk) -> Sample:
        """Make the sample of (epoch, index).

        Args:
            key: Epoch and index.
            desk: Hears of each record that is opened. A record that was lost there, for it hung or killed its
                process, counts as a broken video.

        Raises:
            DataError: The video, and `replace` more after it, cannot be used.
        """
        epoch, index = key
        broken: list[tuple[str, str]] = []
        for step in range(min(self.replace, len(self) - 1) + 1):
            # By rule, not by chance: the next video of the list takes the place.
            at = (index + step) % len(self)
            path = self.videos.records[at].path
            try:
                if at in desk.lost:
                    raise DataError(f"{path}: {desk.lost[at]}")
                desk.at(at)
                return self._sample(epoch, at, tuple(broken))
            except DataError as error:
                broken.append((path, str(error)))
        if self.skip:
            return Sample((), self.videos.records[index].label, index, tuple(broken))
        if len(broken) == 1:
            raise DataError(broken[0][1])
        shown = "; ".join(reason for _, reason in broken[:5])
        raise DataError(
            f"{len(broken)} videos in a row cannot be used: {shown}; mend the list or raise data.max_broken"
        )

    def _sample(self, epoch: int, index: int, broken: tuple[tuple[str, str], ...]) -> Sample:
        cv2.setNumThreads(0)  # workers share the cores already; OpenCV's own pool would fight them
        record = self.videos.records[index]
        generators = [generator(self._seed, epoch, index, view) for view in range(len(self._recipes))]
        with self._reading.open(record) as video:
            try:
                views = make_views(video, record, self._sampler, self._recipes, generators)
            except DecodeError:
                raise
            except DataError as error:
                raise DataError(f"{record.path}: {error}") from None
        return Sample(views, record.label, index, broken)
