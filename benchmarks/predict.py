r"""Label videos from a few examples, and say how often that is right: what `vidssl predict` reaches on real videos.

    python benchmarks/predict.py DATA --out output/predict few persons cameras moments unknown \
        --encoders vidssl-default floor:thumbnails floor:motion

DATA has the folders `ucf101_6`, `utd_mhad_rgb`, `surveillance` and `more/babysign24`.

* few: UCF101, six classes, split 1: 5 and 20 examples of each class from the training list, by seed; predicted are the
  videos of the test list, whose recordings have no example.
* persons: UTD-MHAD, five motions: examples are of the odd persons, predicted are the even ones.
* cameras: street cameras, fight or not: examples are of half of the cameras, by seed.
* moments: recordings of 2 to 4 minutes: clips of eight signs between others of the same person, each faded into the
  next for half a second; examples are clips of the other four persons. mAP at IoU 0.3 and 0.5 over the signs.
* unknown: as `few` with 20 examples, but none of the last class: the share that is taken for none of the classes.

Reached is the mean over classes of the videos that are right, with the interval of `vidssl.compare`; beside it is what
the first line of the page said, before any of these labels was known.
"""

import argparse
import csv
import re
import shutil
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from measure import finish, table
from numpy.typing import NDArray

import vidssl
from vidssl.apps.predict.moments import NONE
from vidssl.base.keyed_generators import generator
from vidssl.base.safe_parse import read_json
from vidssl.evaluation.statistics import Estimate, proportion
from vidssl.video.write import write_mp4

Labels = Mapping[str, str]  # by the name of a file
SIGNS = 8  # classes of the moments
SECONDS = (2.56, 1.28)  # window and stride
FADE = 0.5  # seconds
RECORDINGS = 4  # of a person
SIZE = 112


