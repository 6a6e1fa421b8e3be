"""The sub-commands of `analyze`: one function each."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from vidssl.commands.arguments import add_options, at_least, options_of, parse, splits


def invariance(arguments: Sequence[str], prog: str) -> None:
    """Measure how invariant networks are: transformation by transformation, in numbers and as a chart.

    One clip of each video is looked at unless --clips says otherwise, and its central square.
    """
    parser = argparse.ArgumentParser(prog=prog, description=invariance.__doc__)
    add_options(parser, several=True)
    parser.add_argument("--list", type=Path, required=True, help="list of videos, with labels")
    parser.add_argument(
        "--transformations",
        type=lambda text: tuple(text.split(",")),
        metavar="A,B",
        help="default: all that can be measured of occlusion, viewpoint, rotation, illumination, colour, blur, "
        "instance, shift, gap, speed, reverse",
    )
    parser.add_argument("--top-k", type=at_least(1), default=10, help="best units that count (default 10)")
    parser.add_argument(
        "--variant",
        choices=("class", "goodfellow"),
        default="class",
        help="thresholds, rates and best units for each class, or one for all (default class)",
    )
    parser.add_argument(
        "--population",
        choices=("all", "samples"),
        default="all",
        help="thresholds are set over all clips and versions, or over the clips alone (default all)",
    )
    parser.add_argument(
        "--boxes", type=Path, help="CSV file path,frame,x1,y1,x2,y2: the instance in each frame"
    )
    parser.add_argument(
        "--splits",
        type=splits,
        help="for 1,2,3: measure once for each, with its number for {split}, and give mean and spread",
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for results.json and invariance.png")
    parsed = parse(parser, arguments)
    from vidssl import distributed
    from vidssl.commands import invariance as measuring
    from vidssl.commands.invariance_chart import summary

    measure = measuring.Measure(
        parsed.transformations, parsed.top_k, parsed.variant, parsed.population, parsed.boxes
    )
    told = options_of(parsed), parsed.checkpoint, parsed.list, parsed.out, measure
    if parsed.splits is None:
        found = measuring.invariance(*told)
    else:
        found = measuring.invariance_splits(*told, parsed.splits)
    if distributed.is_main():
        print(summary(found))
        print(parsed.out / "invariance.png")


ANALYSES: dict[str, Callable[[Sequence[str], str], None]] = {"invariance": invariance}
