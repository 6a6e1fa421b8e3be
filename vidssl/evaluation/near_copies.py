"""Near copies: videos of the same footage, encoded again, cut, cropped or resized. Features propose, frames decide.

Shapes: N videos; T frames of a video; grey images of `_SIZE` x `_SIZE` pixels.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from vidssl.base.atomic import write_json
from vidssl.base.errors import DataError, FramesOutOfOrderError, how_many
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

MOST_VIDEOS = 10_000  # that are compared, of 0.2 to 0.3 MB each
SAME_FOOTAGE = 0.92  # least correlation of near copies; benchmarks/near_copies.py measures this and the next one
_MOST_DISPLACED = 0.011  # 1 - correlation, times the part of the difference that small displacements explain
_NEIGHBOURS = 5  # of each video, by each kind of features, are compared with it by frames
_SIZE, _COARSE = 32, 8  # pixels of a side
_BLUR = 0.7  # pixels, deviation of the Gaussian: a crop is not registered more exactly
_SECONDS, _STEP = 8.0, 0.08  # of the middle of each video; between the frames by which it is aligned coarsely
_FRAMES, _LEAST_OVERLAP = 8, 0.6  # of these that are compared; the part of the shorter video that they are taken from
_MAY_MATCH = 0.5  # their correlation, not registered
_MOMENTS, _SHIFTS = 16, np.arange(-4, 5) / 40  # that decide; seconds beside the coarse offset
_STILL, _FLAT = 0.5, 2.0  # grey levels: less motion or contrast is not evidence, such as noise and black frames
_SAME_SCENE, _SAME_MOTION = 0.6, 0.7  # correlations of the mean images, and of what no change of light explains
_STARTS = [  # of registration: scales of width and height about the middle
    np.array([[x, 0, (_SIZE - 1) / 2 * (1 - x)], [0, y, (_SIZE - 1) / 2 * (1 - y)]], np.float32)
    for x, y in ((1, 1), (0.85, 0.85), (1.18, 1.18), (1, 0.8), (1, 1.25))
]
_STEPS = (cv2.TERM_CRITERIA_EPS | cv2.TERM_CRITERIA_COUNT, 50, 1e-3)
_warp: Callable[..., Any] = partial(cv2.warpAffine, dsize=(_SIZE, _SIZE), flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP)
_register: Callable[..., Any] = cv2.findTransformECC
_flow: Callable[..., Any] = cv2.calcOpticalFlowFarneback

_Images = NDArray[np.float32]
_Rows = NDArray[np.int64]


class Footage(NamedTuple):
    """Small grey frames of the middle of a video."""

    images: NDArray[np.uint8]  # (T, 32, 32), of those that are shown every 0.027 seconds
    times: NDArray[np.float64]  # (T,) seconds at which they begin
    regular: _Rows  # those that are shown every 0.08 seconds


def find_near_copies(
    videos: VideoList, features: Sequence[Tensor], exclude: Tensor, fps: float | None = None, workers: int = 0
) -> tuple[list[tuple[int, int, float]], str]:
    """Find pairs of rows that show the same footage, and their `footage_similarity`, the most similar first.

    The second result is what was not searched and why, "" if all were.

    Candidates are the 5 nearest videos of each by each of the features (N, D), and by mean and deviation over time of
    its frames, which tell videos before one background apart where features do not. A candidate is a near copy if
    `footage_similarity` of the frames is not 0. Only the middle 8 seconds of a video are decoded, once. More
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
    copies = [(*pair, value) for pair, value in zip(pairs, similarities, strict=True) if value]
    unreadable = len({name for row, name in enumerate(videos.names) if row not in images})
    line = f"{how_many(unreadable, 'video')} could not be decoded" if unreadable else ""
    return sorted(copies, key=lambda copy: -copy[2]), line


def near_copies_in(
    file: Path, videos: VideoList, features: Sequence[Tensor], exclude: Tensor, fps: float | None, workers: int
) -> tuple[list[tuple[int, int, float]], str]:
    """Return what `find_near_copies` does, from a JSON file if it has that of the same videos, arguments and code.

    A file that cannot be written is no error: they are found again.
    """
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
    with suppress(DataError):  # of a folder that is only read
        write_json(file, {"made_of": made_of.hexdigest(), "copies": copies, "not_searched": not_searched})
    return copies, not_searched


