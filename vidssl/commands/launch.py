"""Hand a run to Slurm, or to processes of this machine, with submitit.

python -m vidssl.commands.launch --cfg configs/pretrain/sce_r3d50_k400.yaml output=/runs/sce --nodes 2 --gpus 8

A run that is interrupted saves and goes back into the queue by itself.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from vidssl.commands.arguments import parse
from vidssl.commands.cli import INTERRUPTED, guarded, start_log
from vidssl.errors import ConfigError, Interrupted

if TYPE_CHECKING:
    from vidssl.config import Tree

_NOTICE = 120  # seconds between the signal and the end of the time: for a step, and for saving


@dataclass(frozen=True)
class Training:
    """A run as submitit calls it: in every process of the job, and anew after each interruption.

    Attributes:
        tree: What the config says, as it was when the job was submitted.
        source: Where it was read, for messages.
    """

    tree: "Tree"
    source: str

    def __call__(self) -> str:
        """Train to the end, or go on; give the path of the last checkpoint."""
        import submitit

        from vidssl.engine.run_config import bind_run
        from vidssl.engine.train import train

        job = submitit.JobEnvironment()
        # A process takes the GPU of its LOCAL_RANK; which ones it sees is for Slurm to say.
        submitit.helpers.TorchDistributedEnvironment().export(set_cuda_visible_devices=False, overwrite=True)
        start_log()
        if job.cluster == "local":
            os.environ["MASTER_ADDR"] = "127.0.0.1"  # a machine may not know its own name

        # At the end of the time submitit's handler puts the job back and exits, wherever the process stands: in the
        # middle of a step, and with the other processes inside of a collective. So its signal is passed on as one
        # that the training knows. All processes save at the same step; then the handler is called.
        warning = signal.Signals[f"SIG{job.USR_SIG}"]
        put_back: Any = signal.getsignal(warning)

        def pass_on(number: int, frame: FrameType | None) -> None:
            if callable(signal.getsignal(signal.SIGUSR1)):
                signal.raise_signal(signal.SIGUSR1)
            else:  # the training does not listen yet, or not any more: there is nothing to save
                put_back(number, frame)

        signal.signal(warning, pass_on)
        try:
            return str(train(bind_run(self.tree, self.source)))
        except Interrupted as request:
            # Slurm says SIGTERM when it preempts and when somebody cancels the job; here it is only the latter.
            wanted = _is_running(job.job_id) if job.cluster == "slurm" else request.signal == signal.SIGUSR1
            if wanted and job.global_rank == 0:
                put_back(warning, None)  # exits
            # No result is left behind: it would say that the job is done.
            sys.exit(INTERRUPTED)

    def checkpoint(self) -> Any:
        """Say what the job does when it starts again: the same. The training has saved, and finds that by itself."""
        import submitit

        return submitit.helpers.DelayedSubmission(self)


def _is_running(job: str) -> bool:
    """Ask Slurm: a job that is not running any more was cancelled, or is back in the queue without our help."""
    shown = subprocess.run(["scontrol", "show", "job", job], capture_output=True, text=True, check=False)
    return "JobState=RUNNING" in shown.stdout


def minutes(text: str) -> int:
    """Read a time as Slurm writes it: M, M:S, H:M:S, D-H, D-H:M or D-H:M:S; seconds are rounded up."""
    found = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text} is no time; give minutes, H:M:S or D-H:M:S")
    days, *rest = (None if part is None else int(part) for part in found.groups())
    first, second, third = (part or 0 for part in rest)
    if days is not None or rest[2] is not None:
        return (days or 0) * 1440 + first * 60 + second + (third > 0)
    return first + (second > 0)


def main(arguments: Sequence[str] | None = None) -> None:
    """Submit a training that goes on after interruptions; --wait waits for its end."""
    parsed = parse(_parser(), arguments)
    from vidssl.config import read
    from vidssl.engine.run_config import bind_run

    tree = read(parsed.cfg, parsed.overrides)
    run = bind_run(tree, str(parsed.cfg))  # a mistake shows now, not after hours in the queue
    try:
        import submitit
    except ImportError:
        raise ConfigError("submitit is not installed; pip install 'vidssl[slurm]'") from None
    if parsed.cluster == "local" and parsed.nodes > 1:
        raise ConfigError(f"--nodes {parsed.nodes}: --cluster local is one machine; leave it out")
    processes = parsed.processes or max(1, parsed.gpus)
    folder = parsed.folder or Path(run.output) / "jobs"
    extra = dict(_option(text) for text in parsed.slurm)
    srun = ["--kill-on-bad-exit=0", "--wait=60"]  # time to leave for those who are slower, as in train.sbatch
    if parsed.cpus:
        srun.append(f"--cpus-per-task={parsed.cpus}")
    try:
        executor = submitit.AutoExecutor(
            folder,
            cluster=parsed.cluster,
            slurm_max_num_timeout=parsed.restarts,
            local_max_num_timeout=parsed.restarts,
        )
        executor.update_parameters(
            name=parsed.name,
            timeout_min=parsed.time,
            nodes=parsed.nodes,
            tasks_per_node=processes,
            gpus_per_node=parsed.gpus or None,
            cpus_per_task=parsed.cpus,
            slurm_partition=parsed.partition,
            slurm_mem=parsed.mem,
            slurm_signal_delay_s=_NOTICE,
            slurm_srun_args=srun,
            slurm_additional_parameters=extra,
        )
        job: submitit.Job[str] = executor.submit(Training(tree, str(parsed.cfg)))
    except (RuntimeError, OSError) as error:  # no srun here, or sbatch refuses
        raise ConfigError(f"cannot submit to {parsed.cluster}: {_last_line(error)}") from None
    print(
        f"job {job.job_id}: {parsed.nodes * processes} processes, logs {job.paths.folder}/{job.job_id}_*_log.*"
    )
    if parsed.wait:
        _wait(job)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m vidssl.commands.launch", description=main.__doc__)
    parser.add_argument("--cfg", type=Path, required=True, help="config file (YAML)")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="settings over those of the file")
    parser.add_argument("--cluster", choices=("slurm", "local"), default="slurm", help="local: this machine")
    parser.add_argument("--nodes", type=_above_zero, default=1, help="machines (default 1)")
    parser.add_argument("--gpus", type=int, default=0, help="of each node, one process each (default none)")
    parser.add_argument("--processes", type=_above_zero, help="of each node, instead of one a GPU")
    parser.add_argument("--time", type=minutes, default=1440, help="M, H:M:S or D-H:M:S (default 1-0)")
    parser.add_argument(
        "--restarts", type=int, default=100, help="after the time was up, at most (default 100)"
    )
    parser.add_argument("--partition", help="of Slurm")
    parser.add_argument("--cpus", type=_above_zero, help="of each process: data.workers and one")
    parser.add_argument("--mem", help="of each node, as Slurm writes it: 200G")
    parser.add_argument("--name", default="vidssl", help="of the job (default vidssl)")
    parser.add_argument(
        "--slurm",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any other option of sbatch; repeatable",
    )
    parser.add_argument(
        "--folder", type=Path, help="logs and submitit's files (default: jobs/ in the output)"
    )
    parser.add_argument(
        "--wait", action="store_true", help="wait for the end; exits with 1 if the job failed"
    )
    return parser


def _above_zero(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return int(text)


def _option(text: str) -> tuple[str, str | bool]:
    """Split `account=mine`; an option without a value is switched on."""
    name, equals, value = text.partition("=")
    return name.removeprefix("--"), value if equals else True


def _wait(job: Any) -> None:
    from submitit.core.utils import UncompletedJobError

    try:
        print(job.results()[0])
    except UncompletedJobError:  # also the base of what submitit calls a failed job
        print(f"error: job {job.job_id} has no result; its logs say why: {_logs(job)}", file=sys.stderr)
        sys.exit(1)


def _logs(job: Any) -> str:
    return f"{job.paths.folder}/{job.job_id}_*_log.err"


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines()]
    return next((line for line in reversed(lines) if line), type(error).__name__)


if __name__ == "__main__":
    # What is pickled is found again by its module's name, which here would be __main__.
    from vidssl.commands import launch

    guarded(launch.main)
