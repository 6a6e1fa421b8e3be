r"""Screen what a small network of frame differences learns of motions: dense clips, and flow as a target.

    python benchmarks/motion_targets.py utd_mhad_rgb --out output/motion_targets

A fold is the persons trained on and those tested, the digits of `s` in UTD-MHAD's names (a1_s3_t2_color.mp4). Views are
those of `configs/studies/small_motion/simclr.yaml`. Features are of 4 clips: their mean; in order; in order, as unit
vectors; and so of 4 parts of the time of each. `+ floor`: joined with `floor:motion`. Numbers are those of frozen.py.
"""

import argparse
import math
import time
from itertools import pairwise, product
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import torch
from frozen import METRICS, Correct, accuracies, differences, format_accuracy, format_difference, judge
from measure import finish, one_thread, table
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

import vidssl
from vidssl.base.keyed_generators import generator
from vidssl.base.types import Features, Frames
from vidssl.evaluation.features import join_features
from vidssl.losses import nt_xent, unit
from vidssl.models import build_backbone
from vidssl.models.backbones import Backbone
from vidssl.models.heads import Head, mlp
from vidssl.transforms.crops import View, center_crop, short_side
from vidssl.transforms.recipes import Strong

SIDE, SIZE, CLIPS, BATCH = 72, 64, 4, 32
CELL, DIRECTIONS, CELLS, PARTS = 4, 8, 4, 4  # of the flow: pixels of a fine cell; and of the target
_COLOURS = {"color": 0.25, "gray_probability": 0.1, "blur_probability": 0.0}
VIEWS = Strong(Strong.Config(size=SIZE, area=(0.5, 1.0), flip_probability=0.0, **_COLOURS))


class Arm(NamedTuple):
    """A way of training; those of 16 frames and 150 steps take about as long as the recipe."""

    steps: int = 150
    frames: int = 16
    span: int = 16  # frames of the video that a clip covers
    contrast: float = 1.0  # weight of SimCLR
    flow: float = 0.0  # weight of the distance, 1 - cosine, to the histogram of the clip's flow
    parts: int = 1  # of time, in which the maps are averaged that the heads see

    def clip(self, start: int) -> NDArray[np.int64]:
        """Return the frames of a clip."""
        return start + np.arange(self.frames) * (self.span - 1) // (self.frames - 1)


ARMS = {
    "recipe": Arm(steps=300, frames=8, span=30),  # 8 frames in 2 s, as the config has it
    "recipe, flow 1": Arm(steps=300, frames=8, span=30, flow=1),
    "dense": Arm(),
    "parts": Arm(parts=PARTS),
    "flow 0.5": Arm(flow=0.5, parts=PARTS),
    "flow 1": Arm(flow=1, parts=PARTS),
    "flow alone": Arm(contrast=0, flow=1, parts=PARTS),
}


class Video(NamedTuple):
    """Frames (N, 3, 72, W), and the flow from each to the next: lengths (N - 1, 8, 18, W / 4) by direction and cell."""

    frames: Frames
    flow: Tensor


def read(path: Path) -> Video:
    """Decode a video and compute its optical flow."""
    video = vidssl.open_video(path)
    frames = short_side(video.frames(np.arange(video.meta.num_frames)), SIDE)
    gray = [cv2.cvtColor(np.ascontiguousarray(frame), cv2.COLOR_RGB2GRAY) for frame in frames.transpose(0, 2, 3, 1)]
    dis: Any = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_ULTRAFAST)
    dis.setFinestScale(0)
    x, y = np.moveaxis(np.stack([dis.calc(*pair, None) for pair in pairwise(gray)]), 3, 0)
    direction = np.rint(np.arctan2(y, x) / (2 * np.pi) * DIRECTIONS).astype(int) % DIRECTIONS
    length = np.where(np.hypot(x, y) > 0.1, np.hypot(x, y), 0)  # shorter ones are noise
    lengths = np.stack([np.where(direction == n, length, 0) for n in range(DIRECTIONS)], axis=1)
    return Video(frames, functional.avg_pool2d(torch.from_numpy(lengths).float(), CELL))


def flow_target(video: Video, indices: NDArray[np.int64], view: View) -> Tensor:
    """Return the roots of the histogram of a view's flow by direction, part of time and cell, as a unit vector."""
    assert view.window is not None
    x, y, w, h = (number / CELL for number in view.window[:4])
    part = video.flow[indices[0] : indices[-1], :, round(y) : round(y + h), round(x) : round(x + w)]
    return unit(functional.adaptive_avg_pool3d(part.transpose(0, 1), (PARTS, CELLS, CELLS)).sqrt().flatten())


def tensor(views: list[Frames]) -> Tensor:
    """Normalise views: (B, 3, T, S, S)."""
    pixels = torch.from_numpy(np.stack(views)).float().div_(255).sub_(0.45).div_(0.225).transpose(1, 2)
    return pixels.contiguous(memory_format=torch.channels_last_3d)


