"""The options of the command `prepare`."""

from argparse import ArgumentParser
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vidssl.commands.arguments import above_zero, add_output_options, at_least


def prepare(parser: ArgumentParser) -> Mapping[str, ArgumentParser]:
    """Write the lists of a folder of videos or of a data set."""
    commands = parser.add_subparsers(required=True, metavar="DATASET")
    _add_folder(commands)
    _add_official(commands)
    _add_others(commands)
    return commands.choices


def _add(commands: Any, dataset: str, summary: str, root: str | None = None) -> ArgumentParser:
    parser: ArgumentParser = commands.add_parser(dataset, help=summary, description=summary)
    parser.set_defaults(dataset=dataset)
    if root is not None:
        parser.add_argument("root", type=Path, help=root)
    parser.add_argument("--out", type=Path, required=True, help="folder for what is written")
    add_output_options(parser)
    return parser


def _add_shared(parser: ArgumentParser, max_missing: float | None = 0.05, fps: float | None = None) -> None:
    """Add the options of commands that search a folder; without `--max-missing` if that is None."""
    parser.add_argument("--follow-links", action="store_true", help="follow links to folders and outside")
    default = "" if fps is None else f" (default {fps:g})"
    parser.add_argument("--fps", type=above_zero, default=fps, help=f"frame rate for folders of images{default}")
    if max_missing is not None:
        text = f"fraction of the files of a list that may be missing (default {max_missing:g})"
        parser.add_argument("--max-missing", type=float, default=max_missing, help=text)


def _add_folder(commands: Any) -> None:
    summary = "any folder of videos: train.csv and test.csv, or a list for each split"
    parser = _add(commands, "folder", summary, root="folder of the videos")
    _add_shared(parser, max_missing=None)
    option = parser.add_argument
    text = "fraction of each class for the test list (default 0.33; 0, no test list, if there are no classes)"
    option("--test", type=float, help=text)
    option("--group", metavar="REGEX", help="group of a path: first capture group, or match")
    option("--labels", type=Path, metavar="CSV", help="file with the columns path,label")
    option("--group-column", metavar="NAME", help="column of --labels that names the group")
    option("--seed", type=at_least(0), default=0, help="seed of the random split (default 0)")
    option("--images", action="store_true", help="list each image file as a video of one frame")
    option("--classes", type=Path, metavar="FILE", help="classes to keep, one a line")
    option("--unlabeled", action="store_true", help="folders are not classes: write no labels")


def _add_official(commands: Any) -> None:
    """Add the data sets with official lists."""
    root = "folder of the videos"
    for name, splits in (("UCF101", "ucfTrainTestlist"), ("HMDB51", "testTrainMulti_7030_splits")):
        parser = _add(commands, name.lower(), f"{name}: train1.csv, test1.csv and so on", root)
        parser.add_argument("--splits", type=Path, required=True, help=f"folder {splits}")
        _add_shared(parser)
    parser = _add(commands, "kinetics", "Kinetics-400, -600 or -700: train.csv, test.csv", root)
    parser.add_argument("--train", type=Path, required=True, metavar="CSV", help="official training list")
    parser.add_argument("--test", type=Path, metavar="CSV", help="official validation list")
    parser.add_argument("--classes", type=Path, metavar="FILE", help="classes to keep, one a line")
    parser.add_argument("--untrimmed", action="store_true", help="whole videos <id>.mp4: write start and end")
    _add_shared(parser, max_missing=0.2)
    parser = _add(commands, "ssv2", "Something-Something v2: train.csv, test.csv", root)
    parser.add_argument("--train", type=Path, required=True, metavar="JSON", help="official training list")
    parser.add_argument("--test", type=Path, required=True, metavar="JSON", help="official validation list")
    parser.add_argument("--labels", type=Path, required=True, metavar="JSON", help="class names and numbers")
    _add_shared(parser)
    summary = "Pascal VOC with several labels a row: train.csv, test.csv"
    option = _add(commands, "voc-classes", summary, root="folder of a year, such as VOCdevkit/VOC2007").add_argument
    option("--train", default="trainval", metavar="SPLIT", help="split of the training list (default trainval)")
    option("--test", default="test", metavar="SPLIT", help="split of the test list (default test)")
    summary = "TrackingNet, without labels: train.csv, test.csv if TEST exists"
    parser = _add(commands, "trackingnet", summary, root="folder with TRAIN_0 and so on")
    parser.add_argument("--chunks", nargs="+", type=int, metavar="N", help="training chunks (default all)")
    _add_shared(parser, fps=30.0)
    _add(commands, "voc", "Pascal VOC, with boxes: a JSON list for each split", "VOCdevkit, or one folder of it")
    _add(commands, "coco", "COCO, with boxes and outlines: a JSON list for each set", "folder with annotations/")
    parser = _add(
        commands, "ava", "AVA, key frames with persons and actions: train.json, val.json", "folder of the movies"
    )
    option = parser.add_argument
    option("--annotations", type=Path, required=True, help="folder with ava_train_v2.2.csv and so on")
    option("--version", default="2.2", help="version of the annotation files (default 2.2)")
    text = "second of the movies at which the files begin: 0 for whole movies (default 900)"
    option("--start", type=float, default=900.0, help=text)
    option("--proposals", type=Path, metavar="CSV", help="person detections for tests (default: ground truth)")
    option("--train-boxes", type=Path, metavar="CSV", help="additional training boxes with actions")
    option("--min-score", type=float, default=0.8, help="least score of boxes of both files (default 0.8)")
    option("--fps", type=above_zero, default=30.0, help="frame rate for folders of images (default 30)")
    text = "fraction of the movies of a list that may be missing (default 0.05)"
    option("--max-missing", type=float, default=0.05, help=text)
    parser = _add(commands, "list", "a list of SlowFast, pytorchvideo, mmaction2 or VideoMAE: NAME.csv")
    parser.add_argument("videos", type=Path, metavar="list", help="list of another project")
    parser.add_argument("--form", required=True, help="slowfast, mmaction2, mmaction2_rawframes, videomae")
    parser.add_argument("--root", type=Path, required=True, help="folder that the paths are relative to")
    parser.add_argument("--name", default="train", help="name of the written list (default train)")
    parser.add_argument("--separator", default=" ", help="text between fields (default space)")
    parser.add_argument("--classes", type=Path, metavar="FILE", help="names of the classes, one a line")
    _add_shared(parser)


