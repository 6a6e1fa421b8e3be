"""A run that was interrupted goes on as if it had not been: on every process, bit by bit."""

import json
import os
import runpy
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch

from vidssl.engine import checkpoint

ROOT = Path(__file__).parents[2]
EQUAL = runpy.run_path(str(ROOT / "tests" / "equal.py"))
same, logged = EQUAL["same"], EQUAL["logged"]
RUNS = runpy.run_path(str(Path(__file__).with_name("runs.py")))
outcome, meddled, meddled_until, unlike, without_a_row, guarded = (
    RUNS[name] for name in ("outcome", "meddled", "meddled_until", "unlike", "without_a_row", "guarded")
)
WORKERS = "data.workers={}"
EIGHT_STEPS = ("steps=8", "sync_bn=local")  # norms over all processes cost most of the time
ACCUMULATED = "micro_batch_size=2"


def equal_runs(actual, expected, world, step):
    """Assert that two runs ended alike on every process, and logged the same."""
    for rank in range(world):
        name = f"rank-{rank}-step-{step}.pt"
        same(*(torch.load(run / name, weights_only=True) for run in (actual, expected)), where=f"rank {rank}")
    assert logged(actual) == logged(expected)


def saved_at(output):
    return torch.load(output / "checkpoints" / "last.pt", weights_only=True)["step"]


@pytest.fixture(scope="module")
def straight(run_world, digits, tmp_path_factory):
    """The folder of a run that nothing interrupted, made once for each kind."""
    made = {}

    def run(world, name, *overrides):
        key = (world, name, overrides)
        if key not in made:
            made[key] = tmp_path_factory.mktemp("straight")
            assert run_world(world, outcome, name, digits, made[key], overrides)[0][0] == "finished"
        return made[key]

    return run


# Steps to stop after, and who decodes, which changes nothing. An epoch has 5 steps, a checkpoint follows every 4.
ONCE = ((7, 0), (12, 1))
SHORT = ((6, 0), (8, 1))


def goes_on(name, world, more, parts, straight, run_world, digits, output):
    """Interrupt a run, in the middle of an epoch or beside a checkpoint; the last of the parts is its end."""
    more = (*more, f"steps={parts[-1][0]}")
    for until, workers in parts:
        ends = run_world(world, outcome, name, digits, output, (*more, WORKERS.format(workers)), until)
        assert [end[0] for end in ends] == ["finished"] * world
    equal_runs(output, straight(world, name, *more, WORKERS.format(0)), world, parts[-1][0])


def test_fault_19_two_processes_go_on_as_if_nothing_had_been(straight, run_world, digits, tmp_path):
    goes_on("sce", 2, (), SHORT, straight, run_world, digits, tmp_path)


# One process goes on with five families in tests/engine/test_train.py; that a method's state is complete is in its
# contract. Here: what is of each process, and rows of a bank that processes exchange.
LONG = [
    (2, "npid", (ACCUMULATED, "sync_bn=local"), SHORT),
    (2, "frame_invariance_tracks", ("sync_bn=shuffle",), ONCE),  # the second tracks are made before step 9
    # With three, sums depend on how gradients are grouped: the first step must group them as all others do.
    (3, "sce", ("batch_size=9", "sync_bn=local"), SHORT),
]


@pytest.mark.long
@pytest.mark.parametrize(("world", "name", "more", "parts"), LONG)
def test_fault_19_several_processes_go_on(world, name, more, parts, straight, run_world, digits, tmp_path):
    goes_on(name, world, more, parts, straight, run_world, digits, tmp_path)


def watched(digits):
    return (
        "evaluate.every=5",
        f"evaluate.gallery={digits}/motion/train.csv",
        f"evaluate.query={digits}/motion/test.csv",
        "evaluate.clips=1",
        "evaluate.batch_size=4",
        *EIGHT_STEPS,
    )


