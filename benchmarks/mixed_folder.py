r"""Compare encoders on a folder of very different videos: sports, poses, gestures, ice hockey and signs.

    python benchmarks/mixed_folder.py DATA --out output/mixed \
        vidssl-default vidssl-frames vidssl-free vidssl-small vidssl-frames+0.5*vidssl-free#differences

DATA has the folders `ucf101_6`, `utd_mhad_rgb`, `more/yoga6`, `more/hockey` and `more/babysign24`, the last with a list
`babysign24.csv` of its persons. 300 clips are drawn by seed; a class is one of a set, and a recording is a group of
UCF101, a person of UTD-MHAD and of the signs, or a file. Each clip is compared with those of other recordings. The
recordings are divided in halves by seed: the first may serve for choices, the second is reported. Differences are
those of the first encoder minus another, with intervals (95 %) over recordings.
"""

import argparse
import csv
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import torch
from measure import finish, table

import vidssl
from vidssl.base.keyed_generators import generator
from vidssl.base.types import Features
from vidssl.data.recordings_and_class_folders import labelled_by_folders, recording_groups
from vidssl.evaluation.features import join_features
from vidssl.evaluation.leave_recording_out import vote_of_others
from vidssl.evaluation.statistics import Estimate, beside, proportion
from vidssl.models.joined_features import EncoderPart, parts_of

# Set: folder, clips, pattern of the class, pattern of the recording; both of the path in the folder.
SETS = {
    "ucf": ("ucf101_6", 90, r"[^/]+", r"v_\w+_g\d+"),
    "yoga": ("more/yoga6", 60, r"[^/]+", r".+"),
    "utd": ("utd_mhad_rgb", 60, r"a\d+", r"s\d+"),
    "hockey": ("more/hockey", 60, r"[^/]+", r".+"),
    "signs": ("more/babysign24", 30, r"[^/]+", ""),
}
RECORDING = r"([^/]+)__\d+\.mp4"  # in a copied clip
MEASURES = ("R@1", "kNN")


def main() -> None:
    """Print the tables of both halves."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("encoders", nargs="+", metavar="NAME")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, help="folder for videos, features and figures.json")
    parsed = parser.parse_args()
    videos = parsed.out / "videos"
    if not videos.exists():
        draw(parsed.data, videos, parsed.seed)
    clips = labelled_by_folders(vidssl.read_input(videos))
    recordings = recording_groups(clips, RECORDING).number
    right, parts = {}, dict[str, Features]()
    for name in parsed.encoders:
        summands = parts_of(name) or [EncoderPart(name)]
        for part in summands:
            if part.model not in parts:
                parts[part.model] = vidssl.extract(part.model, clips, out=parsed.out / "features" / part.model)
        joined = join_features([parts[part.model] for part in summands], [part.weight for part in summands])
        voted, near = vote_of_others(joined, recordings)
        label = joined.label
        right[name] = torch.stack([label[near.index[:, 0]] == label, voted == label]).double().numpy()
    order = generator(parsed.seed).permutation(recordings.max() + 1)
    in_second = np.isin(recordings, order[len(order) // 2 :])
    figures = {}
    for half, rows in (("first half, for choices", ~in_second), ("second half", in_second)):
        base = right[parsed.encoders[0]][:, rows]
        lines = []
        for name, scores in right.items():
            means = [f"{100 * proportion(hits, recordings[rows]).value:.1f}" for hits in scores[:, rows]]
            gaps = [beside(*pair, recordings[rows]).difference for pair in zip(base, scores[:, rows], strict=True)]
            cells = ["–" if gap.low is None or gap.high is None else interval(gap) for gap in gaps]
            lines.append([name, *means, *cells])
        figures[half] = lines
        print(f"{half}: {rows.sum()} clips of {len({*recordings[rows].tolist()})} recordings")
        print(table(["encoder", *MEASURES, *(f"{parsed.encoders[0]} minus, {name}" for name in MEASURES)], lines))
    finish({"arguments": sys.argv[1:], "figures": figures}, parsed.out / "figures.json")


def draw(data: Path, out: Path, seed: int) -> None:
    """Copy the clips to OUT/SET_CLASS/RECORDING__NUMBER.mp4."""
    with open(data / "more/babysign24.csv", encoding="utf-8", newline="") as file:
        persons = {row["path"]: row["group"] for row in csv.DictReader(file)}
    rng = generator(seed)
    for name, (folder, count, of_class, of_recording) in SETS.items():
        paths = sorted(path.relative_to(data / folder).as_posix() for path in (data / folder).rglob("*.mp4"))
        for number, path in enumerate(sorted(rng.choice(paths, count, replace=False).tolist())):
            label = first_match(of_class, path)
            recording = first_match(of_recording, path) if of_recording else persons[path]
            target = out / f"{name}_{label}" / f"{name}_{recording.replace('/', '_')}__{number}.mp4"
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(data / folder / path, target)


def interval(gap: Estimate) -> str:
    """Write a difference and the ends of its interval, in points."""
    low, high = gap.low or 0, gap.high or 0
    return f"{100 * gap.value:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"


def first_match(pattern: str, path: str) -> str:
    """Return what a pattern finds in a path."""
    match = re.search(pattern, path)
    if match is None:
        sys.exit(f"{path} does not have {pattern}: is this the folder that the script expects?")
    return match[0]


if __name__ == "__main__":
    main()
