"""Compare the time of one view with other pipelines: `python benchmarks/augment.py [--rounds N] [--json FILE]`.

One process, one thread, milliseconds per view, mean over strong_alpha and strong_beta. All pipelines run in turn in
each round (A B C A B C ...), so that other load on the machine affects all of them; the table has medians, and the
median of the ratios within rounds. All get the same frames in their own memory layout and apply the same operations, in
the same order and strength. A second table has the recipes of vidssl; a third one what of them remains in the worker
with `data.augment: device`, and what the device then does for batches of 16 views.
"""

import argparse
import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import torch
import torchvision.transforms.functional as F1
import torchvision.transforms.v2.functional as F
from measure import finish, one_thread, paired, table
from numpy.typing import NDArray
from PIL import Image, ImageFilter
from torch import Tensor

from vidssl.base.keyed_generators import generator
from vidssl.base.types import DrawnOperations, Frames
from vidssl.transforms import RECIPES, Recipe
from vidssl.transforms.batched import apply_batched, grouped
from vidssl.transforms.crops import Box, crop_resize, random_box
from vidssl.transforms.recipes import ViewRecipe

NAMES = ("strong_alpha", "strong_beta")
COMPARED = ("weak", "strong", "strong_alpha", "strong_beta", "strong_gamma", "infomin")
BATCH = 16
CLIPS = {"8 x 224": (8, 224), "16 x 112": (16, 112)}  # frames, side; from 340x256


class View(NamedTuple):
    """The random draws of a recipe."""

    size: int
    box: Box
    jitter: list[tuple[str, float]]  # operation, amount
    gray: bool
    kernel: int
    sigma: float  # 0: no blur
    solarize: bool
    flip: bool

    def cut(self) -> int:
        """Return the kernel as vidssl truncates it, at 3.5 sigma."""
        return min(self.kernel, 2 * math.ceil(3.5 * self.sigma) + 1)


def draw(frames: Frames, config: ViewRecipe.Config, rng: np.random.Generator) -> View:
    """Draw the same values as the recipe does from this generator."""
    box = random_box(*frames.shape[2:], config.area, config.ratio, rng)
    jitter = []
    if rng.random() < config.jitter_probability:
        *ranges, hue = config.ranges
        amounts = [rng.uniform(max(0.0, 1 - r), 1 + r) for r in ranges] + [rng.uniform(-hue, hue)]
        names = ("brightness", "contrast", "saturation", "hue")
        jitter = [(names[n], amounts[n]) for n in rng.permutation(4)]
    gray = rng.random() < config.gray_probability
    sigma = rng.uniform(*config.sigma) if rng.random() < config.blur_probability else 0.0
    solarize = rng.random() < config.solarize_probability
    flip = rng.random() < config.flip_probability
    return View(config.size, box, jitter, gray, config.blur_kernel, sigma, solarize, flip)


