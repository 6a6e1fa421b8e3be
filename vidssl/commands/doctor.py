"""The command `doctor`: which optional parts of vidssl work on this machine."""

import argparse
import importlib.metadata
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vidssl.commands.arguments import add_output_options, parse, print_results
from vidssl.errors import ConfigError, VidsslError


@dataclass(frozen=True)
class OptionalPart:
    """A part that needs another package or a device."""

    name: str
    works: bool
    detail: str  # the version, or what to install


def doctor(arguments: Sequence[str] | None = None, prog: str | None = None) -> None:
    """Report which optional parts of vidssl work on this machine, and how to install the others."""
    parser = argparse.ArgumentParser(prog=prog, description=doctor.__doc__)
    add_output_options(parser)
    parsed = parse(parser, arguments)
    parts = examine()
    print_results(parsed, {part.name: {"works": part.works, "detail": part.detail} for part in parts}, describe(parts))


def examine() -> list[OptionalPart]:
    """Try every optional part."""
    parts = []
    for name, version in _VERSIONS.items():
        try:
            parts.append(OptionalPart(name, True, version()))
        except VidsslError as error:
            parts.append(OptionalPart(name, False, str(error)))
    return parts


def describe(parts: Sequence[OptionalPart]) -> str:
    """Format the parts as a table for a terminal."""
    width = max(len(part.name) for part in parts)
    return "\n".join(f"{'yes' if part.works else 'no ':<3}  {part.name:<{width}}  {part.detail}" for part in parts)


def _gpu() -> str:
    import torch

    if not torch.cuda.is_available():
        raise ConfigError(f"torch {torch.__version__} finds no CUDA device: training runs on the CPU")
    return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}, torch {torch.__version__}"


def _pyav() -> str:
    import av

    codec = ".".join(str(number) for number in av.library_versions["libavcodec"])
    return f"av {av.__version__}, FFmpeg's libavcodec {codec}"


def _decord() -> str:
    from vidssl.video.backends import decord_package

    return f"decord {decord_package().__version__}"


def _torchcodec() -> str:
    from vidssl.video.backends import torchcodec_package

    torchcodec_package()
    return f"torchcodec {importlib.metadata.version('torchcodec')}"


def _selective_search() -> str:
    import cv2

    from vidssl.tracking.proposals import selective_search

    selective_search()
    return f"opencv {cv2.__version__} with ximgproc"


_VERSIONS: dict[str, Callable[[], str]] = {
    "training on a GPU": _gpu,
    "decoding with pyav": _pyav,
    "decoding with decord": _decord,
    "decoding with torchcodec": _torchcodec,
    "selective search": _selective_search,
}
