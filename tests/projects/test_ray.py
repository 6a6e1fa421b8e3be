"""Commands on a Ray cluster of two nodes write the files of the commands without Ray, also if a process is lost."""

import os
import shutil
import sys
import time
from pathlib import Path

import pytest

from vidssl import commands
from vidssl.data.video_list import read_list
from vidssl.errors import ConfigError, DataError

ray = pytest.importorskip("ray", reason="ray is not installed")
cluster_utils = pytest.importorskip("ray.cluster_utils")

from vidssl.projects import ray as on_ray  # noqa: E402

TOP = Path(__file__).parents[2]
NETWORK = ["--checkpoint", "vidssl-small", "--allow-missing"]
ARGUMENTS = {
    "extract": [*NETWORK, "--clips", "2", "--crops", "1", "--batch-size", "2"],
    "windows": [*NETWORK, "--clips", "1", "--crops", "1", "--batch-size", "3", "--window", "0.4", "--stride", "0.2"],
    "check": [],
    "shrink": ["--short-side", "24"],
    "frames": ["--to", "frames", "--short-side", "24"],
    "track": [*NETWORK, "--tracker", "search.short_side=32", "size=32", "frames=8", "chunks=1", "min_gap=4"],
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
        commands.guarded(run)
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
        alone = outcome(lambda: commands.run(command, [*words, *device]), capsys, out)
        return alone, outcome(lambda: on_ray.run(command, [*words, "--address", address]), capsys, out)

    return both


@pytest.mark.long
@pytest.mark.parametrize("name", ["check", "shrink", "track"])
def test_files_report_and_status_are_those_without_ray(name, cluster, both, small_parts):
    alone, with_ray = both(name, cluster.address)
    assert with_ray == alone
    status, printed, files = alone
    assert status == (name in ("check", "shrink")) and printed and len(files) >= 3


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


@pytest.mark.long
@pytest.mark.parametrize("name", ["extract", "frames"])
def test_a_lost_process_loses_and_doubles_nothing(name, cluster, both, small_parts, tmp_path, monkeypatch):
    monkeypatch.setattr(on_ray.Actors, "run", dying(on_ray.Actors.run, tmp_path / "died"))
    alone, with_ray = both(name, cluster.address)
    assert (tmp_path / "died").exists() and with_ray == alone
    assert len(alone[2]) >= 3


@pytest.mark.long
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


@pytest.fixture
def in_process(monkeypatch):
    """Leave Ray out: this process does all tasks in order."""
    monkeypatch.setattr(on_ray, "_connect", lambda *_: on_ray.Actors(1, 1, 0))
    monkeypatch.setattr(on_ray.Actors, "run", lambda self, work, count, together=1: work([*range(count)]))


def test_windows(both, small_parts, in_process):
    alone, in_parts = both("windows", "none")
    assert alone == in_parts and alone[0] == 0 and len(alone[2]) == 3


def test_no_video_can_be_read(videos, in_process, small_parts, tmp_path):
    (tmp_path / "list.csv").write_text("path\n3.mp4\n5.mp4\n8.mp4\n9.mp4\n")
    words = [str(tmp_path / "list.csv"), "--root", str(videos.parent), *ARGUMENTS["extract"]]
    with pytest.raises(DataError, match=r"^none of the 4 videos can be read; the first: "):
        on_ray.run("extract", [*words, "--out", str(tmp_path / "out")])


def test_parts_of_an_interrupted_extraction_are_kept(videos, in_process, small_parts, tmp_path, monkeypatch):
    def first_only(self, work, count):
        yield next(work([0]))
        raise KeyboardInterrupt

    words = [str(videos), *ARGUMENTS["extract"], "--out", str(tmp_path / "out"), "--workers", "0"]
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(on_ray.Actors, "run", first_only)
        on_ray.run("extract", words)
    before, seen = (tmp_path / "out/.parts/0-2/meta.json").stat().st_mtime_ns, []

    def delete(folder, **_):
        seen.append((folder, (folder / "0-2/meta.json").stat().st_mtime_ns, len([*folder.iterdir()])))

    monkeypatch.setattr(shutil, "rmtree", delete)
    on_ray.run("extract", words)
    assert seen == [(tmp_path / "out/.parts", before, 4)]


@pytest.mark.parametrize(
    ("command", "words", "message"),
    [
        ("extract", ["--shard", "0/2"], r"^--shard is for machines without Ray"),
        ("track", ["--device", "cuda"], r"^--device cuda: leave it out, --gpus-per-actor decides$"),
        ("check", ["--address", "auto"], r"^no Ray cluster at --address auto .*: ray start --head$"),
    ],
)
def test_arguments_that_do_not_fit(command, words, message, tmp_path, monkeypatch):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", no_cluster)
    given = [] if command == "check" else ["--checkpoint", "vidssl-small"]
    with pytest.raises(ConfigError, match=message):
        on_ray.run(command, [str(tmp_path), *given, "--out", str(tmp_path / "out"), *words])


def no_cluster(*_, **__):
    raise ConnectionError("there is none")


def test_what_fits_on_the_nodes(monkeypatch):
    nodes = [(4, 1, True), (3, 2, True), (8, 8, False)]
    listed = [{"Resources": {"CPU": cpus, "GPU": gpus}, "Alive": alive} for cpus, gpus, alive in nodes]
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "nodes", lambda: listed)
    assert on_ray._connect("auto", None, 2, 0).count == 3
    assert on_ray._connect("auto", None, 1, 0.5).count == 5
    assert on_ray._connect("auto", 7, 16, 0).count == 7
    with pytest.raises(ConfigError, match=r"^no node has 1 CPUs and 4 GPUs: lower --workers, or give --actors"):
        on_ray._connect("auto", None, 1, 4)


def test_other_versions_on_a_machine_are_an_error():
    actor = on_ray._Actor(ray.cloudpickle.dumps(lambda numbers: numbers), {"vidssl": "0", "torch": "0"})
    ((result, error),) = actor._answers([0])
    assert result is None and isinstance(error, ConfigError) and "install the same versions" in str(error)


def test_without_ray(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"^ray is not installed; pip install 'vidssl\[ray\]'$"):
        on_ray._connect("auto", None, 1, 0)
