"""The videos that encoders predict differently, as a list to label next: a part of the page of a comparison."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from vidssl.viz.pages import Preview
from vidssl.viz.shown_videos import ShownVideos


@dataclass(frozen=True)
class Disagreements:
    """Rows of `videos`, that to label first at the start, with the class that each encoder predicts."""

    videos: ShownVideos
    rows: Sequence[int]
    predicted: Mapping[str, Sequence[int]]  # class numbers of `rows` by the name of the encoder, -1: none
    measure: Literal["entropy", "agreement"]
    values: Sequence[float]  # of the measure, of `rows`; agreement is a fraction

    def __post_init__(self) -> None:
        lengths = {name: len(labels) for name, labels in self.predicted.items()} | {self.measure: len(self.values)}
        if {*lengths.values()} != {len(self.rows)}:
            raise ValueError(f"{len(self.rows)} videos, but values of {lengths}: give one for each video")

    @property
    def previews(self) -> list[Preview]:
        """Those that the page embeds."""
        return [self.videos.previews[row] for row in self.rows if row in self.videos.previews]


def disagreements_content(disagreements: Disagreements, sprites: Mapping[Preview, int]) -> dict[str, Any]:
    """Make what `disagreements.html` shows; `sprites` are the numbers of the previews."""
    videos, is_fraction = disagreements.videos, disagreements.measure == "agreement"
    rows = []
    for n, (row, value) in enumerate(zip(disagreements.rows, disagreements.values, strict=True)):
        clip = videos.previews.get(row)
        rows.append(
            {
                "name": videos.names[row],
                "label": videos.class_name(videos.labels[row]),
                "sprite": clip and sprites[clip],
                "predicted": [videos.class_name(labels[n]) or "–" for labels in disagreements.predicted.values()],
                "value": f"{100 * value:.0f}%" if is_fraction else f"{value:.2f}",
            }
        )
    return {
        "encoders": [*disagreements.predicted],
        "measure": disagreements.measure,
        "has_labels": any(row["label"] for row in rows),
        "has_previews": bool(disagreements.previews),
        "rows": rows,
    }
