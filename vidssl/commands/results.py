"""`results.json`: results of the same request are not computed again, and several splits have mean and spread."""

import csv
import io
import json
import logging
from argparse import Namespace
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from vidssl import distributed
from vidssl.atomic import write_json, write_whole
from vidssl.config import Tree, differences
from vidssl.engine.config_schema import choose_device
from vidssl.errors import ConfigError

_log = logging.getLogger(__name__)

Results = dict[str, Any]
# What each split has its own of, beside numbers.
_PER_SPLIT = ("num_videos", "num_train", "missing", "missing_train", "list", "train_list", "checkpoint", "details")


def existing_results(out: Path, request: Tree) -> Results | None:
    """Return existing results of the same request. Others are replaced: the log states what differs."""
    path = out / "results.json"
    with suppress(OSError, ValueError, KeyError, TypeError):
        results: Results = json.loads(path.read_text(encoding="utf-8"))
        if results["request"] == request:
            _log.info("%s holds the results of this test; delete it to measure again", path)
            return results
        changed = describe_changes(results["request"], request)
        _log.info("%s holds results of another test (%s): replacing it", path, changed)
    return None


def describe_changes(stored: Tree, requested: Tree) -> str:
    """List what differs between two requests."""
    return "; ".join(
        f"{name} {'nothing' if a is None else a} stored, {'nothing' if b is None else b} requested"
        for name, a, b in differences(stored, requested)
    )


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
    of_split = {split: Namespace(**_fill(vars(parsed), split)) for split in parsed.splits}
    if of_split[parsed.splits[0]] == parsed:
        raise ConfigError("no list, checkpoint or setting contains {split}: all splits would be the same")

    def one(split: int, folder: Path) -> Results:
        of_split[split].out = folder
        return measure(of_split[split])

    with distributed.joined(choose_device(parsed.device)):
        for arguments in of_split.values():
            check(arguments)
        return over_splits(parsed.splits, parsed.out, one)


def _fill(value: Any, split: int) -> Any:
    """Put the number of a split for `{split}` in all texts and paths."""
    if isinstance(value, dict):
        return {name: _fill(each, split) for name, each in value.items()}
    if isinstance(value, list):
        return [_fill(each, split) for each in value]
    return type(value)(str(value).replace("{split}", str(split))) if isinstance(value, str | Path) else value


def over_splits(splits: Sequence[int], out: Path, one: Callable[[int, Path], Results]) -> Results:
    """Run the job `one` for each split in `out/splitN`; write all numbers, mean and spread to `out/results.json`.

    It holds `splits` (what differs between them), `mean`, `spread` (the standard deviation, n - 1; empty for a single
    split), and the rest from the results of the first split.
    """
    found = {split: one(split, out / f"split{split}") for split in splits}
    own = {
        str(split): {n: v for n, v in results.items() if isinstance(v, float) or n in _PER_SPLIT}
        for split, results in found.items()
    }
    first = found[splits[0]]
    columns = {
        name: [results[name] for results in found.values()]
        for name, value in first.items()
        if isinstance(value, float) and all(name in results for results in found.values())
    }
    results = {
        "splits": own,
        "mean": {name: mean(column) for name, column in columns.items()},
        "spread": {name: stdev(column) for name, column in columns.items()} if len(splits) > 1 else {},
        **{name: v for name, v in first.items() if name not in {*own[str(splits[0])], *_PER_SPLIT, "request"}},
    }
    distributed.on_main(lambda: write_json(out / "results.json", results))
    return results


def format_count(found: int, missing: Sequence[object]) -> str:
    """Format a count, with the total if some are missing: `58 of 60 (2 missing)`."""
    return f"{found} of {found + len(missing)} ({len(missing)} missing)" if missing else str(found)


def format_table(rows: Sequence[Sequence[str]], sides: str) -> list[str]:
    """Format rows as lines with columns of equal width; `sides` has `<` (left) or `>` (right) per column."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    line = "  ".join(f"{{:{side}{width}}}" for side, width in zip(sides, widths, strict=True))
    return [line.format(*row).rstrip() for row in rows]


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a CSV file atomically."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    write_whole(path, text.getvalue().encode())
