"""Augmentations of clips, and recipes that combine them.

Every operation takes and returns uint8 RGB frames (T, C, H, W), channels last in memory; crops return a view, which
also holds its window in the source frames. An operation treats all frames of a clip alike, never changes its input,
and draws random numbers only from the generator passed to it.
"""

from vidssl.transforms.color import (
    adjust_brightness,
    adjust_contrast,
    adjust_hue,
    adjust_saturation,
    adjust_sharpness,
    auto_contrast,
    color_jitter,
    equalize,
    gaussian_blur,
    grayscale,
    posterize,
    solarize,
)
from vidssl.transforms.crops import (
    Box,
    View,
    Window,
    center_crop,
    crop_resize,
    flip,
    mirrored,
    random_box,
    random_crop,
    random_resized_crop,
    rotate,
    short_side,
    uniform_crops,
    warp,
)
from vidssl.transforms.motion import difference_pairs, rgb_difference
from vidssl.transforms.randaugment import rand_augment
from vidssl.transforms.recipes import RECIPES, Recipe

__all__ = [
    "RECIPES",
    "Box",
    "Recipe",
    "View",
    "Window",
    "adjust_brightness",
    "adjust_contrast",
    "adjust_hue",
    "adjust_saturation",
    "adjust_sharpness",
    "auto_contrast",
    "center_crop",
    "color_jitter",
    "crop_resize",
    "difference_pairs",
    "equalize",
    "flip",
    "gaussian_blur",
    "grayscale",
    "mirrored",
    "posterize",
    "rand_augment",
    "random_box",
    "random_crop",
    "random_resized_crop",
    "rgb_difference",
    "rotate",
    "short_side",
    "solarize",
    "uniform_crops",
    "warp",
]
