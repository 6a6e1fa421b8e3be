"""Commands on a Ray cluster of two nodes write the files of the commands without Ray, also if a process is lost.

Not collected by itself: test_ray.py runs these tests in a process of their own, and takes the fixtures.
"""

import os
import shutil
import time
from pathlib import Path

import pytest

from vidssl import cli
from vidssl.base.errors import DataError
from vidssl.data.video_list import read_list

ray = pytest.importorskip("ray", reason="ray is not installed")
cluster_utils = pytest.importorskip("ray.cluster_utils")

from vidssl.apps.cluster import commands_on_ray as on_ray  # noqa: E402

TOP = Path(__file__).parents[3]
NETWORK = ["--checkpoint", "vidssl-small", "--allow-missing"]
ARGUMENTS = {
    "extract": [*NETWORK, "--clips", "2", "--crops", "1", "--batch-size", "2"],
    "windows": [*NETWORK, "--clips", "1", "--crops", "1", "--batch-size", "3", "--window", "0.4", "--stride", "0.2"],
    "check": [],
    "shrink": ["--short-side", "24"],
    "frames": ["--to", "frames", "--short-side", "24"],
    "track": [
        *NETWORK,
        "--stream",
        "rgb",
        "--tracker",
        "search.short_side=32",
        "size=32",
        "frames=8",
        "chunks=1",
        "min_gap=4",
    ],
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
    """A list of 7 videos, of which one is broken and one is missing."""
    folder = tmp_path_factory.mktemp("videos")
    rows = ["path,label"]
    for n, record in enumerate(read_list(digits / "motion/test.csv").records[:7]):
        if n == 3:
            (folder / f"{n}.mp4").write_text("<html>")
        elif n != 5:
            shutil.copy(record.path, folder / f"{n}.mp4")
        rows.append(f"{n}.mp4,{record.label}")
    (folder / "list.csv").write_text("\n".join(rows) + "\n")
    return folder / "list.csv"


@pytest.fixture
def small_parts(monkeypatch):
    """Divide the list into several parts, and files into several calls."""
    monkeypatch.setattr(on_ray, "_VIDEOS", 2)
    monkeypatch.setattr(on_ray, "_FILES", 2)


def outcome(run, capsys, out):
    """The exit status, what was printed, but for times, and the content of all files that were written."""
    capsys.readouterr()
    status = 0
    try:
        cli.guarded(run)
    except SystemExit as end:
        status = end.code
    printed = [line.partition(" in ")[0].partition("; ")[0] for line in capsys.readouterr().out.splitlines()]
    files = {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("[!.]*") if path.is_file()}
    shutil.rmtree(out)
    return status, printed, files


@pytest.fixture
def both(videos, tmp_path, capsys):
    """Run a command without and with Ray, into a folder of the same name; give both outcomes."""

    def both(name, address):
        command, out = NAMES.get(name, name), tmp_path / "out"
        words = [str(videos), *ARGUMENTS[name], "--out", str(out), "--workers", "1", "--quiet"]
        device = ["--device", "cpu"] if name in ("extract", "windows", "track") else []
        alone = outcome(lambda: cli.run(command, [*words, *device]), capsys, out)
        return alone, outcome(lambda: on_ray.run_on_ray(command, [*words, "--address", address]), capsys, out)

    return both


def dying(run, marker):
    """Let an actor die once, when it has done task 2 and not yet returned its result."""

    def run_and_die(self, work, count, together=1):
        def deadly(numbers):
            for number, result in zip(numbers, work(numbers), strict=True):
                if number == 2 and not marker.exists():
                    marker.touch()
                    os._exit(1)
                yield result

        return run(self, deadly, count, together)

    return run_and_die


@pytest.mark.parametrize("name", ["extract", "frames"])
def test_a_lost_process_loses_and_doubles_nothing(name, cluster, both, small_parts, tmp_path, monkeypatch):
    monkeypatch.setattr(on_ray.Actors, "run", dying(on_ray.Actors.run, tmp_path / "died"))
    alone, with_ray = both(name, cluster.address)
    assert (tmp_path / "died").exists() and with_ray == alone
    assert len(alone[2]) >= 3


def test_a_lost_node_more_actors_than_fit_and_an_error(cluster):
    """The last test on the cluster, which has one node after it."""

    def work(numbers):
        for number in numbers:
            time.sleep(0.1)
            if number == 30:
                raise DataError("the message")
            yield number, ray.get_runtime_context().get_node_id()

    on_ray._connect(cluster.address, None, 1, 0)
    nodes, numbers = [], []
    with pytest.raises(DataError, match=r"^the message$"):
        for number, node in on_ray.Actors(3, 1, 0).run(work, 40, 2):
            if number == 12:
                cluster.remove_node(cluster.second, allow_graceful=False)
            numbers.append(number)
            nodes.append(node)
    assert numbers == [*range(30)]
    assert len({*nodes[:12]}) == 2 and len({*nodes[-2:]}) == 1
