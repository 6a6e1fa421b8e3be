"""Methods: objectives on the contract of `base.py`."""

from vidssl.methods.base import METHODS, Method

__all__ = ["METHODS", "Method"]
