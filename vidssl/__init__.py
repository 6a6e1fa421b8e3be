"""Self-supervised learning of video representations: trains backbones on videos, extracts features, evaluates them."""

import importlib
import sys
from typing import TYPE_CHECKING, Any

if sys.platform == "win32":  # workers are forked, and files locked with fcntl
    raise ImportError("vidssl runs on Linux, not on Windows: use WSL 2, a Linux container or another machine")

__version__ = "0.1.0"

if TYPE_CHECKING:
    from vidssl.models import build_backbone, load_backbone, save_backbone
    from vidssl.video import open_video

__all__ = ["build_backbone", "load_backbone", "open_video", "save_backbone"]

# Imported at first use: torch and the decoders take seconds, which `vidssl --help` need not wait for.
_HOMES = {"open_video": "vidssl.video"} | dict.fromkeys(
    ("build_backbone", "load_backbone", "save_backbone"), "vidssl.models"
)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'vidssl' has no attribute '{name}'")
    value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
