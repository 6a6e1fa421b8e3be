"""Recipes: from the frames of a clip to the pixels of a view.

Every operation takes and gives frames, uint8 (T, C, H, W) in RGB, channels last in memory; random crops and
squares give a view, which also knows the part of the frames that it shows. It treats all frames of a clip
alike, never changes its input, and takes random numbers only from the generator it is given.
"""

from vidssl.transforms.color import (
    adjust_brightness,
    adjust_contrast,
    adjust_hue,
    adjust_saturation,
    color_jitter,
    gaussian_blur,
    grayscale,
    solarize,
)
from vidssl.transforms.crops import (
    Box,
    View,
    Window,
    center_crop,
    crop_resize,
    flip,
    random_box,
    random_crop,
    random_resized_crop,
    short_side,
    uniform_crops,
)
from vidssl.transforms.motion import difference_pairs, rgb_difference
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
    "center_crop",
    "color_jitter",
    "crop_resize",
    "difference_pairs",
    "flip",
    "gaussian_blur",
    "grayscale",
    "random_box",
    "random_crop",
    "random_resized_crop",
    "rgb_difference",
    "short_side",
    "solarize",
    "uniform_crops",
]
