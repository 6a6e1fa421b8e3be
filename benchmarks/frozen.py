r"""Compare frozen networks over splits and seeds: accuracies, and differences with intervals.

    python benchmarks/frozen.py --lists 'lists/ucf101_6/split{split}' --splits 1 2 3 --seeds 0 1 2 --out output/frozen \
        both='output/both/split{split}/seed{seed}' rgb='output/both/split{split}/seed{seed}@rgb' \
        untrained='random:small_video/two_streams;seed={seed}' default=vidssl-default

A network is NAME=WHAT; the others are subtracted from the first. WHAT is a checkpoint, with `@STREAM` one of its
streams; or `random:CONFIG;KEY=VALUE;…`, an untrained network, also those of floors.py and imagenet_frames.py; or
an encoder by name, `floor:motion` or a sum `A+0.5*B#STREAM`, with its own clips; or several of these with ` + `, whose
unit features are joined. `{split}` and `{seed}` are replaced; a network without
`{seed}` has one seed. With `;lists=FOLDER` a network sees the same videos in the copies of other lists.

R@1: the class of the nearest training video. kNN: the vote of the 20 nearest. logistic: logistic regression on
standardised features, C by k-fold over the recording groups of the training list. Each over 4 clips of a video, except
for encoders with clips of their own.

Accuracies are means over splits of means over seeds, with the deviation over splits. The interval (95 %) of a
difference is a bootstrap over recording groups and, for each network, over seeds. A video's group is what `--group`
finds in its name, or the column `group` of the list that `--groups` names.
"""

import argparse
import hashlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import floors  # noqa: F401 - registers its backbones
import imagenet_frames  # noqa: F401
import numpy as np
import torch
from leave_one_out import Names, groups_of
from measure import finish, table
from numpy.typing import NDArray
from torch import Tensor

from vidssl.base.keyed_generators import generator
from vidssl.base.plugins import import_modules
from vidssl.base.types import Features
from vidssl.data.video_list import VideoList, read_list
from vidssl.evaluation.features import extract_features, join_features
from vidssl.evaluation.metrics import vote
from vidssl.evaluation.search import nearest
from vidssl.jobs.job import NetworkOptions
from vidssl.jobs.load_network import load_subject
from vidssl.models.external import is_external
from vidssl.models.joined_features import EncoderPart, parts_of

METRICS = ("R@1", "kNN", "logistic")
NEIGHBOURS, TEMPERATURE = 20, 0.07
COSTS = tuple(10.0**n for n in range(-5, 2))  # of the logistic regression
FOLDS = 5
DRAWS = 10_000  # of the bootstrap
Correct = dict[tuple[str, int], NDArray[np.bool_]]  # (metrics, N): whether a video is right, for each split and seed


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="+", metavar="NAME=WHAT")
    parser.add_argument("--lists", required=True, help="folder with train.csv and test.csv; contains {split}")
    parser.add_argument("--splits", nargs="+", required=True)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--group", default=r"(\w+_g\d+)_", help="expression for the recording group in a video's name")
    parser.add_argument("--groups", type=Path, help="CSV with the columns path and group, in place of --group")
    parser.add_argument("--clips", type=int, default=4)
    parser.add_argument("--out", type=Path, required=True, help="folder for features and results.json")
    parser.add_argument(
        "--imports", nargs="+", default=[], help="modules with methods and backbones of the checkpoints"
    )
    parsed = parser.parse_args()
    import_modules(parsed.imports, "imports")
    torch.set_num_threads(1)
    networks = dict(text.split("=", 1) for text in parsed.networks)
    tested: dict[str, Names] = {}  # the groups of the tested videos
    correct: dict[str, Correct] = {name: {} for name in networks}
    for split in parsed.splits:
        halves = read_halves(parsed.lists.replace("{split}", split))
        pattern = None if parsed.groups else parsed.group
        groups, tested[split] = (groups_of(videos, pattern, parsed.groups) for videos in halves)
        for name, what in networks.items():
            for seed in parsed.seeds if "{seed}" in what else parsed.seeds[:1]:
                texts = what.replace("{split}", split).replace("{seed}", str(seed)).split(" + ")
                parts = [part for text in texts for part in parts_of(text) or [EncoderPart(text)]]
                inputs = [copies(part.model, halves) for part in parts]
                gallery, query = (
                    [features(part, lists[half], parsed.clips, parsed.out) for part, lists in inputs] for half in (0, 1)
                )
                if len(parts) > 1:
                    gallery, query = ([join_features(x, [part.weight for part in parts])] for x in (gallery, query))
                correct[name][split, seed] = judge(*gallery, *query, groups)
    base, *compared = networks
    rows = [[name, *map(format_accuracy, accuracies(runs))] for name, runs in correct.items()]
    print(table(["network", *METRICS], rows))
    gaps = {name: differences(correct[base], correct[name], tested) for name in compared}
    if gaps:
        rows = [[name, *map(format_difference, estimates)] for name, estimates in gaps.items()]
        print(table([f"{base} minus", *METRICS], rows))
    by_run = {
        name: {f"{split}, seed {seed}": hits.mean(axis=1).tolist() for (split, seed), hits in runs.items()}
        for name, runs in correct.items()
    }
    figures = {"arguments": sys.argv[1:], "metrics": METRICS, "accuracies": by_run, "differences": gaps}
    finish(figures, parsed.out / "results.json")


def read_halves(folder: str) -> list[VideoList]:
    """Read the training list and the test list of a folder."""
    return [read_list(Path(folder) / f"{half}.csv") for half in ("train", "test")]


