r"""Measure the accuracy of the region tracker: its variants, several networks, and baselines.

    python datasets/make_moving_digits.py --out data/digits
    python benchmarks/tracking.py data/digits --cfg configs/toy/frame_invariance.yaml --checkpoint random CKPT \
        --out output/tracking --tracker size=128 search.short_side=96
    python benchmarks/tracking.py /data/OTB/Crossing /data/OTB/Human3 --cfg … --checkpoint random CKPT --out output/otb

Each video is tracked from the true box of its first frame. The results are the fraction of videos with an IoU of at
least 0.5 with the true box `--gap` frames later, the fraction of later frames with such an IoU ("success"), and the
mean IoU over all later frames. The videos are the moving digits (`boxes.csv`), or sequences of OTB: `img/`, and
`groundtruth_rect.txt` with x y w h, counted from 1. Without `--checkpoint` only the baselines are measured. Proposals
are cached in OUT/<folder>/proposals.
"""

import argparse
import csv
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
import torch
from measure import finish, one_thread, table
from numpy.typing import NDArray

from vidssl.base.keyed_generators import generator
from vidssl.base.progress import progress
from vidssl.base.types import Frames, VideoRecord
from vidssl.cli import guarded
from vidssl.jobs.load_network import Subject, load_subject
from vidssl.jobs.track import tracker_settings as settings
from vidssl.tracking.proposals import Boxes, proposals_file, proposals_key, propose, read_proposals, write_proposals
from vidssl.tracking.tracker import Tracker, TrackerSettings, affinities, anchors, best_paths
from vidssl.transforms.crops import short_side
from vidssl.video import open_video

VARIANTS: dict[str, tuple[str, bool, bool, bool]] = {  # sum or best, centred, with the limit of steps, anchored
    "sum, plain cosine (the paper's)": ("sum", False, False, False),
    "sum, centred": ("sum", True, False, False),
    "sum, limited steps": ("sum", False, True, False),
    "sum, both (the default)": ("sum", True, True, False),
    "best path, plain cosine": ("best", False, False, False),
    "best path, centred": ("best", True, False, False),
    "best path, limited steps": ("best", False, True, False),
    "best path, both": ("best", True, True, False),
    "best path, anchored": ("best", False, False, True),
    "best path, both and anchored": ("best", True, True, True),
}


class Sequence(NamedTuple):
    """A video with the true box of one object in each frame."""

    frames: Frames
    truth: Boxes  # (T, 4)
    boxes: list[Boxes]  # proposals of each frame


def sequences(folder: Path, split: str, count: int, out: Path, config: TrackerSettings) -> Iterator[Sequence]:
    """Read the videos, and read or search their proposals."""
    truths: dict[str, list[list[float]]] = {}
    if (folder / "groundtruth_rect.txt").exists():
        lines = (folder / "groundtruth_rect.txt").read_text().splitlines()
        rects = [[float(value) for value in re.split(r"[\s,]+", line.strip())] for line in lines if line.strip()]
        truths["img"] = [[x - 1, y - 1, x - 1 + w, y - 1 + h] for x, y, w, h in rects]
    else:
        with open(folder / "boxes.csv", newline="") as file:
            for row in csv.DictReader(file):
                if f"/{split}/" in row["path"]:
                    box = [float(row[name]) for name in ("x1", "y1", "x2", "y2")]
                    truths.setdefault(row["path"], []).append(box)
    for name, truth in list(truths.items())[:count]:
        path = proposals_file(out / folder.resolve().name, name, VideoRecord(name))
        with open_video(folder / name, fps=25) as video:
            numbers = np.arange(min(video.meta.num_frames, len(truth)))
            frames = video.frames(numbers)
            key = proposals_key(config.search, video.path, video.meta)
        proposals = read_proposals(path, key, numbers)
        if proposals is None:
            images = frames.transpose(0, 2, 3, 1)
            proposals = [propose(np.ascontiguousarray(image), config.search) for image in images]
            write_proposals(path, key, numbers, proposals)
        yield Sequence(frames, np.array(truth, np.float32)[: len(numbers)], proposals)


def iou(boxes: Boxes, references: Boxes) -> NDArray[np.float64]:
    """Compare boxes (N, 4) with others (N, 4) or with one (1, 4)."""
    low, high = np.maximum(boxes[:, :2], references[:, :2]), np.minimum(boxes[:, 2:], references[:, 2:])
    common = np.maximum(high - low, 0).prod(axis=1)
    areas = [(corners[:, 2:] - corners[:, :2]).prod(axis=1) for corners in (boxes, references)]
    return np.asarray(common / (areas[0] + areas[1] - common), np.float64)


def baselines(sequence: Sequence, number: int) -> dict[str, NDArray[np.float64]]:
    """Return the IoU in each later frame of baselines without a tracker."""
    truth, later = sequence.truth[1:], sequence.boxes[1:]
    random = generator(0, number)
    random_boxes = np.stack([boxes[random.integers(len(boxes))] for boxes in later])
    return {
        "the first box, which stays": iou(truth, sequence.truth[:1]),
        "a random proposal": iou(truth, random_boxes),
        "the best of the proposals": np.array(
            [iou(boxes, true[None]).max() for boxes, true in zip(later, truth, strict=True)]
        ),
    }


