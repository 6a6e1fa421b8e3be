"""Checkpoints: written whole or not at all, checked before they are trusted, never torn."""

import hashlib
import io
import logging
import re
from pathlib import Path
from typing import Any, BinaryIO

import torch

from vidssl.atomic import replacing, replacing_path, sync
from vidssl.errors import CheckpointError
from vidssl.models.weights import UntrustedError, read_checkpoint

_log = logging.getLogger(__name__)
_NAME = re.compile(r"step-(\d+)\.pt")

# Checkpoints that this process wrote or checked: each is hashed once, not at every save.
_sound: set[Path] = set()


def save(folder: Path, step: int, content: dict[str, Any], keep: int) -> Path:
    """Write `step-N.pt` with its sha256 beside it, point `last.pt` to it, keep the newest `keep` sound ones.

    A crash or a power cut at any moment leaves what was there: the file appears under its name only when it
    is complete and on disk, and its hash is there before it. The same holds where a step is saved again, as
    after a fall-back to an earlier one. The tensors are not copied in memory.

    Raises:
        CheckpointError: The disk is full or the folder cannot be written.
    """
    path = path_of(folder, step)
    try:
        if not folder.is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            sync(folder.parent)
        # By a process that was killed; the lock of the run lets only one write. First: they take up room.
        for left_over in folder.glob(".*.tmp"):
            left_over.unlink(missing_ok=True)
        with replacing(path) as file:
            digest = _dump(content, file)
            # While there is a file of this name, its hash stays valid beside the new one.
            known = _hashes(path) if path.exists() and _hash_file(path).exists() else []
            _write_hashes(path, [digest, *known])
        sync(folder)
        if known:
            _write_hashes(path, [digest])
        _sound.add(path.absolute())
        _point(folder / "last.pt", path.name)
        _retain(folder, path, keep)
    except OSError as error:
        raise CheckpointError(
            f"cannot write {path}: {error.strerror}; earlier checkpoints are untouched; make room, or let this user "
            "write there"
        ) from None
    return path


def path_of(folder: Path, step: int) -> Path:
    """Where the checkpoint of a step is."""
    return folder / f"step-{step:08d}.pt"


def saved(folder: Path) -> list[Path]:
    """List the checkpoints of a folder, newest first."""
    found = [path for path in folder.glob("step-*.pt") if _NAME.fullmatch(path.name)]
    return sorted(found, key=_step_of, reverse=True)


def _step_of(path: Path) -> int:
    return int(path.stem.removeprefix("step-"))


def newest_valid(folder: Path, trust: bool = False) -> dict[str, Any] | None:
    """Load the newest checkpoint whose hash is right; None where there is no checkpoint at all.

    Args:
        folder: Of the checkpoints.
        trust: As of `read_checkpoint`.

    Raises:
        CheckpointError: There are checkpoints and none is sound: the run must not silently start again.
        UntrustedError: The newest holds more than tensors and plain data, as those before it will.
    """
    errors: list[CheckpointError] = []
    for path in saved(folder):
        try:
            check(path)
            _sound.add(path.absolute())
            content = read_checkpoint(path, trust)
            if content.get("step") != _step_of(path):
                raise CheckpointError(f"{path} holds step {content.get('step')}, not that of its name")
            return content
        except UntrustedError:
            raise
        except CheckpointError as error:
            _log.warning("%s; falling back to the checkpoint before it", error)
            errors.append(error)
    if errors:
        raise CheckpointError(
            f"none of the {len(errors)} checkpoints in {folder} can be used; the newest: {errors[0]}; mend that, or "
            "delete them to start anew"
        )
    return None


def check(path: Path) -> str:
    """Compare a checkpoint with its sha256 and give that.

    Raises:
        CheckpointError: They differ, or there is no hash.
    """
    try:
        expected = _hashes(path.resolve())
        actual = file_hash(path)
    except OSError as error:
        raise CheckpointError(f"cannot check {path}: {error.strerror} ({error.filename})") from None
    if actual not in expected:
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


def _retain(folder: Path, path: Path, keep: int) -> None:
    """Delete what is older than the newest `keep` sound checkpoints, and hashes without a checkpoint.

    Damaged ones do not count, so that `keep` sound ones stay; they go when they are older than those. The one
    that was just written, `path`, stays even where there are later ones: a resume passed them over.
    """
    sound = 0
    for old in saved(folder):
        if sound >= keep and old != path:
            old.unlink()
            _sound.discard(old.absolute())
        elif _is_sound(old):
            sound += 1
    for hash_file in folder.glob("step-*.sha256"):
        if not hash_file.with_suffix(".pt").exists():
            hash_file.unlink(missing_ok=True)


def _is_sound(path: Path) -> bool:
    if path.absolute() not in _sound:
        try:
            check(path)
        except CheckpointError:
            return False
        _sound.add(path.absolute())
    return True


class _Hashed:
    """What torch writes into a file, hashed on its way."""

    def __init__(self, file: BinaryIO) -> None:
        self.digest = hashlib.sha256()
        self.failure: BaseException | None = None
        self._file = file

    def write(self, data: Any) -> int:
        """Write bytes."""
        try:
            self.digest.update(data)
            return self._file.write(data)
        except BaseException as error:
            self.failure = self.failure or error
            raise

    def flush(self) -> None:
        """Give the file all that was written: a full disk is noticed here, before there is a hash."""
        self._file.flush()


def _dump(content: dict[str, Any], file: BinaryIO) -> str:
    """Write a checkpoint; give its sha256."""
    hashed = _Hashed(file)
    try:
        torch.save(content, hashed)  # type: ignore[arg-type]  # all that torch asks of it is there
    except BaseException:
        # torch then tries to write the end of the file, and tells of that instead of the full disk or Ctrl-C.
        if hashed.failure is not None:
            raise hashed.failure from None
        raise
    return hashed.digest.hexdigest()


def _write_hashes(path: Path, hashes: list[str]) -> None:
    with replacing(_hash_file(path)) as file:
        file.write("\n".join(hashes).encode())


def _hashes(path: Path) -> list[str]:
    """Read the hashes that are valid for a checkpoint: one, or two while it is being replaced."""
    return _hash_file(path).read_text(errors="replace").split()


def _point(link: Path, target: str) -> None:
    with replacing_path(link) as temporary:
        temporary.symlink_to(target)


def _hash_file(path: Path) -> Path:
    return path.with_suffix(".sha256")
