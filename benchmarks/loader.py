"""Time whole loaders: `python benchmarks/loader.py --videos FOLDER [--json FILE]`.

Two views of 8x224² (strong_alpha and strong_beta, 2.56 s) of each video, two worker processes, from clips like those of
Kinetics. Clips per second of the wall clock and CPU milliseconds per view are of all processes together, starting
them included; ratios are medians over rounds in which all loaders take their turn. The peers are put together from
public libraries: their readers, their transforms, torch's DataLoader.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from augment import NAMES, draw, pil_view, torchvision_view
from decode import SAMPLER, Windows, decode_only
from measure import finish, kinetics_like, one_thread, table, with_ffmpeg_of_pyav
from torch.utils.data import DataLoader, Dataset

from vidssl.base.keyed_generators import generator
from vidssl.base.types import Frames
from vidssl.data import ClipDataset, Loader, StepSampler, read_list, write_lists
from vidssl.transforms import RECIPES
from vidssl.video import open_video
from vidssl.video.open_container import open_container

BATCH, WORKERS, STEPS = 8, 2, 4
RECIPE = [RECIPES[name](RECIPES[name].Config(size=224)) for name in NAMES]


class Peer(Dataset[list[torch.Tensor]]):
    """Two views of a video with a reader and an augmentation of others."""

    def __init__(self, files: list[Windows], view: Callable[[Windows, np.ndarray, Any, Any], torch.Tensor]) -> None:
        self._files, self._view = files, view

    def __len__(self) -> int:
        return BATCH * STEPS

    def __getitem__(self, index: int) -> list[torch.Tensor]:
        windows = self._files[index % len(self._files)]
        return [
            self._view(windows, window, recipe.config, generator(5, index, view))
            for view, (window, recipe) in enumerate(zip(windows(index), RECIPE, strict=True))
        ]


def pytorchvideo_view(windows: Windows, window: np.ndarray, config: Any, rng: np.random.Generator) -> torch.Tensor:
    """`get_clip`, 8 of its frames, torchvision on float: the SCE authors' pipeline, all of it on the CPU."""
    from pytorchvideo.data.encoded_video import EncodedVideo

    video, fps = EncodedVideo.from_path(str(windows.path), decode_audio=False), windows.meta.fps
    clip = video.get_clip(float(window.min() / fps), float((window.max() + 1) / fps))["video"]
    frames = clip[:, np.linspace(0, clip.shape[1] - 1, 8).astype(int)].transpose(0, 1) / 255
    return torchvision_view(frames, draw(frames, config, rng), as_float=True, cut=False)


def slowfast_view(windows: Windows, window: np.ndarray, config: Any, rng: np.random.Generator) -> torch.Tensor:
    """PyAV over the window, every frame of it to RGB, then 8 of them through PIL."""
    images: dict[int, np.ndarray] = {}
    first, last = int(window.min()), int(window.max())
    with open_container(windows.path, 1 << 26) as container:
        stream = container.streams.video[0]
        container.seek(int(first / windows.meta.fps / stream.time_base), stream=stream)
        for frame in container.decode(stream):
            number = round(float(frame.pts * stream.time_base) * windows.meta.fps)
            if number >= first:
                images[number] = frame.to_ndarray(format="rgb24")
            if number >= last:
                break
    frames: Frames = np.stack([images[number] for number in window]).transpose(0, 3, 1, 2)
    return pil_view(frames, draw(frames, config, rng))


def peer(files: list[Windows], view: Callable[..., torch.Tensor]) -> None:
    """Run torch's DataLoader over a peer to its end."""
    loader = DataLoader(Peer(files, view), BATCH, num_workers=WORKERS, multiprocessing_context="fork")
    assert sum(len(batch[0]) for batch in loader) == BATCH * STEPS


def ours(list_file: Path, root: Path | None = None) -> None:
    """Run vidssl's loader over a list."""
    dataset = ClipDataset(read_list(list_file, root), SAMPLER, RECIPE, seed=5)
    loader = Loader(dataset, StepSampler(len(dataset), BATCH, BATCH, 0, STEPS, 0), WORKERS)
    assert sum(len(batch.label) for batch in loader) == BATCH * STEPS


def reference(files: list[Windows]) -> None:
    """Decode the spans without making images, and augment frames that are there, in one process."""
    for index in range(BATCH * STEPS):
        windows = files[index % len(files)]
        decode_only(windows, index)
        for view, recipe in enumerate(RECIPE):
            recipe(_FRAMES, generator(5, index, view))


_FRAMES: Frames = np.empty((8, 256, 340, 3), np.uint8).transpose(0, 3, 1, 2)


def cpu() -> float:
    """Seconds of CPU time of this process and of those that it waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--videos", type=Path, required=True, help="folder of videos to make clips like Kinetics from")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="file for all figures")
    parsed = parser.parse_args()
    with_ffmpeg_of_pyav()
    one_thread()
    figures: dict[str, dict[str, dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for gop in (12, 250):
            clips = kinetics_like(parsed.videos, Path(folder) / str(gop), gop, BATCH)
            list_file = clips[0].parent / "list.csv"
            write_lists(clips[0].parent, clips[0].parent, {"list": [(clip.name, -1) for clip in clips]}, ())
            shrink = [sys.executable, str(Path(__file__).parents[1] / "tools" / "shrink_videos.py"), str(list_file)]
            subprocess.run([*shrink, "--out", f"{folder}/shrunk{gop}", "--short-side", "256"], check=True)
            files, shrunk = [Windows(clip) for clip in clips], Path(f"{folder}/shrunk{gop}")
            figures[f"GOP {gop}"] = measure(files, list_file, shrunk, parsed.rounds)
    rows = []
    for name in figures["GOP 12"]:
        cells = [figures[title][name] for title in figures]
        shown = [f"{c['clips_a_second']:.1f}, {c['cpu_ms']:.1f} ({c['to_vidssl']:.2f})" for c in cells]
        rows.append([name, *shown])
    print(table(["clips/s, CPU ms per view (times vidssl)", *figures], rows))
    finish({"rounds": parsed.rounds, "loader": figures}, parsed.json)


def measure(files: list[Windows], list_file: Path, shrunk: Path, rounds: int) -> dict[str, dict[str, float]]:
    """Time all loaders on the same videos."""
    with open_video(files[0].path) as video:
        _FRAMES[:] = video.frames(files[0](0)[0])
    loaders: dict[str, Callable[[], None]] = {
        "reference: decode only + augmentation only, no workers": partial(reference, files),
        "**vidssl**": partial(ours, list_file),
        "**vidssl**, from shrunk copies": partial(ours, list_file, shrunk),
        "PyAV + PIL, as SlowFast": partial(peer, files, slowfast_view),
        "pytorchvideo + torchvision float": partial(peer, files, pytorchvideo_view),
    }
    wall: dict[str, list[float]] = {name: [] for name in loaders}
    busy: dict[str, list[float]] = {name: [] for name in loaders}
    for number in range(rounds + 1):
        for name, run in loaders.items():
            start, before = time.perf_counter(), cpu()
            run()
            if number:  # the first round warms up
                wall[name].append(time.perf_counter() - start)
                busy[name].append(cpu() - before)
    views = 2 * BATCH * STEPS
    base = np.array(busy["**vidssl**"])
    return {
        name: {
            "clips_a_second": views / float(np.median(wall[name])),
            "cpu_ms": 1000 * float(np.median(busy[name])) / views,
            "to_vidssl": float(np.median(np.array(busy[name]) / base)),
        }
        for name in loaders
    }


if __name__ == "__main__":
    main()
