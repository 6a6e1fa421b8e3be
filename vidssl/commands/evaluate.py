"""The commands `test`, `retrieval` and `extract`; the modules of these names hold their jobs, which import torch."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vidssl.commands.arguments import (
    add_input,
    add_network_options,
    add_splits,
    at_least,
    is_setting,
    network_options,
    parse,
    print_results,
)
from vidssl.errors import ConfigError

if TYPE_CHECKING:
    from vidssl.config import Tree


def test(arguments: Sequence[str] | None = None, prog: str | None = None) -> None:
    """Measure a network on a list by the standard protocols."""
    parser = argparse.ArgumentParser(prog=prog, description=test.__doc__)
    option = parser.add_argument
    add_input(parser)
    add_network_options(parser)
    option("--train-list", type=Path, help="training videos, for the protocols that need them")
    option(
        "--protocol",
        nargs="+",
        metavar=("NAME", "KEY=VALUE"),
        help="protocols, each followed by its settings: accuracy, knn, lowshot, retrieval, svm, uniformity",
    )
    add_splits(parser, "test once per split, as 1 2 3; the number replaces {split} in paths and settings")
    option("--out", type=Path, required=True, help="folder for results.json, tables and images")
    parsed = parse(parser, arguments)
    from vidssl.commands.test import measure_splits, summary
    from vidssl.commands.test import test as measure

    protocols = None
    if parsed.protocol is not None:
        protocols, overrides = protocol_choices(parsed.protocol)
        parsed.overrides += overrides
    options, rest = network_options(parsed), (parsed.train_list, protocols)
    if parsed.splits is None:
        results = measure(options, parsed.input, parsed.out, *rest)
    else:
        results = measure_splits(options, parsed.input, parsed.out, parsed.splits, *rest)
    print_results(parsed, results, summary(results), parsed.out / "results.json")


test.__test__ = False  # type: ignore[attr-defined]  # pytest takes it for a test by its name


def protocol_choices(words: Sequence[str]) -> "tuple[list[Tree], list[str]]":
    """Parse `knn k=20 svm data.workers=0` as the choices of two protocols and the settings of the config among them.

    A setting belongs to the protocol before it, unless only the config has it.
    """
    from vidssl.config import override

    choices: list[Tree] = []
    overrides = []
    for word in words:
        if "=" not in word:
            choices.append({"name": word})
        elif is_setting(word) and not (choices and _has_setting(choices[-1]["name"], word)):
            overrides.append(word)
        elif not choices:
            raise ConfigError(f"--protocol begins with the setting {word}: name the protocol before it")
        else:
            override(choices[-1], word)
    if not choices:
        raise ConfigError(f"--protocol {' '.join(words)} names no protocol: write --protocol knn k=20")
    return choices, overrides


def _has_setting(protocol: str, word: str) -> bool:
    from vidssl.evaluation import PROTOCOLS

    key = word.partition("=")[0]
    if protocol not in PROTOCOLS:  # a plug-in's, which is not imported yet
        return "." not in key
    kind: Any = PROTOCOLS[protocol]
    return key.split(".")[0] in kind.Config.model_fields


def retrieval(arguments: Sequence[str] | None = None, prog: str | None = None) -> None:
    """Search a gallery with a list of queries or one video: R@k, kNN accuracy, and a page with the results."""
    parser = argparse.ArgumentParser(prog=prog, description=retrieval.__doc__)
    option = parser.add_argument
    add_network_options(parser)
    option("--gallery", type=Path, help="video list to search in; optional with an --index")
    option("--query", type=Path, required=True, help="video list of the queries, or one video")
    option("--index", type=Path, help="folder with the features of the gallery; extracted if it does not exist")
    option("--out", type=Path, required=True, help="folder for results.json and index.html")
    option("--center", action="store_true", help="subtract the mean of each list first")
    option("--k", type=at_least(1), default=10, help="neighbours for kNN, or results for one video (default 10)")
    option(
        "--drop-duplicates",
        action="store_true",
        help="ignore gallery videos whose features equal the query's bit by bit (copies of the file)",
    )
    option("--page-queries", type=at_least(0), default=48, help="queries on the page (default 48)")
    parsed = parse(parser, arguments)
    if parsed.gallery is None and parsed.index is None:
        parser.error("--gallery LIST or --index FILE is required")
    from vidssl.commands.retrieval import find, is_video, retrieve, table

    one = is_video(parsed.query)
    if parsed.center and one:
        parser.error("--center needs a list of queries: the mean of one video is the video itself")
    paths = parsed.gallery, parsed.query, parsed.out
    rest = {"index": parsed.index, "k": parsed.k, "drop_duplicates": parsed.drop_duplicates}
    if one:
        results = find(network_options(parsed), *paths, **rest)
    else:
        rest |= {"center": parsed.center, "shown_queries": parsed.page_queries}
        results = retrieve(network_options(parsed), *paths, **rest)
    print_results(parsed, results, table(results), parsed.out / "index.html")


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
    from vidssl.commands.extract import extract_features, merge

    if parsed.merge:
        found = merge(parsed.out)
    else:
        found = extract_features(network_options(parsed), parsed.input, parsed.out, parsed.shard)
    print_results(parsed, found, found)
