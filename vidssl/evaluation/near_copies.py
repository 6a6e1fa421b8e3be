"""Near copies: videos of the same footage, encoded again, cut, cropped or resized. Features propose, frames decide.

Shapes: N videos; T frames of a video, `_STEP` seconds apart; grey images of `_SIZE` x `_SIZE` pixels.
"""

import hashlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from vidssl.base.atomic import write_json
from vidssl.base.errors import FramesOutOfOrderError, how_many
from vidssl.base.progress import progress
from vidssl.base.safe_parse import read_json
from vidssl.base.types import VideoRecord
from vidssl.base.worker_pool import ItemGuard, ordered
from vidssl.data.dataset import resolve_span
from vidssl.data.video_list import VideoList
from vidssl.evaluation.features import Files
from vidssl.evaluation.search import nearest
from vidssl.page.previews import of_records
from vidssl.video.reader import Video, open_video

MOST_VIDEOS = 10_000  # that are compared, of 0.1 MB each
SAME_FOOTAGE = 0.965  # correlation of near copies; benchmarks/near_copies.py measures it
_NEIGHBOURS = 5  # of each video, by each kind of features, are compared with it by frames
_SIZE, _COARSE = 32, 8  # pixels of a side
_BLUR = 0.7  # pixels, deviation of the Gaussian: a crop is not registered more exactly
_SECONDS, _STEP = 8.0, 0.08  # of the middle of each video; between frames
_FRAMES, _LEAST_OVERLAP = 8, 0.6  # that are compared; the part of the shorter video that they are taken from
_MAY_MATCH = 0.5  # correlation of coarse frames, not registered
_STILL, _FLAT = 0.5, 2.0  # grey levels: less motion or contrast is not evidence, such as noise and black frames
_SAME_SCENE, _SAME_MOTION = 0.6, 0.9  # correlations of the mean images, and of what no change of light explains
_SCALES = ((1, 1), (0.85, 0.85), (1.18, 1.18), (1, 0.8), (1, 1.25))  # of width and height, where registration starts
_STEPS = (cv2.TERM_CRITERIA_EPS | cv2.TERM_CRITERIA_COUNT, 50, 1e-3)
_warp: Callable[..., Any] = partial(cv2.warpAffine, dsize=(_SIZE, _SIZE), flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP)
_register: Callable[..., Any] = cv2.findTransformECC

_Images = NDArray[np.float32]
_Rows = NDArray[np.int64]


def find_near_copies(
    videos: VideoList, features: Sequence[Tensor], exclude: Tensor, fps: float | None = None, workers: int = 0
) -> tuple[list[tuple[int, int, float]], str]:
    """Find pairs of rows that show the same footage, and their `footage_similarity`, the most similar first.

    The second result is what was not searched and why, "" if all were.

    Candidates are the 5 nearest videos of each by each of the features (N, D), and by mean and deviation over time of
    its frames, which tell videos before one background apart where features do not. A candidate is a near copy if
    `footage_similarity` of the frames is 0.965 or more. Only the middle 8 seconds of a video are decoded, once. More
    than 10,000 rows are not searched.

    Args:
        videos: N videos or spans.
        features: Of these rows, of any networks.
        exclude: (P, 2) pairs of rows that are no candidates, each in both orders and each row with itself.
        fps: Frames per second of folders of images without their own.
        workers: Processes that decode and compare; 0 is this one.
    """
    if len(videos) > MOST_VIDEOS:
        return [], f"not searched, more than {MOST_VIDEOS:,} videos or windows"
    decoded = of_records([*videos.records], partial(_small_images, fps or 25), "near copies", workers)
    images = {row: video for row, video in enumerate(decoded) if not isinstance(video, str)}
    candidates = [_neighbours(x, exclude) for x in (*features, _summaries(images, len(videos)))]
    pairs = np.unique(np.concatenate(candidates), axis=0).tolist()
    pairs = [(a, b) for a, b in pairs if a in images and b in images]
    similarities = progress(
        ordered(partial(_similarity_of_rows, images), pairs, workers),
        title="pairs of near copies",
        unit="pair",
        total=len(pairs),
        leave=False,
    )
    copies = [(*pair, value) for pair, value in zip(pairs, similarities, strict=True) if value >= SAME_FOOTAGE]
    unreadable = len({name for row, name in enumerate(videos.names) if row not in images})
    line = f"{how_many(unreadable, 'video')} could not be decoded" if unreadable else ""
    return sorted(copies, key=lambda copy: -copy[2]), line


