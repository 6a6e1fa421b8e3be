"""The options of each command. The docstrings are the texts of `--help`."""

import argparse
import re
import sys
from argparse import ArgumentParser
from pathlib import Path

from vidssl.commands.analysis_parsers import ANALYSES
from vidssl.commands.arguments import (
    above_zero,
    add_config,
    add_file_options,
    add_imports,
    add_input,
    add_network_options,
    add_output_options,
    add_splits,
    add_window_options,
    at_least,
    list_commands,
)
from vidssl.commands.prepare_parsers import prepare


def train(parser: ArgumentParser) -> None:
    """Pre-train, finetune, probe or train from scratch; the same command resumes a run.

    Among the settings may be one input, a folder or pattern of videos, which replaces data.train.
    """
    add_config(parser)
    add_splits(parser, "train and test")
    add_output_options(parser)


def show(parser: ArgumentParser) -> None:
    """Draw the views that a config trains on: a page with videos, their sampled frames and augmented clips.

    Among the settings may be one input, a list, folder or pattern of videos, which replaces data.train.
    """
    option = parser.add_argument
    add_config(parser)
    option("--videos", type=at_least(1), default=8, metavar="N", help="first N videos of the first epoch (default 8)")
    option("--draws", type=at_least(1), default=3, metavar="N", help="epochs, each with new draws (default 3)")
    option("--out", type=Path, required=True, help="folder for index.html and views.png")
    add_output_options(parser)


def test(parser: ArgumentParser) -> None:
    """Measure a network on a list: accuracy, kNN, SVM, few labels, retrieval; a detector on a list of boxes (JSON)."""
    add_input(parser)
    add_network_options(parser)
    parser.add_argument("--train-list", type=Path, help="list of training videos, for the protocols that need them")
    names = (
        "accuracy, attentive, knn, localization, logistic, lowshot, multilabel_logistic, multilabel_lowshot, "
        "multilabel_svm, order, retrieval, svm, uniformity"
    )
    text = f"protocols, each followed by its settings: {names}"
    parser.add_argument("--protocol", nargs="+", metavar=("NAME", "KEY=VALUE"), help=text)
    add_splits(parser, "test")
    parser.add_argument("--out", type=Path, required=True, help="folder for results.json, tables and images")


def retrieval(parser: ArgumentParser) -> None:
    """Search a gallery with a list of queries or one video, and write a page with the results."""
    option = parser.add_argument
    add_network_options(parser)
    option("--gallery", type=Path, help="videos to search in, as INPUT of other commands; optional with an --index")
    option("--query", type=Path, required=True, help="videos to search for, likewise")
    option("--index", type=Path, help="folder with the features of the gallery; extracted if it does not exist")
    option("--out", type=Path, required=True, help="folder for results.json and index.html")
    option("--center", action="store_true", help="subtract the mean of each list first")
    option("--k", type=at_least(1), default=10, help="neighbours for kNN, or results for one video (default 10)")
    text = "ignore copies of the query in the gallery: files of the same content, or bit-identical features"
    option("--drop-duplicates", action="store_true", help=text)
    option("--page-queries", type=at_least(0), default=48, help="queries on the page (default 48)")
    add_window_options(parser, "search in windows of the gallery's videos")
    text = "only the best window of each video; without it, windows that overlap a better one are left out"
    option("--one-per-video", action="store_true", help=text)
    text = "add the maps (Grad-CAM) of each query and neighbour for their similarity to the page"
    option(
        "--gradcam",
        nargs="?",
        const="",
        metavar="LAYER",
        help=f"{text}; default: of the last layer with 4 x 4 cells or more",
    )


def extract(parser: ArgumentParser) -> None:
    """Write the features of a list: features.npy, rows.csv and meta.json."""
    option = parser.add_argument
    add_input(parser, optional=True)
    add_network_options(parser, required=False)
    option("--out", type=Path, required=True, help="folder for the features")
    option("--shard", metavar="i/n", help="only part i of n, from 0, into a folder beside --out")
    option("--merge", action="store_true", help="write --out from its parts")
    add_window_options(parser, "one row for each window of a video")


