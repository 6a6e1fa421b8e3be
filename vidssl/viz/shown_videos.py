"""The videos that the parts of a page show: their names, classes and previews, by row."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from vidssl.viz.pages import Preview


@dataclass(frozen=True)
class ShownVideos:
    """N videos, some of them with a preview; class 3 without a name is "class 3"."""

    names: Sequence[str]  # (N,) such as the paths in the list
    labels: Sequence[int]  # (N,) class numbers, -1: unknown
    class_names: Sequence[str] = ()  # by class number
    previews: Mapping[int, Preview] = field(default_factory=dict)  # by row

    def __post_init__(self) -> None:
        if len(self.names) != len(self.labels):
            raise ValueError(f"{len(self.names)} names and {len(self.labels)} labels: give one of each for every video")

    def class_name(self, label: int) -> str:
        """Return the name of a class; "" for -1."""
        if label < 0:
            return ""
        return self.class_names[label] if label < len(self.class_names) else f"class {label}"
