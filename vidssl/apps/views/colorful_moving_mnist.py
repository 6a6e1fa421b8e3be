"""Colorful Moving MNIST (Tian et al., 2020, "Good Views", section B.4): its videos, network and protocol.

Digits move over a still background; first and second views have chosen factors in common. Positions are those of the
upper left corner of the digit's image, x and y in pixels, from 0 to FREE. The network is a small ConvNet for each frame
and an LSTM over the frames; the protocol `localization` finds the digit by linear regression from frozen features.

Shapes: B clips, T frames, H x W pixels; dim features of a clip.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from vidssl.base.atomic import creating_folder
from vidssl.base.config import Settings
from vidssl.base.errors import ConfigError, DataError
from vidssl.base.keyed_generators import generator
from vidssl.base.progress import progress
from vidssl.base.types import Features, Natural, VideoRecord
from vidssl.data.moving_digits import DigitFloats, Pixels, digit_images, make_glyph
from vidssl.data.video_list import VideoList, read_list
from vidssl.data.write_lists import write_lists
from vidssl.evaluation.protocols import PROTOCOLS, EvaluationProtocol, Measured
from vidssl.evaluation.search import check_finite
from vidssl.jobs.measurement_runner import write_csv
from vidssl.models.backbones import BACKBONES, Backbone
from vidssl.video.reader import DecodeSettings
from vidssl.video.write import encode

_Count = Annotated[int, Field(ge=1, le=4096)]


@BACKBONES.register("convnet_lstm")
class ConvNetLSTM(Backbone):
    """A ConvNet with average pooling encodes each frame; the features are the last output of a single-layer LSTM.

    Clips may have any number of frames. The supplement states filters, pooling and sizes; kernel, stride 2 and batch
    norms are those of vidssl.
    """

    class Config(Settings):
        filters: tuple[_Count, ...] = Field(default=(8, 16, 32, 64), min_length=1)
        kernel: int = Field(default=3, ge=1, le=31)  # side of the convolutions, pixels
        hidden: int = Field(default=64, ge=1, le=4096)  # of the LSTM, which is also its output

    def __init__(self, config: Config) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise((3, *config.filters)):
            conv = nn.Conv2d(inputs, outputs, config.kernel, stride=2, padding=config.kernel // 2, bias=False)
            layers += [conv, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
        self.convnet = nn.Sequential(*layers)
        self.lstm = nn.LSTM(config.filters[-1], config.hidden, batch_first=True)
        self.dim = config.hidden

    def forward(self, x: Tensor) -> Tensor:
        """Encode clips (B, 3, T, H, W) as features (B, dim)."""
        frames = x.transpose(1, 2)  # (B, T, 3, H, W)
        pooled = self.convnet(frames.flatten(0, 1)).mean(dim=(2, 3))
        outputs: Tensor = self.lstm(pooled.view(*frames.shape[:2], -1))[0]  # (B, T, dim)
        return outputs[:, -1]


@PROTOCOLS.register("localization")
class Localization(EvaluationProtocol):
    """Error of ridge regression from features to the position in the columns `x` and `y` of the lists.

    Features are standardised with mean and deviation of the gallery's.
    """

    learns: ClassVar[bool] = True
    labels: ClassVar[bool] = False

    class Config(Settings):
        penalty: float = Field(default=1.0, gt=0)  # of the squared weights, for standardised features

    def __call__(self, gallery: Features, query: Features, exclude: Tensor) -> Measured:
        """Return `localization_error`, the mean distance in pixels, and `mean_position_error`, that of a constant."""
        position, query_position = _positions(gallery.columns), _positions(query.columns)
        if position is None or query_position is None:
            raise DataError("protocol localization needs positions: give lists with the columns x and y")
        for name, features in (("gallery", gallery), ("query", query)):
            check_finite(name, features.x)
        x = gallery.x.double()
        shift, scale = x.mean(dim=0), x.std(dim=0, correction=0).clamp(min=1e-6)
        x, queries = ((rows - shift) / scale for rows in (x, query.x.double()))
        mean = position.mean(dim=0)
        gram = x.T @ x + self.config.penalty * torch.eye(x.shape[1], dtype=torch.float64)
        weights = torch.linalg.solve(gram, x.T @ (position - mean))
        predictions = {"localization_error": queries @ weights + mean, "mean_position_error": mean}
        return Measured({name: float((p - query_position).norm(dim=1).mean()) for name, p in predictions.items()})

    def check_lists(self, gallery: VideoList, query: VideoList) -> None:
        """Check that all rows have a position."""
        for videos in (gallery, query):
            if _positions({name: torch.from_numpy(column) for name, column in videos.columns.items()}) is None:
                raise DataError(f"protocol localization needs the columns x and y in all rows of {videos.path}")


def _positions(columns: Mapping[str, Tensor]) -> Tensor | None:
    """Return the position of an object in each row (N, 2), x and y in pixels; None if a row has none."""
    if not {"x", "y"} <= {*columns}:
        return None
    positions = torch.stack([columns["x"], columns["y"]], dim=1).double()
    return None if positions.isnan().any() else positions


FACTORS = ("digit", "background", "position")
CANVAS, EDGE = 64, 28  # sides of a frame and of the digit's image, pixels
FREE = CANVAS - EDGE
SPEED = 0.1 * CANVAS  # pixels per frame
CLIP = 10  # frames of the first view
TEXTURE_NAMES = ("stripes", "checks", "dots", "rings", "clouds", "waves")
STL_EDGE = 96  # as the images of STL-10

_Background = tuple[Pixels, int]  # an image (CANVAS, CANVAS, 3) and its class
_Draw = Callable[[np.random.Generator], _Background]


@dataclass(frozen=True)
class Scene:
    """The factors of one frame."""

    digit: int
    digit_image: int  # number of the image in its source
    background: Pixels
    background_class: int
    position: NDArray[np.float64]  # (2,)


def draw_video(
    share: Collection[str],
    pools: Sequence[Sequence[int]],
    background: _Draw,
    reference: int,
    second_views: int,
    rng: np.random.Generator,
) -> tuple[list[Scene], Scene, list[Scene]]:
    """Draw the first view, the frame that the second view refers to, and second views.

    `pools` are the image numbers of each digit, `reference` is the number of the frame, counted from 1. A second view
    has the factors of `share` in common with it and draws the others anew. The first view and what is drawn anew do
    not depend on `share`.
    """
    first, heading = _draw_scene(pools, background, rng), rng.uniform(0, 2 * np.pi)
    path = trajectory(first.position, heading, max(reference, CLIP))
    frames = [replace(first, position=position) for position in path]
    referred = frames[reference - 1]
    seconds = []
    for _ in range(second_views):
        drawn_anew = _draw_scene(pools, background, rng)
        digit, ground, at = (referred if factor in share else drawn_anew for factor in FACTORS)
        seconds.append(Scene(digit.digit, digit.digit_image, ground.background, ground.background_class, at.position))
    return frames[:CLIP], referred, seconds


def _draw_scene(pools: Sequence[Sequence[int]], background: _Draw, rng: np.random.Generator) -> Scene:
    digit = int(rng.integers(len(pools)))
    image = int(rng.choice(pools[digit]))
    return Scene(digit, image, *background(rng), rng.uniform(0, FREE, size=2))


def trajectory(start: NDArray[np.float64], heading: float, frames: int) -> NDArray[np.float64]:
    """Return the positions (T, 2) of a digit that starts at (2,) towards `heading` (radians), reflected at borders."""
    straight = start + SPEED * np.arange(frames)[:, None] * np.array([np.cos(heading), np.sin(heading)])
    return np.asarray(FREE - np.abs(straight % (2 * FREE) - FREE))


def center(scene: Scene) -> tuple[int, int]:
    """Return the center of the digit's image, x and y in pixels; positions are rounded to pixels."""
    x, y = np.rint(scene.position).astype(int).tolist()
    return x + EDGE // 2, y + EDGE // 2


