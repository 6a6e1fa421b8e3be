"""The options of each command. The docstrings are the texts of `--help`."""

import argparse
import re
import sys
from argparse import ArgumentParser
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vidssl.commands.arguments import (
    above_zero,
    add_config,
    add_file_options,
    add_input,
    add_network_options,
    add_output_options,
    add_splits,
    at_least,
)


def train(parser: ArgumentParser) -> None:
    """Pre-train, finetune, probe or train from scratch; the same command resumes a run."""
    add_config(parser)
    add_splits(parser, "train and test")
    add_output_options(parser)


def test(parser: ArgumentParser) -> None:
    """Measure a network on a list: accuracy, kNN, SVM, few labels, retrieval; a detector on a list of boxes (JSON)."""
    add_input(parser)
    add_network_options(parser)
    parser.add_argument("--train-list", type=Path, help="training videos, for the protocols that need them")
    names = (
        "accuracy, attentive, knn, logistic, lowshot, multilabel_lowshot, multilabel_svm, retrieval, svm, uniformity"
    )
    text = f"protocols, each followed by its settings: {names}"
    parser.add_argument("--protocol", nargs="+", metavar=("NAME", "KEY=VALUE"), help=text)
    parser.add_argument("--imports", nargs="+", default=[], metavar="MODULE", help="modules with your own protocols")
    add_splits(parser, "test")
    parser.add_argument("--out", type=Path, required=True, help="folder for results.json, tables and images")


def retrieval(parser: ArgumentParser) -> None:
    """Search a gallery with a list of queries or one video, and write a page with the results."""
    option = parser.add_argument
    add_network_options(parser)
    option("--gallery", type=Path, help="video list to search in; optional with an --index")
    option("--query", type=Path, required=True, help="video list of the queries, or one video")
    option("--index", type=Path, help="folder with the features of the gallery; extracted if it does not exist")
    option("--out", type=Path, required=True, help="folder for results.json and index.html")
    option("--center", action="store_true", help="subtract the mean of each list first")
    option("--k", type=at_least(1), default=10, help="neighbours for kNN, or results for one video (default 10)")
    text = "ignore gallery videos whose features equal the query's bit by bit (copies of the file)"
    option("--drop-duplicates", action="store_true", help=text)
    option("--page-queries", type=at_least(0), default=48, help="queries on the page (default 48)")


def extract(parser: ArgumentParser) -> None:
    """Write the features of a list: features.npy, rows.csv and meta.json."""
    option = parser.add_argument
    add_input(parser, optional=True)
    add_network_options(parser, required=False)
    option("--out", type=Path, required=True, help="folder for the features")
    option("--shard", metavar="i/n", help="only part i of n, from 0, into a folder beside --out")
    option("--merge", action="store_true", help="write --out from its parts")


def export(parser: ArgumentParser) -> None:
    """Write the backbone of a checkpoint for another project."""
    option = parser.add_argument
    option("checkpoint", metavar="CHECKPOINT", help="checkpoint of vidssl, or file of save_backbone; a 2D ResNet")
    option("--to", choices=("detectron2",), required=True, help="the project")
    option("--out", type=Path, required=True, help="file to write, *.pkl for detectron2")
    option("--trust-checkpoint", action="store_true", help="load pickled objects; such a file can run any code")
    add_output_options(parser)


def track(parser: ArgumentParser) -> None:
    """Track the regions of the videos of a list; exit with 1 if some cannot be read."""
    option = parser.add_argument
    add_input(parser)
    add_network_options(parser, clips=False)
    option("--out", type=Path, required=True, help="folder for tracks/, proposals/, overlays/")
    option("--shard", metavar="i/n", help="only part i of n, from 0")
    text = "draw the tracks of the first N videos, or of all"
    option("--overlay", type=at_least(1), nargs="?", default=0, const=sys.maxsize, metavar="N", help=text)
    text = "settings of the tracker, as size=128 search.short_side=96; docs/tracking.md lists them"
    option("--tracker", nargs="+", default=[], metavar="KEY=VALUE", help=text)
    option("--timeout", type=above_zero, default=120.0, help="seconds without a new frame (default 120)")


def analyze(parser: ArgumentParser) -> None:
    """Measure how invariant networks are to transformations of the central square of a clip (or of --clips)."""
    option = parser.add_argument
    option("analysis", choices=("invariance",), help="what is measured")
    add_input(parser)
    add_network_options(parser, several=True)
    known = "occlusion, viewpoint, rotation, illumination, colour, blur, instance, shift, gap, speed, reverse"
    option("--transformations", nargs="+", metavar="NAME", help=f"default: all that apply of {known}")
    option("--top-k", type=at_least(1), default=10, help="number of best units (default 10)")
    text = "thresholds, rates and best units per class, or for all videos together (default class)"
    option("--variant", choices=("class", "goodfellow"), default="class", help=text)
    text = "compute thresholds from clips and transformed clips, or from clips only (default all)"
    option("--population", choices=("all", "samples"), default="all", help=text)
    option("--boxes", type=Path, help="CSV file path,frame,x1,y1,x2,y2: the box of the instance in each frame")
    add_splits(parser, "measure")
    option("--out", type=Path, required=True, help="folder for results.json and invariance.png")