def _add_others(commands: Any) -> None:
    """Add the data sets that are written here, and chunks of other lists."""
    option = _add(commands, "torchvision", "an image set of torchvision: PNG files, train.csv, test.csv").add_argument
    option("name", help="class of torchvision.datasets, such as CIFAR10, STL10, SVHN, MNIST")
    option("--root", type=Path, required=True, help="folder where torchvision stores the set")
    option("--download", action="store_true", help="let torchvision download the set")
    option("--images", type=Path, help="folder for the images (default OUT/images)")
    text = "splits of the set that make the training list, such as trainval, or train val (default train)"
    option("--train-split", nargs="+", default=["train"], metavar="SPLIT", help=text)
    option = _add(commands, "chunks", "a list again, with spans of consecutive frames that are far apart").add_argument
    option("videos", type=Path, metavar="list", help="list of videos")
    option("--chunks", type=at_least(1), default=4, help="chunks of each video (default 4)")
    option("--frames", type=at_least(1), default=60, help="frames of each chunk (default 60)")
    text = "videos shorter than a chunk: one chunk each, or none (default keep)"
    option("--short", choices=("keep", "drop"), default="keep", help=text)
    option("--root", type=Path, help="folder of the videos, instead of the one in root.txt")
    option("--allow-external", action="store_true", help="accept paths that leave the root")
    option("--fps", type=above_zero, help="frame rate for image folders without an fps column")
    summary = "Colorful Moving MNIST: pairs of views that share digit, background or position"
    option = _add(commands, "colorful-moving-mnist", summary).add_argument
    factors = ("digit", "background", "position")
    option("--share", nargs="+", choices=factors, required=True, help="factors that both views have in common")
    option("--train", type=int, default=2000, help="training videos (default 2000)")
    option("--test", type=int, default=500, help="test videos (default 500)")
    option("--second-views", type=int, default=4, metavar="N", help="second views of a video (default 4)")
    text = "frame number that the second view refers to (default 20)"
    option("--reference", type=int, default=20, metavar="FRAME", help=text)
    option("--mnist", type=Path, help="folder with MNIST's idx files, instead of scikit-learn's 8x8 digits")
    text = "folder with train.csv and test.csv of images, such as STL-10, instead of textures"
    option("--backgrounds", type=Path, metavar="LISTS", help=text)
    option("--seed", type=at_least(0), default=0, help="random seed (default 0)")
    option = _add(commands, "moving-digits", "synthetic videos of moving digits, with their lists").add_argument
    option("--train", type=int, default=640, help="training videos (default 640)")
    option("--test", type=int, default=160, help="test videos (default 160)")
    option("--frames", type=int, default=48, help="frames of a video (default 48)")
    option("--fps", type=int, default=25, help="frame rate (default 25)")
    option("--size", type=int, default=64, help="height and width in pixels (default 64)")
    option("--seed", type=int, default=0, help="random seed (default 0)")
    option("--mnist", help="folder with MNIST's idx files, instead of scikit-learn's 8x8 digits")
    text = "asymmetric: motions that differ from their reversal, as growing and shrinking (default periodic)"
    option("--motions", choices=("periodic", "asymmetric"), default="periodic", help=text)
    option("--masks", action="store_true", help="also write masks, and crops of the digits with part masks")