def tracked(sequence: Sequence, subject: Subject, config: TrackerSettings) -> dict[str, NDArray[np.float64]]:
    """Return the IoU in each later frame of all variants, started at the true box of the first frame."""
    size = sequence.frames.shape[2], sequence.frames.shape[3]
    boxes = [np.concatenate([sequence.boxes[0], sequence.truth[:1]]), *sequence.boxes[1:]]
    small = short_side(sequence.frames, config.size)
    test = subject.test
    tracker = Tracker(subject.backbone, config, subject.device, test.mean, test.std)
    features = tracker.features(small, boxes, size)
    box_tensors = [torch.from_numpy(frame_boxes) for frame_boxes in boxes]
    step = (config.max_step or 1.0) * float(np.hypot(*size))
    ious = {}
    start = torch.tensor([len(boxes[0]) - 1])
    for name, (variant, center, limited, anchored) in VARIANTS.items():
        affinity = affinities(features, box_tensors, center, step if limited else None)
        if variant == "sum":
            ends = _ends_of_sums(affinity)
        else:
            path, _ = best_paths(affinity, start, anchors(features, start, center) if anchored else None)
            ends = path[0, 1:].tolist()
        ious[name] = np.array(
            [
                0.0 if end < 0 else iou(frame_boxes[end][None], true[None])[0]
                for end, frame_boxes, true in zip(ends, boxes[1:], sequence.truth[1:], strict=True)
            ]
        )
    return ious


def _ends_of_sums(affinity: list[torch.Tensor]) -> list[int]:
    """Return the best end in each later frame for the last region of frame 0; -1 if there is none."""
    ends, row = [], affinity[0][-1]  # one row of the products
    for step in [*affinity[1:], None]:
        ends.append(int(row.argmax()) if bool(row.max() > 0) else -1)
        if step is not None:
            row = row @ step
            row = row / row.max().clamp(min=1e-30)
    return ends


def main() -> None:
    """Print the table, write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="+", help="folder of moving digits, or a sequence of OTB")
    parser.add_argument("--checkpoint", nargs="+", default=[], help="checkpoints, or random, with --cfg")
    parser.add_argument("--cfg", type=Path, help="config of the random network")
    parser.add_argument("--out", type=Path, required=True, help="folder for the proposals")
    parser.add_argument("--split", choices=("train", "test"), default="test")
    parser.add_argument("--videos", type=int, default=160, help="number of videos (default 160)")
    parser.add_argument("--gap", type=int, default=40, help="frames (default 40)")
    parser.add_argument("--tracker", nargs="+", default=[], metavar="KEY=VALUE", help="settings")
    parser.add_argument("--oracle", action="store_true", help="add the true box to the proposals of each frame")
    parser.add_argument("--json", type=Path, help="file for the figures")
    arguments = parser.parse_args()
    one_thread()
    cv2.setNumThreads(0)
    config = settings(arguments.tracker)
    network_options = {} if arguments.cfg is None else {"cfg": arguments.cfg}
    subjects = {
        name: load_subject(name, {"device": "cpu", **(network_options if name == "random" else {})})
        for name in arguments.checkpoint
    }
    measured: dict[tuple[str, str, str], list[NDArray[np.float64]]] = {}
    for folder in arguments.folder:
        samples = sequences(folder, arguments.split, arguments.videos, arguments.out, config)
        for number, sequence in enumerate(progress(samples, title=folder.name, unit="video")):
            if arguments.oracle:
                pairs = zip(sequence.boxes, sequence.truth[:, None], strict=True)
                sequence = sequence._replace(boxes=[np.concatenate(pair) for pair in pairs])
            results = {("", name): values for name, values in baselines(sequence, number).items()}
            for network, subject in subjects.items():
                results |= {(network, name): values for name, values in tracked(sequence, subject, config).items()}
            for key, values in results.items():
                measured.setdefault((folder.resolve().name, *key), []).append(values)
    rows, figures = [], []
    for (videos, network, name), parts in measured.items():
        hit_rate = float(np.mean([values[arguments.gap - 1] >= 0.5 for values in parts]))
        success = float(np.mean(np.concatenate(parts) >= 0.5))
        mean = float(np.mean([values.mean() for values in parts]))
        rows.append([videos, network, name, f"{hit_rate:.0%}", f"{success:.0%}", f"{mean:.2f}"])
        row = {"videos": videos, "network": network, "tracker": name, "count": len(parts)}
        figures.append({**row, "held": hit_rate, "success": success, "mean_iou": mean})
    header = ["videos", "network", "tracker", f"IoU >= 0.5 after {arguments.gap} frames", "success", "mean IoU"]
    print(table(header, rows))
    finish({"tracker": config.model_dump(mode="json"), "tracking": figures}, arguments.json)


if __name__ == "__main__":
    guarded(main)
