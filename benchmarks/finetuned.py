r"""Compare classifiers over splits and seeds: top-1 accuracies, and differences with intervals.

    python benchmarks/finetuned.py --splits 1 2 3 --seeds 0 1 2 --out output/finetuned/results.json \
        tuned='output/tuned/split{split}/seed{seed}/test' scratch='output/scratch/split{split}/seed{seed}/test'

A classifier is NAME=FOLDER, the folder of `vidssl test --protocol accuracy`; the others are subtracted from the first.
Accuracies and intervals are those of frozen.py.
"""

import argparse
import csv
import sys
from pathlib import Path

import numpy as np
from frozen import Correct, accuracies, differences, format_accuracy, format_difference
from leave_one_out import Names
from measure import finish, table

from vidssl.data.recordings_and_class_folders import recordings_by


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("classifiers", nargs="+", metavar="NAME=FOLDER")
    parser.add_argument("--splits", nargs="+", required=True)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--group", default=r"(\w+_g\d+)_", help="expression for the recording group in a video's name")
    parser.add_argument("--out", type=Path, required=True, help="results.json")
    parsed = parser.parse_args()
    tested: dict[str, list[str]] = {}
    correct: dict[str, Correct] = {}
    for name, folder in (text.split("=", 1) for text in parsed.classifiers):
        correct[name] = {}
        for split in parsed.splits:
            for seed in parsed.seeds:
                file = Path(folder.format(split=split, seed=seed)) / "predictions_accuracy.csv"
                with file.open(newline="") as stream:
                    rows = [*csv.DictReader(stream)]
                paths = [row["path"] for row in rows]
                if tested.setdefault(split, paths) != paths:
                    sys.exit(f"{file} is not a test of the videos of the first one of split {split}")
                correct[name][split, seed] = np.array([[row["class"] == row["predicted"] for row in rows]])
    groups: dict[str, Names] = {split: groups_of(paths, parsed.group) for split, paths in tested.items()}
    base, *compared = correct
    print(table(["classifier", "top-1"], [[name, format_accuracy(*accuracies(correct[name]))] for name in correct]))
    gaps = {name: differences(correct[base], correct[name], groups) for name in compared}
    if gaps:
        rows = [[name, format_difference(*estimates)] for name, estimates in gaps.items()]
        print(table([f"{base} minus", "top-1"], rows))
    by_run = {
        name: {f"{split}, seed {seed}": float(hits.mean()) for (split, seed), hits in runs.items()}
        for name, runs in correct.items()
    }
    finish({"arguments": sys.argv[1:], "accuracies": by_run, "differences": gaps}, parsed.out)


def groups_of(paths: list[str], pattern: str) -> Names:
    """Return what a pattern finds in each path."""
    groups = recordings_by(pattern, paths)
    if None in groups:
        sys.exit(f"--group {pattern} finds nothing in {paths[groups.index(None)]}")
    return np.array(groups)


if __name__ == "__main__":
    main()