def check(parser: ArgumentParser) -> None:
    """Decode every video of a list and write a list without the broken ones; exit with 1 if there are some."""
    add_file_options(parser)
    parser.add_argument("--allow-external", action="store_true", help="accept paths outside of the root")
    parser.add_argument("--min-frames", type=at_least(1), help="leave out videos with fewer frames")
    parser.add_argument("--min-seconds", type=above_zero, help="leave out shorter videos")


def shrink(parser: ArgumentParser) -> None:
    """Copy videos into a small format that decodes fast; exit with 1 if some cannot be decoded."""
    add_file_options(parser)
    text = "pixels; smaller videos keep theirs (default 128)"
    parser.add_argument("--short-side", type=at_least(2), default=128, help=text)
    text = "from 0, lossless, to 51 (default 18)"
    parser.add_argument("--quality", type=int, choices=range(52), metavar="CRF", default=18, help=text)


def compare(parser: ArgumentParser) -> None:
    """Compare the retrieval results of several networks on one page."""
    option = parser.add_argument
    option("folder", type=Path, help="holds RUN/LABELS/results.json; index.html is written there")
    option("--runs", nargs="+", default=["random", "trained"], metavar="RUN", help="the baseline first")
    option("--metrics", type=Path, required=True, help="metrics.jsonl of the training")
    option("--videos", type=Path, required=True, help="list with an example video per class")
    add_output_options(parser)


def launch(parser: ArgumentParser) -> None:
    """Submit a training to Slurm that is requeued after interruptions."""
    option = parser.add_argument
    add_config(parser)
    option("--cluster", choices=("slurm", "local"), default="slurm", help="local: processes of this machine")
    option("--nodes", type=at_least(1), default=1, help="number of machines (default 1)")
    option("--gpus", type=int, default=0, help="GPUs per node, one process each (default 0)")
    option("--processes", type=at_least(1), help="processes per node (default: one per GPU)")
    option("--time", type=minutes, default=1440, help="time limit as M, H:M:S or D-H:M:S (default 1-0)")
    option("--restarts", type=int, default=100, help="most restarts after the time limit (default 100)")
    option("--partition", help="Slurm partition")
    option("--cpus", type=at_least(1), help="CPUs per process; data.workers + 1 are needed")
    option("--mem", help="memory per node as Slurm writes it: 200G")
    option("--name", default="vidssl", help="name of the job (default vidssl)")
    option("--slurm", action="append", default=[], metavar="KEY=VALUE", help="another sbatch option; repeatable")
    option("--folder", type=Path, help="folder of the logs (default: jobs/ in the output)")
    option("--wait", action="store_true", help="wait for the end; exit with 1 if the job failed")


def minutes(text: str) -> int:
    """Parse a time as Slurm writes it: M, M:S, H:M:S, D-H, D-H:M or D-H:M:S; seconds are rounded up."""
    found = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text} is not a time; write minutes, H:M:S or D-H:M:S")
    days, first, second, third = (int(part or 0) for part in found.groups())
    if found[1] or found[4]:
        return days * 1440 + first * 60 + second + (third > 0)
    return first + (second > 0)


def doctor(parser: ArgumentParser) -> None:
    """Report which optional parts work on this machine, and how to install the others."""
    add_output_options(parser)


def schema(parser: ArgumentParser) -> None:
    """Print the JSON schema of config files, for editors that complete YAML."""


# Data sets --------------------------------------------------------------------------------------------------


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
    text = "fraction of the groups for the test list (default 0.33; 0, no test list, if there are no classes)"
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
    option = _add(commands, "moving-digits", "synthetic videos of moving digits, with their lists").add_argument
    option("--train", type=int, default=640, help="training videos (default 640)")
    option("--test", type=int, default=160, help="test videos (default 160)")
    option("--frames", type=int, default=48, help="frames of a video (default 48)")
    option("--fps", type=int, default=25, help="frame rate (default 25)")
    option("--size", type=int, default=64, help="height and width in pixels (default 64)")
    option("--seed", type=int, default=0, help="random seed (default 0)")
    option("--mnist", help="folder with MNIST's idx files, instead of scikit-learn's 8x8 digits")
    option("--masks", action="store_true", help="also write crops of the digits and part masks")


COMMANDS = {
    add_options.__name__: add_options
    for add_options in (
        *(prepare, train, test, retrieval, extract, export, track, analyze),
        *(check, shrink, compare, launch, doctor, schema),
    )
}
