"""What commands can be told, and how it is read: each group of arguments once."""

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vidssl.errors import ConfigError
from vidssl.workers import usable_cpus

# What a command works with is imported once its arguments are read: --help and a mistyped option need no torch.
if TYPE_CHECKING:
    from vidssl.commands.load import LoadOptions
    from vidssl.config import Tree


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
    workers = "one per usable CPU"
    if clips:
        workers = "the run's"
        parser.add_argument(
            "--clips", type=at_least(1), help="clips of each video (default: the run's evaluate.clips)"
        )
        parser.add_argument(
            "--crops", type=at_least(1), help="crops of each clip, along the longer side (default: the run's)"
        )
        parser.add_argument("--size", type=at_least(1), help="side of the crops, pixels (default: the run's)")
        parser.add_argument(
            "--short-side",
            type=at_least(1),
            help="of the video before it is cropped, pixels (default: the run's)",
        )
        parser.add_argument("--batch-size", type=at_least(1), help="videos at a time (default: the run's)")
        parser.add_argument(
            "--precision",
            choices=("float32", "bfloat16"),
            help="of the forward pass (default: the run's evaluate.precision)",
        )
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
        "--max-pixels",
        type=at_least(1),
        default=argparse.SUPPRESS,
        help="largest size of a frame, width times height (default 4096 x 4096)",
    )
    parser.add_argument(
        "--timeout", type=above_zero, default=120.0, help="seconds without a frame that mean it hangs (120)"
    )
    parser.add_argument(
        "--workers", type=at_least(1), default=usable_cpus(), help="processes (default: one per usable CPU)"
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
    parser.add_argument(
        "--follow-links", action="store_true", help="follow links to folders, and links that leave the folder"
    )
    default = "" if fps is None else f" (default {fps:g})"
    parser.add_argument(
        "--fps", type=float, default=fps, help=f"frames per second of folders of images{default}"
    )
    return parser


def parse(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse options and KEY=VALUE settings in any order.

    An unknown option that is a setting of the config, as `--output=x`, is an error that names the setting.
    """
    parsed, unknown = parser.parse_known_intermixed_args(arguments)
    if unknown:
        settings = [word.lstrip("-") for word in unknown if word.startswith("--") and _is_setting(word)]
        written = " ".join(word if "=" in word else f"{word}=VALUE" for word in settings)
        hint = f" (did you mean {written}? settings of the config have no dashes)" if written else ""
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
    return parsed


def _is_setting(word: str) -> bool:
    from vidssl.engine.run_config import Run

    return re.split("[.=]", word.lstrip("-"))[0] in Run.model_fields


def options_of(arguments: argparse.Namespace) -> "LoadOptions":
    """Collect the arguments of `add_options`."""
    from vidssl.commands.load import LoadOptions

    fields = LoadOptions.__dataclass_fields__
    return LoadOptions(**{name: value for name, value in vars(arguments).items() if name in fields})


def splits(text: str) -> tuple[int, ...]:
    """Read `1,2,3`."""
    parts = text.split(",")
    numbers = tuple(int(part) for part in parts if re.fullmatch("[0-9]{1,4}", part))
    if len(set(numbers)) < len(parts):
        raise argparse.ArgumentTypeError(f"{text} is not a list of different numbers, as 1,2,3")
    return numbers


def protocol_choices(words: Sequence[str]) -> "tuple[list[Tree], list[str]]":
    """Read `knn k=20 svm data.workers=0` as the choices of two protocols, and the settings of the config among them.

    A setting belongs to the protocol before it, unless that does not have it and the config does.
    """
    from vidssl.config import override

    choices: list[Tree] = []
    overrides = []
    for word in words:
        if "=" not in word:
            choices.append({"name": word})
        elif _is_setting(word) and not (choices and _has_setting(choices[-1]["name"], word)):
            overrides.append(word)
        elif not choices:
            raise ConfigError(f"--protocol begins with the setting {word}: name the protocol before it")
        else:
            override(choices[-1], word)
    if not choices:
        raise ConfigError(
            f"--protocol {' '.join(words)} names no protocol: write its name first, as --protocol knn k=20"
        )
    return choices, overrides


def _has_setting(protocol: str, word: str) -> bool:
    from vidssl.evaluation import PROTOCOLS

    key = word.partition("=")[0]
    if protocol not in PROTOCOLS:  # of a plug-in, which is not imported yet
        return "." not in key
    kind: Any = PROTOCOLS[protocol]
    return key.split(".")[0] in kind.Config.model_fields


def chooser(
    prog: str | None, description: str | None, commands: Mapping[str, Callable[..., None]]
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