def copies(part: str, halves: list[VideoList]) -> tuple[str, list[VideoList]]:
    """Return a network without `;lists=FOLDER`, and the lists that it sees: those of the folder, or `halves`."""
    what, _, folder = part.partition(";lists=")
    if not folder:
        return what, halves
    copied_lists = read_halves(folder)
    for copied, original in zip(copied_lists, halves, strict=True):
        if [Path(name).stem for name in copied.names] != [Path(name).stem for name in original.names]:
            sys.exit(f"{copied.path} and {original.path} are not lists of the same videos in the same order")
    return what, copied_lists


def features(what: str, videos: VideoList, clips: int, out: Path) -> Features:
    """Return the features of a network; those of each video are kept in `out`, for all lists of the same root."""
    checkpoint, _, stream = what.partition("@")
    options: NetworkOptions = {"workers": 1, "device": "cpu"}
    if not is_external(what):
        options = {**options, "clips": clips, "crops": 1}
    if what.startswith("random:"):
        config, *settings = checkpoint.removeprefix("random:").split(";")
        checkpoint, options = "random", {**options, "cfg": config, "settings": settings}
    if stream:
        options["stream"] = stream
    subject = load_subject(checkpoint, options)
    file = out / "features" / f"{hashlib.sha256(f'{subject.request()} {videos.root}'.encode()).hexdigest()[:24]}.npz"
    stored = dict(np.load(file)) if file.exists() else {}
    missing = [n for n, name in enumerate(videos.names) if name not in stored]
    if missing:
        vectors = extract_features(subject.encoder, videos.rows(missing), subject.test, subject.device).x.numpy()
        stored |= {videos.names[n]: vector for n, vector in zip(missing, vectors, strict=True)}
        file.parent.mkdir(parents=True, exist_ok=True)
        np.savez(file, **stored)
    x = torch.from_numpy(np.stack([stored[name] for name in videos.names]))
    return Features(x, torch.from_numpy(videos.labels), torch.arange(len(x)))


def judge(gallery: Features, query: Features, groups: Names) -> NDArray[np.bool_]:
    """Whether each tested video (metrics, N) is classified rightly; `groups` are those of the gallery."""
    near = nearest(query.x, gallery.x, min(NEIGHBOURS, len(gallery.x)))
    predicted = [
        gallery.label[near.index[:, 0]],
        vote(near, gallery, NEIGHBOURS, TEMPERATURE),
        probe(gallery, query.x, groups),
    ]
    return torch.stack([classes == query.label for classes in predicted]).numpy()


def probe(gallery: Features, x: Tensor, groups: Names) -> Tensor:
    """Predict classes (N,) of features (N, D) by logistic regression."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV, GroupKFold
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=5000))
    search = GridSearchCV(model, {"logisticregression__C": COSTS}, cv=GroupKFold(min(FOLDS, len({*groups}))))
    search.fit(gallery.x.double().numpy(), gallery.label.numpy(), groups=groups)
    return torch.from_numpy(search.predict(x.double().numpy()))


def accuracies(correct: Correct) -> list[list[float]]:
    """Return for each metric the accuracies of the splits, means over seeds, in percent."""
    of_split: dict[str, list[NDArray[np.float64]]] = {}
    for (split, _), hits in correct.items():
        of_split.setdefault(split, []).append(100 * hits.mean(axis=1))
    return np.array([np.mean(runs, axis=0) for runs in of_split.values()]).T.tolist()  # type: ignore[no-any-return]


def differences(first: Correct, second: Correct, groups: Mapping[str, Names], seed: int = 0) -> list[list[float]]:
    """Return for each metric the difference, first minus second network, and the ends of its interval, in percent.

    `groups` (N,) are those of the tested videos of each split. All videos count alike.
    """
    group_names = sorted({(split, group) for split, names in groups.items() for group in names.tolist()})
    index = {name: n for n, name in enumerate(group_names)}
    rows = {split: np.array([index[split, group] for group in names.tolist()]) for split, names in groups.items()}
    sizes = np.zeros(len(group_names))
    for indices in rows.values():
        np.add.at(sizes, indices, 1)
    rng = generator(seed)
    counts = rng.multinomial(len(index), np.full(len(index), 1 / len(index)), DRAWS)  # how often each group is drawn
    weights = counts / (counts @ sizes)[:, None]
    estimates = []
    for metric in range(len(next(iter(first.values())))):
        sampled, difference = np.zeros(DRAWS), 0.0
        for sign, network in ((1, first), (-1, second)):
            sums = _sums_of_groups(network, metric, rows, len(group_names))  # (seeds, groups): videos that are right
            seeds = rng.multinomial(len(sums), np.full(len(sums), 1 / len(sums)), DRAWS) / len(sums)
            sampled += sign * np.einsum("dg,ds,sg->d", weights, seeds, sums, optimize=True)
            difference += sign * sums.mean(axis=0).sum() / sizes.sum()
        low, high = np.quantile(sampled, [0.025, 0.975])
        estimates.append([100 * float(difference), 100 * float(low), 100 * float(high)])
    return estimates


def _sums_of_groups(network: Correct, metric: int, rows: Mapping[str, Any], count: int) -> NDArray[np.float64]:
    seeds = sorted({seed for _, seed in network})
    sums = np.zeros((len(seeds), count))
    for (split, seed), hits in network.items():
        np.add.at(sums[seeds.index(seed)], rows[split], hits[metric])
    return sums


def format_accuracy(values: Sequence[float]) -> str:
    """Write mean and deviation."""
    spread = f" ± {stdev(values):.1f}" if len(values) > 1 else ""
    return f"{mean(values):.1f}{spread}"


def format_difference(values: Sequence[float]) -> str:
    """Write a difference and its interval; * if that excludes 0."""
    difference, low, high = values
    return f"{difference:+.1f} ({low:+.1f} to {high:+.1f}){'*' if low > 0 or high < 0 else ''}"


if __name__ == "__main__":
    main()
