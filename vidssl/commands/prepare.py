"""`vidssl prepare DATASET …`: write the lists of a data set. Each script in datasets/ runs one of these commands."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vidssl.commands.arguments import above_zero, at_least


def prepare(arguments: Sequence[str] | None = None, prog: str | None = None) -> None:
    """Write the lists of a data set."""
    parser = argparse.ArgumentParser(prog=prog, description=prepare.__doc__)
    add_parsers(parser)
    _run(**vars(parser.parse_args(arguments)))


def run_script(dataset: str) -> None:
    """Run the command of one data set with the arguments of a script."""
    from vidssl.commands import guarded

    parser = add_parsers(argparse.ArgumentParser())[dataset]
    parser.prog = Path(sys.argv[0]).name
    guarded(lambda: _run(**vars(parser.parse_args())))


def add_parsers(parser: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    """Add the command of each data set to a parser; return their parsers by name."""
    commands = parser.add_subparsers(required=True, metavar="DATASET")
    _add_folder(commands)
    _add_official(commands)
    _add_others(commands)
    return commands.choices


def _add(commands: Any, dataset: str, summary: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(dataset, help=summary, description=summary)
    parser.set_defaults(dataset=dataset)
    parser.add_argument("--out", type=Path, required=True, help="folder for what is written")
    return parser


def _add_shared(parser: argparse.ArgumentParser, max_missing: float | None = 0.05, fps: float | None = None) -> None:
    """Add the options of commands that search a folder; without `--max-missing` if that is None."""
    parser.add_argument("--follow-links", action="store_true", help="follow links to folders and outside")
    default = "" if fps is None else f" (default {fps:g})"
    parser.add_argument("--fps", type=above_zero, default=fps, help=f"frame rate for folders of images{default}")
    if max_missing is not None:
        text = f"fraction of the files of a list that may be missing (default {max_missing:g})"
        parser.add_argument("--max-missing", type=float, default=max_missing, help=text)


def _add_folder(commands: Any) -> None:
    parser = _add(commands, "folder", "any folder of videos: train.csv and test.csv, or a list for each split")
    _add_shared(parser, max_missing=None)
    parser.add_argument("root", type=Path, help="folder of the videos")
    text = "fraction of the groups for the test list (default 0.33; 0, no test list, if there are no classes)"
    parser.add_argument("--test", type=float, help=text)
    parser.add_argument("--group", metavar="REGEX", help="group of a path: first capture group, or match")
    parser.add_argument("--labels", type=Path, metavar="CSV", help="file with the columns path,label")
    parser.add_argument("--group-column", metavar="NAME", help="column of --labels that names the group")
    parser.add_argument("--seed", type=at_least(0), default=0, help="seed of the random split (default 0)")
    parser.add_argument("--images", action="store_true", help="list each image file as a video of one frame")
    parser.add_argument("--classes", type=Path, metavar="FILE", help="classes to keep, one a line")
    parser.add_argument("--unlabeled", action="store_true", help="folders are not classes: write no labels")


def _add_official(commands: Any) -> None:
    """Add the data sets with official lists."""
    for name, splits in (("UCF101", "ucfTrainTestlist"), ("HMDB51", "testTrainMulti_7030_splits")):
        parser = _add(commands, name.lower(), f"{name}: train1.csv, test1.csv and so on")
        parser.add_argument("root", type=Path, help="folder of the videos")
        parser.add_argument("--splits", type=Path, required=True, help=f"folder {splits}")
        _add_shared(parser)
    parser = _add(commands, "kinetics", "Kinetics-400, -600 or -700: train.csv, test.csv")
    parser.add_argument("root", type=Path, help="folder of the videos")
    parser.add_argument("--train", type=Path, required=True, metavar="CSV", help="official training list")
    parser.add_argument("--test", type=Path, metavar="CSV", help="official validation list")
    parser.add_argument("--classes", type=Path, metavar="FILE", help="classes to keep, one a line")
    parser.add_argument("--untrimmed", action="store_true", help="whole videos <id>.mp4: write start and end")
    _add_shared(parser, max_missing=0.2)
    parser = _add(commands, "ssv2", "Something-Something v2: train.csv, test.csv")
    parser.add_argument("root", type=Path, help="folder of the videos")
    parser.add_argument("--train", type=Path, required=True, metavar="JSON", help="official training list")
    parser.add_argument("--test", type=Path, required=True, metavar="JSON", help="official validation list")
    parser.add_argument("--labels", type=Path, required=True, metavar="JSON", help="class names and numbers")
    _add_shared(parser)
    parser = _add(commands, "trackingnet", "TrackingNet, without labels: train.csv, test.csv if TEST exists")
    parser.add_argument("root", type=Path, help="folder with TRAIN_0 and so on")
    parser.add_argument("--chunks", nargs="+", type=int, metavar="N", help="training chunks (default all)")
    _add_shared(parser, fps=30.0)
    parser = _add(commands, "list", "a list of SlowFast, pytorchvideo or mmaction2: NAME.csv")
    parser.add_argument("videos", type=Path, metavar="list", help="list of another project")
    parser.add_argument("--form", required=True, help="slowfast, mmaction2 or mmaction2_rawframes")
    parser.add_argument("--root", type=Path, required=True, help="folder that the paths are relative to")
    parser.add_argument("--name", default="train", help="name of the written list (default train)")
    parser.add_argument("--separator", default=" ", help="character between fields (default space)")
    parser.add_argument("--classes", type=Path, metavar="FILE", help="names of the classes, one a line")
    _add_shared(parser)


def _add_others(commands: Any) -> None:
    """Add the data sets that are written here, and chunks of other lists."""
    parser = _add(commands, "torchvision", "an image set of torchvision: PNG files, train.csv, test.csv")
    parser.add_argument("name", help="class of torchvision.datasets, such as CIFAR10, STL10, SVHN, MNIST")
    parser.add_argument("--root", type=Path, required=True, help="folder where torchvision stores the set")
    parser.add_argument("--download", action="store_true", help="let torchvision download the set")
    parser.add_argument("--images", type=Path, help="folder for the images (default OUT/images)")
    parser = _add(commands, "chunks", "a list again, with spans of consecutive frames that are far apart")
    parser.add_argument("videos", type=Path, metavar="list", help="list of videos")
    parser.add_argument("--chunks", type=at_least(1), default=4, help="chunks of each video (default 4)")
    parser.add_argument("--frames", type=at_least(1), default=60, help="frames of each chunk (default 60)")
    text = "videos shorter than a chunk: one chunk each, or none (default keep)"
    parser.add_argument("--short", choices=("keep", "drop"), default="keep", help=text)
    parser.add_argument("--root", type=Path, help="folder of the videos, instead of the one in root.txt")
    parser.add_argument("--allow-external", action="store_true", help="accept paths that leave the root")
    parser.add_argument("--fps", type=above_zero, help="frame rate for image folders without an fps column")
    parser = _add(commands, "moving-digits", "synthetic videos of moving digits, with their lists")
    parser.add_argument("--train", type=int, default=640, help="training videos (default 640)")
    parser.add_argument("--test", type=int, default=160, help="test videos (default 160)")
    parser.add_argument("--frames", type=int, default=48, help="frames of a video (default 48)")
    parser.add_argument("--fps", type=int, default=25, help="frame rate (default 25)")
    parser.add_argument("--size", type=int, default=64, help="height and width in pixels (default 64)")
    parser.add_argument("--seed", type=int, default=0, help="random seed (default 0)")
    parser.add_argument("--mnist", help="folder with MNIST's idx files, instead of scikit-learn's 8x8 digits")
    parser.add_argument("--masks", action="store_true", help="also write crops of the digits and part masks")


def _run(dataset: str, out: Path, **options: Any) -> None:
    """Write the lists of a data set and print the report."""
    if dataset == "moving-digits":
        from vidssl.config import bind
        from vidssl.data.synthetic.moving_digits import MovingDigits, ensure

        settings = bind(MovingDigits, options, "moving-digits")
        action = "rendered" if ensure(out, settings) else "found"
        print(f"{action} {settings.train} training and {settings.test} test videos in {out}")
        print(*sorted(out.glob("*/*.csv")), sep="\n")
    else:
        import vidssl.prepare

        print(getattr(vidssl.prepare, f"prepare_{dataset}")(out=out, **options))
        print(f"lists written to {out}")
