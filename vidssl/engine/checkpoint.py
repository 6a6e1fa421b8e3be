"""Checkpoints: written whole or not at all, checked before they are trusted, never overwritten."""

import hashlib
import io
import logging
import os
import re
from pathlib import Path
from typing import Any

import torch

from vidssl.errors import CheckpointError
from vidssl.models.weights import read_checkpoint

_log = logging.getLogger(__name__)
_NAME = re.compile(r"step-(\d+)\.pt")


def save(folder: Path, step: int, content: dict[str, Any], keep: int) -> Path:
    """Write `step-N.pt` with its sha256 beside it, point `last.pt` to it, delete all but the newest `keep`.

    A crash at any moment leaves the previous checkpoint as it was: the file appears under its name only when
    it is complete and on disk.

    Raises:
        CheckpointError: The disk is full or the folder cannot be written.
    """
    buffer = io.BytesIO()
    torch.save(content, buffer)
    path = folder / f"step-{step:08d}.pt"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write(_hash_file(path), hashlib.sha256(buffer.getbuffer()).hexdigest().encode())
        _write(path, buffer.getbuffer())
        link = _temporary(folder / "last.pt")
        link.unlink(missing_ok=True)
        link.symlink_to(path.name)
        os.replace(link, folder / "last.pt")
        for old in saved(folder)[keep:]:
            old.unlink()
            _hash_file(old).unlink(missing_ok=True)
        # By a process that was killed; the lock of the run lets only one write.
        for left_over in folder.glob(".*.tmp"):
            left_over.unlink(missing_ok=True)
    except OSError as error:
        raise CheckpointError(
            f"cannot write {path}: {error.strerror}; earlier checkpoints are untouched"
        ) from None
    return path


def saved(folder: Path) -> list[Path]:
    """List the checkpoints of a folder, newest first."""
    found = [path for path in folder.glob("step-*.pt") if _NAME.fullmatch(path.name)]
    return sorted(found, key=lambda path: int(_NAME.fullmatch(path.name)[1]), reverse=True)  # type: ignore[index]


def newest_valid(folder: Path) -> dict[str, Any] | None:
    """Load the newest checkpoint whose hash is right; None where there is no checkpoint at all.

    Raises:
        CheckpointError: There are checkpoints and none is sound: the run must not silently start again.
    """
    paths = saved(folder)
    for path in paths:
        try:
            check(path)
            return read_checkpoint(path)
        except CheckpointError as error:
            _log.warning("%s; falling back to the checkpoint before it", error)
    if paths:
        raise CheckpointError(
            f"none of the {len(paths)} checkpoints in {folder} is sound; delete them to start anew"
        )
    return None


def check(path: Path) -> str:
    """Compare a checkpoint with its sha256 and give that.

    Raises:
        CheckpointError: They differ, or there is no hash.
    """
    try:
        expected = _hash_file(path.resolve()).read_text().strip()
        actual = file_hash(path)
    except OSError as error:
        raise CheckpointError(f"cannot check {path}: {error.strerror} ({error.filename})") from None
    if actual != expected:
        raise CheckpointError(
            f"checkpoint {path} is damaged: its sha256 is not the one that was written beside it"
        )
    return actual


def file_hash(path: Path) -> str:
    """Give the sha256 of a file, in hex."""
    with open(path, "rb") as file:
        return (
            hashlib.file_digest(file, "sha256").hexdigest()
            if hasattr(hashlib, "file_digest")
            else _digest(file)
        )


def _digest(file: io.BufferedReader) -> str:  # Python 3.10
    digest = hashlib.sha256()
    while block := file.read(1 << 20):
        digest.update(block)
    return digest.hexdigest()


def _hash_file(path: Path) -> Path:
    return path.with_suffix(".sha256")


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def _write(path: Path, content: bytes | memoryview) -> None:
    temporary = _temporary(path)
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
