"""Commands on a Ray cluster of two nodes write the files of the commands without Ray, also if a process is lost."""

import os
import shutil
from pathlib import Path

import pytest

from vidssl import commands
from vidssl.data.video_list import read_list
from vidssl.errors import ConfigError, DataError

ray = pytest.importorskip("ray", reason="ray is not installed")
cluster_utils = pytest.importorskip("ray.cluster_utils")

from vidssl.interop import ray as interop  # noqa: E402

TOP = Path(__file__).parents[2]
NETWORK = ["--checkpoint", "vidssl-small", "--allow-missing"]
ARGUMENTS = {
    "extract": [*NETWORK, "--clips", "2", "--crops", "1", "--batch-size", "2"],
    "windows": [*NETWORK, "--clips", "1", "--crops", "1", "--batch-size", "3", "--window", "0.4", "--stride", "0.2"],
    "check": [],
    "shrink": ["--short-side", "24"],
    "frames": ["--to", "frames", "--short-side", "24"],
    "track": [*NETWORK, "--tracker", "search.short_side=72", "size=32", "min_gap=12"],
}
NAMES = {"windows": "extract", "frames": "shrink"}  # of the commands


@pytest.fixture(scope="module")
def cluster():
    """Two nodes of one CPU; their processes import this checkout."""
    patch = pytest.MonkeyPatch()
    patch.setenv("PYTHONPATH", str(TOP))
    patch.setenv("OMP_NUM_THREADS", "1")
    patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    node = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
    made = cluster_utils.Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    made.second = made.add_node(**node)
    try:
        yield made
    finally:
        ray.shutdown()
        made.shutdown()
        patch.undo()


@pytest.fixture(scope="module")
def videos(digits, tmp_path_factory):
    """A list of 12 videos, of which two are broken and one is missing."""
    folder = tmp_path_factory.mktemp("videos")
    rows = ["path,label"]
    for n, record in enumerate(read_list(digits / "motion/test.csv").records[:12]):
        if n in (3, 8):
            (folder / f"{n}.mp4").write_text("<html>")
        elif n != 5:
            shutil.copy(record.path, folder / f"{n}.mp4")
        rows.append(f"{n}.mp4,{record.label}")
    (folder / "list.csv").write_text("\n".join(rows) + "\n")
    return folder / "list.csv"


@pytest.fixture
def small_parts(monkeypatch):
    """Divide the list into several parts, and files into several calls."""
    monkeypatch.setattr(interop, "_VIDEOS", 2)
    monkeypatch.setattr(interop, "_FILES", 2)


def outcome(run, capsys, out):
    """The exit status, what was printed, but for times, and the content of all files that were written."""
    capsys.readouterr()
    status = 0
    try:
        commands.guarded(run)
    except SystemExit as end:
        status = end.code
    printed = [line.partition(" in ")[0].partition("; ")[0] for line in capsys.readouterr().out.splitlines()]
    files = {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()}
    shutil.rmtree(out)
    return status, printed, files


@pytest.fixture
def both(videos, tmp_path, capsys):
    """Run a command without and with Ray, into a folder of the same name; give both outcomes."""

    def both(name, address):
        command, out = NAMES.get(name, name), tmp_path / "out"
        words = [str(videos), *ARGUMENTS[name], "--out", str(out), "--workers", "1", "--quiet"]
        device = ["--device", "cpu"] if name in ("extract", "windows", "track") else []
        alone = outcome(lambda: commands.run(command, [*words, *device]), capsys, out)
        return alone, outcome(lambda: interop.run(command, [*words, "--address", address]), capsys, out)

    return both


@pytest.mark.long
@pytest.mark.parametrize("name", ARGUMENTS)
def test_files_report_and_status_are_those_without_ray(name, cluster, both, small_parts):
    alone, on_ray = both(name, cluster.address)
    assert on_ray == alone
    status, printed, files = alone
    assert status == (name in ("check", "shrink", "frames")) and printed and len(files) >= 3