def main() -> None:
    """Print a table of each experiment."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("experiments", nargs="+", choices=("few", "persons", "cameras", "moments", "unknown"))
    parser.add_argument("--encoders", nargs="+", default=["vidssl-default"], metavar="NAME")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, help="folder for videos, predictions and figures.json")
    parsed = parser.parse_args()
    figures = {}
    for name in parsed.experiments:
        rows = []
        for encoder in parsed.encoders:
            run = {"few": few, "persons": persons, "cameras": cameras, "moments": moments, "unknown": unknown}[name]
            rows += run(parsed.data, parsed.out / name, encoder, parsed.seed)
        print(f"\n{name}\n{table([*rows[0]], [[*row.values()] for row in rows])}")
        figures[name] = rows
    finish(figures, parsed.out / "figures.json")


def few(data: Path, out: Path, encoder: str, seed: int) -> list[dict[str, str]]:
    """UCF101 with 5 and 20 examples of a class."""
    train, test = ucf_lists(data)
    return [
        predict_clips(out, encoder, draw(train, shots, seed), test, r"_(g\d+)_", {"examples per class": str(shots)})
        for shots in (5, 20)
    ]


def unknown(data: Path, out: Path, encoder: str, seed: int) -> list[dict[str, str]]:
    """UCF101 without examples of the last class."""
    train, test = ucf_lists(data)
    last = max(train.values())
    examples = draw({path: label for path, label in train.items() if label != last}, 20, seed)
    predictions = predict_all(out, encoder, examples, test, r"_(g\d+)_")
    refused = {path: row["class"] == NONE for path, row in predictions.items()}
    shares = []
    for of_class in (lambda label: label == last, lambda label: label != last):
        paths = [path for path in test if of_class(test[path]) and path in refused]
        values = np.array([refused[path] for path in paths], float)
        shares.append(proportion(values, numbers([re.findall(r"_(g\d+)_", path)[0] for path in paths])))
    passes = defaultdict(int)
    for path, row in predictions.items():
        if test[path] == last and not refused[path]:
            passes[row["class"]] += 1
    taken = ", ".join(f"{name} {count}" for name, count in sorted(passes.items(), key=lambda pair: -pair[1]))
    return [
        {"encoder": encoder, "of the unknown class": text(shares[0]), "of the known": text(shares[1]), "for": taken}
    ]


def persons(data: Path, out: Path, encoder: str, seed: int) -> list[dict[str, str]]:
    """UTD-MHAD: the odd persons label the even ones."""
    labels = {str(path): path.name.split("_")[0] for path in sorted((data / "utd_mhad_rgb").rglob("*.mp4"))}
    odd = {path: label for path, label in labels.items() if int(re.findall(r"_s(\d)_", path)[0]) % 2}
    return [predict_clips(out, encoder, odd, {p: c for p, c in labels.items() if p not in odd}, r"_(s\d)_", {})]


def cameras(data: Path, out: Path, encoder: str, seed: int) -> list[dict[str, str]]:
    """Street cameras, half of them with labels; the camera is written into the name."""
    videos = out / "videos"
    with open(data / "surveillance" / "labels.csv", newline="") as file:
        rows = [*csv.DictReader(file)]
    labels = {}
    for row in rows:
        copy = videos / f"cam{row['source_id']}_{Path(row['path']).name}"
        if not copy.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(data / "surveillance" / row["path"], copy)
        labels[str(copy.resolve())] = row["label"]
    ids = sorted({row["source_id"] for row in rows})
    half = {f"cam{ids[n]}_" for n in generator(seed, 71).permutation(len(ids))[: len(ids) // 2]}
    examples = {path: label for path, label in labels.items() if re.findall(r"cam\w+?_", Path(path).name)[0] in half}
    rest = {path: label for path, label in labels.items() if path not in examples}
    return [predict_clips(out, encoder, examples, rest, r"(cam\w+?)_", {})]


def predict_clips(
    out: Path, encoder: str, examples: Labels, test: Labels, group: str, about: dict[str, str]
) -> dict[str, str]:
    """Predict clips with known labels; return how many are right, beside what the page said."""
    name = "-".join(["predictions", *about.values()])
    predictions = predict_all(out, encoder, examples, test, group, name)
    paths = [path for path in test if path in predictions]
    right = np.array([predictions[path]["class"] == test[path] for path in paths], float)
    recordings = [re.findall(group, path)[0] + (test[path] if "g" in group else "") for path in paths]
    reached = proportion(right, numbers(recordings), numbers([test[path] for path in paths]))
    sure = np.array([predictions[path]["class"] != NONE for path in paths])
    said = out / f"{name}-{safe(encoder)}" / "results.json"
    trust = read_json(said)["trust"]
    claim = text(Estimate(**trust["recall"])) if trust["recall"] else trust["line"]
    return {
        "encoder": encoder, **about, "the page said": claim, "reached": text(reached),
        "none of these": f"{100 * (1 - sure.mean()):.1f}", "right of the others": f"{100 * right[sure].mean():.1f}",
    }  # fmt: skip


def predict_all(
    out: Path, encoder: str, examples: Labels, test: Labels, group: str, name: str = "predictions"
) -> dict[str, dict[str, str]]:
    """Run `vidssl predict`; return the rows of predictions.csv by the path of the video."""
    folder = out / f"{name}-{safe(encoder)}"
    labels = out / f"{name}-labels.csv"
    out.mkdir(parents=True, exist_ok=True)
    with open(labels, "w", newline="") as file:
        csv.writer(file).writerows([("path", "label"), *examples.items()])
    vidssl.predict([*examples, *test], labels=[labels], model=encoder, out=folder, group=group, progress=False)
    by_name = {Path(path).name: path for path in test}
    with open(folder / "predictions.csv", newline="") as file:
        return {by_name[Path(row["path"]).name]: row for row in csv.DictReader(file)}


def ucf_lists(data: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Return the class of each video of split 1: of training and of test."""
    lists = []
    for kind in ("train", "test"):
        names = (data / "ucf101_6" / "splits" / f"{kind}list01.txt").read_text().split()
        files = [name.replace(".avi", ".mp4") for name in names if "/" in name]
        lists.append({str((data / "ucf101_6" / name).resolve()): name.partition("/")[0] for name in files})
    return lists[0], lists[1]


def draw(labels: Labels, shots: int, seed: int) -> dict[str, str]:
    """Draw so many examples of each class."""
    drawn = {}
    for label in sorted({*labels.values()}):
        paths = [path for path in labels if labels[path] == label]
        drawn |= {paths[n]: label for n in generator(seed, 70, shots).permutation(len(paths))[:shots]}
    return drawn


def numbers(names: Sequence[str]) -> NDArray[np.int64]:
    """Number names."""
    return np.unique(names, return_inverse=True)[1].astype(np.int64)


def safe(encoder: str) -> str:
    """Name a folder."""
    return re.sub(r"[^\w.+-]", "_", encoder)


def text(estimate: Estimate) -> str:
    """Format an estimate in percent."""
    interval = "" if estimate.low is None else f" ({100 * estimate.low:.1f} to {100 * estimate.high:.1f})"
    return f"{100 * estimate.value:.1f}{interval}"


# Moments ----------------------------------------------------------------------------------------------------