@pytest.mark.parametrize(
    ("phase", "step", "number"),
    [
        ("step", 6, signal.SIGTERM),
        ("data", 6, signal.SIGUSR1),
        pytest.param("evaluation", 5, signal.SIGUSR1, marks=pytest.mark.long),
        pytest.param("save", 5, signal.SIGINT, marks=pytest.mark.long),
    ],
)
def test_fault_20_a_signal_saves_the_same_step_everywhere(
    phase, step, number, straight, run_world, start_world, digits, tmp_path
):
    more = watched(digits)
    if phase == "save":
        more, step = (*more, "checkpoint.every=3"), 6
    world = start_world(2, meddled, "sce", digits, tmp_path, more, "signal_in", phase, 1, number)
    started = time.monotonic()
    assert world.results() == [("Interrupted", str(int(number)))] * 2
    assert time.monotonic() - started < 50  # a wait for data is broken off
    assert saved_at(tmp_path) == step
    assert [end[0] for end in run_world(2, outcome, "sce", digits, tmp_path, more)] == ["finished"] * 2
    equal_runs(tmp_path, straight(2, "sce", *watched(digits)), 2, 8)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGUSR1, 75), (signal.SIGINT, 130)])
def test_fault_20_exit_codes(number, code, start_world, digits, tmp_path):
    world = start_world(1, guarded, "supervised", digits, tmp_path, (), "step", number, False)
    assert world.wait() == [code]
    assert saved_at(tmp_path) == 6


# Ctrl-C, which a person repeats; of other signals, whose repetition may be an echo: tests/engine/test_interrupt.py.
def test_fault_21_a_second_signal_ends_at_once(start_world, run_world, straight, digits, tmp_path):
    assert run_world(1, outcome, "supervised", digits, tmp_path, (), 5)[0][0] == "finished"
    world = start_world(1, guarded, "supervised", digits, tmp_path, (), "step", signal.SIGINT, True)
    started = time.monotonic()
    assert world.wait() == [128 + signal.SIGINT] and time.monotonic() - started < 30
    assert checkpoint.newest_valid(tmp_path / "checkpoints")["step"] == 5
    run_world(1, outcome, "supervised", digits, tmp_path)
    equal_runs(tmp_path, straight(1, "supervised"), 1, 12)


def test_fault_23_not_a_number_on_one_process_stops_all(run_world, straight, digits, tmp_path):
    more = EIGHT_STEPS
    ends = run_world(2, meddled, "moco", digits, tmp_path, more, "nan_on", 1, 7)
    for kind, message in ends:
        assert kind == "TrainingError"
        assert message.startswith("the loss of step 7 is ") and ", nan, or its gradients" in message
    content = json.loads((tmp_path / "not-finite-step-00000007.json").read_text())
    assert [part["process"] for part in content] == [0, 1] and content[1]["loss"] == "nan" != content[0]["loss"]
    assert all(len(part["records"]) == 4 for part in content)
    assert saved_at(tmp_path) == 4
    run_world(2, outcome, "moco", digits, tmp_path, more)
    equal_runs(tmp_path, straight(2, "moco", *more), 2, 8)


KILLER = """
import os, signal
from pathlib import Path
from vidssl.methods.momentum_method import MomentumMethod
after_step = MomentumMethod.after_step
mark = Path(os.environ["KILLED"])
def die(self, progress):
    after_step(self, progress)
    if round(progress * 12) == 7 and os.environ["RANK"] == "1" and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
MomentumMethod.after_step = die
"""


@pytest.fixture
def torchrun(forked_python):
    """Run a script by two processes of torchrun; PYTHON_EXEC is what it starts them with."""

    def run(*arguments, env=None):
        command = [forked_python, "-m", "torch.distributed.run", "--nproc-per-node", "2", *arguments]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHON_EXEC": str(forked_python), **(env or {})}
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=400)

    return run


