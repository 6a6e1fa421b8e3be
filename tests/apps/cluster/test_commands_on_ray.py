"""Commands on Ray: on a cluster, and what needs none."""

import contextlib
import os
import re
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import vidssl
from vidssl.base.errors import ConfigError, DataError

ray = pytest.importorskip("ray", reason="ray is not installed")

from vidssl.apps.cluster import commands_on_ray as on_ray  # noqa: E402

CLUSTER = Path(__file__).with_name("ray_cluster.py")
SHARED = runpy.run_path(str(CLUSTER))
ARGUMENTS, videos, small_parts, both = (SHARED[name] for name in ("ARGUMENTS", "videos", "small_parts", "both"))


@pytest.mark.long
def test_on_a_cluster(tmp_path):
    """In a process of its own: Ray ends the one whose node goes away, even after the last test, with all of pytest."""
    options = ["-v", "-p", "no:cacheprovider", f"--basetemp={tmp_path}/child"]
    with open(tmp_path / "output", "w+") as output:  # not a pipe, which processes of Ray would hold open
        child = subprocess.Popen(
            [sys.executable, "-m", "pytest", *options, str(CLUSTER)],
            cwd=CLUSTER.parents[3],
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(600)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)  # what is left of it and of Ray
            child.wait()
        output.seek(0)
        text = output.read()
    assert len({*re.findall(r"ray_cluster\.py::(\S+) PASSED", text)}) == 3, text


@pytest.fixture
def in_process(monkeypatch):
    """Leave Ray out: this process does all tasks in order, with the work as it would arrive at an actor."""

    def run(self, work, count, together=1):
        return ray.cloudpickle.loads(ray.cloudpickle.dumps(work))([*range(count)])

    monkeypatch.setattr(on_ray, "_connect", lambda *_: on_ray.Actors(1, 1, 0))
    monkeypatch.setattr(on_ray.Actors, "run", run)


@pytest.mark.parametrize("name", ["windows", "check", "shrink", "track"])
def test_files_report_and_status_are_those_without_ray(name, both, small_parts, in_process):
    alone, in_parts = both(name, "none")
    assert in_parts == alone
    status, printed, files = alone
    assert status == (name in ("check", "shrink")) and printed and len(files) >= 3


def test_no_video_can_be_read(videos, in_process, small_parts, tmp_path):
    (tmp_path / "list.csv").write_text("path\n3.mp4\n5.mp4\n8.mp4\n9.mp4\n")
    words = [str(tmp_path / "list.csv"), "--root", str(videos.parent), *ARGUMENTS["extract"]]
    with pytest.raises(DataError, match=r"^none of the 4 videos of \S+list\.csv can be read; the first: "):
        on_ray.run_on_ray("extract", [*words, "--out", str(tmp_path / "out")])


def test_parts_of_an_interrupted_extraction_are_kept(videos, in_process, small_parts, tmp_path, monkeypatch):
    def first_only(self, work, count):
        yield next(work([0]))
        raise KeyboardInterrupt

    words = [str(videos), *ARGUMENTS["extract"], "--out", str(tmp_path / "out"), "--workers", "0"]
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(on_ray.Actors, "run", first_only)
        on_ray.run_on_ray("extract", words)
    there = vidssl.load_features(tmp_path / "out/.parts/000000").index.tolist()
    encoded, extract = [], on_ray.Actors.extract

    def recording(actors, subject, listed, rows):
        encoded.extend(rows)
        return extract(actors, subject, listed, rows)

    monkeypatch.setattr(on_ray.Actors, "extract", recording)
    on_ray.run_on_ray("extract", words)
    assert there and encoded and not {*there} & {*encoded} and not (tmp_path / "out/.parts").exists()


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
    arguments = [] if command == "check" else ["--checkpoint", "vidssl-small"]
    with pytest.raises(ConfigError, match=message):
        on_ray.run_on_ray(command, [str(tmp_path), *arguments, "--out", str(tmp_path / "out"), *words])


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
