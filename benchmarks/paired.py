r"""Compare results split by split: the difference of each result to the first, a Markdown table.

    python benchmarks/paired.py output/studies/ucf101_6/untrained output/studies/ucf101_6/sce

Splits differ in difficulty, so the spread of a difference is smaller than that of the results. A difference is marked
with * if it has the same sign in each of three splits or more, and its mean is at least twice its standard deviation.
`OURS:THEIRS` compares different numbers: `--numbers svm:top1` subtracts the top-1 accuracy of the first result from the
SVMs of the others. What differs between the tests, such as the clips, is named below the table.
"""

import argparse
import json
import sys
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from measure import table

from vidssl.base import config

USUAL = ("R@1", "knn", "svm", "top1")
# What the numbers depend on beside the network, as results.json of `test` and `retrieval` name it.
_LISTS = {"list": "query", "query": "query", "train_list": "gallery", "gallery": "gallery"}  # and their fingerprints
_COUNTS = ("num_videos", "num_train", "num_queries", "num_gallery")
_MISSING = ("missing", "missing_train", "missing_queries", "missing_gallery")
_OPTIONS = ("centered", "knn_k", "drop_duplicates", "windows", "one_per_video", "copies", "format")
_FILES = ("classes", "data", "train_data", "gallery_data")  # of `request`
# Of `protocol`: what belongs to the network, and what cannot change a number (`missing` names what was left out).
_NOT_OF_TEST = ("mean", "std", "cache", "allow_missing")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Differences of results to the first one, split by split.")
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="folder with a results.json of splits")
    parser.add_argument("--numbers", nargs="+", metavar="NAME", help=f"default: {' '.join(USUAL)}")
    parsed = parser.parse_args()
    results = {str(folder): splits(folder) for folder in parsed.folders}
    base, *compared = results
    if not compared:
        sys.exit("paired.py needs at least 2 folders: the first is subtracted from the others")
    for name in compared:
        if results[name].keys() != results[base].keys() or len(results[name]) < 2:
            sys.exit(f"{name} has the splits {[*results[name]]}, {base} has {[*results[base]]}: two or more, the same")
    all_splits = [split for result in results.values() for split in result.values()]
    numbers = parsed.numbers or [number for number in USUAL if all(number in split for split in all_splits)]
    rows = []
    for name in compared:
        cells = [cell([*differences(results[name], results[base], number)]) for number in numbers]
        rows.append([name, *cells])
    print(table([f"minus {base}", *numbers], rows))
    for name in compared:
        if gaps := {
            line: None
            for split in results[base]
            for line in differing_tests(*(results[n][split] for n in (base, name)))
        }:
            print(f"\n{base} and {name} are of different tests: {'; '.join(gaps)}")


def differing_tests(first: dict[str, Any], second: dict[str, Any]) -> list[str]:
    """List what differs between the tests of two results, `centered False, True`: nothing if only the networks do.

    Numbers of different tests are not subtracted. Protocols that both have must have equal settings.
    """
    tests = [_test_of(results, {*first} & {*second}) for results in (first, second)]
    shared = {*tests[0]["protocols"]} & {*tests[1]["protocols"]}
    for test in tests:
        test["protocols"] = {name: test["protocols"][name] for name in shared}
    return [f"{name} {a}, {b}" for name, a, b in config.config_differences(tests[0], tests[1])]


def _test_of(results: dict[str, Any], shared: set[str]) -> dict[str, Any]:
    """Return what describes the test; `shared` are the fields that both results have."""
    protocol = {name: value for name, value in results.get("protocol", {}).items() if name not in _NOT_OF_TEST}
    if "size" in protocol:
        protocol["short_side"] = protocol.get("short_side") or protocol["size"]
    test: dict[str, Any] = {
        "protocol": protocol,
        "protocols": {entry["name"]: entry for entry in results.get("protocols") or ()},
    }
    prints = results["fingerprints"] or {} if "fingerprints" in shared else {}
    for name, kind in _LISTS.items():
        test[name] = prints.get(kind) or results.get(name) if name in results else None
    test |= {name: results.get(name) for name in (*_COUNTS, *_OPTIONS)}
    test |= {name: [gap["path"] for gap in results.get(name) or ()] for name in _MISSING}
    if "request" in shared:
        test |= {name: results["request"].get(name) for name in _FILES}
    return test


def splits(folder: Path) -> dict[str, dict[str, Any]]:
    """Read the numbers of each split of a result, with what describes its test."""
    try:
        content = json.loads((folder / "results.json").read_text())
        of_all = {name: content[name] for name in ("protocol", "protocols", "format") if name in content}
        return {split: {**of_all, **numbers} for split, numbers in content["splits"].items()}
    except (OSError, KeyError) as error:
        sys.exit(f"{folder} has no results.json of several splits ({error}): name the output of a run with --splits")


def differences(results: dict[str, dict[str, Any]], base: dict[str, dict[str, Any]], number: str) -> list[float]:
    """Subtract a number split by split, in percent."""
    name, _, base_name = number.partition(":")
    try:
        return [100 * (results[split][name] - base[split][base_name or name]) for split in results]
    except KeyError as error:
        sys.exit(f"a result has no number {error}: choose others with --numbers")


def cell(values: list[float]) -> str:
    """Write mean, standard deviation (n - 1), and the mark of a consistent difference."""
    average, spread = mean(values), stdev(values)
    consistent = len(values) > 2 and (min(values) > 0 or max(values) < 0)
    return f"{average:+.1f} ± {spread:.1f}{' *' if consistent and abs(average) >= 2 * spread else ''}"


if __name__ == "__main__":
    main()
