"""Class-balanced subsets of a list."""

from pydantic import Field, model_validator

from vidssl.config import Settings
from vidssl.data.video_list import VideoList
from vidssl.errors import DataError
from vidssl.keyed_generators import generator


class Subset(Settings):
    """A class-balanced subset: the same fraction of each class, or the same number of videos."""

    fraction: float | None = Field(default=None, gt=0, le=1)  # of each class, at least one video
    per_class: int | None = Field(default=None, ge=1)  # videos of each class; exactly one of the two
    seed: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _one_size(self) -> "Subset":
        if (self.fraction is None) == (self.per_class is None):
            raise ValueError("set exactly one of fraction and per_class")
        return self


def choose(videos: VideoList, subset: Subset) -> VideoList:
    """Draw a class-balanced subset of a list; larger subsets of the same seed include the smaller ones.

    Raises:
        DataError: The list has no labels, or a class has too few videos.
    """
    rows: dict[int, list[int]] = {}
    for n, label in enumerate(videos.labels.tolist()):
        rows.setdefault(label, []).append(n)
    if -1 in rows:
        raise DataError(f"a subset of {videos.path} is drawn by class, and {len(rows[-1])} videos have no label")
    chosen = []
    for label, members in rows.items():
        count = subset.per_class or max(1, int((subset.fraction or 0.0) * len(members) + 0.5))
        if count > len(members):
            raise DataError(
                f"{videos.path} has {len(members)} videos of class {videos.class_name(label)!r}, the subset needs "
                f"{count}: lower data.subset.per_class"
            )
        chosen += generator(subset.seed, label).permutation(members)[:count].tolist()
    return videos.rows(sorted(chosen))
