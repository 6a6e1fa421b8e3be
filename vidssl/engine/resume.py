"""What of a run is saved, when it may go on from there, and who may write to its folder."""

import fcntl
import json
import logging
import platform
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import av
import torch

import vidssl
from vidssl import distributed
from vidssl.config import Tree, differences
from vidssl.data.fingerprint import identify
from vidssl.data.video_list import VideoList
from vidssl.engine import checkpoint
from vidssl.engine.run_config import Run, bind_run
from vidssl.errors import CheckpointError, ConfigError
from vidssl.methods.base import Method
from vidssl.models.weights import FORMAT, load_state, read_checkpoint
from vidssl.randomness import generator

_log = logging.getLogger(__name__)

# What may differ between a run and its resume: where and how fast, not what is computed.
_FREE = {
    "output", "device", "log_every", "checkpoint", "compile", "verify_every", "evaluate",
    "data.train", "data.root", "data.workers", "data.prefetch", "data.timeout", "data.max_broken", "data.cache",
    "data.moving_digits",
}  # fmt: skip


@dataclass
class Reached:
    """How far a run has come.

    Attributes:
        step: Optimizer steps done.
        evaluated: The step of the last evaluation.
        broken: Videos that were found broken, path to reason.
        data: The files that are trained on, as `identify` describes them.
    """

    step: int = 0
    evaluated: int = 0
    broken: dict[str, str] = field(default_factory=dict)
    data: Tree = field(default_factory=dict)


def resume(
    run: Run, output: Path, videos: VideoList, method: Method, optimizer: torch.optim.Optimizer
) -> Reached:
    """Take up the newest valid checkpoint of the output folder, the same on all processes.

    With other files under the names of the list, as under another `data.root`, the run goes on; a warning says what
    differs.

    Raises:
        ConfigError: The processes were not started with the same settings, or see different lists.
        CheckpointError: No checkpoint is sound, or it is one of another run.
        DataError: The settings of shrunk copies cannot be read.
    """
    _agree(run, videos)
    data = distributed.on_main(lambda: identify(videos))
    # One process decides, and checks the file; the others, which see the same folder, read what it found.
    folder, trust = output / "checkpoints", run.checkpoint.trust
    found = distributed.together(
        lambda: checkpoint.newest_valid(folder, trust) if distributed.is_main() else None
    )
    step: int = distributed.gather_objects(found["step"] if found is not None else 0)[0]
    if not step:
        return Reached(data=data)
    path = checkpoint.path_of(folder, step)
    content = distributed.together(
        lambda: _fitting(found or read_checkpoint(path, trust), output, run, videos)
    )
    load_state(method, content["method"], str(path))
    optimizer.load_state_dict(content["optimizer"])
    on_gpu = _on_gpu(method)
    then, now = (
        _processes(*x)
        for x in ((len(content["rng"]), "cuda" in content["rng"][0]), (distributed.world(), on_gpu))
    )
    if then == now:
        rng = content["rng"][distributed.rank()]
        torch.set_rng_state(rng["cpu"])
        if on_gpu:
            torch.cuda.set_rng_state(rng["cuda"])
    else:
        seed_process(run, step)
        if distributed.is_main():
            _log.warning(
                "%s was written by %s, now there are %s: the run goes on, not bit by bit as it would have",
                path,
                then,
                now,
            )
    if distributed.is_main():
        _log.info("resumed %s at step %d", output, step)
        _warn_of_other_files(path, content.get("data"), data)
    return Reached(step, content["evaluated"], content["broken"], data)


def _warn_of_other_files(path: Path, then: Tree | None, now: Tree) -> None:
    """Say what differs between the files that a checkpoint was trained on and those that the run goes on with."""
    if then is None:
        _log.warning(
            "%s was written by an earlier version, which did not record the files that it was trained on; the run goes "
            "on with those in %s, and is exact only if they are the same",
            path,
            now["root"],
        )
    elif then != now:
        changed = "; ".join(f"{name} {a}, now {b}" for name, a, b in differences(then, now, "data"))
        same = " (the sizes of all files are the same)" if then["sizes"] == now["sizes"] else ""
        _log.warning(
            "%s was trained on other files: %s%s; the run goes on with those in %s, and is exact only if they have the "
            "same content",
            path,
            changed,
            same,
            now["root"],
        )