def make_batch(arm: Arm, videos: list[Video], rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Draw 32 positive pairs, first all first ones, then all others: views (64, 3, T, S, S) and targets (64, D)."""
    batch = [videos[n] for n in rng.choice(len(videos), BATCH, replace=False)]
    views, targets = list[Frames](), list[Tensor]()
    for video in batch + batch:
        indices = arm.clip(int(rng.integers(len(video.frames) - arm.span + 1)))
        (view,) = VIEWS(video.frames[indices], rng)
        views.append(view.frames)
        targets.append(flow_target(video, indices, view) if arm.flow else torch.zeros(1))
    return tensor(views), torch.stack(targets)


def maps_of(network: Backbone, x: Tensor, parts: int) -> Tensor:
    """Return the last maps, averaged over space and in parts of time: (B, C, parts)."""
    return functional.adaptive_avg_pool3d(network.features(x, ("layer4",))[0], (parts, 1, 1)).flatten(2)


def train(arm: Arm, videos: list[Video], seed: int, steps: int) -> Backbone:
    """Train a network; in 0 steps it stays as it is initialised."""
    torch.manual_seed(seed)
    network = build_backbone("resnet3d18", width=16, zero_init=False, frame_differences=True)
    dim = network.dim * arm.parts
    project = mlp(dim, Head(layers=2, hidden=256, out=128, norm="hidden"))
    predict = nn.Sequential(nn.Linear(dim, 256), nn.ReLU(), nn.Linear(256, DIRECTIONS * PARTS * CELLS**2))
    network.to(memory_format=torch.channels_last_3d)
    optimizer = torch.optim.AdamW(nn.ModuleList([network, project, predict]).parameters(), weight_decay=0.01)
    rng, group, warm = generator(seed), torch.arange(BATCH).repeat(2), steps // 10
    for step in range(steps):
        falling = 0.5 + 0.5 * math.cos(math.pi * max(0, step - warm) / (steps - warm))
        optimizer.param_groups[0]["lr"] = 0.001 * min((step + 1) / warm, falling)
        x, target = make_batch(arm, videos, rng)
        with torch.autocast("cpu", torch.bfloat16):
            maps = maps_of(network, x, arm.parts).flatten(1)
            embedding, predicted = project(maps), predict(maps)
        distance = (1 - (unit(predicted) * target).sum(dim=1)).mean() if arm.flow else 0.0
        loss = arm.contrast * nt_xent(unit(embedding), group, 0.1) + arm.flow * distance
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return network.eval()


@torch.inference_mode()
def encode(network: Backbone, arm: Arm, videos: list[Video]) -> Tensor:
    """Return the last maps of the clips of all videos (N, clips, parts, C)."""
    maps = []
    for video in videos:
        starts = np.linspace(0, len(video.frames) - arm.span, CLIPS).round().astype(int)
        views = [center_crop(video.frames[arm.clip(start)], SIZE).frames for start in starts]
        maps.append(maps_of(network, tensor(views), PARTS).transpose(1, 2))
    return torch.stack(maps)


def readings(maps: Tensor) -> dict[str, Tensor]:
    """Return the features (N, D) of videos by reading."""
    clips = maps.mean(dim=2)
    by_name = {"mean": clips.mean(dim=1), "order": clips, "unit clips": unit(clips), "unit parts": unit(maps)}
    return {name: x.flatten(1) for name, x in by_name.items()}


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--arms", nargs="+", default=[*ARMS], choices=[*ARMS])
    parser.add_argument("--folds", nargs="+", default=["13:57", "57:13"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for results.json")
    parsed = parser.parse_args()
    one_thread()
    paths = sorted(parsed.folder.glob("a?_s?_*.mp4"))
    labels, persons = torch.tensor([int(path.name[1]) - 1 for path in paths]), np.array([p.name[4] for p in paths])
    videos = [read(path) for path in paths]
    floor = vidssl.extract("floor:motion", [*map(str, paths)], progress=False).x
    correct, tested, base = dict[str, Correct](), dict[str, Any](), dict[str, str]()
    for fold, seed, name in product(parsed.folds, parsed.seeds, parsed.arms):
        arm, rows = ARMS[name], [np.flatnonzero(np.isin(persons, [*half])) for half in fold.split(":")]
        tested[fold] = persons[rows[1]]
        untrained, features = f"untrained, {arm.frames} frames", {"floor:motion": [floor]}
        for network, steps in ((untrained, 0), (name, arm.steps)):
            maps = encode(train(arm, [videos[n] for n in rows[0]], seed, steps), arm, videos)
            print(f"{network}, {fold}, seed {seed}: {time.process_time():.0f} CPU s since the start", flush=True)
            for reading, x in readings(maps).items():
                features |= {f"{network}; {reading}": [x], f"{network}; {reading} + floor": [x, floor]}
        base |= {row: row.replace(name, untrained) for row in features if row.startswith(f"{name};")}
        for row, parts in features.items():
            halves = [[Features(x[n], labels[n], torch.from_numpy(n)) for x in parts] for n in rows]
            gallery, query = (half[0] if len(half) == 1 else join_features(half, [1.0] * len(half)) for half in halves)
            correct.setdefault(row, {})[fold, seed] = judge(gallery, query, persons[rows[0]])
    print(table(["network", *METRICS], [[row, *map(format_accuracy, accuracies(run))] for row, run in correct.items()]))
    pairs = [pair for row, untrained in base.items() for pair in ((row, untrained), (row, "floor:motion"))]
    gaps = [(*pair, differences(correct[pair[0]], correct[pair[1]], tested)) for pair in pairs]
    print(table(["network", "minus", *METRICS], [[*names, *map(format_difference, runs)] for *names, runs in gaps]))
    figures = {"accuracies": {row: accuracies(runs) for row, runs in correct.items()}, "differences": gaps}
    finish(figures, parsed.out / "results.json")


if __name__ == "__main__":
    main()
