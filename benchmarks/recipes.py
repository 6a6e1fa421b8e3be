"""Time one view against torchvision v2: `python benchmarks/recipes.py [--rounds N]`.

One thread, milliseconds for a clip, mean over strong_alpha and strong_beta. All pipelines run in turn in each
round (A B C A B C ...), so that a slow moment of the machine hits all of them; printed are medians, and the
median of the ratios within rounds. All draw the same box, operations and amounts; each has its memory layout.
"""

import argparse
import math
import time
from collections.abc import Callable

import cv2
import numpy as np
import torch
import torchvision.transforms.v2.functional as F
from torch import Tensor

from vidssl.randomness import generator
from vidssl.transforms import RECIPES, random_box
from vidssl.transforms.recipes import ViewRecipe
from vidssl.types import Frames

NAMES = ("strong_alpha", "strong_beta")
CLIPS = {"8 x 224": (8, 224), "16 x 112": (16, 112)}  # frames, side; from 340x256
# as_float, cut: the kernel of 23 as the papers have it, and a peer that saves as much of it as we do
PEERS = {
    "torchvision v2, uint8": (False, False),
    "torchvision v2, float": (True, False),
    "torchvision v2, uint8, kernel cut at 3.5 sigma": (False, True),
}


def torchvision_view(
    frames: Frames, c: ViewRecipe.Config, rng: np.random.Generator, as_float: bool, cut: bool
) -> Tensor:
    """The recipe with torchvision, on float32 or uint8 (T, C, H, W), the blur kernel cut as ours or whole."""
    x = torch.from_numpy(frames)
    x = F.to_dtype(x, torch.float32, scale=True) if as_float else x
    box = random_box(*frames.shape[2:], c.area, c.ratio, rng)
    x = F.resized_crop(x, box.y, box.x, box.h, box.w, [c.size, c.size], antialias=False)
    if rng.random() < c.jitter_probability:
        *ranges, hue = c.ranges
        amounts = [rng.uniform(1 - r, 1 + r) for r in ranges] + [rng.uniform(-hue, hue)]
        adjust = (F.adjust_brightness, F.adjust_contrast, F.adjust_saturation, F.adjust_hue)
        for n in rng.permutation(4):
            x = adjust[n](x, amounts[n])
    if rng.random() < c.gray_probability:
        x = F.rgb_to_grayscale(x, 3)
    if rng.random() < c.blur_probability:
        sigma = rng.uniform(*c.sigma)
        kernel = min(c.blur_kernel, 2 * math.ceil(3.5 * sigma) + 1) if cut else c.blur_kernel
        x = F.gaussian_blur(x, [kernel, kernel], [sigma, sigma])
    if rng.random() < c.solarize_probability:
        x = F.solarize(x, 0.5 if as_float else 128)
    return F.horizontal_flip(x) if rng.random() < c.flip_probability else x


def milliseconds(function: Callable[..., object], *arguments: object) -> float:
    """Time one call."""
    start = time.perf_counter()
    function(*arguments)
    return 1000 * (time.perf_counter() - start)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=40, help="clips for each recipe")
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    print("| clip | pipeline | ms a clip | times vidssl |\n|---|---|---|---|")
    for title, (length, size) in CLIPS.items():
        small = generator(0).integers(0, 256, (length, 32, 43, 3), dtype=np.uint8)
        images = np.stack([cv2.resize(image, (340, 256), interpolation=cv2.INTER_CUBIC) for image in small])
        frames = images.transpose(0, 3, 1, 2)
        recipes = [RECIPES[name](RECIPES[name].Config(size=size)) for name in NAMES]
        planes, rows = np.ascontiguousarray(frames), []
        for key in range(rounds + 2):
            cost = np.zeros(1 + len(PEERS))
            for recipe in recipes:
                cost[0] += milliseconds(recipe, frames, generator(1, key))
                for n, options in enumerate(PEERS.values(), start=1):
                    draws = generator(1, key)
                    cost[n] += milliseconds(torchvision_view, planes, recipe.config, draws, *options)
            rows.append(cost / len(recipes))
        times = np.array(rows[2:])  # the first two warm up
        ratio = np.median(times / times[:, :1], axis=0)
        for n, pipeline in enumerate(("vidssl", *PEERS)):
            print(f"| {title} | {pipeline} | {np.median(times[:, n]):.1f} | {ratio[n]:.1f} |", flush=True)


if __name__ == "__main__":
    main()
