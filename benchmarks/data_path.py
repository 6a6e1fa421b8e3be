"""Time training from files against training on tensors: `python benchmarks/data_path.py --clips LIST [--device cuda]`.

The list names a batch of clips or more, best like those of Kinetics (340x256, 25 fps, 10 s). They are read as they are,
from shrunk copies and from packed frames, and augmented by the workers or on the device. Views per second are of
the loader alone, of the training step from files, and of the same step on tensors that lie on the device; the ratio of
the last two is the efficiency of the data path. The step is vidssl's step of SCE in `train_step.py`. Files are in the
page cache. Wall time.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import islice, repeat
from pathlib import Path

import torch
from measure import finish, table
from train_step import PIXELS, Ours, make_method, synthetic

from vidssl.apps.shrink import shrink
from vidssl.data import ClipDataset, Loader, StepSampler, VideoList, read_list
from vidssl.data.clip_samplers import Random
from vidssl.data.to_device import on_device
from vidssl.transforms import RECIPES

SOURCES = ("files", "shrunk", "frames")
NAMES = ("strong_alpha", "strong_beta")


def source(name: str, clips: Path, out: Path, side: int, workers: int) -> VideoList:
    """Return the clips, or copies of them that are `side` pixels high."""
    if name == "files":
        return read_list(clips)
    shrink(clips, out=out, to="frames" if name == "frames" else "video", short_side=side, workers=workers)
    return read_list(out / clips.name)


def views_a_second(batches: Iterator[object], views: int, limit: float, device: torch.device) -> float:
    """Take from the iterator for so many seconds."""
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < limit:
        next(batches)
        count += 1
    if device.type == "cuda":
        torch.cuda.synchronize()
    return count * views / (time.perf_counter() - start)


def measure(
    videos: VideoList, step: Ours, frames: int, size: int, augment: str, parsed: argparse.Namespace
) -> tuple[float, float]:
    """Return the views per second of the loader alone and of steps from it."""
    recipes = [RECIPES[name](RECIPES[name].Config(size=size)) for name in NAMES]
    sampler = Random(Random.Config(frames=frames, seconds=2.56))
    dataset = ClipDataset(videos, sampler, recipes, on_device=augment == "device")
    order = StepSampler(len(dataset), parsed.batch, parsed.batch, 0, 10**6, 0)
    views = 2 * parsed.batch
    with closing(on_device(Loader(dataset, order, parsed.workers), parsed.device, *PIXELS)) as batches:
        for _ in islice(batches, 2 * parsed.workers + 2):  # until no batch is left that was made in the meantime
            pass
        alone = views_a_second(batches, views, parsed.seconds, parsed.device)
        steps: Iterator[object] = map(step, batches)
        for _ in islice(steps, 2 * parsed.workers + 2):
            pass
        return alone, views_a_second(steps, views, parsed.seconds, parsed.device)


def main() -> None:
    """Print the table, write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clips", type=Path, required=True, help="list of the clips")
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    parser.add_argument("--setting", nargs=3, action="append", metavar=("BACKBONE", "FRAMES", "SIZE"))
    parser.add_argument("--sources", nargs="+", choices=SOURCES, default=SOURCES, help="what clips are read from")
    parser.add_argument("--width", type=int, default=64, help="channels of the network's stem (default 64)")
    parser.add_argument("--batch", type=int, default=64, help="videos per step, two clips each")
    parser.add_argument("--workers", type=int, default=2, help="workers of the loader")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of a measurement")
    parser.add_argument("--json", type=Path, help="file for the figures")
    parsed = parser.parse_args()
    settings = parsed.setting or [("resnet3d50", 8, 224), ("resnet3d18", 8, 112)]
    torch.backends.cudnn.benchmark = True
    rows, figures = [], {}
    with tempfile.TemporaryDirectory() as folder:
        for backbone, frames, size in ((name, int(frames), int(size)) for name, frames, size in settings):
            step = Ours(make_method(backbone, 65536, parsed.device, parsed.width), parsed.device)
            batch = synthetic(parsed.batch, frames, size, parsed.device)
            again: Iterator[object] = map(step, repeat(batch))
            for _ in islice(again, 5):  # warm up
                pass
            best = views_a_second(again, 2 * parsed.batch, parsed.seconds, parsed.device)
            side = 256 if size > 112 else 128
            for name in parsed.sources:
                videos = source(name, parsed.clips, Path(folder, f"{name}_{side}"), side, parsed.workers)
                for augment in ("cpu", "device"):
                    alone, found = measure(videos, step, frames, size, augment, parsed)
                    figures[f"{backbone}, {frames} x {size}, {name}, {augment}"] = (alone, found, best)
                    speeds = (f"{value:.0f}" for value in (alone, found, best))
                    rows.append([f"{backbone}, {frames} x {size}", name, augment, *speeds, f"{found / best:.2f}"])
                    print(*rows[-1], flush=True)
    header = ["setting", "read from", "augmented by", "loader", "step from files", "step on tensors", "efficiency"]
    print(table(header, rows))
    print(f"\nviews per second; {parsed.batch} videos x 2 views, {parsed.workers} workers, {parsed.device}")
    finish({"batch": parsed.batch, "workers": parsed.workers, "data_path": figures}, parsed.json)


if __name__ == "__main__":
    main()
