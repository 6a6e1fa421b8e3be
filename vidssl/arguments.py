"""What commands can be told, and how it is read: each group of arguments once."""

import argparse
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from vidssl.config import Tree, override
from vidssl.data.video import MAX_PIXELS
from vidssl.errors import ConfigError
from vidssl.jobs.backbones import Options


def at_least(least: int) -> Callable[[str], int]:
    """Make the type of an argument that is a whole number and not less than `least`."""

    def number(text: str) -> int:
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"{text} is less than {least}")
        return int(text)

    return number


def add_options(
    parser: argparse.ArgumentParser, required: bool = True, several: bool = False, clips: bool = True
) -> None:
    """Add the arguments that choose a backbone, or several of them, and its clips unless there are none."""
    parser.add_argument(
        "--checkpoint",
        required=required,
        nargs="+" if several else None,
        help="a checkpoint, or 'random' for the untrained backbone of --cfg"
        + ("; several" if several else ""),
    )
    parser.add_argument(
        "--trust-checkpoint",
        action="store_true",
        help="load a checkpoint that holds more than tensors and plain data; such a file can run any code",
    )
    parser.add_argument("--cfg", type=Path, help="config, with --checkpoint random")
    workers = "one a CPU"
    if clips:
        workers = "the run's"
        parser.add_argument(
            "--clips", type=at_least(1), help="clips of each video (default: the run's evaluate.clips)"
        )
        parser.add_argument(
            "--crops", type=at_least(1), help="crops of each clip, along the longer side (default: the run's)"
        )
        parser.add_argument("--size", type=at_least(1), help="side of the crops, pixels (default: the run's)")
        parser.add_argument("--batch-size", type=at_least(1), help="videos at a time (default: the run's)")
    parser.add_argument("--workers", type=at_least(0), help=f"processes that decode (default: {workers})")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--root", type=Path, help="folder of the videos, instead of the one in root.txt")
    parser.add_argument("--allow-external", action="store_true", help="accept paths that leave the root")
    parser.add_argument(
        "--allow-missing", action="store_true", help="leave out videos that cannot be read, and say how many"
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="settings over those of --cfg")


def above_zero(text: str) -> float:
    """Read a number above 0."""
    if not 0 < float(text) < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return float(text)


def add_file_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of what reads every file of a list to its end."""
    parser.add_argument("list", type=Path, help="list of videos")
    parser.add_argument("--out", type=Path, required=True, help="folder for what is written")
    parser.add_argument("--root", type=Path, help="folder of the videos, instead of the one in root.txt")
    parser.add_argument("--fps", type=above_zero, help="of folders of images whose list does not say it")
    parser.add_argument(
        "--max-pixels", type=at_least(1), default=MAX_PIXELS, help=f"of a frame (default {MAX_PIXELS})"
    )
    parser.add_argument(
        "--timeout", type=above_zero, default=120.0, help="seconds without a frame that mean it hangs (120)"
    )
    parser.add_argument(
        "--workers", type=at_least(1), default=os.cpu_count() or 1, help="processes (default: one a CPU)"
    )


def list_parser(
    description: str | None, max_missing: float = 0.05, fps: float | None = None
) -> argparse.ArgumentParser:
    """Make the parser of a script in datasets/, with what all of them know that find listed files in a folder.

    Args:
        description: The script's own.
        max_missing: Default of --max-missing.
        fps: Default of --fps; None: the lists do not say.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the lists")
    parser.add_argument(
        "--max-missing",
        type=float,
        default=max_missing,
        help=f"share of the files of a list that may be missing (default {max_missing:g})",
    )
    default = "" if fps is None else f" (default {fps:g})"
    parser.add_argument(
        "--fps", type=float, default=fps, help=f"frames per second of folders of images{default}"
    )
    return parser


def options_of(arguments: argparse.Namespace) -> Options:
    """Collect the arguments of `add_options`."""
    fields = Options.__dataclass_fields__
    return Options(**{name: value for name, value in vars(arguments).items() if name in fields})


def splits(text: str) -> tuple[int, ...]:
    """Read `1,2,3`."""
    parts = text.split(",")
    numbers = tuple(int(part) for part in parts if re.fullmatch("[0-9]{1,4}", part))
    if len(set(numbers)) < len(parts):
        raise argparse.ArgumentTypeError(f"{text} is not a list of different numbers, as 1,2,3")
    return numbers


def protocol_choices(words: Sequence[str]) -> list[Tree]:
    """Read `knn k=20 svm` as the choices of two protocols."""
    choices: list[Tree] = []
    for word in words:
        if "=" not in word:
            choices.append({"name": word})
        elif not choices:
            raise ConfigError(f"--protocol begins with the setting {word}: name the protocol before it")
        else:
            override(choices[-1], word)
    return choices


def chooser(
    prog: str, description: str | None, commands: Mapping[str, Callable[..., None]]
) -> argparse.ArgumentParser:
    """Make a parser whose first word chooses a command, and whose others are that command's."""
    parser = argparse.ArgumentParser(
        prog=prog,
        description=description,
        epilog="\n".join(
            f"  {name:<10} {(command.__doc__ or '').splitlines()[0]}" for name, command in commands.items()
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=commands, help="what to do; COMMAND --help tells more")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser
