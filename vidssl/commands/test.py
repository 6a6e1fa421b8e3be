"""The command `test`."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vidssl.commands.arguments import (
    add_input,
    add_network_options,
    add_splits,
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
    from vidssl.commands.measure_network import measure_network, measure_splits, summary

    protocols = None
    if parsed.protocol is not None:
        protocols, overrides = protocol_choices(parsed.protocol)
        parsed.overrides += overrides
    options, rest = network_options(parsed), (parsed.train_list, protocols)
    if parsed.splits is None:
        results = measure_network(options, parsed.input, parsed.out, *rest)
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
