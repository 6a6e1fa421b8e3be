"""What the page of a comparison shows of single videos: neighbours side by side, and a list to label next.

`sprites` are the numbers of the previews that the page embeds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vidssl.viz.pages import Preview


@dataclass(frozen=True)
class ShownVideos:
    """N videos, some of them with a preview; class 3 without a name is "class 3"."""

    names: Sequence[str]  # (N,) such as the paths in the list
    labels: Sequence[int]  # (N,) class numbers, -1: unknown
    class_names: Sequence[str] = ()  # by class number
    previews: Mapping[int, Preview] = field(default_factory=dict)  # by row

    def class_name(self, label: int) -> str:
        """Return the name of a class; "" for -1."""
        if label < 0:
            return ""
        return self.class_names[label] if label < len(self.class_names) else f"class {label}"


@dataclass(frozen=True)
class EncoderNeighbours:
    """Queries and their nearest videos by two encoders, nearest first, as rows of `videos`."""

    encoders: tuple[str, str]
    queries: Sequence[tuple[int, Sequence[int], Sequence[int]]]  # query, nearest by the first encoder, by the second
    videos: ShownVideos

    @property
    def previews(self) -> list[Preview]:
        """Those that the page embeds."""
        rows = [row for query, first, second in self.queries for row in (query, *first, *second)]
        return [self.videos.previews[row] for row in rows if row in self.videos.previews]


def neighbours_content(neighbours: EncoderNeighbours, sprites: Mapping[Preview, int]) -> dict[str, Any]:
    """Make what `encoder_neighbours.html` shows."""
    videos = neighbours.videos

    def video(row: int, same: bool = False) -> dict[str, Any]:
        clip = videos.previews.get(row)
        label = videos.class_name(videos.labels[row])
        return {"name": videos.names[row], "label": label, "sprite": clip and sprites[clip], "same": same}

    def strip(encoder: str, query: int, nearest: Sequence[int]) -> dict[str, Any]:
        wanted = videos.labels[query]
        shown = [video(row, wanted >= 0 and videos.labels[row] == wanted) for row in nearest]
        right = sum(each["same"] for each in shown)
        return {
            "encoder": encoder,
            "counted": f"{right} of {len(shown)} of its class" if wanted >= 0 else "",
            "videos": shown,
        }

    first_encoder, second_encoder = neighbours.encoders
    return {
        "has_labels": any(videos.labels[query] >= 0 for query, *_ in neighbours.queries),
        "has_previews": bool(neighbours.previews),
        "queries": [
            {**video(query), "strips": [strip(first_encoder, query, first), strip(second_encoder, query, second)]}
            for query, first, second in neighbours.queries
        ],
    }


@dataclass(frozen=True)
class Disagreements:
    """Rows of `videos`, that to label first at the start, with the class that each encoder predicts."""

    videos: ShownVideos
    rows: Sequence[int]
    predicted: Mapping[str, Sequence[int]]  # class numbers of `rows` by the name of the encoder, -1: none
    entropy: Sequence[float]  # of the votes for `rows`, nats

    @property
    def previews(self) -> list[Preview]:
        """Those that the page embeds."""
        return [self.videos.previews[row] for row in self.rows if row in self.videos.previews]


def disagreements_content(disagreements: Disagreements, sprites: Mapping[Preview, int]) -> dict[str, Any]:
    """Make what `disagreements.html` shows."""
    videos, rows = disagreements.videos, []
    for n, (row, value) in enumerate(zip(disagreements.rows, disagreements.entropy, strict=True)):
        clip = videos.previews.get(row)
        rows.append(
            {
                "name": videos.names[row],
                "label": videos.class_name(videos.labels[row]),
                "sprite": clip and sprites[clip],
                "predicted": [videos.class_name(labels[n]) or "–" for labels in disagreements.predicted.values()],
                "value": f"{value:.2f}",
            }
        )
    return {
        "encoders": [*disagreements.predicted],
        "has_labels": any(row["label"] for row in rows),
        "has_previews": bool(disagreements.previews),
        "rows": rows,
    }
