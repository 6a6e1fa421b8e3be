"""What the benchmarks share: paired timing, the clips that are decoded, and how results are printed and kept."""

import importlib.metadata
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import torch

from vidssl.base.errors import DataError
from vidssl.data.read_input import VIDEO_SUFFIXES
from vidssl.video import open_video


def paired(
    actions: Mapping[str, Callable[[int], object]], rounds: int, clock: Callable[[], float] = time.process_time
) -> dict[str, np.ndarray]:
    """Time all actions in turn in each round: A B C, A B C, … A slow moment of the machine then hits all of them.

    Each action gets the number of the round, from which it draws what it works on: the same for all.

    Returns:
        For each action (rounds,) milliseconds by the clock, by default CPU time of all threads. The first round warms
        up and is left out.
    """
    times: dict[str, list[float]] = {name: [] for name in actions}
    for number in range(rounds + 1):
        for name, action in actions.items():
            start = clock()
            action(number)
            times[name].append(1000 * (clock() - start))
    return {name: np.array(values[1:]) for name, values in times.items()}


def ratio(times: Mapping[str, np.ndarray], name: str, base: str) -> float:
    """The median over rounds of what `name` takes, in times of what `base` takes in the same round."""
    return float(np.median(times[name] / times[base]))


def one_thread() -> None:
    """Keep every library to one thread, so that CPU time is what a worker needs."""
    torch.set_num_threads(1)
    cv2.setNumThreads(0)
    av.logging.set_level(None)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Write a Markdown table."""
    lines = ["| " + " | ".join(row) + " |" for row in (header, ["---"] * len(header), *rows)]
    return "\n".join(lines)


def machine() -> dict[str, Any]:
    """Name the machine and the versions that figures were measured with."""
    info = Path("/proc/cpuinfo")
    models = [line.partition(": ")[2] for line in info.read_text().splitlines() if line.startswith("model name")]
    packages = ("vidssl", "torch", "torchvision", "av", "opencv-contrib-python-headless", "numpy")
    peers = ("torchcodec", "decord", "pytorchvideo", "pillow", "faiss-cpu")
    return {
        "cpu": models[0] if models else platform.processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in (*packages, *peers)},
    }


def finish(results: Mapping[str, Any], file: Path | None) -> None:
    """Print what the figures were measured on, and keep all of them as json where a file is named."""
    host = machine()
    print(f"\n{host['cpu']}, {host['cores']} cores, Python {host['python']}, torch {host['versions']['torch']}")
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"machine": host, **results}, indent=2) + "\n", encoding="utf-8")


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def with_ffmpeg_of_pyav() -> None:
    """Start the process anew with PyAV's FFmpeg where torchcodec finds it: one FFmpeg for all, and none to install."""
    if "VIDSSL_BENCH_LIBRARIES" in os.environ:
        return
    links = Path(os.environ.get("TMPDIR", "/tmp")) / f"vidssl-bench-ffmpeg-{os.getuid()}"
    links.mkdir(exist_ok=True)
    for library in Path(av.__file__).parents[1].glob("av.libs/lib[as][vw]*.so.*"):
        name, version = library.name.split("-")[0], library.name.split(".so.")[1].split(".")[0]
        link = links / f"{name}.so.{version}"
        link.unlink(missing_ok=True)
        link.symlink_to(library)
    folders = [str(links), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]  # a GPU's driver may be in the others
    environment = {**os.environ, "LD_LIBRARY_PATH": ":".join(folders), "VIDSSL_BENCH_LIBRARIES": str(links)}
    os.execve(sys.executable, [sys.executable, *sys.argv], environment)


def kinetics_like(videos: Path, out: Path, gop: int, count: int = 1, seconds: int = 10) -> list[Path]:
    """Write clips like those of Kinetics from the videos of a folder: 340x256, 25 fps, h264, key frames `gop` apart.

    Videos are played one after another until a clip is full; the clips share no frame.

    Raises:
        DataError: The folder does not hold enough.
    """
    out.mkdir(parents=True, exist_ok=True)
    sources = iter(sorted(path for path in videos.rglob("*") if path.suffix.lower() in VIDEO_SUFFIXES))
    frames = (frame for path in sources for frame in _native(path))
    clips = []
    for number in range(count):
        path = out / f"gop{gop}_{number:02d}.mp4"
        with av.open(str(path), "w") as container:
            stream = container.add_stream("libx264", rate=25)
            stream.width, stream.height, stream.pix_fmt = 340, 256, "yuv420p"
            stream.codec_context.gop_size = gop
            stream.options = {"crf": "23", "preset": "medium", "threads": "1"}
            for _ in range(25 * seconds):
                try:
                    image = cv2.resize(next(frames), (340, 256), interpolation=cv2.INTER_AREA)
                except StopIteration:
                    raise DataError(f"{videos}: too few videos for {count} clips of {seconds} s") from None
                container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
            container.mux(stream.encode())
        clips.append(path)
    return clips


def _native(path: Path) -> Any:
    with open_video(path) as video:
        yield from video.iter_frames()
