"""Checkpoints: files written atomically and verified before they are loaded; the state of a run, saved and resumed."""

import json
import logging
import platform
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer

from vidssl.base import distributed
from vidssl.base.atomic import file_hash, replacing, sync, temporary_for
from vidssl.base.command_line_and_notices import log_once
from vidssl.base.config import Tree, config_differences
from vidssl.base.errors import CheckpointError, ConfigError, UntrustedError, first_few
from vidssl.base.keyed_generators import generator
from vidssl.base.plugins import changed_files, own_code
from vidssl.base.registry import entries_of
from vidssl.data.list_identity import identify
from vidssl.data.video_list import VideoList
from vidssl.engine.run_config import RunSettings, bind_stored
from vidssl.methods.base import Method
from vidssl.models.checkpoint_files import (
    LAST,
    check_hash,
    checkpoint_path,
    hash_file,
    meaning_of_last,
    read_hashes,
    saved,
    step_of,
)
from vidssl.models.read_and_write_weights import CHECKPOINT_FORMAT, load_state, read_checkpoint
from vidssl.version import __version__
from vidssl.video.other_decoders import backend_version

Bind = Callable[[Any, str, bool], RunSettings]  # a stored config, its source for messages, and whether it is trusted

_log = logging.getLogger(__name__)
_valid: set[Path] = set()  # checkpoints that this process wrote or verified: each is hashed once, not at every save


def write_checkpoint(folder: Path, step: int, content: dict[str, Any], keep: int) -> Path:
    """Write `step-N.pt` and its sha256, point `last.pt` to it, and delete all but the newest `keep` valid ones.

    A crash or power cut at any moment leaves a valid checkpoint: the hash is on disk before the file has its name,
    and the file has its name only once it is complete. This holds too when a step is saved again. A CheckpointError
    if the disk is full or the folder not writable.
    """
    path = checkpoint_path(folder, step)
    try:
        if not folder.is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            sync(folder.parent)
        # Files of a killed process: the lock on the output folder excludes any other writer. They take disk space.
        for left_over in (*folder.glob(".step-*.tmp"), *folder.glob(".last.pt.*.tmp")):
            left_over.unlink(missing_ok=True)
        with replacing(path) as file:
            outer = sys.exc_info()[1]  # such as the signal for which the run is saved
            try:
                torch.save(content, file)
            except RuntimeError as error:
                # After a failed write torch tries to finish the archive, and raises that error instead of the first.
                first = error.__context__
                raise (error if first is None or first is outer else first) from None
            file.flush()
            digest = file_hash(Path(file.name))
            # While an older file has this name, its hash must stay valid beside the new one.
            old = read_hashes(path) if path.exists() and hash_file(path).exists() else []
            _write_hashes(path, [digest, *old])
        sync(folder)
        if old:
            _write_hashes(path, [digest])
        _valid.add(path.resolve())
        _point_last_to(path)
        _delete_old(folder, path, keep)
    except OSError as error:
        raise CheckpointError(
            f"cannot write {path}: {error.strerror}; earlier checkpoints are untouched; free disk space or fix the "
            "permissions of the folder"
        ) from None
    return path


def _point_last_to(path: Path) -> None:
    """Let `last.pt` stand for a checkpoint: as a link, on file systems without links as a text with its name."""
    last = path.with_name(LAST)
    link = temporary_for(last)
    try:
        link.symlink_to(path.name)
        link.replace(last)
    except OSError as error:  # whatever it is: the checkpoint itself could be written
        with replacing(last) as file:
            file.write(path.name.encode())
        reason = f"the file system of the output has no links ({error.strerror})"
        log_once(_log, logging.WARNING, f"{reason}: {LAST} is a text with the name of the newest checkpoint")


def _delete_old(folder: Path, path: Path, keep: int) -> None:
    """Delete what is older than the newest `keep` valid checkpoints but not `path`, and hashes without a checkpoint."""
    valid = 0
    for old in saved(folder):
        if valid >= keep and old != path:
            old.unlink()
        elif _is_valid(old):
            valid += 1
    for left_over in folder.glob("step-*.sha256"):
        if not left_over.with_suffix(".pt").exists():
            left_over.unlink(missing_ok=True)


def _is_valid(path: Path) -> bool:
    if path.resolve() not in _valid:
        with suppress(CheckpointError):
            check_checkpoint(path)
    return path.resolve() in _valid


