r"""Compare results split by split: the difference of each result to the first, a Markdown table.

    python benchmarks/paired.py output/studies/ucf101_6/untrained output/studies/ucf101_6/sce

Splits differ in difficulty, so the spread of a difference is smaller than that of the results. A difference is marked
with * if it has the same sign in every split and its mean is at least twice its standard deviation; with two splits
this says little. `OURS:THEIRS` compares different numbers: `--numbers svm:top1` subtracts the top-1 accuracy of the
first result from the SVMs of the others. What differs between the tests, such as the clips, is named below the table.
"""

import argparse
import json
import sys
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from measure import table

from vidssl.api.format_results import differing_tests

USUAL = ("R@1", "knn", "svm", "top1")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Differences of results to the first one, split by split.")
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="folder with a results.json of splits")
    parser.add_argument("--numbers", nargs="+", metavar="NAME", help=f"default: {' '.join(USUAL)}")
    parsed = parser.parse_args()
    results = {str(folder): splits(folder) for folder in parsed.folders}
    base, *others = results
    if not others:
        sys.exit("paired.py needs at least 2 folders: the first is subtracted from the others")
    for name in others:
        if results[name].keys() != results[base].keys() or len(results[name]) < 2:
            sys.exit(f"{name} has the splits {[*results[name]]}, {base} has {[*results[base]]}: two or more, the same")
    every = [split for result in results.values() for split in result.values()]
    numbers = parsed.numbers or [number for number in USUAL if all(number in split for split in every)]
    rows = []
    for name in others:
        cells = [cell([*differences(results[name], results[base], number)]) for number in numbers]
        rows.append([name, *cells])
    print(table([f"minus {base}", *numbers], rows))
    for name in others:
        if found := {
            line: None
            for split in results[base]
            for line in differing_tests(*(results[n][split] for n in (base, name)))
        }:
            print(f"\n{base} and {name} are of different tests: {'; '.join(found)}")


def splits(folder: Path) -> dict[str, dict[str, Any]]:
    """Read the numbers of each split of a result, with what describes its test."""
    try:
        content = json.loads((folder / "results.json").read_text())
        of_all = {name: content[name] for name in ("protocol", "protocols", "format") if name in content}
        return {split: {**of_all, **numbers} for split, numbers in content["splits"].items()}
    except (OSError, KeyError) as error:
        sys.exit(f"{folder} has no results.json of several splits ({error}): name the output of a run with --splits")


def differences(ours: dict[str, dict[str, Any]], theirs: dict[str, dict[str, Any]], number: str) -> list[float]:
    """Subtract a number split by split, in percent."""
    own, _, other = number.partition(":")
    try:
        return [100 * (ours[split][own] - theirs[split][other or own]) for split in ours]
    except KeyError as error:
        sys.exit(f"a result has no number {error}: choose others with --numbers")


def cell(found: list[float]) -> str:
    """Write mean, standard deviation (n - 1), and the mark of a consistent difference."""
    average, spread = mean(found), stdev(found)
    consistent = min(found) > 0 or max(found) < 0
    return f"{average:+.1f} ± {spread:.1f}{' *' if consistent and abs(average) >= 2 * spread else ''}"


if __name__ == "__main__":
    main()
