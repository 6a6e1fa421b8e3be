"""`vidssl prepare DATASET …`: write the lists of a data set. Each script in datasets/ is one of these commands."""

import argparse
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from vidssl.commands.arguments import above_zero, at_least


def prepare(arguments: Sequence[str] | None = None, prog: str | None = None) -> None:
    """Write the lists of a data set."""
    parser = argparse.ArgumentParser(prog=prog, description=prepare.__doc__)
    commands = parser.add_subparsers(dest="dataset", required=True, metavar="DATASET")
    for name, add_arguments in DATASETS.items():
        summary = (add_arguments.__doc__ or "").splitlines()[0]
        _configure(commands.add_parser(name, help=summary), add_arguments)
    options = vars(parser.parse_args(arguments))
    _run(options.pop("dataset"), options)


def run_script(dataset: str) -> None:
    """Run the command of one data set, as the scripts in datasets/ do."""
    from vidssl.commands.cli import guarded

    parser = argparse.ArgumentParser()
    _configure(parser, DATASETS[dataset])
    guarded(lambda: _run(dataset, vars(parser.parse_args())))


def _configure(
    parser: argparse.ArgumentParser, add_arguments: Callable[[argparse.ArgumentParser], None]
) -> None:
    parser.description = inspect.getdoc(add_arguments)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add_arguments(parser)
    parser.add_argument("--out", type=Path, required=True, help="folder for what is written")


def _run(dataset: str, options: dict[str, Any]) -> None:
    """Write the lists and print the report."""
    import vidssl.prepare

    out = options["out"]
    if dataset == "moving-digits":
        _render(**options)
    else:
        print(getattr(vidssl.prepare, f"prepare_{dataset}")(**options))
        print(f"lists written to {out}")


def _render(out: Path, **settings: Any) -> None:
    from vidssl.config import bind
    from vidssl.data.synthetic.moving_digits import MovingDigits, ensure

    digits = bind(MovingDigits, settings, "moving-digits")
    action = "rendered" if ensure(out, digits) else "found"
    print(f"{action} {digits.train} training and {digits.test} test videos in {out}")
    print(*sorted(out.glob("*/*.csv")), sep="\n")


def _add_shared(
    parser: argparse.ArgumentParser,
    max_missing: float | None = 0.05,
    fps: float | None = None,
    root_is_option: bool = False,
) -> None:
    """Add the options of all commands that search a folder for videos; None: without --max-missing."""
    if root_is_option:
        parser.add_argument("--root", type=Path, required=True, help="folder that the paths are relative to")
    else:
        parser.add_argument("root", type=Path, help="folder of the videos")
    parser.add_argument(
        "--follow-links", action="store_true", help="follow links to folders and out of the root"
    )
    default = "" if fps is None else f" (default {fps:g})"
    parser.add_argument("--fps", type=float, default=fps, help=f"frame rate for folders of images{default}")
    if max_missing is not None:
        text = f"fraction of the files of a list that may be missing (default {max_missing:g})"
        parser.add_argument("--max-missing", type=float, default=max_missing, help=text)


def _folder(parser: argparse.ArgumentParser) -> None:
    r"""Any folder of videos: train.csv, test.csv, classes.txt, root.txt.

    vidssl prepare folder /data/actions --out lists/actions --test 0.33 --group 'person\d+'

    The folder holds <class>/<file>, files without classes, or one of these in train, val and test, which become the
    lists. Videos of one group (a person, a camera) stay in one list.
    """
    _add_shared(parser, max_missing=None)
    parser.add_argument(
        "--test",
        type=float,
        help="fraction of the groups for the test list (default 0.33; 0, no test list, if there are no classes)",
    )
    parser.add_argument(
        "--group", metavar="REGEX", help="group of a path: first capture group, or whole match"
    )
    parser.add_argument("--labels", type=Path, metavar="CSV", help="file with the columns path,label")
    parser.add_argument("--group-column", metavar="NAME", help="column of --labels that names the group")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random split (default 0)")
    parser.add_argument("--images", action="store_true", help="list each image file as a video of one frame")
    parser.add_argument(
        "--classes", type=Path, metavar="FILE", help="classes to keep, one a line (default all)"
    )
    parser.add_argument("--unlabeled", action="store_true", help="folders are not classes: write no labels")


def _ucf101(parser: argparse.ArgumentParser) -> None:
    """UCF101: train1.csv, test1.csv and so on, classes.txt, root.txt.

    vidssl prepare ucf101 /data/UCF-101 --splits /data/ucfTrainTestlist --out lists/ucf101
    """
    _add_shared(parser)
    parser.add_argument("--splits", type=Path, required=True, help="folder ucfTrainTestlist")


def _hmdb51(parser: argparse.ArgumentParser) -> None:
    """HMDB51: train1.csv, test1.csv and so on, classes.txt, root.txt.

    vidssl prepare hmdb51 /data/hmdb51 --splits /data/testTrainMulti_7030_splits --out lists/hmdb51
    """
    _add_shared(parser)
    parser.add_argument("--splits", type=Path, required=True, help="folder testTrainMulti_7030_splits")


