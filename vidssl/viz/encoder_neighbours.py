"""The videos that two encoders find most similar to some queries: a part of the page of a comparison."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vidssl.viz.pages import Preview
from vidssl.viz.shown_videos import ShownVideos


@dataclass(frozen=True)
class EncoderNeighbours:
    """Queries and their nearest videos by two encoders, nearest first, as rows of `videos`."""

    encoders: tuple[str, str]
    queries: Sequence[tuple[int, Sequence[int], Sequence[int]]]  # query, nearest by the first encoder, by the second
    videos: ShownVideos

    def __post_init__(self) -> None:
        count = len(self.videos.names)
        if any(not 0 <= row < count for row in self._rows()):
            raise ValueError(f"rows of queries and nearest videos must be from 0 to {count - 1}, got {self._rows()}")

    def _rows(self) -> list[int]:
        return [row for query, first, second in self.queries for row in (query, *first, *second)]

    @property
    def previews(self) -> list[Preview]:
        """Those that the page embeds."""
        return [self.videos.previews[row] for row in self._rows() if row in self.videos.previews]


def neighbours_content(neighbours: EncoderNeighbours, sprites: Mapping[Preview, int]) -> dict[str, Any]:
    """Make what `encoder_neighbours.html` shows; `sprites` are the numbers of the previews."""
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
