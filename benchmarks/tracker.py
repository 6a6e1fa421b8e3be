r"""Time the parts of the region tracker: Eq. (4) and plain matrix products, selective search, features.

    python benchmarks/tracker.py --json output/bench/tracker.json

A chunk has `--frames` frames of `--regions` regions, with features of 1,024 channels, as in the paper. All actions of a
table run in turn in each round; the table has the median CPU time and the median of the ratios within rounds. Memory is
the peak of the process while one chunk is tracked, in addition to its features and boxes.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import torch
from measure import finish, one_thread, paired, ratio, table
from torch import Tensor

from vidssl.base.keyed_generators import generator
from vidssl.models import build_backbone
from vidssl.tracking.proposals import Search, propose
from vidssl.tracking.tracker import Tracker, TrackerSettings, affinities, best_paths, pairs_of_sums, scaled_sums


def bare(affinity: list[Tensor]) -> None:
    """Multiply the affinities with one product for each pair of frames, without scales (overflows)."""
    for i in range(len(affinity)):
        product = affinity[i]
        for step in affinity[i + 1 :]:
            product = product @ step


def batched(affinity: list[Tensor]) -> None:
    """Multiply the affinities with one product for each end frame, for all start frames."""
    before = affinity[0][:0]
    for step in affinity:
        before = torch.cat([before @ step, step])


def scaled(affinity: list[Tensor]) -> None:
    """Compute the sums of the tracker without selecting pairs."""
    for _ in scaled_sums(affinity):
        pass


def memory(action: Callable[[], object]) -> float:
    """Measure the peak memory of an action in addition to that before, in megabytes (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = _kilobytes("VmRSS")
    action()
    return (_kilobytes("VmHWM") - before) / 1024


def _kilobytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


def main() -> None:
    """Print the tables, write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=60, help="frames of a chunk (default 60)")
    parser.add_argument("--regions", type=int, default=300, help="regions of a frame (default 300)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds (default 5)")
    parser.add_argument("--json", type=Path, help="file for the figures")
    arguments = parser.parse_args()
    one_thread()
    rng = generator(0)
    count, regions = arguments.frames, arguments.regions
    corners = rng.uniform(0, 200, (count, regions, 2))
    boxes = torch.from_numpy(
        np.concatenate([corners, corners + rng.uniform(10, 60, corners.shape)], axis=2).astype(np.float32)
    )
    features = [torch.from_numpy(rng.normal(size=(regions, 1024)).astype(np.float32)) for _ in range(count)]
    placed = list(boxes)
    plain = [torch.rand(regions, regions, generator=torch.Generator().manual_seed(1)) for _ in range(count - 1)]
    plain = [matrix / regions for matrix in plain]  # so that the bare chain stays within float32
    numbers = np.arange(count, dtype=np.int64)
    config = TrackerSettings()
    starts = torch.arange(min(config.starts, regions))
    actions: dict[str, Callable[[int], object]] = {
        "bare chain of products, one for each pair of frames": lambda _: bare(plain),
        "bare chain, one for each end frame": lambda _: batched(plain),
        "scaled sums": lambda _: scaled(plain),
        "scaled sums and the choice of pairs 40 frames apart": lambda _: pairs_of_sums(plain, placed, numbers, config),
        "affinities, centred, of limited steps": lambda _: affinities(features, placed, True, 30.0),
        f"best paths from {len(starts)} regions": lambda _: best_paths(plain, starts),
    }
    times = paired(actions, arguments.rounds)
    base = next(iter(actions))
    rows = [[name, f"{np.median(values):.0f}", f"{ratio(times, name, base):.2f}"] for name, values in times.items()]
    print(f"{count} frames of {regions} regions\n")
    print(table(["what", "ms", "times the bare chain"], rows))

    def track_chunk() -> None:
        affinity = affinities(features, placed, True, 30.0)
        pairs_of_sums(affinity, placed, numbers, config)

    peak_mb = memory(track_chunk)
    print(f"\nmemory beyond features and boxes: {peak_mb:.0f} MB")

    image = cv2.resize(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8), (320, 240), interpolation=cv2.INTER_CUBIC)
    tracker = Tracker(build_backbone("resnet18").eval(), config, torch.device("cpu"), [0.45], [0.225])
    pixels = np.repeat(image.transpose(2, 0, 1)[None], 4, axis=0)
    four = [boxes[0].numpy()] * 4
    costs = paired(
        {
            "search, fast, short side 96": lambda _: propose(image, Search(short_side=96, adapt=False)),
            "search, fast, short side 128": lambda _: propose(image, Search(adapt=False)),
            "search, fast, short side 240": lambda _: propose(image, Search(short_side=240, adapt=False)),
            "search, quality, short side 128": lambda _: propose(image, Search(mode="quality", adapt=False)),
            "ResNet-18 and region means, 240 pixels, four frames": lambda _: tracker.features(pixels, four, (240, 320)),
        },
        arguments.rounds,
    )
    print()
    print(table(["what", "ms"], [[name, f"{np.median(values):.0f}"] for name, values in costs.items()]))
    figures = {name: {"ms": float(np.median(values))} for name, values in {**times, **costs}.items()}
    ratios = {name: ratio(times, name, base) for name in times}
    finish({"tracker": figures, "ratios": ratios, "memory_mb": peak_mb}, arguments.json)


if __name__ == "__main__":
    main()
