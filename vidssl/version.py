"""The version of vidssl."""

__version__ = "0.1.0"
