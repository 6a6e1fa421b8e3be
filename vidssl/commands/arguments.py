"""Options that several commands share, and how they are parsed."""

import argparse
import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from vidssl.atomic import without_nan
from vidssl.config import find_config
from vidssl.errors import ConfigError, VidsslError
from vidssl.worker_pool import usable_cpus

# Types of arguments -----------------------------------------------------------------------------------------


def at_least(least: int) -> Callable[[str], int]:
    """Make the type of an argument that is an integer of at least `least`."""

    def number(text: str) -> int:
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"{text} is less than {least}")
        return int(text)

    return number


def above_zero(text: str) -> float:
    """Parse a number above 0."""
    if not 0 < float(text) < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return float(text)


def config_file(text: str) -> Path:
    """Parse the path or the name of a config, as `find_config`."""
    try:
        return find_config(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _split(text: str) -> int | str:
    if "=" in text:  # a setting after the last number; `parse` moves it
        return text
    if not re.fullmatch("[0-9]{1,4}", text):
        raise argparse.ArgumentTypeError(f"{text} is not a number: write --splits 1 2 3, after the other arguments")
    return int(text)


# Groups of options ------------------------------------------------------------------------------------------


def add_input(parser: argparse.ArgumentParser, optional: bool = False) -> None:
    """Add the positional INPUT."""
    parser.add_argument(
        "input",
        type=Path,
        nargs="?" if optional else None,
        metavar="INPUT",
        help="videos: a list (*.csv, `vidssl prepare` writes it), a folder, a quoted pattern, or one file",
    )


def add_config(parser: argparse.ArgumentParser, required: bool = True, purpose: str = "") -> None:
    """Add `--cfg` and the settings `KEY=VALUE`."""
    text = f"config: a YAML file, or the name of a config that is installed, as sce_small{purpose}"
    parser.add_argument("--cfg", type=config_file, required=required, help=text)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="settings that override the config's")


def add_imports(parser: argparse.ArgumentParser) -> None:
    """Add `--imports`."""
    text = (
        "modules with your own methods, backbones, protocols …; those that weights name are not imported by themselves"
    )
    parser.add_argument("--imports", nargs="+", default=[], metavar="MODULE", help=text)


def add_splits(parser: argparse.ArgumentParser, purpose: str) -> None:
    """Add `--splits`."""
    text = f"{purpose} once per split, as 1 2 3; the number replaces {{split}} in paths and settings"
    parser.add_argument("--splits", type=_split, nargs="+", metavar="N", help=text)


def add_window_options(parser: argparse.ArgumentParser, purpose: str) -> None:
    """Add `--window` and `--stride`."""
    parser.add_argument("--window", type=above_zero, metavar="SECONDS", help=f"{purpose}, which lasts so long")
    text = "from the start of a window to the start of the next (default: the window)"
    parser.add_argument("--stride", type=above_zero, metavar="SECONDS", help=text)


def add_output_options(parser: argparse.ArgumentParser) -> None:
    """Add `--quiet` and `--json`."""
    parser.add_argument("--quiet", action="store_true", help="log warnings only, without progress bars")
    parser.add_argument("--json", action="store_true", help="print the results as one JSON object")


