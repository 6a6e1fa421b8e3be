"""Compare the speed of two checkouts of vidssl: `python benchmarks/pairs.py OLD NEW --videos FOLDER`.

CPU time of all threads and workers of a process, of five kinds of work: `loader`, batches of `ClipDataset` with one
worker; `decode`, random frames of each video by PyAV; `lists`, the reading of a list of `--rows` rows; `extract`,
features by `vidssl-small`; `train`, eight steps of the toy of SCE with all that a run writes. Each process
imports the vidssl of one checkout, warms up, and works once; old and new take turns, the other one first in every
second round. Printed are the median over rounds of new / old, of the same round, and the smallest and largest ratio.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median

CONFIG = Path(__file__).parents[1] / "configs" / "toy" / "sce.yaml"


def cpu_seconds() -> float:
    """CPU time of this process and of its workers that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def work(kind: str, source: Path, repeat: int) -> Callable[[], object]:
    """Return the action to time, by the vidssl of PYTHONPATH."""
    import numpy as np

    import vidssl
    from vidssl.data import ClipDataset, Loader, StepSampler, read_list  # names that checkouts have in common
    from vidssl.data.clip_samplers import Random
    from vidssl.transforms import RECIPES

    if kind == "lists":
        return lambda: [read_list(source) for _ in range(repeat)]
    videos = vidssl.read_input(source)

    def decode() -> None:
        for number, record in enumerate(repeat * [*videos.records]):
            with vidssl.open_video(record.path) as video:
                frames = np.random.Generator(np.random.PCG64(number)).integers(video.meta.num_frames, size=8)
                for _ in video.fetch(np.unique(frames)):
                    pass

    def load() -> None:
        recipes = [RECIPES["strong_alpha"](RECIPES["strong_alpha"].Config(size=112)) for _ in range(2)]
        dataset = ClipDataset(videos, Random(Random.Config(frames=8, seconds=1.28)), recipes, seed=5)
        batch = min(8, len(videos))
        for _ in Loader(dataset, StepSampler(len(videos), batch, batch, 0, repeat * -(-len(videos) // batch), 0), 1):
            pass

    def extract() -> None:
        vidssl.extract("vidssl-small", source, clips=2, crops=1, workers=0, device="cpu")

    def train() -> None:
        with tempfile.TemporaryDirectory() as folder:
            settings = ("data.moving_digits=null", f"data.train={folder}/list.csv", f"output={folder}/run")
            work = ("data.workers=0", "steps=8", "log_every=8", "device=cpu", f"batch_size={min(8, len(videos))}")
            rows = "".join(f"{Path(record.path).resolve()}\n" for record in videos.records)
            Path(folder, "list.csv").write_text(f"path\n{rows}")
            vidssl.train(CONFIG, *settings, "data.root=/", *work)

    return {"decode": decode, "loader": load, "extract": extract, "train": train}[kind]


def timed(checkout: Path, kind: str, source: Path, repeat: int) -> float:
    """Time one process of a checkout."""
    environment = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, __file__, str(checkout), str(checkout), "--videos", str(source), "--kinds", kind]
    process = subprocess.run(
        [*command, "--repeat", str(repeat), "--time"], env=environment, check=True, stdout=subprocess.PIPE
    )
    return float(process.stdout)


def main() -> None:
    """Time the pairs, and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, help="folder of a checkout, the base of the ratios")
    parser.add_argument("new", type=Path)
    parser.add_argument("--videos", type=Path, required=True, help="folder of videos")
    parser.add_argument("--kinds", nargs="+", default=["loader", "decode", "lists", "extract", "train"])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--repeat", type=int, default=1, help="times that each process repeats its work")
    parser.add_argument("--time", action="store_true", help=argparse.SUPPRESS)  # in a process of one checkout
    parsed = parser.parse_args()
    if parsed.time:
        action = work(parsed.kinds[0], parsed.videos, parsed.repeat)
        action()
        start = cpu_seconds()
        action()
        print(cpu_seconds() - start)
        return
    with tempfile.TemporaryDirectory() as folder:
        list_file = Path(folder) / "list.csv"
        rows = "".join(f"{n % 400:03d}/{n:07d}.mp4,{n % 400}\n" for n in range(parsed.rows))
        list_file.write_text(f"path,label\n{rows}")  # reading a list opens no video
        print("| work | new / old | smallest | largest |\n| --- | --- | --- | --- |")
        for kind in parsed.kinds:
            source, ratios = list_file if kind == "lists" else parsed.videos, []
            for number in range(parsed.rounds):
                order = (parsed.old, parsed.new) if number % 2 == 0 else (parsed.new, parsed.old)
                seconds = {checkout: timed(checkout, kind, source, parsed.repeat) for checkout in order}
                ratios.append(seconds[parsed.new] / seconds[parsed.old])
            print(f"| {kind} | {median(ratios):.3f} | {min(ratios):.3f} | {max(ratios):.3f} |", flush=True)


if __name__ == "__main__":
    main()
