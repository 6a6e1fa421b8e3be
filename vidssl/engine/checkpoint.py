"""Checkpoint files: written atomically, with a sha256 beside each, verified before they are loaded."""

import logging
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from vidssl.atomic import file_hash, replacing, sync, temporary_for
from vidssl.errors import CheckpointError, UntrustedError
from vidssl.models.weights import read_checkpoint

_log = logging.getLogger(__name__)
_NAME = re.compile(r"step-\d+\.pt")
_valid: set[Path] = set()  # checkpoints that this process wrote or verified: each is hashed once, not at every save


def save(folder: Path, step: int, content: dict[str, Any], keep: int) -> Path:
    """Write `step-N.pt` and its sha256, point `last.pt` to it, and delete all but the newest `keep` valid ones.

    A crash or power cut at any moment leaves a valid checkpoint: the hash is on disk before the file has its name,
    and the file has its name only once it is complete. This holds too when a step is saved again. A CheckpointError
    if the disk is full or the folder not writable.
    """
    path = path_of(folder, step)
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
            old = _hashes(path) if path.exists() and _hash_file(path).exists() else []
            _write_hashes(path, [digest, *old])
        sync(folder)
        if old:
            _write_hashes(path, [digest])
        _valid.add(path.resolve())
        link = temporary_for(folder / "last.pt")
        link.symlink_to(path.name)
        link.replace(folder / "last.pt")
        _delete_old(folder, path, keep)
    except OSError as error:
        raise CheckpointError(
            f"cannot write {path}: {error.strerror}; earlier checkpoints are untouched; free disk space or fix the "
            "permissions of the folder"
        ) from None
    return path


def _delete_old(folder: Path, path: Path, keep: int) -> None:
    """Delete what is older than the newest `keep` valid checkpoints but not `path`, and hashes without a checkpoint."""
    valid = 0
    for old in saved(folder):
        if valid >= keep and old != path:
            old.unlink()
        elif _is_valid(old):
            valid += 1
    for hash_file in folder.glob("step-*.sha256"):
        if not hash_file.with_suffix(".pt").exists():
            hash_file.unlink(missing_ok=True)


def _is_valid(path: Path) -> bool:
    if path.resolve() not in _valid:
        with suppress(CheckpointError):
            check(path)
    return path.resolve() in _valid


def path_of(folder: Path, step: int) -> Path:
    """Return the path of the checkpoint of a step."""
    return folder / f"step-{step:08d}.pt"


def step_of(path: Path) -> int:
    """Return the step in the name of a checkpoint."""
    return int(path.stem.removeprefix("step-"))


def saved(folder: Path) -> list[Path]:
    """List the checkpoints of a folder, newest first."""
    return sorted(filter(lambda path: _NAME.fullmatch(path.name), folder.glob("step-*.pt")), key=step_of, reverse=True)


def newest_valid(folder: Path, trust: bool = False) -> dict[str, Any] | None:
    """Load the newest checkpoint whose hash is right; None if there are none, a CheckpointError if none is valid."""
    errors: list[CheckpointError] = []
    for path in saved(folder):
        try:
            check(path)
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
        raise CheckpointError(
            f"none of the {len(errors)} checkpoints in {folder} can be used; the newest: {errors[0]}; fix this, or "
            "delete them to start over"
        )
    return None


def check(path: Path) -> str:
    """Compare a checkpoint with the sha256 beside it, and return that; a CheckpointError if they differ."""
    try:
        expected = _hashes(path.resolve())
        actual = file_hash(path)
    except OSError as error:
        raise CheckpointError(f"cannot check {path}: {error.strerror} ({error.filename})") from None
    if actual not in expected:
        raise CheckpointError(f"checkpoint {path} is damaged: its sha256 differs from the one beside it")
    _valid.add(path.resolve())
    return actual


def _write_hashes(path: Path, hashes: list[str]) -> None:
    with replacing(_hash_file(path)) as file:
        file.write("\n".join(hashes).encode())


def _hashes(path: Path) -> list[str]:
    """Read the hashes that are valid for a checkpoint: one, or two while it is being replaced."""
    return _hash_file(path).read_text(errors="replace").split()


def _hash_file(path: Path) -> Path:
    return path.with_suffix(".sha256")
