"""What of a run is saved, when it may go on from there, and who may write to its folder."""

import fcntl
import logging
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import av
import torch

import vidssl
from vidssl import comm
from vidssl.data.records import VideoList
from vidssl.engine import checkpoint
from vidssl.engine.run import Run
from vidssl.errors import CheckpointError, ConfigError
from vidssl.methods.base import Method
from vidssl.models.weights import FORMAT

_log = logging.getLogger(__name__)

# What may differ between a run and its resume: where and how fast, not what is computed.
_FREE = {"output", "device", "log_every", "checkpoint", "compile"}


def resume(
    run: Run, output: Path, videos: VideoList, method: Method, optimizer: torch.optim.Optimizer
) -> int:
    """Take up the newest valid checkpoint of the output folder; give the step to go on from."""
    content = checkpoint.newest_valid(output / "checkpoints")
    if content is None:
        return 0
    now, then = run.model_dump(mode="json"), content["config"]
    changed = [
        key
        for key in now
        if key not in _FREE and _comparable(key, now[key]) != _comparable(key, then.get(key))
    ]
    if changed:
        raise CheckpointError(
            f"{output} holds a run with other settings ({', '.join(changed)} differ); choose another output, or "
            f"continue that run with --cfg {output / 'config.yaml'}"
        )
    if content["fingerprint"] != videos.fingerprint:
        raise CheckpointError(
            f"{output} holds a run on other videos than {videos.path} lists; choose another output"
        )
    if len(content["rng"]) != comm.world():
        raise CheckpointError(
            f"{output} was written by {len(content['rng'])} processes, now there are {comm.world()}; start as many"
        )
    method.load_state_dict(content["method"])
    optimizer.load_state_dict(content["optimizer"])
    rng = content["rng"][comm.rank()]
    torch.set_rng_state(rng["cpu"])
    if torch.cuda.is_available() and "cuda" in rng:
        torch.cuda.set_rng_state(rng["cuda"])
    _log.info("resumed %s at step %d", output, content["step"])
    return int(content["step"])


def _comparable(key: str, value: Any) -> Any:
    if key == "data" and isinstance(value, dict):
        # Where the videos lie, and who reads them how fast, is free.
        free = ("train", "root", "workers", "timeout", "max_broken", "cache", "moving_digits")
        return {k: v for k, v in value.items() if k not in free}
    if key == "evaluate":
        return None
    return value


def save(
    run: Run, output: Path, step: int, videos: VideoList, method: Method, optimizer: torch.optim.Optimizer
) -> None:
    """Write a checkpoint of all processes, the main one doing it."""
    rng = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        rng["cuda"] = torch.cuda.get_rng_state()
    states = comm.gather_objects(rng)
    if comm.is_main():
        content = {
            "format": FORMAT,
            "step": step,
            "config": run.model_dump(mode="json"),
            "method": method.state_dict(),
            "optimizer": optimizer.state_dict(),
            "rng": states,
            "versions": {
                "vidssl": vidssl.__version__,
                "torch": str(torch.__version__),  # a TorchVersion is no plain data
                "python": platform.python_version(),
                run.data.backend: av.__version__,
            },
            "fingerprint": videos.fingerprint,
        }
        checkpoint.save(output / "checkpoints", step, content, run.checkpoint.keep)
    comm.barrier()


@contextmanager
def only_run_in(output: Path) -> Iterator[None]:
    """Hold the output folder: a second run in it is refused."""
    if not comm.is_main():
        yield
        return
    try:
        output.mkdir(parents=True, exist_ok=True)
        file = open(output / ".lock", "w")
    except OSError as error:
        raise ConfigError(f"cannot write to output {output}: {error.strerror}") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(f"another run is writing to {output}; choose another output") from None
        yield
