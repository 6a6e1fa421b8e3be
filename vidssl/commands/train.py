"""The command `train`."""

import argparse
from collections.abc import Sequence

from vidssl.commands.arguments import add_config, add_output_options, add_splits, parse, print_results


def train(arguments: Sequence[str] | None = None, prog: str | None = None) -> None:
    """Pre-train, finetune, probe or train from scratch as a config describes; the same command resumes a run."""
    parser = argparse.ArgumentParser(prog=prog, description=train.__doc__)
    add_config(parser)
    add_splits(parser, "train and test once per split, as 1 2 3; the number replaces {split} in the config")
    add_output_options(parser)
    parsed = parse(parser, arguments)
    from vidssl.commands.measure_network import summary, train_splits
    from vidssl.engine.config_schema import load_run
    from vidssl.engine.train import train as train_run

    if parsed.splits is None:
        last = train_run(load_run(parsed.cfg, parsed.overrides))
        print_results(parsed, {"checkpoint": last}, last)
    else:
        results, path = train_splits(parsed.cfg, parsed.overrides, parsed.splits)
        print_results(parsed, results, summary(results), path)
