"""Checkpoint files: written atomically, with a sha256 beside each, verified before they are loaded."""

import logging
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from vidssl.atomic import file_hash, replacing, sync, temporary_for
from vidssl.errors import CheckpointError, UntrustedError
from vidssl.models.checkpoint_files import (
    LAST,
    check_hash,
    hash_file,
    meaning_of_last,
    path_of,
    read_hashes,
    saved,
    step_of,
)
from vidssl.models.weights import read_checkpoint
from vidssl.running_command import log_once

_log = logging.getLogger(__name__)
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
            check(path)
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
    """Compare a checkpoint with the sha256 beside it, as `check_hash`, and remember that it is valid."""
    digest = check_hash(path)
    _valid.add(path.resolve())
    return digest


def _write_hashes(path: Path, hashes: list[str]) -> None:
    with replacing(hash_file(path)) as file:
        file.write("\n".join(hashes).encode())