def add_file_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the commands that decode every file of a list completely."""
    option = parser.add_argument
    add_input(parser)
    option("--out", type=Path, required=True, help="output folder")
    option("--root", type=Path, help="folder of the videos (default: the one in root.txt)")
    option("--fps", type=above_zero, help="frame rate of image folders if the list has no column fps")
    option("--max-pixels", type=at_least(1), help="largest frame, width times height (default 4096 x 4096)")
    option("--timeout", type=above_zero, default=120.0, help="seconds without a new frame (default 120)")
    option("--workers", type=at_least(1), default=usable_cpus(), help="processes (default: one per usable CPU)")
    add_output_options(parser)


def add_network_options(
    parser: argparse.ArgumentParser,
    required: bool = True,
    several: bool = False,
    clips: bool = True,
    features: bool = True,
) -> None:
    """Add the options that choose a network or several, its clips (unless `clips` is False) and the videos' root.

    Without `features` there is one clip a video, and no layer and precision of features can be chosen.
    """
    option = parser.add_argument
    text = "a checkpoint, weights of another project, or 'random' for the untrained backbone of --cfg"
    if several:
        option("--checkpoint", required=required, nargs="+", help=f"{text}; several are compared")
    else:
        option("--checkpoint", required=required, help=text)
    text = "load a checkpoint with pickled objects; such a file can run any code"
    option("--trust-checkpoint", action="store_true", help=text)
    add_imports(parser)
    add_config(parser, required=False, purpose="; for 'random' and weights of another project")
    if clips:
        for name, text in {
            "clips": "clips per video",
            "crops": "crops per clip, along the longer side",
            "size": "side of the crops in pixels",
            "short-side": "short side of the video before it is cropped, in pixels",
            "batch-size": "videos per batch",
            "grid": "average the maps of --layer over grid x grid cells",
            "grid-frames": "and over so many parts of the clip",
        }.items():
            text = f"{text} (default: the run's evaluate.{name.replace('-', '_')})"
            if features or name in ("size", "short-side", "batch-size"):
                option(f"--{name}", type=at_least(1), help=text)
    option("--stream", help="use only this stream of a network with several, such as rgb (default: all)")
    if clips and features:
        option("--layer", help="layer whose maps are the features, such as layer3 (default: the run's evaluate.layer)")
        text = "precision of the forward pass (default: the run's evaluate.precision)"
        option("--precision", choices=("float32", "bfloat16"), help=text)
    workers = "the run's data.workers" if clips else "one per usable CPU"
    option("--workers", type=at_least(0), help=f"worker processes (default: {workers})")
    option("--device", choices=("auto", "cpu", "cuda"), default="auto", help="default auto")
    option("--root", type=Path, help="folder of the videos (default: the one in root.txt)")
    option("--allow-external", action="store_true", help="accept paths outside of the root")
    option("--allow-missing", action="store_true", help="skip and count videos that are unreadable")
    add_output_options(parser)


def list_commands(title: str, commands: Mapping[str, Callable[..., object]]) -> str:
    """List commands for `--help`, a line for each: its name, and the first line of its docstring."""
    lines = [f"  {name:<10} {(options.__doc__ or '').partition(chr(10))[0]}" for name, options in commands.items()]
    return "\n".join([f"{title}:", *lines])


# Parsing and printing ---------------------------------------------------------------------------------------

_ARGUMENT = re.compile(r"""(?<![\w.'"/-])([a-z]\w*)=(True|[A-Z]+|[0-9.]*[0-9]|"\w+")(?![\w/'"])""")
_OTHER_NAMES = {"trust": "trust_checkpoint"}  # arguments of Python, and the options of commands


def in_options(text: str, parsed: argparse.Namespace) -> str:
    """Write the arguments of Python that a message names as options: `allow_missing=True` is `--allow-missing`.

    Only those that the command has: what a message says of others, such as settings of a run, stays as it is.
    """

    def option(found: re.Match[str]) -> str:
        name = _OTHER_NAMES.get(found[1], found[1])
        if name not in parsed:
            return found[0]
        return f"--{name.replace('_', '-')}" + ("" if found[2] == "True" else f" {found[2].strip(chr(34))}")

    return _ARGUMENT.sub(option, text)


@contextmanager
def errors_in_options(parsed: argparse.Namespace) -> Iterator[None]:
    """Let the errors of this block name the options of a command, as `in_options`."""
    try:
        yield
    except VidsslError as error:
        error.args = (in_options(str(error), parsed),)
        raise


def parse(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse options and KEY=VALUE settings in any order, and apply `--quiet`."""
    parsed = parser.parse_intermixed_args(arguments)
    for name in (
        "splits",
        "transformations",
        "corruptions",
        "severities",
        "imports",
    ):  # options that take all words that follow, settings too
        if words := getattr(parsed, name, None):
            parsed.overrides += [word for word in words if "=" in str(word)]
            values = [word for word in words if "=" not in str(word)]
            if not values or len({*values}) < len(values):
                parser.error(f"--{name} needs different values, got {' '.join(map(str, values)) or 'none'}")
            setattr(parsed, name, values)
    apply_quiet(parsed)
    return parsed


def apply_quiet(parsed: argparse.Namespace) -> None:
    """Apply `--quiet`, which hides progress bars too."""
    if getattr(parsed, "quiet", False):
        logging.getLogger("vidssl").setLevel(logging.WARNING)


def print_results(parsed: argparse.Namespace, results: Any, *lines: object) -> None:
    """Print results in the main process: `lines`, or with `--json` the dictionary or dataclass `results`."""
    from vidssl import distributed

    if not distributed.is_main():
        return
    if parsed.json:
        content = asdict(results) if is_dataclass(results) and not isinstance(results, type) else results
        print(json.dumps(without_nan(content)[0], default=str, allow_nan=False))
    else:
        print(*lines, sep="\n")