def _kinetics(parser: argparse.ArgumentParser) -> None:
    """Kinetics-400, -600 or -700: train.csv, test.csv, classes.txt, root.txt.

    vidssl prepare kinetics /data/k400 --train train.csv --test validate.csv --out lists/k400
    """
    _add_shared(parser, max_missing=0.2)
    parser.add_argument("--train", type=Path, required=True, metavar="CSV", help="official training list")
    parser.add_argument("--test", type=Path, metavar="CSV", help="official validation list")
    parser.add_argument(
        "--classes", type=Path, metavar="FILE", help="classes to keep, one a line (default all)"
    )
    parser.add_argument(
        "--untrimmed", action="store_true", help="files are whole videos <id>.mp4: write start and end"
    )


def _ssv2(parser: argparse.ArgumentParser) -> None:
    r"""Something-Something v2: train.csv, test.csv, classes.txt, root.txt.

    vidssl prepare ssv2 /data/ssv2/videos --train something-something-v2-train.json \
        --test something-something-v2-validation.json --labels something-something-v2-labels.json --out lists/ssv2
    """
    _add_shared(parser)
    parser.add_argument("--train", type=Path, required=True, metavar="JSON", help="official training list")
    parser.add_argument("--test", type=Path, required=True, metavar="JSON", help="official validation list")
    parser.add_argument("--labels", type=Path, required=True, metavar="JSON", help="class names and numbers")


def _trackingnet(parser: argparse.ArgumentParser) -> None:
    """TrackingNet, without labels: train.csv, test.csv if TEST exists, root.txt.

    vidssl prepare trackingnet /data/TrackingNet --chunks 0 1 2 3 --out lists/trackingnet4
    """
    _add_shared(parser, fps=30.0)
    parser.add_argument("--chunks", nargs="+", type=int, metavar="N", help="training chunks (default all)")


def _list(parser: argparse.ArgumentParser) -> None:
    """A list of SlowFast, pytorchvideo or mmaction2: NAME.csv, classes.txt, root.txt.

    vidssl prepare list k400/train.csv --form slowfast --root /data/k400 --out lists/k400
    """
    parser.add_argument("videos", type=Path, metavar="list", help="list of another project")
    _add_shared(parser, root_is_option=True)
    parser.add_argument(
        "--form", required=True, metavar="FORM", help="slowfast, mmaction2 or mmaction2_rawframes"
    )
    parser.add_argument("--name", default="train", help="name of the written list (default train)")
    parser.add_argument(
        "--separator", default=" ", metavar="CHARACTER", help="between fields (default space)"
    )
    parser.add_argument("--classes", type=Path, metavar="FILE", help="names of the classes, one a line")


def _torchvision(parser: argparse.ArgumentParser) -> None:
    """Image set of torchvision: PNG files, train.csv, test.csv, classes.txt, root.txt.

    vidssl prepare torchvision CIFAR10 --root /data/torchvision --download --out lists/cifar10

    Each image is a video of one frame. STL10 also gets unlabeled.csv. A repeated run continues an interrupted one.
    """
    parser.add_argument("name", help="class of torchvision.datasets, such as CIFAR10, STL10, SVHN, MNIST")
    parser.add_argument("--root", type=Path, required=True, help="folder where torchvision stores the set")
    parser.add_argument("--download", action="store_true", help="let torchvision download the set")
    parser.add_argument("--images", type=Path, help="folder for the images (default OUT/images)")


def _chunks(parser: argparse.ArgumentParser) -> None:
    """Chunks of the videos of a list: the list again, with spans of consecutive frames that are far apart.

    vidssl prepare chunks lists/trackingnet/train.csv --out lists/trackingnet_chunks --chunks 4 --frames 60
    """
    parser.add_argument("videos", type=Path, metavar="list", help="list of videos")
    parser.add_argument("--chunks", type=at_least(1), default=4, help="chunks of each video (default 4)")
    parser.add_argument("--frames", type=at_least(1), default=60, help="frames of each chunk (default 60)")
    parser.add_argument(
        "--short", choices=("keep", "drop"), default="keep", help="videos shorter than a chunk (default keep)"
    )
    parser.add_argument("--root", type=Path, help="folder of the videos, instead of the one in root.txt")
    parser.add_argument("--allow-external", action="store_true", help="accept paths that leave the root")
    parser.add_argument("--fps", type=above_zero, help="frame rate for image folders without an fps column")


def _moving_digits(parser: argparse.ArgumentParser) -> None:
    """Moving digits over a texture, rendered here: videos, lists of motions and digits, boxes.

    vidssl prepare moving-digits --out data/moving_digits --size 32

    A second run with the same settings does nothing.
    """
    parser.add_argument("--train", type=int, default=640, help="training videos (default 640)")
    parser.add_argument("--test", type=int, default=160, help="test videos (default 160)")
    parser.add_argument("--frames", type=int, default=48, help="frames of a video (default 48)")
    parser.add_argument("--fps", type=int, default=25, help="frame rate (default 25)")
    parser.add_argument("--size", type=int, default=64, help="height and width in pixels (default 64)")
    parser.add_argument("--seed", type=int, default=0, help="random seed (default 0)")
    parser.add_argument("--mnist", help="folder with MNIST's idx files, instead of scikit-learn's 8x8 digits")
    parser.add_argument("--masks", action="store_true", help="also write crops of the digits and part masks")


DATASETS: dict[str, Callable[[argparse.ArgumentParser], None]] = {
    "folder": _folder,
    "ucf101": _ucf101,
    "hmdb51": _hmdb51,
    "kinetics": _kinetics,
    "ssv2": _ssv2,
    "trackingnet": _trackingnet,
    "list": _list,
    "torchvision": _torchvision,
    "chunks": _chunks,
    "moving-digits": _moving_digits,
}
