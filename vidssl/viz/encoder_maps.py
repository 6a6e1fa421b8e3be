"""Two maps of the same videos by two encoders, side by side, with one lasso: a part of the page of a comparison."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vidssl.viz.map_page import scaled_places
from vidssl.viz.pages import Preview
from vidssl.viz.shown_videos import ShownVideos


@dataclass(frozen=True)
class EncoderMaps:
    """N videos as two encoders or more lay them out; the first two are shown first."""

    places: Mapping[str, NDArray[np.floating[Any]]]  # (N, 2) by the name of the encoder
    videos: ShownVideos

    def __post_init__(self) -> None:
        if len(self.places) < 2:
            raise ValueError(f"two maps need two encoders or more, got {list(self.places)}")
        wanted = (len(self.videos.names), 2)
        for name, places in self.places.items():
            if places.shape != wanted:
                raise ValueError(f"the places by {name} have the shape {places.shape}, not {wanted}")

    @property
    def previews(self) -> list[Preview]:
        """Those that the page embeds."""
        return [*self.videos.previews.values()]


def maps_content(maps: EncoderMaps, sprites: Mapping[Preview, int]) -> dict[str, Any]:
    """Make what `encoder_maps.html` and `encoder_maps.js` show; `sprites` are the numbers of the previews."""
    videos = maps.videos
    counts = Counter(videos.labels)
    unknown = counts.pop(-1, 0)
    color = {label: n for n, label in enumerate(sorted(counts))} | {-1: len(counts)}
    classes = [(videos.class_name(label), counts[label]) for label in sorted(counts)]
    return {
        "classes": [*classes, ("no class", unknown)] if classes and unknown else classes,
        "points": {
            "encoders": [{"name": name, **scaled_places(places)} for name, places in maps.places.items()],
            "names": list(videos.names),
            "colors": [color[label] for label in videos.labels],  # numbers of the classes; the last: no class
            "classes": [name for name, _ in classes],
            "clips": {str(row): sprites[clip] for row, clip in videos.previews.items()},
        },
    }