def _similarity_of_rows(images: dict[int, Footage], pair: tuple[int, int], guard: ItemGuard) -> float:
    cv2.setNumThreads(0)  # the workers share the cores already
    return footage_similarity(images[pair[0]], images[pair[1]])


def _neighbours(x: Tensor, exclude: Tensor) -> _Rows:
    """Return pairs (P, 2) of rows, the lower one first, one of which is among the nearest of the other."""
    index = nearest(x, x, _NEIGHBOURS, exclude).index
    pairs = torch.stack([torch.arange(len(x))[:, None].expand_as(index), index], dim=2).reshape(-1, 2)
    return np.asarray(pairs[pairs[:, 1] >= 0].sort(dim=1).values.numpy())


def _summaries(images: dict[int, Footage], count: int) -> Tensor:
    """Summarise videos (count, 2 * 8 * 8): coarse mean and deviation over time; zeros of those without images."""
    parts = torch.zeros(count, 2, _COARSE**2)
    for row, video in images.items():
        regular = video.images[video.regular]
        parts[row] = torch.from_numpy(_coarse(np.stack([regular.mean(axis=0), regular.std(axis=0)]))).flatten(1)
    parts = functional.normalize(parts - parts.mean(dim=2, keepdim=True), dim=2)  # whatever brightness and contrast
    return functional.normalize(parts - parts.mean(dim=0), dim=2).flatten(1)


# Frames -----------------------------------------------------------------------------------------------------


def _small_images(fps: float, record: VideoRecord) -> Footage:
    """Decode the middle of a video or span as small images."""
    with open_video(record.path, fps=record.fps or fps) as video:
        first, part = resolve_span(video.meta, record)
        seconds = min(part.duration, _SECONDS)
        count = max(1, int(3 * seconds / _STEP))
        times = (part.duration - seconds) / 2 + _STEP / 3 * np.arange(count, dtype=np.float64)
        numbers, shown = np.unique(first + part.frames_at(times), return_inverse=True)
        try:
            image_of = _fetch_small(video, numbers)
        except FramesOutOfOrderError:
            image_of = _fetch_small(video, numbers)
        begin = np.array([video.meta.time_of(number) for number in numbers.tolist()])
    return Footage(np.stack([image_of[number] for number in numbers.tolist()]), begin - begin[0], shown[::3])


def _fetch_small(video: Video, numbers: _Rows) -> dict[int, NDArray[np.uint8]]:
    images = {}
    for number, image in video.fetch(numbers):
        small = cv2.resize(image, (_SIZE, _SIZE), interpolation=cv2.INTER_AREA)
        images[number] = np.asarray(cv2.cvtColor(small, cv2.COLOR_RGB2GRAY), np.uint8)
    return images


def footage_similarity(a: Footage, b: Footage) -> float:
    """Return the correlation of two videos that are aligned in time and place, 0.92 to 1; 0 if they are no copies.

    It is that of 16 images of each less their mean image: what moves must be the same, so that one background is not
    enough. Videos in which nothing moves differ, also if exposure or light changes: to be still is not evidence. All
    offsets in time are tried that leave 60 % of the shorter video; an affine map from one mean image to the other is
    found by enhanced correlation (Evangelidis and Psarakis, 2008), from five scales.

    Takes of one action differ where something moves, by displacements, and copies by what compression adds. So little
    of the difference may be explained by optical flow (Farnebäck, 2003).
    """
    if a.times[-1] * len(b.times) > b.times[-1] * len(a.times):
        a, b = b, a  # of the frames of the lower rate each is compared with the nearest in time of the other video
    images_a, images_b = a.images[a.regular].astype(np.float32), b.images[b.regular].astype(np.float32)
    rows_a, rows_b = _alignments(len(images_a), len(images_b))
    coarse = _correlations(_residuals(_coarse(images_a)[rows_a]), _residuals(_coarse(images_b)[rows_b]))
    best = int(coarse.argmax())
    if coarse[best] < _MAY_MATCH:
        return 0.0
    scenes = images_a[rows_a[best]].mean(axis=0), images_b[rows_b[best]].mean(axis=0)
    maps = [np.eye(2, 3, dtype=np.float32), *_registered(*scenes, _registered(*scenes, _STARTS, 5), 1)]
    offset = _STEP * float(rows_a[best, 0] - rows_b[best, 0])
    moments = [_moments(a.times, b.times, offset + shift) for shift in _SHIFTS]
    pairs = [(a.images[x].astype(np.float32), b.images[y].astype(np.float32)) for x, y in moments if len(y)]
    tried = [(_align(x[::2], y[::2], warp)[0], x, y, warp) for x, y in pairs for warp in maps]
    _, x, y, warp = max(tried, key=itemgetter(0))
    maps = [warp, *_registered(x.mean(axis=0), y.mean(axis=0), [warp], 1)]
    return _decide(*max((_align(x, y, warp) for warp in maps), key=itemgetter(0)))