def render(scene: Scene, digit: DigitFloats) -> Pixels:
    """Render a frame (CANVAS, CANVAS, 3): the digit (EDGE, EDGE), an opacity, in white over the background."""
    frame = scene.background.copy()
    x, y = np.rint(scene.position).astype(int)
    under = frame[y : y + EDGE, x : x + EDGE]
    under[:] = np.rint(under + digit[..., None] * (255 - under.astype(np.float32)))
    return frame


def digit_opacity(pixels: NDArray[np.float64]) -> DigitFloats:
    """Return the image of a digit (0 to 1) as an opacity (EDGE, EDGE): MNIST's as it is, one of 8x8 sharpened."""
    if len(pixels) == EDGE:
        return np.asarray(pixels, np.float32)
    return np.asarray(cv2.resize(make_glyph(pixels), (EDGE, EDGE), interpolation=cv2.INTER_AREA), np.float32)


def random_texture_crop(image: Pixels, rng: np.random.Generator) -> Pixels:
    """Cut a random square of the canvas's side from an image (H, W, 3)."""
    top, left = (int(rng.integers(side - CANVAS, endpoint=True)) for side in image.shape[:2])
    return image[top : top + CANVAS, left : left + CANVAS]


def draw_texture(rng: np.random.Generator) -> _Background:
    """Draw a crop of a texture in two random colours; the class is its kind, an index of `TEXTURES`."""
    kind = int(rng.integers(len(TEXTURE_NAMES)))
    angle, phase, period = rng.uniform(0, 2 * np.pi), rng.uniform(0, 2 * np.pi, size=2), rng.uniform(8, 16)
    y, x = np.mgrid[:STL_EDGE, :STL_EDGE]
    u, v = x * np.cos(angle) + y * np.sin(angle), y * np.cos(angle) - x * np.sin(angle)
    along, across = np.sin(2 * np.pi * u / period + phase[0]), np.sin(2 * np.pi * v / period + phase[1])
    match TEXTURE_NAMES[kind]:
        case "stripes":
            value = np.sign(along)
        case "checks":
            value = np.sign(along * across)
        case "dots":
            value = np.sign(along + across - 1)
        case "rings":
            middle = rng.uniform(0, STL_EDGE, size=2)
            value = np.sign(np.sin(2 * np.pi * np.hypot(x - middle[0], y - middle[1]) / period))
        case "clouds":
            coarse = rng.normal(size=(12, 12))
            value = np.clip(cv2.resize(coarse, (STL_EDGE, STL_EDGE), interpolation=cv2.INTER_CUBIC), -1, 1)
        case _:  # waves
            value = np.sin(2 * np.pi * u / period + 2 * across)
    dark, bright = rng.uniform(0, 100, size=3), rng.uniform(80, 200, size=3)  # the digit is brighter than both
    image = dark + (value[..., None] + 1) / 2 * (bright - dark)
    return random_texture_crop(np.rint(image).astype(np.uint8), rng), kind


