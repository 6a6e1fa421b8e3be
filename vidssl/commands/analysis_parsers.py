"""The options of each analysis of the command `analyze`. The docstrings are the texts of `--help`."""

from argparse import ArgumentParser
from pathlib import Path

from vidssl.commands.arguments import add_input, add_network_options, add_splits, at_least


def invariance(parser: ArgumentParser) -> None:
    """Measure how invariant networks are to transformations of the central square of a clip (or of --clips)."""
    option = parser.add_argument
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


def classes(parser: ArgumentParser) -> None:
    """Measure uniformity and distances of classes, of a checkpoint or (--checkpoint FOLDER) of all those of a run."""
    add_input(parser)
    add_network_options(parser, several=True)
    parser.add_argument("--out", type=Path, required=True, help="folder for results.json and classes.png")


def robustness(parser: ArgumentParser) -> None:
    """Measure accuracy, kNN and retrieval on corrupted videos: mPC, rPC and the calibration error of each severity."""
    option = parser.add_argument
    add_input(parser)
    add_network_options(parser, several=True)
    option("--train-list", type=Path, help="training videos, for kNN and retrieval; they stay clean")
    text = "protocols, each followed by its settings: accuracy, knn, retrieval (default: all that apply)"
    option("--protocol", nargs="+", metavar=("NAME", "KEY=VALUE"), help=text)
    known = (
        "gaussian_noise, shot_noise, impulse_noise, gaussian_blur, defocus_blur, motion_blur, fog, rain, contrast, "
        "brightness, saturate, gamma_bright, gamma_dark, jpeg, global_shuffle, local_shuffle, h264_crf, h264_rate, "
        "freeze, drop, shuffle, reverse, jumble, rate"
    )
    option("--corruptions", nargs="+", metavar="NAME", help=f"default: all that apply of {known}")
    option("--severities", nargs="+", metavar="N", help="of 1 2 3 4 5 (default: all)")
    option("--seed", type=at_least(0), default=0, help="of the corruptions (default 0)")
    option("--out", type=Path, required=True, help="folder for results.json, robustness.png and examples.png")


ANALYSES = {add_options.__name__: add_options for add_options in (invariance, classes, robustness)}
