"""The batch script, with a srun and a scontrol of our own, and submitit's jobs, run for real on this machine."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from vidssl import cli
from vidssl.apps.cluster import training_on_slurm as slurm
from vidssl.base.config import find_config, read
from vidssl.base.errors import ConfigError, Interrupted

ROOT = Path(__file__).parents[3]
BATCH = ROOT / "tools" / "slurm" / "train.sbatch"
TOY = "configs/toy/sce.yaml"
PLAIN = ("device=cpu", "data.workers=0", "evaluate.query=null")


def write_script(path: Path, text: str) -> None:
    path.write_text(f"#!/usr/bin/env bash\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of commands that stand for Slurm's; each writes its arguments, one a line, to NAME.log."""
    folder = tmp_path / "bin"
    folder.mkdir()
    log = f'printf "%s\\n" "$@" >> {tmp_path}/$(basename "$0").log'
    write_script(folder / "srun", f"{log}\nsleep ${{SRUN_SECONDS:-0}}\nexit ${{SRUN_EXIT:-0}}")
    write_script(
        folder / "scontrol", f'{log}\n[[ $1 == requeue ]] || echo "   JobState=${{STATE:-RUNNING}} Reason=None"'
    )
    write_script(folder / "sbatch", f'{log}\ncp "$1" {tmp_path}/submitted.sh\necho "Submitted batch job 77"')
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return tmp_path


def batch(*arguments: str, cwd: Path = ROOT, **environment: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        ["bash", str(BATCH), *arguments],
        cwd=cwd,
        env={**os.environ, "SLURM_JOB_ID": "77", "SLURM_CPUS_PER_TASK": "8", **environment},
        stderr=subprocess.PIPE,
        text=True,
    )


def requeued(cluster: Path) -> int:
    log = cluster / "scontrol.log"
    return log.read_text().splitlines().count("requeue") if log.exists() else 0


@pytest.mark.parametrize(
    ("code", "environment", "times"),
    [
        (0, {}, 0),
        (75, {}, 1),
        (75, {"SLURM_RESTART_COUNT": "500"}, 1),
        (75, {"STATE": "CANCELLED"}, 0),
        (75, {"STATE": "PENDING"}, 0),  # preempted, Slurm has put it back
        (2, {"VIDSSL_RESTARTS": "3"}, 0),
        (137, {"VIDSSL_RESTARTS": "1"}, 1),
        (137, {"VIDSSL_RESTARTS": "1", "SLURM_RESTART_COUNT": "1"}, 0),
    ],
)
def test_the_script_ends_as_the_run_did_and_comes_back_when_it_should(cluster, code, environment, times):
    process = batch(TOY, SRUN_EXIT=str(code), **environment)
    process.communicate(timeout=30)
    assert (process.returncode, requeued(cluster)) == (code, times)


def test_the_script_hands_on_every_argument_as_it_is(cluster):
    process = batch(TOY, "output=/runs/two words", "optimizer={name: sgd, lr: 0.1}")
    process.communicate(timeout=30)
    options, command = (cluster / "srun.log").read_text().split("python\n-m\nvidssl\n")
    assert command.splitlines() == ["train", "--cfg", TOY, "output=/runs/two words", "optimizer={name: sgd, lr: 0.1}"]
    assert {"--kill-on-bad-exit=0", "--wait=60", "--cpus-per-task=8"} == set(options.split())


def test_the_script_outlives_sigterm_until_the_run_has_saved(cluster):
    process = batch(TOY, SRUN_EXIT="75", SRUN_SECONDS="1")
    while not (cluster / "srun.log").exists():
        time.sleep(0.02)
    process.terminate()
    process.communicate(timeout=30)
    assert (process.returncode, requeued(cluster)) == (75, 1)


@pytest.mark.parametrize(
    ("arguments", "given", "stops"),
    [
        (
            ["pretrain/sce_r3d50_k400"],
            "8",
            "error: 8 CPUs a process, and data.workers=12 need 13: sbatch --cpus-per-task=13",
        ),
        (["pretrain/sce_r3d50_k400"], "13", ""),
        (["pretrain/sce_r3d50_k400", "data.workers=7"], "8", ""),
        (["finetune/small", "--splits", "1", "2", "data.workers=8"], "8", "data.workers=8 need 9: "),
        (["no_such_config"], "1", ""),  # which the run reports
    ],
)
def test_the_script_stops_with_fewer_cpus_than_workers(cluster, forked_python, arguments, given, stops):
    write_script(cluster / "bin" / "python", f'exec {forked_python} "$@"')
    process = batch(*arguments, SLURM_CPUS_PER_TASK=given)
    _, message = process.communicate(timeout=60)
    assert (process.returncode, len(message.splitlines())) == ((2, 1) if stops else (0, 0))
    assert stops in message and (cluster / "srun.log").exists() == (not stops)