def _processes(world: int, on_gpu: bool) -> str:
    return f"{world} process{'es' if world > 1 else ''} on {'GPUs' if on_gpu else 'CPUs'}"


def _on_gpu(method: Method) -> bool:
    return next(method.parameters()).device.type == "cuda"


def _agree(run: Run, videos: VideoList) -> None:
    """See whether all processes were started for the same run."""
    own = (run.model_dump(mode="json"), videos.fingerprint)
    for number, (config, fingerprint) in enumerate(distributed.gather_objects(own)):
        other = _changes(own[0], config)
        if other:
            raise ConfigError(
                f"process {number} was started with other settings than process {distributed.rank()}: {other}; "
                "give all the same"
            )
        if fingerprint != own[1]:
            raise ConfigError(
                f"{videos.path} differs between processes {number} and {distributed.rank()}: use the same list"
            )


def seed_process(run: Run, step: int = 0) -> None:
    """Give each process random numbers of its own, for dropout; those of the data are functions of the record."""
    if distributed.rank() or step:
        torch.manual_seed(int(generator(run.seed, step, distributed.rank()).integers(2**62)))


def _fitting(content: dict[str, Any], output: Path, run: Run, videos: VideoList) -> dict[str, Any]:
    """Give a checkpoint back if this run may go on from it."""
    missing = sorted(
        {"config", "method", "optimizer", "rng", "fingerprint", "evaluated", "broken"} - content.keys()
    )
    if missing:
        raise CheckpointError(
            f"the checkpoint in {output} has no {', '.join(missing)}: it is no checkpoint of a run"
        )
    # Bound anew: what that run could not say yet, it did as the defaults are.
    then = bind_run(content["config"], f"the config of the checkpoint in {output}")
    changed = _changes(then.model_dump(mode="json"), run.model_dump(mode="json"))
    if changed:
        raise CheckpointError(
            f"{output} holds a run with other settings: {changed}; choose another output, or "
            f"continue that run with --cfg {output / 'config.yaml'}"
        )
    if content["fingerprint"] != videos.fingerprint:
        raise CheckpointError(
            f"{output} holds a run on other videos than {videos.path} lists; choose another output"
        )
    return content


def _changes(then: Tree, now: Tree) -> str:
    """Name the settings that differ and may not: `optimizer.lr 0.1, now 0.2`."""
    return "; ".join(
        f"{name} {json.dumps(a)}, now {json.dumps(b)}"
        for name, a, b in differences(then, now)
        if not any(f"{name}.".startswith(f"{free}.") for free in _FREE)
    )


def save(
    run: Run,
    output: Path,
    reached: Reached,
    videos: VideoList,
    method: Method,
    optimizer: torch.optim.Optimizer,
) -> None:
    """Write a checkpoint of all processes, the main one doing it.

    Raises:
        CheckpointError: It cannot be written: on the main process; PeerError on the others.
    """
    rng = {"cpu": torch.get_rng_state()}
    if _on_gpu(method):
        rng["cuda"] = torch.cuda.get_rng_state()
    states = distributed.gather_objects(rng)

    def write() -> None:
        content = {
            "format": FORMAT,
            **asdict(reached),
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
            "classes": list(videos.classes),
        }
        checkpoint.save(output / "checkpoints", reached.step, content, run.checkpoint.keep)

    distributed.on_main(write)


@contextmanager
def only_run_in(output: Path) -> Iterator[None]:
    """Hold the output folder: a second run in it is refused."""
    with ExitStack() as stack:
        distributed.on_main(lambda: _lock(output, stack))
        yield


def _lock(output: Path, stack: ExitStack) -> None:
    try:
        output.mkdir(parents=True, exist_ok=True)
        file = stack.enter_context(open(output / ".lock", "w"))
    except OSError as error:
        raise ConfigError(
            f"cannot write to output {output}: {error.strerror}; choose another output"
        ) from None
    try:
        # It ends with this process, however that ends.
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise ConfigError(f"another run is writing to {output}; choose another output") from None
