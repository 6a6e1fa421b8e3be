"""Checkpoint files: written atomically, with a sha256 beside each, verified before they are loaded."""

import hashlib
import logging
import re
from pathlib import Path
from typing import Any, BinaryIO

import torch

from vidssl.atomic import replacing, replacing_path, sync
from vidssl.errors import CheckpointError, UntrustedError
from vidssl.models.weights import read_checkpoint

_log = logging.getLogger(__name__)
_NAME = re.compile(r"step-(\d+)\.pt")

# Checkpoints that this process wrote or verified: each is hashed once, not at every save.
_valid: set[Path] = set()


def save(folder: Path, step: int, content: dict[str, Any], keep: int) -> Path:
    """Write `step-N.pt` and its sha256, point `last.pt` to it, delete all but the newest `keep` valid checkpoints.

    A crash or power cut at any moment leaves a valid checkpoint: the hash is on disk before the file has its name,
    and the file has its name only once it is complete. This holds too when a step is saved again, as after falling
    back to an earlier checkpoint. Tensors are not copied in memory.

    Raises:
        CheckpointError: The disk is full or the folder is not writable.
    """
    path = path_of(folder, step)
    try:
        if not folder.is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            sync(folder.parent)
        # Files of a killed process: the lock on the output folder excludes any other writer. They take disk space.
        for left_over in folder.glob(".*.tmp"):
            left_over.unlink(missing_ok=True)
        with replacing(path) as file:
            digest = _write(content, file)
            # While an older file has this name, its hash must stay valid beside the new one.
            old = _hashes(path) if path.exists() and _hash_file(path).exists() else []
            _write_hashes(path, [digest, *old])
        sync(folder)
        if old:
            _write_hashes(path, [digest])
        _valid.add(path.absolute())
        with replacing_path(folder / "last.pt") as link:
            link.symlink_to(path.name)
        _delete_old(folder, path, keep)
    except OSError as error:
        raise CheckpointError(
            f"cannot write {path}: {error.strerror}; earlier checkpoints are untouched; free disk space or fix the "
            "permissions of the folder"
        ) from None
    return path


def path_of(folder: Path, step: int) -> Path:
    """Return the path of the checkpoint of a step."""
    return folder / f"step-{step:08d}.pt"


def saved(folder: Path) -> list[Path]:
    """List the checkpoints of a folder, newest first."""
    found = [path for path in folder.glob("step-*.pt") if _NAME.fullmatch(path.name)]
    return sorted(found, key=step_of, reverse=True)


def step_of(path: Path) -> int:
    """Return the step in the name of a checkpoint."""
    return int(path.stem.removeprefix("step-"))


def newest_valid(folder: Path, trust: bool = False) -> dict[str, Any] | None:
    """Load the newest checkpoint whose hash is right; None if there are no checkpoints.

    Args:
        folder: The folder of the checkpoints.
        trust: See `read_checkpoint`.

    Raises:
        CheckpointError: There are checkpoints but none is valid: the run must not silently start over.
        UntrustedError: The newest one holds objects, as those before it will.
    """
    errors: list[CheckpointError] = []
    for path in saved(folder):
        try:
            check(path)
            _valid.add(path.absolute())
            content = read_checkpoint(path, trust)
            if content.get("step") != step_of(path):
                raise CheckpointError(f"{path} holds step {content.get('step')}, unlike its name")
            return content
        except UntrustedError:
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
    """Compare a checkpoint with the sha256 beside it, and return that.

    Raises:
        CheckpointError: They differ, or one of the two files cannot be read.
    """
    try:
        expected = _hashes(path.resolve())
        actual = file_hash(path)
    except OSError as error:
        raise CheckpointError(f"cannot check {path}: {error.strerror} ({error.filename})") from None
    if actual not in expected:
        raise CheckpointError(f"checkpoint {path} is damaged: its sha256 differs from the one beside it")
    return actual


def file_hash(path: Path) -> str:
    """Return the sha256 of a file, in hex."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _delete_old(folder: Path, path: Path, keep: int) -> None:
    """Delete checkpoints older than the newest `keep` valid ones, and hashes without a checkpoint.

    Damaged ones do not count, so that `keep` valid ones stay. The one just written, `path`, stays even if there are
    later ones: they were damaged when the run was resumed.
    """
    valid = 0
    for old in saved(folder):
        if valid >= keep and old != path:
            old.unlink()
            _valid.discard(old.absolute())
        elif _is_valid(old):
            valid += 1
    for hash_file in folder.glob("step-*.sha256"):
        if not hash_file.with_suffix(".pt").exists():
            hash_file.unlink(missing_ok=True)


def _is_valid(path: Path) -> bool:
    if path.absolute() not in _valid:
        try:
            check(path)
        except CheckpointError:
            return False
        _valid.add(path.absolute())
    return True


class _Hashed:
    """A file for `torch.save` that hashes what is written: no second pass over gigabytes."""

    def __init__(self, file: BinaryIO) -> None:
        self.digest = hashlib.sha256()
        self.failure: BaseException | None = None
        self._file = file

    def write(self, data: Any) -> int:
        try:
            self.digest.update(data)
            return self._file.write(data)
        except BaseException as error:
            self.failure = self.failure or error
            raise

    def flush(self) -> None:
        self._file.flush()


def _write(content: dict[str, Any], file: BinaryIO) -> str:
    """Write a checkpoint and return its sha256."""
    hashed = _Hashed(file)
    try:
        torch.save(content, hashed)  # type: ignore[arg-type]  # write and flush are all that torch calls
    except BaseException:
        # After a failed write torch tries to finish the archive, and raises that error instead of the first.
        if hashed.failure is not None:
            raise hashed.failure from None
        raise
    file.flush()  # a full disk must be noticed before the hash is written
    return hashed.digest.hexdigest()


def _write_hashes(path: Path, hashes: list[str]) -> None:
    with replacing(_hash_file(path)) as file:
        file.write("\n".join(hashes).encode())


def _hashes(path: Path) -> list[str]:
    """Read the hashes that are valid for a checkpoint: one, or two while it is being replaced."""
    return _hash_file(path).read_text(errors="replace").split()


def _hash_file(path: Path) -> Path:
    return path.with_suffix(".sha256")
