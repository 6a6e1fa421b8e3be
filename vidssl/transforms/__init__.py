"""Augmentations of clips, and recipes that combine them.

Operations take and return uint8 RGB frames (T, C, H, W), channels last in memory; crops return a view. They treat all
frames of a clip alike, never change their input, and draw random numbers only from the generator passed to them.
"""

from vidssl.transforms.crops import View, Window, center_crop, random_resized_crop
from vidssl.transforms.recipes import RECIPES, Recipe

__all__ = ["RECIPES", "Recipe", "View", "Window", "center_crop", "random_resized_crop"]
