"""A worker's memory does not grow with the samples that it makes."""

import subprocess
import sys

SAMPLES = """
import sys
from vidssl.data.dataset import ClipDataset
from vidssl.data.records import read_list
from vidssl.data.samplers import Random
from vidssl.transforms import RECIPES

def megabytes():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 / 2**20

recipes = [RECIPES[name](RECIPES[name].Config(size=32, difference=0.2)) for name in ("strong_alpha", "strong_beta")]
sampler = Random(Random.Config(frames=8, seconds=0.5, reverse=0.5, jitter=0.2))
dataset = ClipDataset(read_list(sys.argv[1]), sampler, recipes, replace=2)
for number in range(2400):
    if number == 400:
        before = megabytes()
    dataset[number // len(dataset), number % len(dataset)]
print(megabytes() - before)
"""


def test_memory_is_flat_over_two_thousand_samples(digits, tmp_path):
    (tmp_path / "list.csv").write_text(
        (digits / "motion/train.csv").read_text() + "videos/train/broken.mp4,0\n"
    )
    (tmp_path / "root.txt").write_text(f"{tmp_path}\n")
    (tmp_path / "videos").mkdir()
    (tmp_path / "videos" / "train").symlink_to(tmp_path / "copies")
    (tmp_path / "copies").mkdir()
    for path in (digits / "videos" / "train").iterdir():
        (tmp_path / "copies" / path.name).write_bytes(path.read_bytes())
    content = (tmp_path / "copies" / "00000.mp4").read_bytes()
    (tmp_path / "copies" / "broken.mp4").write_bytes(
        content[: len(content) // 2]
    )  # errors must not leak either
    done = subprocess.run(
        [sys.executable, "-c", SAMPLES, str(tmp_path / "list.csv")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert float(done.stdout) < 8
