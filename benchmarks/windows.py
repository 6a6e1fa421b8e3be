"""Time and memory of the windows of long videos, beside one decode of the same files.

    OMP_NUM_THREADS=1 python benchmarks/windows.py [--minutes 3 30] [--folder FOLDER]

Videos of moving smooth noise, 320x240, 25 fps, H.264 as x264 makes it (a key frame every 250 frames). Windows of 2.56 s
every 1.28 s, one clip of 8 frames each, one crop of 112 pixels. User CPU seconds and peak memory of a process that
decodes each frame and makes an RGB image of it, of one that makes the batches of all windows, and of one that makes
each window on its own.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np

from vidssl.base.keyed_generators import generator
from vidssl.data import ClipSettings, eval_loader
from vidssl.data.cut_windows import TimeWindows, cut_into_windows
from vidssl.data.read_input import read_input
from vidssl.evaluation import TestClips
from vidssl.video import open_video

WORK = ("one decode", "windows", "windows one by one")
FPS = 25


def write_video(path: Path, minutes: float) -> None:
    """Write a video with another scene every 10 seconds, unless it is there."""
    if path.exists():
        return
    rng = generator(0)
    scenes = [cv2.GaussianBlur(rng.integers(0, 255, (480, 640, 3), np.uint8), (0, 0), 6) for _ in range(8)]
    scenes = [cv2.normalize(scene, scene, 0, 255, cv2.NORM_MINMAX) for scene in scenes]
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=FPS)
        stream.width, stream.height, stream.pix_fmt = 320, 240, "yuv420p"
        stream.options = {"preset": "veryfast"}
        for number in range(round(minutes * 60 * FPS)):
            x, y = number * 3 % 320, number * 2 % 240
            image = np.ascontiguousarray(scenes[number // 250 % 8][y : y + 240, x : x + 320])
            frame = av.VideoFrame.from_ndarray(image, format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, FPS)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def measure(path: Path, work: str) -> None:
    """Do the work in this process; print its count, user CPU seconds and peak memory in MB."""
    settings = {"clips": 1, "crops": 1, "size": 112, "mean": (0.45,), "std": (0.225,)}
    test = TestClips(clip=ClipSettings(frames=8, seconds=2.56), **settings)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    if work == "one decode":
        with open_video(path) as video:
            count = sum(1 for _ in video.iter_frames())
    else:
        videos = cut_into_windows(read_input(path), TimeWindows(2.56, 1.28), test)
        batch_size = 8 if work == "windows" else 1
        count = sum(len(batch.index) for batch in eval_loader(test.dataset(videos), batch_size, workers=0))
    usage = resource.getrusage(resource.RUSAGE_SELF)
    print(f"{count:6} {usage.ru_utime - before:6.1f} s {usage.ru_maxrss / 1024:6.0f} MB")


def main() -> None:
    """Measure all, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, nargs="+", default=[3.0, 30.0])
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    parsed = parser.parse_args()
    if parsed.measure:
        measure(Path(parsed.measure[0]), parsed.measure[1])
        return
    for minutes in parsed.minutes:
        path = parsed.folder / f"vidssl_windows_{minutes:g}_minutes.mp4"
        write_video(path, minutes)
        for work in WORK:
            command = [sys.executable, __file__, "--measure", str(path), work]
            line = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            print(f"{minutes:3g} min  {work:20}{line}", end="", flush=True)


if __name__ == "__main__":
    main()
