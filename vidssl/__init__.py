"""Self-supervised learning of video representations: trains backbones on videos, extracts features, evaluates them."""

import importlib
import sys
from typing import TYPE_CHECKING, Any

if sys.platform == "win32":  # workers are forked, and files locked with fcntl
    raise ImportError("vidssl runs on Linux, not on Windows: use WSL 2, a Linux container or another machine")

from vidssl.version import __version__ as __version__

if TYPE_CHECKING:
    from vidssl.api.analyze import analyze
    from vidssl.api.analyze_background import analyze_background
    from vidssl.api.analyze_gradcam import analyze_gradcam
    from vidssl.api.analyze_invariance import analyze_invariance
    from vidssl.api.analyze_robustness import analyze_robustness
    from vidssl.api.analyze_uniformity import analyze_uniformity
    from vidssl.api.check import check
    from vidssl.api.compare import compare
    from vidssl.api.doctor import doctor
    from vidssl.api.export import export, save_backbone
    from vidssl.api.extract import extract, merge
    from vidssl.api.map import map
    from vidssl.api.names import (
        list_backbones,
        list_configs,
        list_methods,
        list_protocols,
        list_recipes,
        list_samplers,
        list_weights,
    )
    from vidssl.api.retrieval import retrieval
    from vidssl.api.schema import schema
    from vidssl.api.search import search
    from vidssl.api.show import show
    from vidssl.api.shrink import shrink
    from vidssl.api.test import test
    from vidssl.api.track import track
    from vidssl.api.train import train, train_splits
    from vidssl.data.clip_samplers import ClipSettings
    from vidssl.data.read_input import read_input
    from vidssl.evaluation.features import TestClips
    from vidssl.evaluation.search import Neighbours
    from vidssl.models import build_backbone, load_backbone
    from vidssl.prepare import prepare_folder
    from vidssl.types import Features
    from vidssl.video import open_video

__all__ = [
    "ClipSettings",
    "Features",
    "Neighbours",
    "TestClips",
    "analyze",
    "analyze_background",
    "analyze_gradcam",
    "analyze_invariance",
    "analyze_robustness",
    "analyze_uniformity",
    "build_backbone",
    "check",
    "compare",
    "doctor",
    "export",
    "extract",
    "list_backbones",
    "list_configs",
    "list_methods",
    "list_protocols",
    "list_recipes",
    "list_samplers",
    "list_weights",
    "load_backbone",
    "map",
    "merge",
    "open_video",
    "prepare_folder",
    "read_input",
    "retrieval",
    "save_backbone",
    "schema",
    "search",
    "show",
    "shrink",
    "test",
    "track",
    "train",
    "train_splits",
]

# Imported at first use: torch and the decoders take seconds, which `vidssl --help` need not wait for.
_HOMES = {
    **{
        name: f"vidssl.api.{name}"
        for name in (
            *("train", "extract", "retrieval", "search", "test", "compare", "map", "show", "track", "check", "shrink"),
            *("export", "doctor", "schema", "analyze", "analyze_background", "analyze_gradcam", "analyze_invariance"),
            *("analyze_robustness", "analyze_uniformity"),
        )
    },
    "merge": "vidssl.api.extract",
    "train_splits": "vidssl.api.train",
    **{
        f"list_{name}": "vidssl.api.names"
        for name in ("backbones", "configs", "methods", "protocols", "recipes", "samplers", "weights")
    },
    "ClipSettings": "vidssl.data.clip_samplers",
    "Features": "vidssl.types",
    "Neighbours": "vidssl.evaluation.search",
    "TestClips": "vidssl.evaluation.features",
    "open_video": "vidssl.video",
    "prepare_folder": "vidssl.prepare",
    "read_input": "vidssl.data.read_input",
    **dict.fromkeys(("build_backbone", "load_backbone"), "vidssl.models"),
    "save_backbone": "vidssl.api.export",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'vidssl' has no attribute '{name}'")
    value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