def near_copies_in(
    file: Path, videos: VideoList, features: Sequence[Tensor], exclude: Tensor, fps: float | None, workers: int
) -> tuple[list[tuple[int, int, float]], str]:
    """Return what `find_near_copies` does, from a JSON file if it has that of the same videos, arguments and code."""
    files = Files(videos)
    states = [(of.path, of.start, of.end, of.fps, files.states[files.real_path(of.path)]) for of in videos.records]
    made_of = hashlib.sha256(Path(__file__).read_bytes() + repr((states, fps)).encode())
    for x in (*features, exclude):
        made_of.update(x.numpy().tobytes())
    with suppress(OSError, ValueError, LookupError, TypeError):
        there = read_json(file)
        if there["made_of"] == made_of.hexdigest():
            return [(a, b, similarity) for a, b, similarity in there["copies"]], there["not_searched"]
    copies, not_searched = find_near_copies(videos, features, exclude, fps, workers)
    write_json(file, {"made_of": made_of.hexdigest(), "copies": copies, "not_searched": not_searched})
    return copies, not_searched


def _similarity_of_rows(images: dict[int, NDArray[np.uint8]], pair: tuple[int, int], guard: ItemGuard) -> float:
    cv2.setNumThreads(0)  # the workers share the cores already
    return footage_similarity(images[pair[0]], images[pair[1]])


def _neighbours(x: Tensor, exclude: Tensor) -> _Rows:
    """Return pairs (P, 2) of rows, the lower one first, one of which is among the nearest of the other."""
    index = nearest(x, x, _NEIGHBOURS, exclude).index
    pairs = torch.stack([torch.arange(len(x))[:, None].expand_as(index), index], dim=2).reshape(-1, 2)
    return np.asarray(pairs[pairs[:, 1] >= 0].sort(dim=1).values.numpy())


def _summaries(images: dict[int, NDArray[np.uint8]], count: int) -> Tensor:
    """Summarise videos (count, 2 * 8 * 8): coarse mean and deviation over time; zeros of those without images."""
    parts = torch.zeros(count, 2, _COARSE**2)
    for row, video in images.items():
        parts[row] = torch.from_numpy(_coarse(np.stack([video.mean(axis=0), video.std(axis=0)]))).flatten(1)
    parts = functional.normalize(parts - parts.mean(dim=2, keepdim=True), dim=2)  # whatever brightness and contrast
    return functional.normalize(parts - parts.mean(dim=0), dim=2).flatten(1)


# Frames -----------------------------------------------------------------------------------------------------


def _small_images(fps: float, record: VideoRecord) -> NDArray[np.uint8]:
    """Decode the middle of a video or span as small images (T, 32, 32), 0.08 seconds apart."""
    with open_video(record.path, fps=record.fps or fps) as video:
        first, part = resolve_span(video.meta, record)
        seconds = min(part.duration, _SECONDS)
        times = (part.duration - seconds) / 2 + _STEP * np.arange(max(1, int(seconds / _STEP)), dtype=np.float64)
        numbers = first + part.frames_at(times)
        try:
            image_of = _fetch_small(video, numbers)
        except FramesOutOfOrderError:
            image_of = _fetch_small(video, numbers)
    return np.stack([image_of[number] for number in numbers.tolist()])


def _fetch_small(video: Video, numbers: _Rows) -> dict[int, NDArray[np.uint8]]:
    images = {}
    for number, image in video.fetch(np.unique(numbers)):
        small = cv2.resize(image, (_SIZE, _SIZE), interpolation=cv2.INTER_AREA)
        images[number] = np.asarray(cv2.cvtColor(small, cv2.COLOR_RGB2GRAY), np.uint8)
    return images


def footage_similarity(a: NDArray[np.uint8], b: NDArray[np.uint8]) -> float:
    """Return the correlation of two videos (T, 32, 32) that are aligned in time and place, at most 1; 0 if they differ.

    It is that of eight images of each less their mean image: what moves must be the same, so that one background is
    not enough. Videos in which nothing moves differ, also if exposure or light changes: to be still is not evidence.
    All offsets in time are tried that leave 60 % of the shorter video; an affine map from one mean image to the other
    is found by enhanced correlation (Evangelidis and Psarakis, 2008), from five scales.
    """
    rows_a, rows_b = _alignments(len(a), len(b))
    coarse = _correlations(_residuals(_coarse(a)[rows_a]), _residuals(_coarse(b)[rows_b]))
    best = int(coarse.argmax())
    if coarse[best] < _MAY_MATCH:
        return 0.0
    images_a, images_b = a.astype(np.float32), b.astype(np.float32)
    if min(float(_motion(x.reshape(len(x), -1)).std()) for x in (images_a, images_b)) < _STILL:
        return 0.0
    maps = _registrations(images_a[rows_a[best]].mean(axis=0), images_b[rows_b[best]].mean(axis=0))
    nearby = range(max(0, best - 2), min(len(coarse), best + 3))  # the coarse offset may be wrong by a step
    return max(_similarity(images_a[rows_a[n]], images_b[rows_b[n]], warp) for n in nearby for warp in maps)


