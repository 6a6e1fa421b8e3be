"""Self-supervised learning of video representations: trains backbones on videos, extracts features, evaluates them.

Each job is a function and a command of its name; `help(vidssl.NAME)` states its arguments, results and errors.

Train:      train, train_splits (on each split of a data set), show (the views that a config trains on)
Features:   extract (of videos, by any network or module), load_features (that were extracted to a folder), merge (parts
            that several machines extracted), Features
Search:     search (features), retrieval (of videos: recalls and a page), Neighbours, map (features as a page)
Evaluate:   test (kNN, linear, few labels …), compare (encoders, on your videos), analyze_all (the following),
            analyze_background, analyze_gradcam, analyze_invariance, analyze_robustness, analyze_uniformity
Networks:   build_backbone, load_backbone, save_backbone (of any loop), export (ONNX, torch.export, …), NetworkOptions
            (the arguments of all jobs that apply a network)
Videos:     read_input (file, folder or list), open_video (exact frames), check (find broken ones), shrink (small
            copies), track (regions), prepare_folder (lists of a folder), ClipSettings, TestClips
Names:      list_backbones, list_methods, list_configs, list_weights, list_samplers, list_recipes, list_protocols,
            schema (of configs), doctor (optional parts on this machine)
"""

import importlib
from typing import TYPE_CHECKING, Any

try:
    importlib.import_module("fcntl")  # locks folders; where it is missing, processes cannot be forked either
except ImportError:
    raise ImportError(
        "vidssl runs on Linux, not on Windows or another system without fcntl: use WSL 2, a Linux container or another "
        "machine"
    ) from None

if TYPE_CHECKING:
    from vidssl.api.analyze_all import analyze_all as analyze_all
    from vidssl.api.analyze_background import analyze_background as analyze_background
    from vidssl.api.analyze_gradcam import analyze_gradcam as analyze_gradcam
    from vidssl.api.analyze_invariance import analyze_invariance as analyze_invariance
    from vidssl.api.analyze_robustness import analyze_robustness as analyze_robustness
    from vidssl.api.analyze_uniformity import analyze_uniformity as analyze_uniformity
    from vidssl.api.check import check as check
    from vidssl.api.compare import compare as compare
    from vidssl.api.doctor import doctor as doctor
    from vidssl.api.export import export as export
    from vidssl.api.export import save_backbone as save_backbone
    from vidssl.api.extract import extract as extract
    from vidssl.api.extract import load_features as load_features
    from vidssl.api.extract import merge as merge
    from vidssl.api.job_arguments import NetworkOptions as NetworkOptions
    from vidssl.api.list_names import list_backbones as list_backbones
    from vidssl.api.list_names import list_configs as list_configs
    from vidssl.api.list_names import list_methods as list_methods
    from vidssl.api.list_names import list_protocols as list_protocols
    from vidssl.api.list_names import list_recipes as list_recipes
    from vidssl.api.list_names import list_samplers as list_samplers
    from vidssl.api.list_names import list_weights as list_weights
    from vidssl.api.map import map as map
    from vidssl.api.retrieval import retrieval as retrieval
    from vidssl.api.schema import schema as schema
    from vidssl.api.search import search as search
    from vidssl.api.show import show as show
    from vidssl.api.shrink import shrink as shrink
    from vidssl.api.test import test as test
    from vidssl.api.track import track as track
    from vidssl.api.train import train as train
    from vidssl.api.train import train_splits as train_splits
    from vidssl.data.clip_samplers import ClipSettings as ClipSettings
    from vidssl.data.read_input import read_input as read_input
    from vidssl.evaluation.features import TestClips as TestClips
    from vidssl.evaluation.search import Neighbours as Neighbours
    from vidssl.models import build_backbone as build_backbone
    from vidssl.models import load_backbone as load_backbone
    from vidssl.prepare import prepare_folder as prepare_folder
    from vidssl.types import Features as Features
    from vidssl.version import __version__ as __version__
    from vidssl.video import open_video as open_video

# The public names and their modules, imported at first use: torch and the decoders take seconds, which
# `vidssl --help` need not wait for.
_HOMES = {
    **{
        name: f"vidssl.api.{name}"
        for name in (
            *("train", "extract", "retrieval", "search", "test", "compare", "map", "show", "track", "check", "shrink"),
            *("export", "doctor", "schema", "analyze_all", "analyze_background", "analyze_gradcam"),
            *("analyze_invariance", "analyze_robustness", "analyze_uniformity"),
        )
    },
    **dict.fromkeys(("load_features", "merge"), "vidssl.api.extract"),
    "train_splits": "vidssl.api.train",
    **{
        f"list_{name}": "vidssl.api.list_names"
        for name in ("backbones", "configs", "methods", "protocols", "recipes", "samplers", "weights")
    },
    "ClipSettings": "vidssl.data.clip_samplers",
    "Features": "vidssl.types",
    "NetworkOptions": "vidssl.api.job_arguments",
    "Neighbours": "vidssl.evaluation.search",
    "TestClips": "vidssl.evaluation.features",
    "open_video": "vidssl.video",
    "prepare_folder": "vidssl.prepare",
    "read_input": "vidssl.data.read_input",
    **dict.fromkeys(("build_backbone", "load_backbone"), "vidssl.models"),
    "save_backbone": "vidssl.api.export",
    "__version__": "vidssl.version",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'vidssl' has no attribute '{name}'")
    value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