def newest_valid(folder: Path, trust: bool = False) -> dict[str, Any] | None:
    """Load the newest checkpoint whose hash is right; None if there are none, a CheckpointError if none is valid."""
    copied, is_copy = meaning_of_last(folder, trust)
    if is_copy and copied is not None and not copied.exists():  # of a step without a file: it would be replaced
        _write_hashes(copied, [file_hash(folder / LAST)])
        (folder / LAST).rename(copied)
    errors: list[CheckpointError] = []
    for path in saved(folder):
        try:
            check_checkpoint(path)
            content = read_checkpoint(path, trust)
            if content.get("step") != step_of(path):
                raise CheckpointError(f"{path} holds step {content.get('step')}, unlike its name")
            return content
        except UntrustedError:  # those before it hold objects too
            raise
        except CheckpointError as error:
            _log.warning("%s; falling back to the checkpoint before it", error)
            errors.append(error)
    if errors:
        raise CheckpointError(f"no checkpoint of {folder} is usable: {errors[0]}; fix it, or delete all to start over")
    return None


def check_checkpoint(path: Path) -> str:
    """Compare a checkpoint with the sha256 beside it, as `check_hash`, and remember that it is valid."""
    digest = check_hash(path)
    _valid.add(path.resolve())
    return digest


def _write_hashes(path: Path, hashes: list[str]) -> None:
    with replacing(hash_file(path)) as file:
        file.write("\n".join(hashes).encode())


# Settings that may differ when a run is resumed: where and how fast it computes, not what.
_FREE = {
    "output", "device", "log_every", "checkpoint", "compile", "verify_every", "evaluate",
    "data.train", "data.root", "data.workers", "data.timeout", "data.max_broken", "data.cache",
    "data.moving_digits",
}  # fmt: skip


@dataclass
class RunState:
    """The progress of a run, saved with it."""

    step: int  # optimizer steps done; the one counter of the loop
    evaluated: int  # the step of the last evaluation
    broken: dict[str, str]  # broken videos found so far, path to reason
    data: Tree  # the training files, as `identify` describes them
    code: dict[str, str] = field(default_factory=dict)  # of the user, see `own_code`
    changed_code: dict[int, str] = field(default_factory=dict)  # step at which the run went on with other code: files


def save(run: RunSettings, videos: VideoList, method: Method, optimizer: Optimizer, state: RunState) -> None:
    """Write a checkpoint with the state of all processes; called on all, the main one writes."""
    on_gpu = {"cuda": torch.cuda.get_rng_state()} if _on_gpu(method) else {}
    all_rng = distributed.gather_objects({"cpu": torch.get_rng_state(), **on_gpu})
    distributed.on_main(partial(_write, run, videos, method, optimizer, state, all_rng))


def _write(
    run: RunSettings, videos: VideoList, method: Method, optimizer: Optimizer, state: RunState, all_rng: list[Tree]
) -> None:
    versions = {
        "vidssl": __version__,
        "torch": str(torch.__version__),  # a TorchVersion is not plain data
        "python": platform.python_version(),
    }
    if run.decoder is not None:
        versions[run.decoder] = backend_version(run.decoder)
    content = {
        "format": CHECKPOINT_FORMAT,
        **asdict(state),
        "config": run.model_dump(mode="json"),
        "method": method.state_dict(),
        "optimizer": optimizer.state_dict(),
        "rng": all_rng,
        "versions": versions,
        "fingerprint": videos.fingerprint,
        "classes": list(videos.classes),
    }
    write_checkpoint(Path(run.output) / "checkpoints", state.step, content, run.checkpoint.keep)


def resume(
    run: RunSettings, videos: VideoList, method: Method, optimizer: Optimizer, bind: Bind = bind_stored
) -> RunState:
    """Load the newest valid checkpoint of the output folder into method and optimizer, the same on all processes.

    `bind` binds a stored config of this kind. If the files of the list have changed, for example under another
    `data.root`, the run continues with a warning.
    """
    entries = entries_of(run.model_dump(mode="json"))
    code = own_code([*run.imports, *(str(getattr(entry, "__module__", "")) for entry in entries)])
    _check_processes_agree(run, videos, code)
    data = distributed.on_main(lambda: identify(videos))
    # The main process alone chooses the checkpoint, as choosing means hashing it; the others read the same file.
    folder, trust = Path(run.output) / "checkpoints", run.checkpoint.trust
    newest = distributed.together(lambda: newest_valid(folder, trust) if distributed.is_main() else None)
    step: int = distributed.gather_objects(newest["step"] if newest else 0)[0]
    if not step:
        return RunState(0, 0, {}, data, code)
    path = checkpoint_path(folder, step)

    def check() -> tuple[Tree, dict[int, str]]:
        content = _check_same_run(newest or read_checkpoint(path, trust), run, videos, bind)
        return content, {**content.get("changed_code", {}), **_check_code(content, run, code)}

    content, changed_code = distributed.together(check)
    load_state(method, content["method"], str(path))
    optimizer.load_state_dict(content["optimizer"])
    _restore_rng(run, content, path, _on_gpu(method))
    if distributed.is_main():
        _log.info("resumed %s at step %d", run.output, step)
        if changes := config_differences(content["data"], data, "data"):
            changed = "; ".join(f"{name} {a}, now {b}" for name, a, b in changes)
            _log.warning("%s was trained on other files: %s; exact only if their content is the same", path, changed)
    return RunState(step, content["evaluated"], content["broken"], data, code, changed_code)


