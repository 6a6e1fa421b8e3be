"""The command `analyze`."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from vidssl.commands.arguments import (
    add_input,
    add_network_options,
    add_splits,
    at_least,
    network_options,
    one_value,
    parse,
    print_results,
)


def analyze(arguments: Sequence[str] | None = None, prog: str | None = None) -> None:
    """Analyse what networks have learned."""
    parser = argparse.ArgumentParser(prog=prog, description=analyze.__doc__)
    parser.add_argument(
        "analysis", choices=("invariance",), help="what is measured; `invariance --help` lists its options"
    )
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    parsed = parser.parse_args(arguments)
    _invariance(parsed.arguments, f"{parser.prog} {parsed.analysis}")


def _invariance(arguments: Sequence[str], prog: str) -> None:
    """Measure how invariant networks are to each transformation, as numbers and as a chart.

    The central square of one clip per video is measured; --clips sets another number of clips.
    """
    parser = argparse.ArgumentParser(prog=prog, description=_invariance.__doc__)
    option = parser.add_argument
    add_input(parser)
    add_network_options(parser, several=True)
    option(
        "--transformations",
        type=one_value,
        nargs="+",
        metavar="NAME",
        help="default: all that apply of occlusion, viewpoint, rotation, illumination, colour, blur, "
        "instance, shift, gap, speed, reverse",
    )
    option("--top-k", type=at_least(1), default=10, help="number of best units (default 10)")
    option(
        "--variant",
        choices=("class", "goodfellow"),
        default="class",
        help="thresholds, rates and best units per class, or for all videos together (default class)",
    )
    option(
        "--population",
        choices=("all", "samples"),
        default="all",
        help="compute thresholds from clips and transformed clips, or from clips only (default all)",
    )
    option("--boxes", type=Path, help="CSV file path,frame,x1,y1,x2,y2: the box of the instance in each frame")
    add_splits(parser, "measure once per split, as 1 2 3; the number replaces {split} in paths and settings")
    option("--out", type=Path, required=True, help="folder for results.json and invariance.png")
    parsed = parse(parser, arguments)
    from vidssl.analysis.scores import Measure
    from vidssl.commands.invariance_chart import summary
    from vidssl.commands.measure_invariance import measure_invariance, measure_invariance_splits

    names = ("transformations", "top_k", "variant", "population", "boxes")
    measure = Measure(**{name: getattr(parsed, name) for name in names})
    request = network_options(parsed), parsed.checkpoint, parsed.input, parsed.out, measure
    if parsed.splits is None:
        found = measure_invariance(*request)
    else:
        found = measure_invariance_splits(*request, parsed.splits)
    print_results(parsed, found, summary(found), parsed.out / "invariance.png")
