"""Colorful Moving MNIST: uncompressed videos of a first view and second views that have chosen factors in common."""

import csv
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from vidssl.atomic import creating_folder
from vidssl.data.synthetic.digit_images import Pixels, digit_images
from vidssl.data.video_list import VideoList, read_list
from vidssl.data.write_lists import write_lists
from vidssl.errors import ConfigError, DataError
from vidssl.keyed_generators import generator
from vidssl.progress import progress
from vidssl.projects.views.draw_colorful_digits import (
    CANVAS,
    CLIP,
    FACTORS,
    TEXTURES,
    Background,
    Draw,
    Scene,
    center,
    digit_opacity,
    draw_texture,
    draw_video,
    random_crop,
    render,
)
from vidssl.types import Natural, VideoRecord
from vidssl.video.reader import DecodeSettings
from vidssl.video.write import encode

_FPS = 10
_Factor = tuple[object, ...]


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
        raise ConfigError(
            f"train {train}, test {test}, second views {second_views}, reference {reference}: each must be at least 1"
        )
    images, pools = digit_images(mnist)
    draw, classes = _draws(backgrounds)
    lists: dict[str, dict[str, list[VideoRecord]]] = {name: {} for name in ("pairs", "digit", "background")}
    factors: list[_Factor] = [("path", "frame", "digit", "digit_image", "background", "x", "y")]
    with creating_folder(out.resolve()) as folder:
        bar = progress(title="colorful moving mnist", unit="video", total=train + test, leave=False)
        for number, (split, count) in enumerate([("train", train), ("test", test)]):
            (folder / "videos" / split).mkdir(parents=True)
            for of in lists.values():
                of[split] = []
            for i in range(count):
                path, rng = f"videos/{split}/{i:05d}.avi", generator(seed, number, i)
                first, referred, seconds = draw_video(share, pools[split], draw[split], reference, second_views, rng)
                scenes = [*first, *seconds]
                opacity = {scene.digit_image: digit_opacity(images[scene.digit_image]) for scene in scenes}
                _write_video(folder / path, [render(scene, opacity[scene.digit_image]) for scene in scenes])
                factors += [(path, n, *_describe(scene)) for n, scene in enumerate(scenes)]
                x, y = center(referred)
                first_view = partial(VideoRecord, path, end=CLIP / _FPS, columns={"x": x, "y": y})
                lists["pairs"][split].append(VideoRecord(path))
                lists["digit"][split].append(first_view(referred.digit))
                lists["background"][split].append(first_view(referred.background_class))
                bar.update()
        bar.close()
        names = {"pairs": (), "digit": tuple("0123456789"), "background": classes}
        for name, rows in lists.items():
            write_lists(folder / name, out, rows, names[name])
        with open(folder / "factors.csv", "w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows(factors)
    return f"{train} training and {test} test videos, {' and '.join(share)} shared, {len(classes)} background classes"


def _draws(folder: Path | None) -> tuple[dict[str, Draw], tuple[str, ...]]:
    """Return what draws the backgrounds of each split, and the names of their classes."""
    if folder is None:
        return {"train": draw_texture, "test": draw_texture}, TEXTURES
    lists = {split: read_list(folder / f"{split}.csv") for split in ("train", "test")}
    for videos in lists.values():
        if not videos.classes or videos.classes != lists["train"].classes or (videos.labels < 0).any():
            raise DataError(f"{videos.path}: backgrounds need labels and the same classes.txt beside both lists")
    return {split: partial(_draw_image, videos) for split, videos in lists.items()}, lists["train"].classes


def _draw_image(videos: VideoList, rng: np.random.Generator) -> Background:
    """Draw a crop of the first frame of a random row."""
    record = videos.records[int(rng.integers(len(videos)))]
    with DecodeSettings().open(record) as video:
        if min(video.meta.height, video.meta.width) < CANVAS:
            size = f"{video.meta.width}x{video.meta.height}"
            raise DataError(f"{record.path} is {size}, less than the canvas of {CANVAS}x{CANVAS}: use larger images")
        image: NDArray[np.uint8] = video.frames(np.array([0]))[0].transpose(1, 2, 0)
    return random_crop(image, rng), record.label


def _describe(scene: Scene) -> _Factor:
    return scene.digit, scene.digit_image, scene.background_class, *center(scene)


def _write_video(path: Path, frames: Sequence[Pixels]) -> None:
    """Write frames (CANVAS, CANVAS, 3) RGB uncompressed: exact pixels, and three times as fast to read as H.264."""
    encode(str(path), frames, _FPS, codec="rawvideo", pixels="bgr24", exact=True)
