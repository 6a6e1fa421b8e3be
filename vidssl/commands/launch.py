"""The command `launch`: submit a training to Slurm, or to processes of this machine, with submitit."""

import argparse
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from vidssl.commands import INTERRUPTED, start_log
from vidssl.config import Tree, read
from vidssl.engine import train as engine
from vidssl.engine.config_schema import bind_run
from vidssl.engine.setup import claim_output
from vidssl.errors import ConfigError, Interrupted
from vidssl.output_folder import claim

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

        def forward(number: int, frame: FrameType | None) -> None:
            if callable(signal.getsignal(signal.SIGUSR1)):
                signal.raise_signal(signal.SIGUSR1)
            else:  # the training has not started or has ended: there is nothing to save
                requeue(number, frame)

        signal.signal(warning, forward)
        try:
            return str(engine.train(bind_run(self.tree, self.source)))
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
    job_state = subprocess.run(["scontrol", "show", "job", job], capture_output=True, text=True, check=False)
    return "JobState=RUNNING" in job_state.stdout


def run(parsed: argparse.Namespace) -> None:
    """Submit a training."""
    tree = read(parsed.cfg, parsed.overrides)
    training = bind_run(tree, str(parsed.cfg))  # reports mistakes now, not after hours in the queue
    claim_output(training)
    folder = parsed.folder or Path(training.output) / "jobs"
    claim(folder, "logs of jobs", ())  # submitit's files have the number of the job in their names
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
    options = [text.removeprefix("--").partition("=") for text in parsed.slurm]
    extra = {name: value if equals else True for name, equals, value in options}  # without a value it is a flag
    try:
        executor = submitit.AutoExecutor(
            folder, cluster=parsed.cluster, slurm_max_num_timeout=parsed.restarts, local_max_num_timeout=parsed.restarts
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
        job: submitit.Job[str] = executor.submit(TrainingJob(tree, str(parsed.cfg)))
    except (RuntimeError, OSError) as error:  # no srun on this machine, or sbatch refuses the options
        reason = str(error).strip().splitlines()[-1:] or [type(error).__name__]
        raise ConfigError(f"cannot submit to {parsed.cluster}: {reason[0].strip()}") from None
    logs = f"{job.paths.folder}/{job.job_id}_*_log"
    print(f"job {job.job_id}: {parsed.nodes * processes} processes, logs {logs}.*")
    if parsed.wait:
        try:
            print(job.results()[0])
        except submitit.core.utils.UncompletedJobError:  # includes failed jobs
            print(f"error: job {job.job_id} has no result; see its logs: {logs}.err", file=sys.stderr)
            sys.exit(1)