def _moments(a: NDArray[np.float64], b: NDArray[np.float64], offset: float) -> tuple[_Rows, _Rows]:
    """Return the frames of both videos, which begin at some times, at 16 moments of the second one that both show."""
    begin = b + offset
    shared = np.flatnonzero((begin >= a[0] - _STEP / 4) & (begin <= a[-1] + _STEP / 4))
    rows = shared[np.rint(np.linspace(0, len(shared) - 1, _MOMENTS)).astype(np.int64)] if len(shared) else shared
    return np.abs(a[:, None] - begin[rows]).argmin(axis=0), rows


def _alignments(length_a: int, length_b: int) -> tuple[_Rows, _Rows]:
    """Return for each offset in time the regular frames of both (offsets, 8) that are shown at the same moments."""
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


def _registered(a: _Images, b: _Images, starts: Iterable[_Images], blur: int) -> list[_Images]:
    """Return the best affine map (2, 3) of an image to another that is found from some, if one is plausible."""
    found = []
    for start in starts:
        with suppress(cv2.error):  # it does not converge
            found.append(_register(b, a, start.copy(), cv2.MOTION_AFFINE, _STEPS, None, blur))
    best = max(found, key=itemgetter(0))[1:] if found else ()
    return [warp for warp in best if 0.4 < np.linalg.det(warp[:, :2]) < 2.5]


def _align(a: _Images, b: _Images, warp: _Images) -> tuple[float, list[_Images], NDArray[np.bool_]]:
    """Return the correlation, the blurred images (16, 32, 32), the first ones moved, and where both show something."""
    inside = _warp(np.ones((_SIZE, _SIZE), np.float32), warp) > 0.999
    moved = [_warp(image, warp) for image in a], b
    images = [np.stack([cv2.GaussianBlur(image, (0, 0), _BLUR) for image in of]) for of in moved]
    correlation = _correlations(*(_residuals(of[:, inside][..., None]) for of in images))
    return min(float(correlation), 1.0) * bool(inside.mean() >= 0.5), images, inside


def _decide(correlation: float, images: list[_Images], inside: NDArray[np.bool_]) -> float:
    """Return the correlation of aligned images, 0 if they are no copies."""
    pixels = [of[:, inside] for of in images]
    scenes = [of.mean(axis=0) for of in pixels]
    contrast = min(scene.std() for scene in scenes)
    scene = _correlations(*(scene - scene.mean() for scene in scenes))
    moving = [_motion(of) for of in pixels]
    if correlation < SAME_FOOTAGE or contrast < _FLAT or scene < _SAME_SCENE or min(of.std() for of in moving) < _STILL:
        return 0.0
    if _correlations(*(of.ravel() for of in moving)) < _SAME_MOTION:
        return 0.0
    a, b = ((of - of.mean(axis=0)) * inside for of in images)
    return correlation * bool((1 - correlation) * _displaced(a, b, images[1].mean(axis=0)) <= _MOST_DISPLACED)


def _displaced(a: _Images, b: _Images, scene: _Images) -> float:
    """Return the part of the difference of what moves, beside contrast, that displacements up to 1.5 pixels explain."""
    x, y = scene + a * float((a * b).sum() / max(float((a * a).sum()), 1e-6)), scene + b
    (rows, columns), differences = np.indices((_SIZE, _SIZE), np.float32), []
    for first, second in zip(x, y, strict=True):
        flow = _flow(first, second, None, 0.5, 1, 5, 3, 5, 1.1, 0).clip(-1.5, 1.5)
        moved = cv2.remap(second, columns + flow[:, :, 0], rows + flow[:, :, 1], cv2.INTER_LINEAR)
        differences.append([second - first, moved - first])
    before, after = (np.array(differences)[:, :, 2:-2, 2:-2] ** 2).sum(axis=(0, 2, 3)).tolist()
    return float(1 - after / max(before, 1e-6))