def seed_process(run: RunSettings, step: int = 0) -> None:
    """Seed torch differently on each process, for dropout; the random numbers of the data do not depend on it."""
    if distributed.rank() or step:
        torch.manual_seed(int(generator(run.seed, step, distributed.rank()).integers(2**62)))


def _restore_rng(run: RunSettings, content: Tree, path: Path, on_gpu: bool) -> None:
    """Restore torch's random state; with another number or kind of processes there is none to restore."""
    states = content["rng"]
    before, now = _processes(len(states), "cuda" in states[0]), _processes(distributed.world(), on_gpu)
    if before == now:
        torch.set_rng_state(states[distributed.rank()]["cpu"])
        if on_gpu:
            torch.cuda.set_rng_state(states[distributed.rank()]["cuda"])
    else:
        seed_process(run, content["step"])
        if distributed.is_main():
            _log.warning("%s was written by %s, this run has %s: it continues, but not bit-exactly", path, before, now)


def _processes(world: int, on_gpu: bool) -> str:
    return f"{world} process{'es' if world > 1 else ''} on {'GPUs' if on_gpu else 'CPUs'}"


def _on_gpu(method: Method) -> bool:
    return next(method.parameters()).device.type == "cuda"


def _check_processes_agree(run: RunSettings, videos: VideoList, code: dict[str, str]) -> None:
    rank, started_with = distributed.rank(), (run.model_dump(mode="json"), videos.fingerprint, code)
    for number, (config, fingerprint, code_there) in enumerate(distributed.gather_objects(started_with)):
        if changes := "; ".join(_changes(config, run)):
            raise ConfigError(f"processes {number} and {rank} have other settings: {changes}; start all with the same")
        if fingerprint != videos.fingerprint:
            raise ConfigError(f"{videos.path} differs between processes {number} and {rank}: use the same list")
        if files := first_few(changed_files(code_there, code)):
            raise ConfigError(f"{files} differs between processes {number} and {rank}: use the same code")


def _check_same_run(content: Tree, run: RunSettings, videos: VideoList, bind: Bind) -> Tree:
    """Return a checkpoint if this run may continue from it."""
    # Bound again, so that settings which were added since have their defaults.
    source, trust = f"the config of the checkpoint in {run.output}", run.checkpoint.trust
    before = bind(content["config"], source, trust).model_dump(mode="json")
    changes = _changes(before, run)
    if content["fingerprint"] != videos.fingerprint:
        changes.append(f"other videos than {videos.path} lists, or other weights of lists")
    if changes:
        remedy = f"choose another output, with init={run.output} to train its network further"
        remedy += f", or continue that run with its own config, {Path(run.output) / 'config.yaml'}"
        raise CheckpointError(f"{run.output} holds a run with other settings: {'; '.join(changes)}; {remedy}")
    return content


def _check_code(content: Tree, run: RunSettings, code: dict[str, str]) -> dict[int, str]:
    """Check that a run goes on with the user's code that it was trained with; changes that it may have are returned."""
    step, changed = content["step"], first_few(changed_files(content.get("code", code), code))
    if not changed:
        return {}
    text = f"{run.output} was trained with other code up to step {step}: {changed} changed since"
    if not run.checkpoint.changed_code:
        raise CheckpointError(f"{text}; choose another output, or go on with it: checkpoint.changed_code=true")
    if distributed.is_main():
        _log.warning("%s; it goes on with the new code", text)
    return {step: changed}


def _changes(before: Tree, run: RunSettings) -> list[str]:
    """List the settings that differ but may not: `optimizer.lr 0.1, now 0.2`."""
    return [
        f"{name} {json.dumps(a)}, now {json.dumps(b)}"
        for name, a, b in config_differences(before, run.model_dump(mode="json"))
        if not any(f"{name}.".startswith(f"{free}.") for free in _FREE)
    ]