def test_the_script_asks_for_the_cpus_of_the_config_in_its_header():
    asked = re.search(r"^#SBATCH --cpus-per-task=(\d+)$", BATCH.read_text(), re.MULTILINE)
    config = re.search(r"train.sbatch (\w+)", BATCH.read_text())
    assert asked and config and int(asked[1]) == slurm.cpus_of(read(find_config(config[1]))) == 13


def test_the_script_needs_a_config(cluster):
    process = batch()
    _, message = process.communicate(timeout=30)
    assert process.returncode == 2 and len(message.splitlines()) == 1 and "CONFIG" in message
    assert not (cluster / "srun.log").exists()


@pytest.mark.parametrize(
    ("text", "minutes"), [("90:30", 91), ("24:00:00", 1440), ("0:10:01", 11), ("2-0", 2880), ("1-02:30", 1590)]
)
def test_times_are_those_of_slurm(text, minutes):
    assert slurm.minutes(text) == minutes
    for wrong in ("", "1h", "1:2:3:4"):
        with pytest.raises(ConfigError, match="is not a time"):
            slurm.minutes(wrong)


def test_without_submitit_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(ConfigError, match=r"pip install 'vidssl\[slurm\]'"):
        cli.run("launch", ["--cfg", TOY])


def test_a_mistake_shows_before_the_job_waits_in_a_queue(tmp_path):
    pytest.importorskip("submitit", reason="the extra [slurm] is not installed")
    with pytest.raises(ConfigError, match="stepz"):
        cli.run("launch", ["--cfg", TOY, "stepz=4"])
    with pytest.raises(ConfigError, match="--nodes 2: --cluster local is one machine; leave nodes out"):
        cli.run("launch", ["--cfg", TOY, "--cluster", "local", "--nodes", "2"])


def test_without_slurm_the_message_is_one_line(tmp_path, monkeypatch):
    pytest.importorskip("submitit", reason="the extra [slurm] is not installed")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"cannot submit to slurm: .*srun") as caught:
        cli.run("launch", ["--cfg", TOY, f"output={tmp_path}"])
    assert "\n" not in str(caught.value)


def test_options_reach_sbatch_and_srun(cluster, capsys):
    pytest.importorskip("submitit", reason="the extra [slurm] is not installed")
    options = "--nodes 2 --gpus 8 --mem 200G --partition gpu --time 1-12 --name mine"
    options += " --slurm account=us exclusive"
    cli.run("launch", ["--cfg", TOY, f"output={cluster}/run", "data.workers=11", *options.split()])
    lines = (cluster / "submitted.sh").read_text().splitlines()
    expected = {"nodes=2", "gpus-per-node=8", "ntasks-per-node=8", "cpus-per-task=12", "mem=200G", "partition=gpu"} | {
        *("time=2160", "job-name=mine", "account=us", "exclusive", "signal=USR2@120", "open-mode=append")
    }
    assert {f"#SBATCH --{option}" for option in expected} <= set(lines)
    (command,) = (line for line in lines if line.startswith("srun"))
    assert all(option in command for option in ("--kill-on-bad-exit=0", "--wait=60", "--cpus-per-task=12"))
    assert "job 77: 16 processes" in capsys.readouterr().out
    assert (cluster / "run" / "jobs" / "77_submitted.pkl").exists()
    cli.run("launch", ["--cfg", TOY, f"output={cluster}/run", "--cpus", "5"])
    assert "#SBATCH --cpus-per-task=5\n" in (cluster / "submitted.sh").read_text()


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., list[int]]]:
    """Give a way to run the job's callable here: what submitit's handler was called with, in the end."""
    submitit = pytest.importorskip("submitit", reason="the extra [slurm] is not installed")
    handlers = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGUSR2)}
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "0")
    called: list[int] = []

    def run(train: Callable[[object], Path], cluster: str = "local", rank: int = 0) -> list[int]:
        names = {
            "local": ("SUBMITIT_LOCAL_JOB_ID", "SUBMITIT_LOCAL_GLOBALID"),
            "slurm": ("SLURM_JOB_ID", "SLURM_PROCID"),
        }
        monkeypatch.setenv("SUBMITIT_EXECUTOR", cluster)
        for name, value in zip(names[cluster], ("77", str(rank)), strict=True):
            monkeypatch.setenv(name, value)
        monkeypatch.setattr("vidssl.jobs.train.train_run", train)
        signal.signal(signal.SIGUSR2, lambda number, frame: called.append(number))
        training = slurm.TrainingJob(read(ROOT / TOY), TOY)
        again = training.checkpoint()
        assert isinstance(again, submitit.helpers.DelayedSubmission) and again.function == training
        with pytest.raises(SystemExit) as left:
            training()
        assert left.value.code == 75
        return called

    yield run
    for number, handler in handlers.items():
        signal.signal(number, handler)


def interrupted_by(number: int) -> Callable[[object], Path]:
    """A training that listens as the real one does, and gets a signal in the middle of a step."""

    def train(run: object) -> Path:
        heard: list[int] = []
        before = {n: signal.signal(n, lambda n, _: heard.append(n)) for n in (signal.SIGUSR1, signal.SIGTERM)}
        try:
            signal.raise_signal(number)
            assert len(heard) == 1  # and we are still here: the step goes on
            raise Interrupted(heard[0])
        finally:
            for n, handler in before.items():
                signal.signal(n, handler)

    return train


