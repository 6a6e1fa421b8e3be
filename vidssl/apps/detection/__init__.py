"""Detectors on a pre-trained backbone, of objects in images and of actions in videos, and their average precision."""
