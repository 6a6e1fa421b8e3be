"""The points of a map as one Parquet file, for embedding-atlas, Spotlight and whatever reads tables."""

import importlib.util
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vidssl.atomic import replacing
from vidssl.data.video_list import VideoList
from vidssl.errors import ConfigError
from vidssl.evaluation.search import Neighbours
from vidssl.types import Frames
from vidssl.viz.pages import shrunk

FILE = "videos.parquet"
_MILLISECONDS = 250  # of a frame
_SIZE = 160, 120  # pixels at most


def check_pyarrow() -> None:
    """Raise a ConfigError if pyarrow is not installed; call it before long work."""
    try:
        there = importlib.util.find_spec("pyarrow") is not None
    except ValueError:  # its import was blocked
        there = False
    if not there:
        raise ConfigError("to=\"parquet\" needs pyarrow: pip install 'vidssl[parquet]'")


def animation(frames: Frames) -> bytes:
    """Encode frames (T, 3, H, W), shrunk, as an animated WebP, a fifth of a GIF, that plays for ever."""
    from PIL import Image

    file = io.BytesIO()
    images = [Image.fromarray(image) for image in shrunk(frames, *_SIZE)]
    images[0].save(file, "WEBP", save_all=True, append_images=images[1:], duration=_MILLISECONDS, quality=60, method=2)
    return file.getvalue()


def write_parquet(
    path: Path,
    videos: VideoList,
    labels: Sequence[str],
    places: NDArray[np.float32],
    near: Neighbours,
    animations: Mapping[int, bytes],
) -> None:
    """Write a row for each video.

    The columns are `path` (absolute), `start` and `end` in seconds where the list has spans, `label` (a name, or null),
    `x` and `y` (`places` (N, 2)), `neighbors` with the rows and cosine distances of the nearest videos, as
    embedding-atlas reads it, and `image` with the bytes of an animation by row, as data sets of Hugging Face store it.
    """
    import pyarrow as pa
    from pyarrow import parquet

    rows = range(len(videos))
    records = [videos.records[row] for row in rows]
    neighbors = []
    for ids, similarity in zip(near.index.tolist(), near.similarity.tolist(), strict=True):
        known = [(row, 1 - value) for row, value in zip(ids, similarity, strict=True) if row >= 0]
        neighbors.append({"ids": [row for row, _ in known], "distances": [distance for _, distance in known]})
    images = [{"bytes": animations[row], "path": f"{row}.webp"} if row in animations else None for row in rows]
    columns = {
        "path": pa.array([str(Path(record.path).absolute()) for record in records], pa.string()),
        "label": pa.array([label or None for label in labels], pa.string()),
        "x": pa.array(places[:, 0], pa.float32()),
        "y": pa.array(places[:, 1], pa.float32()),
        "neighbors": pa.array(neighbors, pa.struct({"ids": pa.list_(pa.int64()), "distances": pa.list_(pa.float32())})),
        "image": pa.array(images, pa.struct({"bytes": pa.binary(), "path": pa.string()})),
    }
    if any(record.start is not None or record.end is not None for record in records):
        columns["start"] = pa.array([record.start for record in records], pa.float64())
        columns["end"] = pa.array([record.end for record in records], pa.float64())
    with replacing(path) as file:
        parquet.write_table(pa.table(columns), file)