@pytest.mark.parametrize(("rank", "calls"), [(0, [signal.SIGUSR2]), (1, [])])
def test_a_warned_job_is_put_back_once_it_has_saved(task, rank, calls):
    assert task(interrupted_by(signal.SIGUSR2), rank=rank) == calls


def test_a_warning_before_the_training_listens_puts_the_job_back_at_once(task):
    def train(run):
        signal.raise_signal(signal.SIGUSR2)
        raise SystemExit(75)

    assert task(train) == [signal.SIGUSR2]


def test_a_local_job_that_is_stopped_stays_away(task):
    assert task(interrupted_by(signal.SIGTERM)) == []


@pytest.mark.parametrize(
    ("number", "state", "calls"),
    [
        (signal.SIGTERM, "RUNNING", [signal.SIGUSR2]),  # preempted, in the time of grace
        (signal.SIGTERM, "CANCELLED", []),
        (signal.SIGUSR2, "RUNNING", [signal.SIGUSR2]),
    ],
)
def test_on_slurm_the_job_is_put_back_unless_slurm_has_decided(task, cluster, monkeypatch, number, state, calls):
    monkeypatch.setenv("STATE", state)
    assert task(interrupted_by(number), cluster="slurm") == calls


def start(out: Path, digits: Path, *overrides: str) -> "subprocess.Popen[str]":
    """Run the toy of SCE as two processes of a local job."""
    pytest.importorskip("submitit", reason="the extra [slurm] is not installed")
    data = ["data.moving_digits=null", f"data.train={digits}/motion/train.csv", f"output={out}", *PLAIN]
    options = ["--cluster", "local", "--processes", "2", "--time", "10", "--wait"]
    return subprocess.Popen(
        [sys.executable, "-m", "vidssl", "launch", "--cfg", TOY, *data, *overrides, *options],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


STEP = """while [[ $1 == --* ]]; do shift; done
export SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NODELIST=127.0.0.1 SLURM_STEP_ID=0
for n in 0 1; do SLURM_PROCID=$n SLURM_LOCALID=$n "$@" & tasks+=($!); done
trap 'for task in "${tasks[@]}"; do kill -USR1 "$task"; done' USR1
highest=0
for task in "${tasks[@]}"; do
    while wait "$task"; code=$?; kill -0 "$task" 2>/dev/null; do :; done
    ((code > highest)) && highest=$code
done
exit "$highest"
"""


@pytest.mark.long
def test_the_script_takes_a_run_through_an_interruption(cluster, digits, forked_python):
    write_script(cluster / "bin" / "srun", f"echo $$ > {cluster}/srun.pid\n{STEP}")
    write_script(cluster / "bin" / "python", f'exec {forked_python} "$@"')
    out = cluster / "run"
    data = ("data.moving_digits=null", f"data.train={digits}/motion/train.csv", f"output={out}", *PLAIN)
    first = batch(TOY, *data, "steps=24", "checkpoint.every=1000", OMP_NUM_THREADS="1")
    while not (out / "metrics.jsonl").exists():
        assert first.poll() is None
        time.sleep(0.05)
    os.kill(int((cluster / "srun.pid").read_text()), signal.SIGUSR1)
    _, log = first.communicate(timeout=300)
    assert (first.returncode, requeued(cluster)) == (75, 1), log
    assert "the same command continues the run" in log
    again = batch(TOY, *data, "steps=24", "checkpoint.every=1000", OMP_NUM_THREADS="1")
    _, log = again.communicate(timeout=300)
    assert (again.returncode, requeued(cluster)) == (0, 1), log
    content = torch.load(out / "checkpoints" / "last.pt", weights_only=True)
    assert content["step"] == 24 and len(content["rng"]) == 2


@pytest.mark.long
def test_a_job_whose_time_is_up_saves_comes_back_and_ends(tmp_path, digits):
    out = tmp_path / "run"
    process = start(out, digits, "steps=24", "checkpoint.every=1000")
    assert process.stderr is not None
    announced = next(actual for line in process.stderr if (actual := re.search(r"INFO job (\d+): 2 processes", line)))
    job = int(announced[1])  # a local job's number is that of its process
    metrics = out / "metrics.jsonl"
    while not metrics.exists() or metrics.read_text().count("\n") < 3:
        assert process.poll() is None
        time.sleep(0.05)
    for task in Path(f"/proc/{job}/task/{job}/children").read_text().split():
        os.kill(int(task), signal.SIGUSR2)
    shown, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    assert torch.load(shown.splitlines()[-1], weights_only=True)["step"] == 24
    log = (out / "jobs" / f"{job}_0_log.out").read_text()
    assert log.count("Starting with JobEnvironment") == 2 and "Requeued job" in log
    assert metrics.read_text().count("\n") == 24  # no step twice