_FPS = 10


def prepare_colorful_moving_mnist(
    out: Path,
    *,
    share: Sequence[Literal["digit", "background", "position"]],
    train: int = 2000,
    test: int = 500,
    second_views: int = 4,
    reference: int = 20,
    mnist: Path | None = None,
    backgrounds: Path | None = None,
    seed: Natural = 0,
) -> str:
    """Colorful Moving MNIST: pairs of views that share digit, background or position.

    A video has the 10 frames of the first view and then `second_views` frames, each a second view: it refers to the
    frame number `reference` of the moving digit, has the factors of `share` in common with it, and draws the others
    anew; a shared digit is the same image. `factors.csv` has the factors of all frames. Lists: `pairs/` (whole videos),
    and of the first views `digit/` and `background/`, by class, with the position of the digit in the reference frame.
    The same seed gives the same first views whatever is shared. `mnist` has MNIST's files (None: the digits of
    scikit-learn), `backgrounds` has train.csv and test.csv of images (None: textures).

    Args:
        out: Folder for what is written.
        share: Factors that both views have in common.
        train: Training videos.
        test: Test videos.
        second_views: Second views of a video.
        reference: Frame number that the second view refers to.
        mnist: Folder with MNIST's idx files, instead of scikit-learn's 8x8 digits.
        backgrounds: Folder with train.csv and test.csv of images, such as STL-10, instead of textures.
        seed: Random seed.
    """
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise DataError(f"{out} exists: choose another folder")
    if not share or not {*share} <= {*FACTORS}:
        raise ConfigError(f"share is {' '.join(share) or 'empty'}: name at least one of {', '.join(FACTORS)}")
    if min(train, test, second_views, reference) < 1:
        counts = f"train {train}, test {test}, second views {second_views}, reference {reference}"
        raise ConfigError(f"{counts}: each must be at least 1")
    images, pools = digit_images(mnist)
    draw, classes = _draws(backgrounds)
    names = {"pairs": (), "digit": tuple("0123456789"), "background": classes}
    lists: dict[str, dict[str, list[VideoRecord]]] = {name: {"train": [], "test": []} for name in names}
    factors: list[tuple[object, ...]] = []
    with creating_folder(out.resolve()) as folder:
        videos = [(split, i) for split, count in (("train", train), ("test", test)) for i in range(count)]
        for split in ("train", "test"):
            (folder / "videos" / split).mkdir(parents=True)
        for split, i in progress(videos, title="colorful moving mnist", unit="video", leave=False):
            path, rng = f"videos/{split}/{i:05d}.avi", generator(seed, ("train", "test").index(split), i)
            first, referred, seconds = draw_video(share, pools[split], draw[split], reference, second_views, rng)
            scenes = [*first, *seconds]
            opacity = {scene.digit_image: digit_opacity(images[scene.digit_image]) for scene in scenes}
            frames = [render(scene, opacity[scene.digit_image]) for scene in scenes]
            # Uncompressed: exact pixels, and three times as fast to read as H.264.
            encode(str(folder / path), frames, _FPS, codec="rawvideo", pixels="bgr24", exact=True)
            for n, scene in enumerate(scenes):
                factors.append((path, n, scene.digit, scene.digit_image, scene.background_class, *center(scene)))
            x, y = center(referred)
            first_view = partial(VideoRecord, path, end=CLIP / _FPS, columns={"x": x, "y": y})
            lists["pairs"][split].append(VideoRecord(path))
            lists["digit"][split].append(first_view(referred.digit))
            lists["background"][split].append(first_view(referred.background_class))
        for name, rows in lists.items():
            write_lists(folder / name, out, rows, names[name])
        write_csv(folder / "factors.csv", ("path", "frame", "digit", "digit_image", "background", "x", "y"), factors)
    return f"{train} training and {test} test videos, {' and '.join(share)} shared, {len(classes)} background classes"


