"""The command `launch`: submit a training to Slurm, or to processes of this machine, with submitit."""

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

from vidssl.commands import INTERRUPTED, start_log
from vidssl.commands.arguments import add_config, at_least, parse
from vidssl.errors import ConfigError, Interrupted

if TYPE_CHECKING:
    from vidssl.config import Tree

_NOTICE = 120  # seconds between the signal and the end of the job's time: enough for a step and a checkpoint


@dataclass(frozen=True)
class TrainingJob:
    """A training as submitit calls it: in every process of the job, again after each interruption.

    Attributes:
        tree: The config when the job was submitted.
        source: Its file, for messages.
    """

    tree: "Tree"
    source: str

    def __call__(self) -> str:
        """Start or resume the run; return the path of the last checkpoint."""
        import submitit

        from vidssl.engine.config_schema import bind_run
        from vidssl.engine.train import train

        job = submitit.JobEnvironment()
        # Each process takes the GPU of its LOCAL_RANK; Slurm decides which GPUs it sees.
        submitit.helpers.TorchDistributedEnvironment().export(set_cuda_visible_devices=False, overwrite=True)
        start_log()
        if job.cluster == "local":
            os.environ["MASTER_ADDR"] = "127.0.0.1"  # a machine may not resolve its own name

        # At the end of the time submitit's handler requeues the job and exits at once: in the middle of a step, while
        # other processes wait in a collective. So its signal is forwarded as one that the training handles: all
        # processes save at the same step; then the handler is called.
        warning = signal.Signals[f"SIG{job.USR_SIG}"]
        requeue: Any = signal.getsignal(warning)

        def forward(number: int, frame: FrameType | None) -> None:
            if callable(signal.getsignal(signal.SIGUSR1)):
                signal.raise_signal(signal.SIGUSR1)
            else:  # the training has not started or has ended: there is nothing to save
                requeue(number, frame)

        signal.signal(warning, forward)
        try:
            return str(train(bind_run(self.tree, self.source)))
        except Interrupted as request:
            # Slurm sends SIGTERM for preemption and for scancel, and knows which it was; locally it always is a stop.
            goes_on = _is_running(job.job_id) if job.cluster == "slurm" else request.signal == signal.SIGUSR1
            if goes_on and job.global_rank == 0:
                requeue(warning, None)  # exits
            sys.exit(INTERRUPTED)  # without a result, which would mark the job as done

    def checkpoint(self) -> Any:
        """Return what the requeued job calls: the same, as the training finds its checkpoint itself."""
        import submitit

        return submitit.helpers.DelayedSubmission(self)


def _is_running(job: str) -> bool:
    """Whether Slurm counts the job as running; otherwise it was cancelled, or Slurm has requeued it."""
    shown = subprocess.run(["scontrol", "show", "job", job], capture_output=True, text=True, check=False)
    return "JobState=RUNNING" in shown.stdout


def minutes(text: str) -> int:
    """Parse a time as Slurm writes it: M, M:S, H:M:S, D-H, D-H:M or D-H:M:S; seconds are rounded up."""
    found = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text} is not a time; write minutes, H:M:S or D-H:M:S")
    days, *rest = (None if part is None else int(part) for part in found.groups())
    first, second, third = (part or 0 for part in rest)
    if days is not None or rest[2] is not None:
        return (days or 0) * 1440 + first * 60 + second + (third > 0)
    return first + (second > 0)


def launch(arguments: Sequence[str] | None = None, prog: str | None = None) -> None:
    """Submit a training to Slurm that is requeued after interruptions."""
    parsed = parse(_parser(prog), arguments)
    from vidssl.config import read
    from vidssl.engine.config_schema import bind_run

    tree = read(parsed.cfg, parsed.overrides)
    run = bind_run(tree, str(parsed.cfg))  # reports mistakes now, not after hours in the queue
    try:
        import submitit
    except ImportError:
        raise ConfigError("submitit is not installed; pip install 'vidssl[slurm]'") from None
    if parsed.cluster == "local" and parsed.nodes > 1:
        raise ConfigError(f"--nodes {parsed.nodes}: --cluster local is one machine; leave --nodes out")
    processes = parsed.processes or max(1, parsed.gpus)
    srun = ["--kill-on-bad-exit=0", "--wait=60"]  # time for slower processes to save, as in train.sbatch
    if parsed.cpus:
        srun.append(f"--cpus-per-task={parsed.cpus}")
    try:
        executor = submitit.AutoExecutor(
            parsed.folder or Path(run.output) / "jobs",
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
            slurm_additional_parameters=dict(_option(text) for text in parsed.slurm),
        )
        job: submitit.Job[str] = executor.submit(TrainingJob(tree, str(parsed.cfg)))
    except (RuntimeError, OSError) as error:  # no srun on this machine, or sbatch refuses the options
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = lines[-1] if lines else type(error).__name__
        raise ConfigError(f"cannot submit to {parsed.cluster}: {reason}") from None
    logs = f"{job.paths.folder}/{job.job_id}_*_log"
    print(f"job {job.job_id}: {parsed.nodes * processes} processes, logs {logs}.*")
    if parsed.wait:
        try:
            print(job.results()[0])
        except submitit.core.utils.UncompletedJobError:  # includes failed jobs
            print(f"error: job {job.job_id} has no result; see its logs: {logs}.err", file=sys.stderr)
            sys.exit(1)


def _parser(prog: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=prog, description=launch.__doc__)
    option = parser.add_argument
    add_config(parser)
    positive = at_least(1)
    option("--cluster", choices=("slurm", "local"), default="slurm", help="local: processes of this machine")
    option("--nodes", type=positive, default=1, help="number of machines (default 1)")
    option("--gpus", type=int, default=0, help="GPUs per node, one process each (default 0)")
    option("--processes", type=positive, help="processes per node (default: one per GPU)")
    option("--time", type=minutes, default=1440, help="time limit as M, H:M:S or D-H:M:S (default 1-0)")
    option("--restarts", type=int, default=100, help="most restarts after the time limit (default 100)")
    option("--partition", help="Slurm partition")
    option("--cpus", type=positive, help="CPUs per process; data.workers + 1 are needed")
    option("--mem", help="memory per node as Slurm writes it: 200G")
    option("--name", default="vidssl", help="name of the job (default vidssl)")
    option("--slurm", action="append", default=[], metavar="KEY=VALUE", help="another sbatch option; repeatable")
    option("--folder", type=Path, help="folder of the logs (default: jobs/ in the output)")
    option("--wait", action="store_true", help="wait for the end; exit with 1 if the job failed")
    return parser


def _option(text: str) -> tuple[str, str | bool]:
    """Split `account=mine`; an option without a value is a flag."""
    name, equals, value = text.partition("=")
    return name.removeprefix("--"), value if equals else True