def map(parser: ArgumentParser) -> None:
    """Draw a zoomable map of features as a page, with playing videos, colours by columns, search and selection."""
    option = parser.add_argument
    add_input(parser, optional=True)
    add_network_options(parser, required=False)
    option("--features", type=Path, help="folder of vidssl extract; without it, INPUT and --checkpoint")
    option("--out", type=Path, required=True, help="folder for index.html, results.json and videos.csv")
    text = "default auto: umap if umap-learn is installed (vidssl[map]), else pca; the output names it"
    option("--layout", choices=("auto", "umap", "pca"), default="auto", help=text)
    option("--columns", type=Path, metavar="CSV", help="values to colour by, joined by the column path")
    text = "videos that play, evenly spaced over the list (default 1000); each adds about 10 kB"
    option("--thumbnails", type=at_least(0), default=1000, metavar="N", help=text)
    option("--seed", type=at_least(0), default=0, help="seed of UMAP (default 0)")


def export(parser: ArgumentParser) -> None:
    """Write the backbone of a checkpoint for other programs: safetensors, ONNX, torch.export, detectron2."""
    option = parser.add_argument
    option("checkpoint", metavar="CHECKPOINT", help="checkpoint of vidssl, folder of a run, or file of save_backbone")
    formats = ("safetensors", "onnx", "pt2", "folder", "detectron2")
    text = "folder: safetensors, config.json and a model card, as on the Hugging Face Hub; detectron2: a 2D ResNet"
    option("--to", choices=formats, required=True, help=text)
    option(
        "--out", type=Path, required=True, help="file to write, named *.safetensors, *.onnx, *.pt2, *.pkl, or folder"
    )
    text = "results.json of this checkpoint for the model card (default: those below the folder of its run)"
    option("--results", type=Path, nargs="+", metavar="FILE", help=text)
    option("--trust-checkpoint", action="store_true", help="load pickled objects; such a file can run any code")
    add_imports(parser)
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
    """Find out what a network has learned: invariances and more; `vidssl analyze NAME --help` lists the options."""
    parser.add_argument("analysis", choices=ANALYSES, metavar="NAME", help="see below")
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = list_commands("analyses", ANALYSES)


def check(parser: ArgumentParser) -> None:
    """Decode every video of a list and write a list without the broken ones; exit with 1 if there are some."""
    add_file_options(parser)
    parser.add_argument("--allow-external", action="store_true", help="accept paths outside of the root")
    parser.add_argument("--min-frames", type=at_least(1), help="leave out videos with fewer frames")
    parser.add_argument("--min-seconds", type=above_zero, help="leave out shorter videos")


def shrink(parser: ArgumentParser) -> None:
    """Copy videos into a small format that decodes fast; exit with 1 if some cannot be decoded."""
    add_file_options(parser)
    option = parser.add_argument
    text = "video: a file for each, H.264 (default). frames: images in tar files with an index, twice as fast"
    option("--to", choices=("video", "frames"), default="video", help=text)
    option("--short-side", type=at_least(2), default=128, help="pixels; smaller videos keep theirs (default 128)")
    text = "video: x264's CRF, from 0, lossless, to 51 (default 18). frames: from 1 to 100, the best (default 90)"
    option("--quality", type=int, metavar="N", help=text)
    option("--format", choices=("jpeg", "webp"), help="of frames (default jpeg): webp is smaller and slower to read")
    option("--shard-size", type=at_least(1), metavar="MB", help="of a tar file of frames (default 512)")


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


COMMANDS = {
    add_options.__name__: add_options
    for add_options in (
        *(prepare, show, train, test, retrieval, extract, map, export, track, analyze),
        *(check, shrink, compare, launch, doctor, schema),
    )
}