def _alignments(length_a: int, length_b: int) -> tuple[_Rows, _Rows]:
    """Return for each offset in time the frames of both (offsets, 8) that are shown at the same moments."""
    least = int(np.ceil(_LEAST_OVERLAP * min(length_a, length_b)))
    offset = np.arange(least - length_b, length_a - least + 1)  # frame of `a` at which `b` begins
    start, stop = np.maximum(0, offset), np.minimum(length_a, offset + length_b)
    rows = start[:, None] + np.rint(np.linspace(0, 1, _FRAMES) * (stop - start - 1)[:, None]).astype(np.int64)
    return rows, rows - offset[:, None]


def _coarse(images: NDArray[Any]) -> _Images:
    """Average images (T, 32, 32) to (T, 8, 8)."""
    blocks = images.reshape(len(images), _COARSE, _SIZE // _COARSE, _COARSE, _SIZE // _COARSE)
    return np.asarray(blocks.mean(axis=(2, 4), dtype=np.float32))


def _residuals(images: _Images) -> _Images:
    """Subtract the mean image from images (..., 8, H, W), and flatten them: (..., 8 * H * W)."""
    return np.asarray((images - images.mean(axis=-3, keepdims=True)).reshape(*images.shape[:-3], -1))


def _motion(images: _Images) -> _Images:
    """Subtract from images (T, pixels) what a change of light explains.

    That is for each the best parabola of the mean image, which is exposure and contrast, and of what is left the first
    principal component over time, such as white balance or the sun on one side.
    """
    scene = images.mean(axis=0)
    parabolas = np.linalg.qr(np.vander((scene - scene.mean()) / max(float(scene.std()), 1e-6), 3))[0]
    rest = images - images @ parabolas @ parabolas.T
    first = np.linalg.eigh(rest @ rest.T)[1][:, -1:]
    return np.asarray(rest - first @ (first.T @ rest), np.float32)


def _correlations(x: _Images, y: _Images) -> NDArray[np.float32]:
    """Return the cosines of rows (..., D); those of zeros are 0."""
    norms = np.linalg.norm(x, axis=-1) * np.linalg.norm(y, axis=-1)
    return np.asarray((x * y).sum(axis=-1) / np.maximum(norms, 1e-6), np.float32)


def _registrations(a: _Images, b: _Images) -> list[_Images]:
    """Return affine maps (2, 3) of an image to another: none at all, and the best one if it is plausible."""
    middle, maps, coarse = (_SIZE - 1) / 2, [np.eye(2, 3, dtype=np.float32)], []
    for width, height in _SCALES if min(a.std(), b.std()) >= _FLAT else ():
        start = np.array([[width, 0, middle * (1 - width)], [0, height, middle * (1 - height)]], np.float32)
        with suppress(cv2.error):  # it does not converge
            coarse.append(_register(b, a, start, cv2.MOTION_AFFINE, _STEPS, None, 5))
    if coarse:
        best = max(coarse, key=lambda value_and_map: value_and_map[0])[1]
        with suppress(cv2.error):
            maps.append(_register(b, a, best, cv2.MOTION_AFFINE, _STEPS, None, 1)[1])
    return [warp for warp in maps if 0.4 < np.linalg.det(warp[:, :2]) < 2.5]


def _similarity(a: _Images, b: _Images, warp: _Images) -> float:
    """Compare aligned images (8, 32, 32) where both show something, the first ones moved by an affine map."""
    inside = _warp(np.ones((_SIZE, _SIZE), np.float32), warp) > 0.999
    if inside.mean() < 0.5:
        return 0.0
    # (8, 1, pixels)
    a, b = (
        np.stack([cv2.GaussianBlur(image, (0, 0), _BLUR)[inside] for image in images])[:, None]
        for images in ([_warp(image, warp) for image in a], b)
    )
    scenes = [images.mean(axis=0)[0] for images in (a, b)]
    scene = float(_correlations(*(image - image.mean() for image in scenes)))
    if min(image.std() for image in scenes) < _FLAT or scene < _SAME_SCENE:
        return 0.0
    if _correlations(_motion(a[:, 0]).ravel(), _motion(b[:, 0]).ravel()) < _SAME_MOTION:
        return 0.0
    return float(_correlations(_residuals(a), _residuals(b)))
