"""Augmentations of clips, and recipes that combine them.

Operations take and return uint8 RGB frames (T, C, H, W), channels last in memory; crops return a view. They treat all
frames of a clip alike, never change their input, and draw random numbers only from the generator passed to them.
"""

from vidssl.transforms.color import difference_pairs, rgb_difference
from vidssl.transforms.crops import Box, View, Window, center_crop, crop_resize, random_box, random_resized_crop
from vidssl.transforms.recipes import RECIPES, Recipe

__all__ = [
    "RECIPES",
    "Box",
    "Recipe",
    "View",
    "Window",
    "center_crop",
    "crop_resize",
    "difference_pairs",
    "random_box",
    "random_resized_crop",
    "rgb_difference",
]
