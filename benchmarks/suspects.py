"""How many wrong labels `vidssl map` finds: `python benchmarks/suspects.py FEATURES [--share 0.05] [--seeds 5]`.

FEATURES is a folder of `vidssl extract` of videos with right labels, or in folders of classes. Of each seed a share of
the labels is replaced by that of another class drawn at random: of single videos, or of whole recordings. Printed are
the precision and the recall of the rule, and of others with their best threshold for half of the wrong labels. With
`--ranks 16 5 4` four wrong labels are planted in 16 classes of five videos, and it is counted how many are in the first
ten of the list of doubtful labels.
"""

import argparse
from pathlib import Path

import numpy as np
from measure import finish, table

from vidssl.base.keyed_generators import generator
from vidssl.data.recordings_and_class_folders import labelled_by_folders, recording_groups
from vidssl.evaluation import suspect_videos as suspects
from vidssl.evaluation.calibrated_classifier import Rule, left_out_probabilities, nested_probabilities
from vidssl.evaluation.features import read_folder
from vidssl.evaluation.leave_recording_out import fold_table


def swapped(label, groups, share, by_recording, seed):
    """Replace a share of the labels (N,), of videos, or `by_recording`."""
    draw, number, noisy = generator(seed, 1), int(label.max()) + 1, label.copy()
    units = groups if by_recording else np.arange(len(label))
    changed = 0
    for unit in draw.permutation(np.unique(units)):
        if changed >= round(share * len(label)):
            break
        rows = np.flatnonzero(units == unit)
        noisy[rows] = (label[rows] + draw.integers(1, number)) % number
        changed += len(rows)
    return noisy


def precision_at_half(margin, wrong):
    """Precision of the first rows by margin that hold half of the wrong labels."""
    order = np.argsort(-margin)
    right = np.cumsum(wrong[order])
    return float(np.max((right / np.arange(1, len(order) + 1))[right >= wrong.sum() / 2]))


def margin_of(confidence, label):
    """Margin of one estimate (N, classes)."""
    rows, competing = np.arange(len(label)), confidence.copy()
    competing[rows, label] = -1
    return competing.max(axis=1) - confidence[rows, label]


def ranks(x, label, groups, classes, videos, wrong, seeds):
    """Plant wrong labels in a few classes of a few videos each; return what the list and its cut hold of them.

    Means over seeds of the wrong labels in the first ten of the list by `score_labels`, and by the probability of the
    label that the classifier of `predict` has, chosen without the recording; of the precision and the recall of what
    is called clearly wrong.
    """
    rows_of = [np.flatnonzero(label == number) for number in range(int(label.max()) + 1)]
    rows_of, counts = [rows for rows in rows_of if len(rows) >= videos], []
    for seed in range(seeds):
        draw = generator(seed, 1)
        class_rows = [rows_of[n] for n in draw.permutation(len(rows_of))[:classes]]
        rows = np.sort(np.concatenate([draw.permutation(members)[:videos] for members in class_rows]))
        true = np.unique(label[rows], return_inverse=True)[1]
        noisy, number = true.copy(), int(true.max()) + 1
        planted = draw.permutation(len(rows))[:wrong]
        noisy[planted] = (true[planted] + draw.integers(1, number, wrong)) % number
        part, group = x[rows].float(), np.unique(groups[rows], return_inverse=True)[1]
        scores = suspects.score_labels(part, noisy, group)
        probability = nested_probabilities(part, noisy, group, number)[np.arange(len(rows)), noisy]
        clear = np.isin(scores.clearly_wrong, planted)
        tens = [scores.doubtful[:10], np.argsort(probability, kind="stable")[:10]]
        counts.append([*(np.isin(ten, planted).sum() for ten in tens), clear.sum(), len(clear)])
    table = np.array(counts, float)
    clear, called = table[:, 2].sum(), table[:, 3].sum()
    return [*table[:, :2].mean(axis=0), clear / called if called else np.nan, clear / (wrong * seeds)]


def main():
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", type=Path)
    parser.add_argument("--share", type=float, default=0.05, help="of wrong labels")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--ranks", type=int, nargs=3, metavar=("CLASSES", "VIDEOS", "WRONG"), help="rank wrong labels")
    parser.add_argument("--group", help="regular expression for the recording in a path")
    parser.add_argument("--json", type=Path, help="also write the numbers here")
    parsed = parser.parse_args()
    folder = read_folder(parsed.features, "pass a folder of vidssl extract")
    videos = labelled_by_folders(folder.videos(range(len(folder.features.x))))
    x, groups = folder.features.x, recording_groups(videos, parsed.group).number
    label = np.unique(videos.labels, return_inverse=True)[1]
    if parsed.ranks:
        first_ten, by_predict, precision, recall = ranks(x, label, groups, *parsed.ranks, parsed.seeds)
        print(f"wrong labels in the first ten: {first_ten:.2f}, by the classifier of predict {by_predict:.2f}")
        print(f"clearly wrong: precision {precision:.2f}, recall {recall:.2f}")
        return
    numbers = {}
    for by_recording in (False, True):
        per_seed = []
        for seed in range(parsed.seeds):
            noisy = swapped(label, groups, parsed.share, by_recording, seed)
            wrong, scores = noisy != label, suspects.score_labels(x, noisy, groups)
            rows, classes = scores.clearly_wrong, int(label.max()) + 1
            estimates = {
                "logistic regression": left_out_probabilities(
                    x, noisy, fold_table(groups, noisy), classes, lambda _: Rule(suspects._COST)
                ),
                "10 nearest videos": suspects._voted(x, noisy, classes),
            }
            per_seed.append(
                {
                    "precision": float(wrong[rows].mean()) if len(rows) else 0.0,
                    "recall": float(wrong[rows].sum() / wrong.sum()),
                    "right class": float((scores.proposed == label)[rows][wrong[rows]].mean()),
                    "P at R 0.5, both": precision_at_half(scores.margin, wrong),
                    **{
                        f"P at R 0.5, {name}": precision_at_half(margin_of(estimate, noisy), wrong)
                        for name, estimate in estimates.items()
                    },
                }
            )
        by_name = {name: [of_seed[name] for of_seed in per_seed] for name in per_seed[0]}
        numbers["recordings" if by_recording else "videos"] = {
            name: [float(np.mean(values)), *([float(np.std(values, ddof=1))] if len(values) > 1 else [])]
            for name, values in by_name.items()
        }
    right = len(suspects.score_labels(x, label, groups).clearly_wrong)
    print(f"{len(label)} videos; with the labels as they are {right} are suspects")
    rows = [
        [f"{kind} with wrong labels", *(" ± ".join(f"{number:.2f}" for number in pair) for pair in measures.values())]
        for kind, measures in numbers.items()
    ]
    print(table(["", *numbers["videos"]], rows))
    finish({**numbers, "suspects of right labels": right}, parsed.json)


if __name__ == "__main__":
    main()
