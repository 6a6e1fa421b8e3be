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


def background(parser: ArgumentParser) -> None:
    """Measure the accuracy of networks on videos whose instance is put before the background of other videos."""
    option = parser.add_argument
    add_input(parser)
    add_network_options(parser, several=True)
    option("--train-list", type=Path, help="training videos, for kNN and R@1; optional if the network has a classifier")
    group = parser.add_mutually_exclusive_group(required=True)
    text = "folder with the masks of each video: a video or a folder of images with its path in the list"
    group.add_argument("--masks", type=Path, metavar="FOLDER", help=text)
    text = "CSV file path,frame,x1,y1,x2,y2: the box of the instance in each frame"
    group.add_argument("--boxes", type=Path, help=text)
    option("--seed", type=at_least(0), default=0, help="of the choice of the backgrounds (default 0)")
    add_splits(parser, "measure")
    option("--out", type=Path, required=True, help="folder for results.json, background.png and examples.png")


def gradcam(parser: ArgumentParser) -> None:
    """Show where networks look, in space and time: Grad-CAM of a class, or of the similarity of neighbours."""
    option = parser.add_argument
    add_input(parser)
    add_network_options(parser, several=True, features=False)
    text = "the class that the classifier predicts, or the similarity to the nearest video (default: class, if there is"
    option("--target", choices=("class", "similarity"), help=f"{text} a classifier)")
    option("--layer", help="layer of the maps, or path of a module (default: the last with 4 x 4 cells or more)")
    option("--gallery", type=Path, help="list in which the nearest videos are searched (default: INPUT)")
    option("--boxes", type=Path, help="CSV file path,frame,x1,y1,x2,y2: measure the mass of the maps in these boxes")
    option("--videos", type=at_least(1), default=64, help="videos measured, drawn at random (default 64)")
    option("--overlays", type=at_least(0), default=8, help="the first of them are drawn (default 8)")
    option("--seed", type=at_least(0), default=0, help="seed of the draw (default 0)")
    text = "also replace the weights by untrained ones, from the last stage to the first, and compare the maps"
    option("--randomize", action="store_true", help=text)
    option("--out", type=Path, required=True, help="folder for results.json, overlays and index.html")


def all_analyses(parser: ArgumentParser) -> None:
    """Run every analysis on some of the videos, and write one page."""
    add_input(parser)
    add_network_options(parser)
    parser.add_argument("--train-list", type=Path, help="training videos, for the analyses that need them")
    text = "tested videos, drawn at random, and four times as many training videos; or all (default 64)"
    parser.add_argument("--videos", type=_count_or_all, default=64, metavar="N", help=text)
    parser.add_argument(
        "--boxes", type=Path, help="CSV file path,frame,x1,y1,x2,y2: the box of the instance in each frame"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for index.html and a folder of each analysis")


def _count_or_all(text: str) -> int | None:
    return None if text == "all" else at_least(2)(text)


ANALYSES = {
    **{add_options.__name__: add_options for add_options in (invariance, robustness, classes, background, gradcam)},
    "all": all_analyses,
}
