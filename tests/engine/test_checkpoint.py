"""Checkpoints that survive crashes, bad bytes and full disks."""

import errno
import hashlib
import logging
import os
from pathlib import Path

import pytest
import torch

from vidssl.engine import checkpoint
from vidssl.errors import CheckpointError
from vidssl.models.weights import FORMAT


def content(step):
    return {"format": FORMAT, "step": step, "method": {"w": torch.full((50,), float(step))}}


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def files_of(*steps):
    return sorted([f"step-{n:08d}.{suffix}" for n in steps for suffix in ("pt", "sha256")] + ["last.pt"])


@pytest.fixture
def folder(tmp_path):
    """Two checkpoints, of steps 4 and 8."""
    folder = tmp_path / "run" / "checkpoints"
    for step in (4, 8):
        checkpoint.save(folder, step, content(step), keep=2)
    return folder


def test_a_checkpoint_and_its_hash(folder):
    assert names(folder) == files_of(4, 8)
    path = folder / "step-00000008.pt"
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert (folder / "step-00000008.sha256").read_text() == digest
    assert checkpoint.check(path) == checkpoint.check(folder / "last.pt") == digest
    loaded = checkpoint.newest_valid(folder)
    assert loaded["step"] == 8 and torch.equal(loaded["method"]["w"], content(8)["method"]["w"])


def test_last_is_a_relative_link(folder, tmp_path):
    assert (folder / "last.pt").readlink() == Path("step-00000008.pt")
    moved = tmp_path / "elsewhere"
    folder.rename(moved)
    assert checkpoint.check(moved / "last.pt") == (moved / "step-00000008.sha256").read_text()


@pytest.mark.parametrize("keep", [2, 3])
def test_the_newest_are_kept(folder, keep):
    for step in (9, 10, 100000000):
        checkpoint.save(folder, step, content(step), keep)
    assert names(folder) == files_of(*(8, 9, 10, 100000000)[-keep:])
    assert [path.name for path in checkpoint.saved(folder)] == [
        f"step-{n:08d}.pt" for n in (100000000, 10, 9)[:keep]
    ]


def test_no_checkpoint_at_all(tmp_path):
    assert checkpoint.newest_valid(tmp_path) is None
    assert checkpoint.newest_valid(tmp_path / "missing") is None


DAMAGES = {
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-100]),
    "flipped": lambda path: path.write_bytes(path.read_bytes()[:-300] + b"\x55" + path.read_bytes()[-299:]),
    "empty": lambda path: path.write_bytes(b""),
    "without hash": lambda path: path.with_suffix(".sha256").unlink(),
    "of another hash": lambda path: path.with_suffix(".sha256").write_text("0" * 64),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_fault_17_a_damaged_checkpoint_falls_back_to_the_one_before(damage, folder, caplog):
    DAMAGES[damage](folder / "step-00000008.pt")
    with pytest.raises(CheckpointError):
        checkpoint.check(folder / "step-00000008.pt")
    with caplog.at_level(logging.WARNING):
        assert checkpoint.newest_valid(folder)["step"] == 4
    assert "step-00000008" in caplog.text and "falling back to the checkpoint before it" in caplog.text


def test_fault_17_with_none_that_is_sound_nothing_starts_again(folder):
    for path in checkpoint.saved(folder):
        DAMAGES["truncated"](path)
    with pytest.raises(
        CheckpointError, match=r"none of the 2 checkpoints in .* is sound; delete them to start anew"
    ):
        checkpoint.newest_valid(folder)


def test_fault_17_a_sound_hash_of_something_else(folder, caplog):
    path = folder / "step-00000008.pt"
    torch.save({"other": 1}, path)
    path.with_suffix(".sha256").write_text(hashlib.sha256(path.read_bytes()).hexdigest())
    assert checkpoint.newest_valid(folder)["step"] == 4
    assert "is no checkpoint of vidssl" in caplog.text


class Killed(BaseException):
    """The process ends here."""


POINTS = [("fsync", 1), ("replace", 1), ("fsync", 2), ("replace", 2), ("symlink", 1), ("replace", 3)]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(("call", "count"), POINTS)
def test_fault_16_a_kill_at_any_moment_leaves_a_checkpoint_that_loads(call, count, when, folder, monkeypatch):
    calls = 0

    def wrap(original):
        def wrapped(*arguments, **options):
            nonlocal calls
            calls += 1
            if calls == count and when == "before":
                raise Killed
            result = original(*arguments, **options)
            if calls == count:
                raise Killed
            return result

        return wrapped

    with monkeypatch.context() as patch:
        if call == "symlink":
            patch.setattr(Path, "symlink_to", wrap(Path.symlink_to))
        else:
            patch.setattr(os, call, wrap(getattr(os, call)))
        patch.setattr(os, "getpid", lambda: 4_000_000)  # of another process than the one that goes on
        # A killed process cleans nothing up.
        patch.setattr(Path, "unlink", lambda self, missing_ok=False: None)
        with pytest.raises(Killed):
            checkpoint.save(folder, 12, content(12), keep=2)
    complete = (call, count, when) in {("replace", 2, "after"), ("symlink", 1, "before"), ("symlink", 1, "after"),
                                       ("replace", 3, "before"), ("replace", 3, "after")}  # fmt: skip
    assert checkpoint.newest_valid(folder)["step"] == (12 if complete else 8)
    checkpoint.check(folder / "last.pt")
    checkpoint.save(folder, 12, content(12), keep=2)
    assert names(folder) == files_of(8, 12)  # what the dead process left is gone


def test_fault_18_a_full_disk(folder, monkeypatch):
    def full(file):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        CheckpointError, match=r"^cannot write .*step-00000012.pt: No space left on device; earlier"
    ):
        checkpoint.save(folder, 12, content(12), keep=2)
    assert names(folder) == files_of(4, 8) and checkpoint.newest_valid(folder)["step"] == 8


def test_fault_18_a_folder_that_cannot_be_written(folder, monkeypatch):
    def refuse(*arguments):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(CheckpointError, match="Permission denied; earlier checkpoints are untouched"):
        checkpoint.save(folder, 12, content(12), keep=2)
    assert names(folder) == files_of(4, 8)


def test_fault_18_a_file_where_the_folder_should_be(tmp_path):
    (tmp_path / "checkpoints").write_text("")
    with pytest.raises(CheckpointError, match="cannot write"):
        checkpoint.save(tmp_path / "checkpoints", 1, content(1), keep=2)
