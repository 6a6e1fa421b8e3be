"""Self-supervised learning of video representations: trains backbones on videos, extracts features, evaluates them.

Each job is a function and a command of its name; `help(vidssl.NAME)` states its arguments, results and errors.

Train:      train, train_splits (on each split of a data set), show (the views that a config trains on)
Features:   extract (of videos, by any network or module), load_features (that were extracted to a folder), merge (parts
            that several machines extracted), Features
Search:     search (features), retrieval (of videos: recalls and a page), Neighbours, map (features as a page)
Label:      predict (the classes of other videos, or of moments of long ones, from a few labelled examples)
Evaluate:   test (kNN, linear, few labels …), compare (encoders, on your videos), analyze_all (the following),
            analyze_background, analyze_gradcam, analyze_invariance, analyze_robustness, analyze_uniformity
Networks:   build_backbone, load_backbone, load_encoder (once, for many calls of jobs), save_backbone (of any loop),
            export (ONNX, torch.export, …), NetworkOptions (the arguments of all jobs that apply a network)
Videos:     read_input (file, folder or list), open_video (exact frames), check (find broken ones), shrink (small
            copies), track (regions), prepare_folder (lists of a folder), ClipSettings, TestClips
Names:      list_backbones, list_methods, list_configs, list_weights, list_samplers, list_recipes, list_protocols,
            schema (of configs), doctor (optional parts on this machine)
"""

import ast
import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

try:
    importlib.import_module("fcntl")  # locks folders; where it is missing, processes cannot be forked either
except ImportError:
    raise ImportError(
        "vidssl runs on Linux, not on Windows or another system: use WSL 2 or a Linux container"
    ) from None

if TYPE_CHECKING:
    from vidssl.apps.analysis.all import analyze_all as analyze_all
    from vidssl.apps.analysis.background import analyze_background as analyze_background
    from vidssl.apps.analysis.gradcam import analyze_gradcam as analyze_gradcam
    from vidssl.apps.analysis.invariance import analyze_invariance as analyze_invariance
    from vidssl.apps.analysis.robustness import analyze_robustness as analyze_robustness
    from vidssl.apps.analysis.uniformity_and_class_distances import analyze_uniformity as analyze_uniformity
    from vidssl.apps.check import check as check
    from vidssl.apps.compare import compare as compare
    from vidssl.apps.export import export as export
    from vidssl.apps.export import save_backbone as save_backbone
    from vidssl.apps.map import map as map
    from vidssl.apps.predict import predict as predict
    from vidssl.apps.prepare.folder import prepare_folder as prepare_folder
    from vidssl.apps.search import retrieval as retrieval
    from vidssl.apps.show import show as show
    from vidssl.apps.shrink import shrink as shrink
    from vidssl.base.types import Features as Features
    from vidssl.data.clip_samplers import ClipSettings as ClipSettings
    from vidssl.data.read_input import read_input as read_input
    from vidssl.evaluation.features import TestClips as TestClips
    from vidssl.evaluation.search import Neighbours as Neighbours
    from vidssl.evaluation.search import search as search
    from vidssl.jobs.doctor import doctor as doctor
    from vidssl.jobs.doctor import list_backbones as list_backbones
    from vidssl.jobs.doctor import list_configs as list_configs
    from vidssl.jobs.doctor import list_methods as list_methods
    from vidssl.jobs.doctor import list_protocols as list_protocols
    from vidssl.jobs.doctor import list_recipes as list_recipes
    from vidssl.jobs.doctor import list_samplers as list_samplers
    from vidssl.jobs.doctor import list_weights as list_weights
    from vidssl.jobs.doctor import schema as schema
    from vidssl.jobs.extract import extract as extract
    from vidssl.jobs.extract import load_features as load_features
    from vidssl.jobs.extract import merge as merge
    from vidssl.jobs.job import NetworkOptions as NetworkOptions
    from vidssl.jobs.load_network import load_encoder as load_encoder
    from vidssl.jobs.test import test as test
    from vidssl.jobs.track import track as track
    from vidssl.jobs.train import train as train
    from vidssl.jobs.train import train_splits as train_splits
    from vidssl.models import build_backbone as build_backbone
    from vidssl.models import load_backbone as load_backbone
    from vidssl.version import __version__ as __version__
    from vidssl.video import open_video as open_video

# The public names and their modules, as imported above for type checkers. They are imported at first use: torch and the
# decoders take seconds, which `vidssl --help` need not wait for.
_IMPORTS = [node for node in ast.walk(ast.parse(Path(__file__).read_bytes())) if isinstance(node, ast.ImportFrom)]
_PUBLIC = {node.names[0].name: str(node.module) for node in _IMPORTS if node.names[0].asname}
_HOMES = {name: module for name, module in _PUBLIC.items() if not module.startswith("vidssl.apps.")}


def _of_apps() -> dict[str, str]:
    """Return the names that apps add; without those of apps that are not there."""
    from vidssl.base.registry import APPS

    installed = {module for modules in APPS.values() for module in modules.values()}
    return {name: module for name, module in _PUBLIC.items() if module in installed}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name) or _of_apps().get(name)
    if home is None:
        raise AttributeError(f"module 'vidssl' has no attribute '{name}'")
    value = globals()[name] = getattr(importlib.import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, *_of_apps()})
