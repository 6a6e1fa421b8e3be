"""Synthetic data sets that vidssl renders itself: moving digits."""
