"""Submit a training to Slurm, or to processes of this machine, with submitit."""

import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from vidssl.base.config import Tree
from vidssl.base.errors import ConfigError, Interrupted, PeerError
from vidssl.base.output_folder import claim
from vidssl.cli import INTERRUPTED, start_log
from vidssl.engine.run_config import Data
from vidssl.engine.run_setup import claim_output
from vidssl.jobs.job import Count, File, Natural, job
from vidssl.jobs.train import Config, Setting, bind_config, read_config

_log = logging.getLogger(__name__)
_NOTICE = 120  # seconds between the signal and the end of the job's time: enough for a step and a checkpoint


@dataclass(frozen=True)
class TrainingJob:
    """A training as submitit calls it: in every process of the job, again after each interruption."""

    tree: Tree  # the config when the job was submitted
    source: str  # its file, for messages

    def __call__(self) -> str:
        """Start or resume the run; return the path of the last checkpoint."""
        import submitit

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
        signal.signal(warning, partial(_save_or_requeue, requeue))
        try:
            run, start = bind_config(self.tree, self.source)
            return str(start(run))
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


def _save_or_requeue(requeue: Any, number: int, frame: FrameType | None) -> None:
    """Handle a signal by that which the training handles, if there is one, else by submitit's handler `requeue`."""
    if callable(signal.getsignal(signal.SIGUSR1)):
        signal.raise_signal(signal.SIGUSR1)
    else:  # the training has not started or has ended: there is nothing to save
        requeue(number, frame)


def _is_running(job: str) -> bool:
    """Whether Slurm counts the job as running; otherwise it was cancelled, or Slurm has requeued it."""
    job_state = subprocess.run(["scontrol", "show", "job", job], capture_output=True, text=True, check=False)
    return "JobState=RUNNING" in job_state.stdout


class Submitted(dict[str, Any]):
    """A job that was submitted: its number, processes and logs, and with `wait` the path of the last checkpoint."""

    complete = True

    def __str__(self) -> str:
        line = f"job {self['job']}: {self['processes']} processes, logs {self['logs']}.*"
        return f"{line}\n{self['checkpoint']}" if "checkpoint" in self else line


@job
def launch(
    cfg: Config,
    *settings: Setting,
    cluster: Literal["slurm", "local"] = "slurm",
    nodes: Count = 1,
    gpus: Natural = 0,
    processes: Count | None = None,
    time: str = "1-0",
    restarts: Natural = 100,
    partition: str | None = None,
    cpus: Count | None = None,
    mem: str | None = None,
    name: str = "vidssl",
    slurm: Sequence[str | Mapping[str, Any]] = (),
    folder: File | None = None,
    wait: bool = False,
) -> Submitted:
    """Submit a training to Slurm that is requeued after interruptions.

    Args:
        cfg: As of `train`.
        settings: As of `train`.
        cluster: Slurm, or local: processes of this machine.
        nodes: Number of machines.
        gpus: GPUs per node, one process each.
        processes: Processes per node (default: one per GPU).
        time: Time limit as M, H:M:S or D-H:M:S.
        restarts: Most restarts after the time limit.
        partition: Slurm partition.
        cpus: CPUs per process (default: data.workers + 1).
        mem: Memory per node as Slurm writes it, 200G.
        name: Name of the job.
        slurm: Other sbatch options, as account=mine exclusive.
        folder: Folder of the logs (default: jobs/ in the output).
        wait: Wait for the end.
    """
    tree, source = read_config(cfg, settings)
    training, _ = bind_config(tree, source)  # reports mistakes now, not after hours in the queue
    cpus = cpus or cpus_of(tree)
    claim_output(training)
    logs_in = Path(training.output) / "jobs" if folder is None else Path(folder)
    claim(logs_in, "logs of jobs")
    try:
        import submitit
    except ImportError:
        raise ConfigError("submitit is not installed; pip install 'vidssl[slurm]'") from None
    if cluster == "local" and nodes > 1:
        raise ConfigError(f'nodes={nodes}: cluster="local" is one machine; leave nodes out')
    per_node = processes or max(1, gpus)
    try:
        executor = submitit.AutoExecutor(
            logs_in, cluster=cluster, slurm_max_num_timeout=restarts, local_max_num_timeout=restarts
        )
        executor.update_parameters(
            name=name,
            timeout_min=minutes(time),
            nodes=nodes,
            tasks_per_node=per_node,
            gpus_per_node=gpus or None,
            cpus_per_task=cpus,
            slurm_partition=partition,
            slurm_mem=mem,
            slurm_signal_delay_s=_NOTICE,
            # Time for slower processes to save, as in train.sbatch.
            slurm_srun_args=["--kill-on-bad-exit=0", "--wait=60", f"--cpus-per-task={cpus}"],
            slurm_additional_parameters=_sbatch_options(slurm),
        )
        job: submitit.Job[str] = executor.submit(TrainingJob(tree, source))
        for link in logs_in.glob(".submission_file_*.sh"):  # to the script that Slurm has a copy of by now
            link.unlink()
    except (RuntimeError, OSError) as error:  # no srun on this machine, or sbatch refuses the options
        reason = str(error).strip().splitlines()[-1:] or [type(error).__name__]
        raise ConfigError(f"cannot submit to {cluster}: {reason[0].strip()}") from None
    logs = f"{job.paths.folder}/{job.job_id}_*_log"
    submitted = Submitted(job=job.job_id, processes=nodes * per_node, logs=logs)
    if wait:
        _log.info("%s", submitted)  # now, and with the result at the end
        try:
            submitted["checkpoint"] = job.results()[0]
        except submitit.core.utils.UncompletedJobError:  # includes failed jobs
            raise PeerError(f"job {job.job_id} has no result; see its logs: {logs}.err") from None
    return submitted


def cpus_of(tree: Tree) -> int:
    """Return the number of CPUs that a process of a training uses: one for each worker, and one for itself."""
    return int(tree["data"].get("workers", Data.model_fields["workers"].default)) + 1


def _sbatch_options(options: Sequence[str | Mapping[str, Any]]) -> Tree:
    parameters: Tree = {}
    for option in options:
        if isinstance(option, str):
            key, equals, value = option.removeprefix("--").partition("=")
            parameters[key] = value if equals else True  # without a value it is a flag
        else:
            parameters |= option
    return parameters


def minutes(text: str) -> int:
    """Parse a time as Slurm writes it: M, M:S, H:M:S, D-H, D-H:M or D-H:M:S; seconds are rounded up."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text)
    if not match:
        raise ConfigError(f"time {text} is not a time; write minutes, H:M:S or D-H:M:S")
    days, first, second, third = (int(part or 0) for part in match.groups())
    if match[1] or match[4]:
        return days * 1440 + first * 60 + second + (third > 0)
    return first + (second > 0)