@pytest.mark.long
def test_fault_22_a_killed_process_costs_the_steps_since_the_checkpoint(torchrun, straight, digits, tmp_path):
    (tmp_path / "killer_plugin.py").write_text(KILLER)
    run = tmp_path / "run"
    ended = torchrun(
        "--standalone",
        "--max-restarts=2",
        "tools/train_net.py",
        "--cfg=configs/toy/sce.yaml",
        f"output={run}",
        f"data.moving_digits.out={digits}",
        f"data.train={digits}/motion/train.csv",
        "device=cpu",
        "imports=[killer_plugin]",
        "sync_bn=local",
        "verify_every=1",
        env={
            "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]),
            "KILLED": str(tmp_path / "killed"),
        },
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert (tmp_path / "killed").exists() and f"resumed {run} at step 4" in ended.stderr
    other = straight(2, "sce", "sync_bn=local", WORKERS.format(0))
    contents = [torch.load(folder / "checkpoints" / "last.pt", weights_only=True) for folder in (run, other)]
    for part in ("step", "method", "optimizer", "rng"):
        same(contents[0][part], contents[1][part], part)
    assert logged(run) == logged(other)


@pytest.mark.long
def test_torchrun_runs_a_toy(torchrun, digits, tmp_path):
    ended = torchrun(
        "--standalone",
        "tools/train_net.py",
        "--cfg=configs/toy/frame_invariance_tracks.yaml",
        *RUNS["PLACES"]["placed"]("frame_invariance_tracks", digits, tmp_path),
        "verify_every=3",
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert "2 processes on cpu, float32, batch norm sync;" in ended.stderr
    assert ended.stdout.split() == [str(tmp_path / "checkpoints" / "last.pt")] and saved_at(tmp_path) == 12


def test_fault_18_a_full_disk_ends_or_spares_all_processes(run_world, straight, digits, tmp_path):
    more = EIGHT_STEPS
    ends = run_world(2, meddled, "moco", digits, tmp_path / "stops", more, "full_disk", 4)
    assert [kind for kind, _ in ends] == ["CheckpointError", "PeerError"]
    assert ends[1][1] == "process 0: cannot write step 4: No space left on device"
    spared = (*more, "checkpoint.on_error=continue")
    run_world(2, meddled, "moco", digits, tmp_path / "goes_on", spared, "full_disk", 4)
    equal_runs(tmp_path / "goes_on", straight(2, "moco", *more), 2, 8)


def test_fault_1_broken_videos_are_counted_over_processes_and_interruptions(run_world, digits, tmp_path):
    more = ("data.max_broken=0.05", "sync_bn=local", "checkpoint.every=1")
    ends = []
    for _ in range(12):  # each time it goes a step further at most
        ends = run_world(2, meddled_until, "supervised", digits, tmp_path, more, "broken_on", 1, 10)
        if ends[0][0] != "finished":
            break
    assert [kind for kind, _ in ends] == ["DataError"] * 2
    assert "3 of 40 videos are broken, data.max_broken is 0.05" in ends[0][1] and ends[0] == ends[1]


def test_processes_with_different_settings_are_refused(run_world, digits, tmp_path):
    ends = run_world(2, unlike, "supervised", digits, tmp_path, ())
    assert [kind for kind, _ in ends] == ["ConfigError"] * 2
    assert ends[0][1] == "processes 1 and 0 have other settings: seed 1, now 0; start all with the same"


def test_processes_with_different_lists_are_refused(run_world, digits, tmp_path):
    ends = run_world(2, without_a_row, "supervised", digits, tmp_path, ())
    assert [kind for kind, _ in ends] == ["ConfigError"] * 2
    assert ends[0][1].endswith("list-0/train.csv differs between processes 1 and 0: use the same list")


def test_states_that_drift_apart_are_noticed(run_world, digits, tmp_path):
    more = ("sync_bn=local", "verify_every=2")
    for kind, message in run_world(2, meddled, "moco", digits, tmp_path, more, "other_queue_on", 1):
        assert kind == "TrainingError"
        assert "after step 2, 1 of" in message and "method.queue.keys: process 1 differs from 0" in message


@pytest.mark.parametrize(("before", "after"), [(2, 1), pytest.param(1, 2, marks=pytest.mark.long)])
def test_fault_26_another_number_of_processes_goes_on_with_a_warning(before, after, run_world, digits, tmp_path):
    run_world(before, outcome, "supervised", digits, tmp_path, (), 4)
    assert [end[0] for end in run_world(after, outcome, "supervised", digits, tmp_path)] == ["finished"] * after
    assert saved_at(tmp_path) == 12 and [line["step"] for line in logged(tmp_path)] == list(range(1, 13))
