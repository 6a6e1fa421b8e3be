"""The command `extract`."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from vidssl.commands.arguments import add_input, add_network_options, network_options, parse, print_results


def extract(arguments: Sequence[str] | None = None, prog: str | None = None) -> None:
    """Write the features of a list of videos as a folder: features.npy, rows.csv and meta.json."""
    parser = argparse.ArgumentParser(prog=prog, description=extract.__doc__)
    option = parser.add_argument
    add_input(parser, optional=True)
    add_network_options(parser, required=False)
    option("--out", type=Path, required=True, help="folder for the features")
    option("--shard", metavar="i/n", help="only part i of n, from 0, into a folder beside --out")
    option("--merge", action="store_true", help="write --out from its parts")
    parsed = parse(parser, arguments)
    given = {name for name, value in vars(parsed).items() if value not in (parser.get_default(name), [])}
    if parsed.merge and given > {"merge", "out", "quiet", "json"} & given:
        parser.error("--merge needs --out only: the parts record how they were made")
    if not parsed.merge and not given >= {"checkpoint", "input"}:
        parser.error("INPUT and --checkpoint are required, except with --merge")
    from vidssl.commands.extract_features import extract_features, merge

    if parsed.merge:
        found = merge(parsed.out)
    else:
        found = extract_features(network_options(parsed), parsed.input, parsed.out, parsed.shard)
    print_results(parsed, found, found)
