"""Measurements for several splits or seeds: `{split}` in arguments, and mean and spread of the results."""

from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean, stdev

from vidssl import distributed
from vidssl.distributed import choose_device
from vidssl.engine.config_schema import fill_split
from vidssl.errors import ConfigError
from vidssl.evaluation.result_files import Results, complete_splits, write_results
from vidssl.output_folder import check_names

# What each split has its own of, beside numbers.
_PER_SPLIT = ("num_videos", "num_train", "missing", "missing_train", "list", "train_list", "checkpoint", "details")


def for_splits(
    parsed: Namespace,
    measure: Callable[[Namespace], Results],
    check: Callable[[Namespace], object] = lambda parsed: None,
) -> Results:
    """Measure once, or with `--splits` once per split, whose number replaces `{split}` in all arguments.

    `check` finds errors of any split before the first one is measured.
    """
    if parsed.splits is None:
        return measure(parsed)
    of_split = {split: Namespace(**fill_split(vars(parsed), split)) for split in parsed.splits}
    first, decisive = of_split[parsed.splits[0]], ("input", "checkpoint", "train_list", "overrides")
    if all(getattr(first, name, None) == getattr(parsed, name, None) for name in decisive):
        raise ConfigError("no list, checkpoint or setting contains {split}: all splits would be the same")

    def one(split: int, folder: Path) -> Results:
        of_split[split].out = folder
        return measure(of_split[split])

    with distributed.joined(choose_device(parsed.device)):
        for arguments in of_split.values():
            check(arguments)
        return over_splits(parsed.splits, parsed.out, one)


def over_splits(splits: Sequence[int], out: Path, one: Callable[[int, Path], Results]) -> Results:
    """Run the job `one` for each split in `out/splitN`; write all numbers, mean and spread to `out/results.json`.

    It holds `splits` (what differs between them), `mean`, `spread` (the standard deviation, n - 1; empty for a single
    split), and the rest from the results of the first split.
    """
    check_names(out, [f"split{split}/results.json" for split in splits])
    found = {split: one(split, out / f"split{split}") for split in splits}
    own = {
        str(split): {n: v for n, v in results.items() if isinstance(v, float) or n in _PER_SPLIT}
        for split, results in found.items()
    }
    first = found[splits[0]]
    names = [n for n, v in first.items() if isinstance(v, float) and all(n in results for results in found.values())]
    columns = {name: [results[name] for results in found.values()] for name in names}
    results = {
        "splits": own,
        "mean": {name: mean(column) for name, column in columns.items()},
        "spread": {name: stdev(column) for name, column in columns.items()} if len(splits) > 1 else {},
        **{name: v for name, v in first.items() if name not in {*own[str(splits[0])], *_PER_SPLIT}},
    }
    results = complete_splits(results, {str(split): of_split for split, of_split in found.items()})
    distributed.on_main(lambda: write_results(out, results))
    return results