def moments(data: Path, out: Path, encoder: str, seed: int) -> list[dict[str, str]]:
    """Find signs in the recordings of a person by examples of the other persons."""
    with open(data / "more" / "babysign24.csv", newline="") as file:
        clips = [{**row, "path": data / "more" / "babysign24" / row["path"]} for row in csv.DictReader(file)]
    if not clips[0]["path"].exists():
        clips = [
            {**clip, "path": data / "more" / clip["path"].relative_to(data / "more" / "babysign24")} for clip in clips
        ]
    signs = sorted({clip["label"] for clip in clips})[:SIGNS]
    found, truth = [], []
    for person in sorted({clip["group"] for clip in clips}):
        videos = out / person
        spans = render(videos, [clip for clip in clips if clip["group"] == person], signs, seed)
        truth += spans
        labels = out / f"{person}.csv"
        with open(labels, "w", newline="") as file:
            rows = [(clip["path"].resolve(), clip["label"]) for clip in clips if clip["group"] != person]
            csv.writer(file).writerows([("path", "label"), *(row for row in rows if row[1] in signs)])
        window, stride = SECONDS
        folder = out / f"{person}-{safe(encoder)}"
        vidssl.predict(videos, labels=[labels], model=encoder, out=folder, window=window, stride=stride,
                       allow_external=True, progress=False)  # fmt: skip
        with open(folder / "predictions.csv", newline="") as file:
            found += [(f"{person}/{row['path']}", row["class"], float(row["start"]), float(row["end"]),
                       float(row["confidence"])) for row in csv.DictReader(file)]  # fmt: skip
    scores = {f"mAP at IoU {iou}": f"{100 * mean_average_precision(found, truth, iou):.1f}" for iou in (0.3, 0.5)}
    return [{"encoder": encoder, **scores, "moments": str(len(truth))}]


def render(videos: Path, clips: Sequence[dict], signs: Sequence[str], seed: int) -> list[tuple[str, str, float, float]]:
    """Write recordings of a person, unless they are there; return file, sign, start and end of the signs in them."""
    rate, fade = 15.0, round(FADE * 15)
    of_signs = [clip for clip in clips if clip["label"] in signs]
    others = [clip for clip in clips if clip["label"] not in signs]
    spans = []
    for number in range(RECORDINGS):
        name = f"{clips[0]['group']}_r{number}.mp4"
        rng = generator(seed, 72, number)
        length = rng.uniform(120, 240) * rate
        frames, order = [], []
        while len(frames) < length:
            order = order or [of_signs[n] for n in rng.permutation(len(of_signs))]
            for clip in (others[int(rng.integers(len(others)))], others[int(rng.integers(len(others)))], order.pop()):
                part = small_frames(clip["path"], rate)
                start = max(0, len(frames) - fade)
                overlap = len(frames) - start
                for n in range(overlap):
                    share = (n + 1) / (overlap + 1)
                    frames[start + n] = ((1 - share) * frames[start + n] + share * part[n]).astype(np.uint8)
                frames += [*part[overlap:]]
                if clip["label"] in signs:
                    key = f"{clips[0]['group']}/{name}"
                    spans.append((key, clip["label"], start / rate, len(frames) / rate))
        if not (videos / name).exists():
            videos.mkdir(parents=True, exist_ok=True)
            write_mp4(videos / name, frames, rate)
    return spans


def small_frames(path: Path, rate: float) -> NDArray[np.uint8]:
    """Read frames at a rate, as squares of one size (T, S, S, 3)."""
    import cv2

    with vidssl.open_video(path) as video:
        count = max(2, round(video.meta.duration * rate))
        index = np.linspace(0, video.meta.num_frames - 1, count).round().astype(int).tolist()
        frames = video.frames(index).transpose(0, 2, 3, 1)
    side = min(frames.shape[1:3])
    top, left = (frames.shape[1] - side) // 2, (frames.shape[2] - side) // 2
    squares = frames[:, top : top + side, left : left + side]
    return np.stack([cv2.resize(frame, (SIZE, SIZE), interpolation=cv2.INTER_AREA) for frame in squares])


def mean_average_precision(
    found: Sequence[tuple[str, str, float, float, float]], truth: Sequence[tuple[str, str, float, float]], iou: float
) -> float:
    """Return the mean over classes of the average precision of moments: each true one is found once, by the surest."""
    precisions = []
    for label in sorted({span[1] for span in truth}):
        of_class = [span for span in truth if span[1] == label]
        taken, hits = set[int](), []
        for path, _, start, end, _ in sorted((row for row in found if row[1] == label), key=lambda row: -row[4]):
            best, at = 0.0, -1
            for n, (of_path, _, first, last) in enumerate(of_class):
                if of_path == path and n not in taken:
                    shared = min(end, last) - max(start, first)
                    overlap = shared / (max(end, last) - min(start, first))
                    best, at = max((best, at), (overlap, n))
            hits.append(best >= iou)
            taken |= {at} if best >= iou else set()
        right = np.cumsum(hits)
        precision = right / np.arange(1, len(hits) + 1)
        precisions.append(float((precision * hits).sum() / len(of_class)) if hits else 0.0)
    return float(np.mean(precisions))


if __name__ == "__main__":
    main()