def opencv_view(frames: Frames, view: View, cut: bool) -> Frames:
    """Apply each operation to each frame with the OpenCV function for it."""
    out, box = [], view.box
    for image in frames.transpose(0, 2, 3, 1):
        x = cv2.resize(image[box.y : box.y + box.h, box.x : box.x + box.w], (view.size, view.size))
        for name, amount in view.jitter:
            if name == "brightness":
                x = cv2.convertScaleAbs(x, alpha=amount)
            elif name == "contrast":
                mean = cv2.mean(cv2.cvtColor(x, cv2.COLOR_RGB2GRAY))[0]
                x = cv2.addWeighted(x, amount, x, 0, (1 - amount) * mean)
            elif name == "saturation":
                gray = cv2.cvtColor(cv2.cvtColor(x, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB)
                x = cv2.addWeighted(x, amount, gray, 1 - amount, 0)
            else:
                hue, saturation, value = cv2.split(cv2.cvtColor(x, cv2.COLOR_RGB2HSV))
                turned = ((np.arange(256) + round(180 * amount)) % 180).astype(np.uint8)
                x = cv2.merge([cv2.LUT(hue, turned), saturation, value])
                x = cv2.cvtColor(x, cv2.COLOR_HSV2RGB)
        if view.gray:
            x = cv2.cvtColor(cv2.cvtColor(x, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB)
        if view.sigma:
            kernel = view.cut() if cut else view.kernel
            x = cv2.GaussianBlur(x, (kernel, kernel), view.sigma)
        if view.solarize:
            values = np.arange(256, dtype=np.uint8)
            x = cv2.LUT(x, np.where(values < 128, values, 255 - values))
        out.append(cv2.flip(x, 1) if view.flip else x)
    return np.stack(out).transpose(0, 3, 1, 2)


def torchvision_view(planes: Tensor, view: View, as_float: bool, cut: bool) -> Tensor:
    """Apply torchvision v2 to (T, C, H, W), uint8 or float32."""
    x = F.to_dtype(planes, torch.float32, scale=True) if as_float else planes
    box = view.box
    x = F.resized_crop(x, box.y, box.x, box.h, box.w, [view.size, view.size], antialias=False)
    for name, amount in view.jitter:
        x = getattr(F, f"adjust_{name}")(x, amount)
    if view.gray:
        x = F.rgb_to_grayscale(x, 3)
    if view.sigma:
        kernel = view.cut() if cut else view.kernel
        x = F.gaussian_blur(x, [kernel, kernel], [view.sigma, view.sigma])
    if view.solarize:
        x = F.solarize(x, 0.5 if as_float else 128)
    return F.horizontal_flip(x) if view.flip else x


def pil_view(frames: Frames, view: View) -> Tensor:
    """Augment as SlowFast: colour and blur on all frames as one high PIL image, then crop and flip as float."""
    images = frames.transpose(0, 2, 3, 1)
    x = Image.fromarray(images.reshape(-1, *images.shape[2:]))
    for name, amount in view.jitter:
        x = getattr(F1, f"adjust_{name}")(x, amount)
    if view.gray:
        x = F1.to_grayscale(x, 3)
    if view.sigma:
        x = x.filter(ImageFilter.GaussianBlur(view.sigma))
    if view.solarize:
        x = F1.solarize(x, 128)
    clip = F1.to_tensor(x).unflatten(1, images.shape[:2]).transpose(0, 1)
    box = view.box
    clip = clip[:, :, box.y : box.y + box.h, box.x : box.x + box.w]
    clip = torch.nn.functional.interpolate(clip, (view.size, view.size), mode="bilinear")
    return clip.flip(-1) if view.flip else clip


def floor_view(frames: Frames, view: View) -> Frames:
    """Crop and resize only."""
    return crop_resize(frames, view.box, view.size, view.size)


# None is vidssl. The blur kernel is the papers' 23, or truncated as in vidssl.
PIPELINES: dict[str, Callable[..., Any] | None] = {
    "vidssl": None,
    "OpenCV op by op, kernel 23": partial(opencv_view, cut=False),
    "OpenCV op by op, kernel cut": partial(opencv_view, cut=True),
    "torchvision v2 float, kernel 23": partial(torchvision_view, as_float=True, cut=False),
    "torchvision v2 uint8, kernel 23": partial(torchvision_view, as_float=False, cut=False),
    "torchvision v2 uint8, kernel cut": partial(torchvision_view, as_float=False, cut=True),
    "PIL as in SlowFast": pil_view,
    "crop and resize only": floor_view,
}


def images(length: int) -> Frames:
    """Make smooth frames of 340x256."""
    small = generator(0).integers(0, 256, (length, 32, 43, 3), dtype=np.uint8)
    images = np.stack([cv2.resize(image, (340, 256), interpolation=cv2.INTER_CUBIC) for image in small])
    return images.transpose(0, 3, 1, 2)


def compare(length: int, size: int, rounds: int) -> dict[str, float]:
    """Time the recipes: CPU milliseconds per view, the mean over rounds, as draws differ in cost."""
    frames = images(length)
    recipes = {name: RECIPES[name](RECIPES[name].Config(size=size)) for name in COMPARED}
    actions = {name: partial(one_view, recipe, frames) for name, recipe in recipes.items()}
    return {name: float(times.mean()) for name, times in paired(actions, rounds).items()}


def one_view(recipe: Recipe, frames: Frames, key: int) -> None:
    """Make the view of a key."""
    recipe(frames, generator(1, key))


def compare_devices(name: str, length: int, size: int, rounds: int) -> dict[str, float | None]:
    """Time a recipe on the CPU and with its operations left to the device: CPU milliseconds per view.

    The device is this CPU, and a GPU if there is one, by the clock; all work on the same draws.
    """
    frames, recipe = images(length), RECIPES[name](RECIPES[name].Config(size=size))
    assert isinstance(recipe, ViewRecipe)
    draws: list[Any] = []
    batch: list[tuple[Tensor, DrawnOperations]] = []

    def draw_all(key: int) -> None:
        draws[:] = [recipe.draw(frames, generator(1, key, n)) for n in range(BATCH)]

    def stack(key: int) -> None:
        groups, clips, amounts = grouped([operations for _, operations in draws])
        view = torch.from_numpy(np.stack([view.frames.transpose(0, 2, 3, 1) for view, _ in draws]))
        operations = DrawnOperations(groups, torch.from_numpy(clips), torch.from_numpy(amounts))
        batch[:] = [(view.permute(0, 1, 4, 2, 3), operations)]

    times = paired(
        {
            "worker, cpu": lambda key: [recipe(frames, generator(1, key, n)) for n in range(BATCH)],
            "worker, device": draw_all,
            "stack": stack,  # as the loader does in any case
            "device: this CPU": lambda key: apply_batched(*batch[0]),
        },
        rounds,
    )
    del times["stack"]
    per_view: dict[str, float | None] = {action: float(ms.mean()) / BATCH for action, ms in times.items()}
    per_view["device: GPU"] = on_gpu(*batch[0], rounds) / BATCH if torch.cuda.is_available() else None
    return per_view


def on_gpu(view: Tensor, cpu_operations: DrawnOperations, rounds: int) -> float:
    """Time the operations of a batch on a GPU: milliseconds by the clock."""
    operations = DrawnOperations(cpu_operations.groups, cpu_operations.clips.cuda(), cpu_operations.amounts.cuda())
    gpu_view = view.cuda()
    for number in range(rounds + 3):  # the first three warm up
        if number == 3:
            torch.cuda.synchronize()
            start = time.perf_counter()
        apply_batched(gpu_view, operations)
    torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - start) / rounds


def measure(length: int, size: int, rounds: int) -> NDArray[np.float64]:
    """Time all pipelines: milliseconds per view, (rounds, pipelines)."""
    frames = images(length)
    planes = torch.from_numpy(np.ascontiguousarray(frames))
    recipes = [RECIPES[name](RECIPES[name].Config(size=size)) for name in NAMES]
    seconds = np.zeros((rounds + 2, len(PIPELINES)))
    for key in range(len(seconds)):
        for recipe in recipes:
            view = draw(frames, recipe.config, generator(1, key))
            for n, pipeline in enumerate(PIPELINES.values()):
                start = time.perf_counter()
                if pipeline is None:
                    recipe(frames, generator(1, key))
                else:
                    pipeline(planes if "torchvision" in list(PIPELINES)[n] else frames, view)
                seconds[key, n] += time.perf_counter() - start
    return 1000 * seconds[2:] / len(recipes)  # the first two warm up


def main() -> None:
    """Print the table, write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30, help="clips for each recipe")
    parser.add_argument("--json", type=Path, help="file for the figures")
    arguments = parser.parse_args()
    one_thread()
    figures, rows = {}, []
    for clip, (length, size) in CLIPS.items():
        times = measure(length, size, arguments.rounds)
        median, ratio = np.median(times, axis=0), np.median(times / times[:, :1], axis=0)
        for n, pipeline in enumerate(PIPELINES):
            figures[f"{clip}, {pipeline}"] = {"ms": float(median[n]), "to_vidssl": float(ratio[n])}
            rows.append([clip, pipeline, f"{median[n]:.2f}", f"{ratio[n]:.2f}"])
    print(table(["clip", "pipeline", "ms per view", "times vidssl"], rows))
    rounds = 10 * arguments.rounds
    recipes = {clip: compare(*clip_size, rounds) for clip, clip_size in CLIPS.items()}
    rows = [[name, *(f"{times[name]:.2f}" for times in recipes.values())] for name in COMPARED]
    print(table(["recipe", *(f"{clip}, CPU ms per view" for clip in CLIPS)], rows))
    by_device = {
        f"{clip}, {name}": compare_devices(name, *CLIPS[clip], max(arguments.rounds // 5, 2))
        for clip in CLIPS
        for name in COMPARED
    }
    rows = [
        [key, *("not run" if ms is None else f"{ms:.2f}" for ms in times.values())] for key, times in by_device.items()
    ]
    print(table(["clip, recipe", *(f"{device}, ms per view" for device in next(iter(by_device.values())))], rows))
    finish({"rounds": arguments.rounds, "augment": figures, "recipes": recipes, "places": by_device}, arguments.json)


if __name__ == "__main__":
    main()
