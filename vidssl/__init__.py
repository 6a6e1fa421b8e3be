"""Self-supervised learning of video representations: trains backbones on videos, extracts features, evaluates them."""

import importlib
import sys
from typing import TYPE_CHECKING, Any

if sys.platform == "win32":  # workers are forked, and files locked with fcntl
    raise ImportError("vidssl runs on Linux, not on Windows: use WSL 2, a Linux container or another machine")

from vidssl.version import __version__ as __version__

if TYPE_CHECKING:
    from vidssl.api import extract, search, train
    from vidssl.data.clip_samplers import ClipSettings
    from vidssl.data.read_input import read_input
    from vidssl.evaluation.features import TestClips
    from vidssl.evaluation.search import Neighbours
    from vidssl.models import build_backbone, load_backbone, save_backbone
    from vidssl.types import Features
    from vidssl.video import open_video

__all__ = [
    "ClipSettings",
    "Features",
    "Neighbours",
    "TestClips",
    "build_backbone",
    "extract",
    "load_backbone",
    "open_video",
    "read_input",
    "save_backbone",
    "search",
    "train",
]

# Imported at first use: torch and the decoders take seconds, which `vidssl --help` need not wait for.
_HOMES = {
    "ClipSettings": "vidssl.data.clip_samplers",
    "Features": "vidssl.types",
    "Neighbours": "vidssl.evaluation.search",
    "TestClips": "vidssl.evaluation.features",
    "open_video": "vidssl.video",
    "read_input": "vidssl.data.read_input",
    **dict.fromkeys(("build_backbone", "load_backbone", "save_backbone"), "vidssl.models"),
    **dict.fromkeys(("extract", "search", "train"), "vidssl.api"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'vidssl' has no attribute '{name}'")
    value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
