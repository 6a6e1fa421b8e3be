"""What of vidssl works on this machine, and what to do about the rest."""

import importlib.metadata
from collections.abc import Callable
from dataclasses import dataclass

import av
import cv2
import torch

from vidssl.errors import ConfigError, VidsslError
from vidssl.tracking.proposals import selective_search
from vidssl.video.backends import decord_package, torchcodec_package


@dataclass(frozen=True)
class Part:
    """Something that may be missing while all else works."""

    name: str
    works: bool
    detail: str  # the version, or what to do


def examine() -> list[Part]:
    """Try every part that another package or device brings; none of them stops the others."""
    return [
        _tried("training on a GPU", _gpu),
        _tried(
            "decoding with pyav", lambda: f"av {av.__version__}, FFmpeg's libavcodec {_version_of_ffmpeg()}"
        ),
        _tried("decoding with decord", lambda: f"decord {decord_package().__version__}"),
        _tried(
            "decoding with torchcodec",
            lambda: f"torchcodec {_loaded_version('torchcodec', torchcodec_package)}",
        ),
        _tried("selective search", _selective_search),
    ]


def describe(parts: list[Part]) -> str:
    """Write the parts as a table for a terminal."""
    width = max(len(part.name) for part in parts)
    return "\n".join(
        f"{'yes' if part.works else 'no ':<3}  {part.name:<{width}}  {part.detail}" for part in parts
    )


def _tried(name: str, action: Callable[[], str]) -> Part:
    try:
        return Part(name, True, action())
    except VidsslError as error:
        return Part(name, False, str(error))


def _gpu() -> str:
    if not torch.cuda.is_available():
        raise ConfigError(f"torch {torch.__version__} sees no CUDA device: training runs on the CPU")
    return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}, torch {torch.__version__}"


def _version_of_ffmpeg() -> str:
    return ".".join(str(number) for number in av.library_versions["libavcodec"])


def _loaded_version(name: str, load: Callable[[], object]) -> str:
    load()
    return importlib.metadata.version(name)


def _selective_search() -> str:
    selective_search()
    return f"opencv {cv2.__version__} with ximgproc"
