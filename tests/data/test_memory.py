"""The memory of a worker grows neither with its samples nor with the rows of the list."""

import gc
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from vidssl.base.worker_pool import ordered
from vidssl.data.clip_samplers import Center
from vidssl.data.dataset import ClipDataset
from vidssl.data.track_files import tracks_name
from vidssl.data.video_list import read_list
from vidssl.transforms import RECIPES

SAMPLES = """
import sys
from vidssl.data.dataset import ClipDataset
from vidssl.data.video_list import read_list
from vidssl.data.clip_samplers import Random
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


@pytest.mark.alone
@pytest.mark.long
def test_memory_is_flat_over_two_thousand_samples(digits, tmp_path):
    (tmp_path / "list.csv").write_text((digits / "motion/train.csv").read_text() + "videos/train/broken.mp4,0\n")
    (tmp_path / "root.txt").write_text(f"{tmp_path}\n")
    (tmp_path / "videos").mkdir()
    (tmp_path / "videos" / "train").symlink_to(tmp_path / "copies")
    (tmp_path / "copies").mkdir()
    for path in (digits / "videos" / "train").iterdir():
        (tmp_path / "copies" / path.name).write_bytes(path.read_bytes())
    content = (tmp_path / "copies" / "00000.mp4").read_bytes()
    (tmp_path / "copies" / "broken.mp4").write_bytes(content[: len(content) // 2])  # errors must not leak either
    done = subprocess.run(
        [sys.executable, "-c", SAMPLES, str(tmp_path / "list.csv")], capture_output=True, text=True, check=True
    )
    assert float(done.stdout) < 8


def private_kilobytes():
    """Private memory of this process."""
    sizes = re.findall(r"^Private_\w+: +(\d+) kB$", Path("/proc/self/smaps_rollup").read_text(), re.MULTILINE)
    return sum(map(int, sizes))


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux's smaps_rollup")
@pytest.mark.alone
@pytest.mark.long
def test_workers_share_the_memory_of_a_long_list(tmp_path):
    """Less than 1 MB for 100,000 rows that a worker reads; with Python objects for each row it was 135 MB."""
    rows = 200_000
    # Each row names a video, a class and a span: all that a row of a training list may hold.
    text = "".join(f"class_{n % 400:03d}/v_video_{n:08d}.mp4,{n % 400},{n % 7},{n % 7 + 10}\n" for n in range(rows))
    (tmp_path / "list.csv").write_text("path,label,start,end\n" + text)
    recipe = RECIPES["center_crop"](RECIPES["center_crop"].Config(size=32))
    dataset = ClipDataset(
        read_list(tmp_path / "list.csv", "/nowhere"), Center(Center.Config(frames=2, seconds=0.1)), [recipe], skip=True
    )
    listed = dataset.videos

    def touch(chosen):
        for n in chosen:
            record = listed.records[n]
            assert record.path == f"/nowhere/{listed.names[n]}" and tracks_name(listed.names[n], record)

    def worker(first, guard):
        touch(range(first, rows, rows // 50))
        dataset.sample((0, first), guard)  # there is no such file: all but the decoding is done
        gc.disable()  # a collection writes to the pages of all objects, at a time of its own
        before = private_kilobytes()
        touch(range(first, rows, 2))
        dataset.sample((0, rows - 1 - first), guard)
        return os.getpid(), private_kilobytes() - before

    grown = dict(ordered(worker, range(2), 2, timeout=60))
    assert len(grown) == 2 and os.getpid() not in grown
    assert max(grown.values()) < 1000, grown