def _draws(folder: Path | None) -> tuple[dict[str, _Draw], tuple[str, ...]]:
    """Return what draws the backgrounds of each split, and the names of their classes."""
    if folder is None:
        return {"train": draw_texture, "test": draw_texture}, TEXTURE_NAMES
    lists = {split: read_list(folder / f"{split}.csv") for split in ("train", "test")}
    for videos in lists.values():
        if not videos.classes or videos.classes != lists["train"].classes or (videos.labels < 0).any():
            raise DataError(f"{videos.path}: backgrounds need labels and the same classes.txt beside both lists")
    return {split: partial(_draw_image, videos) for split, videos in lists.items()}, lists["train"].classes


def _draw_image(videos: VideoList, rng: np.random.Generator) -> _Background:
    """Draw a crop of the first frame of a random row."""
    record = videos.records[int(rng.integers(len(videos)))]
    with DecodeSettings().open(record) as video:
        if min(video.meta.height, video.meta.width) < CANVAS:
            size = f"{video.meta.width}x{video.meta.height}"
            raise DataError(f"{record.path} is {size}, less than the canvas of {CANVAS}x{CANVAS}: use larger images")
        image: NDArray[np.uint8] = video.frames(np.array([0]))[0].transpose(1, 2, 0)
    return random_texture_crop(image, rng), record.label
