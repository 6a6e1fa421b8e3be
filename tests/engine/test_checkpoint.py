"""Checkpoints that survive crashes, bad bytes and full disks."""

import errno
import hashlib
import logging
import os
import resource
import tracemalloc
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from vidssl.base import atomic
from vidssl.base.errors import CheckpointError, Interrupted, UntrustedError
from vidssl.engine import checkpoint
from vidssl.models import checkpoint_files
from vidssl.models.read_and_write_weights import CHECKPOINT_FORMAT


def content(step):
    return {
        "format": CHECKPOINT_FORMAT,
        "step": step,
        "config": {"backbone": {"name": "resnet3d18"}},
        "method": {"w": torch.full((50,), float(step))},
    }


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def files_of(*steps):
    return sorted([f"step-{n:08d}.{suffix}" for n in steps for suffix in ("pt", "sha256")] + ["last.pt"])


@pytest.fixture
def folder(tmp_path):
    """Two checkpoints, of steps 4 and 8."""
    folder = tmp_path / "run" / "checkpoints"
    for step in (4, 8):
        checkpoint.write_checkpoint(folder, step, content(step), keep=2)
    return folder


def test_a_checkpoint_and_its_hash(folder):
    assert names(folder) == files_of(4, 8)
    path = folder / "step-00000008.pt"
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert (folder / "step-00000008.sha256").read_text() == digest
    assert checkpoint.check_checkpoint(path) == checkpoint.check_checkpoint(folder / "last.pt") == digest
    loaded = checkpoint.newest_valid(folder)
    assert loaded["step"] == 8 and torch.equal(loaded["method"]["w"], content(8)["method"]["w"])


def test_last_is_a_relative_link(folder, tmp_path):
    assert (folder / "last.pt").readlink() == Path("step-00000008.pt")
    moved = tmp_path / "elsewhere"
    folder.rename(moved)
    assert checkpoint.check_checkpoint(moved / "last.pt") == (moved / "step-00000008.sha256").read_text()


@pytest.mark.parametrize("keep", [2, 3])
def test_the_newest_are_kept(folder, keep):
    for step in (9, 10, 100000000):
        checkpoint.write_checkpoint(folder, step, content(step), keep)
    assert names(folder) == files_of(*(8, 9, 10, 100000000)[-keep:])
    assert [path.name for path in checkpoint.saved(folder)] == [f"step-{n:08d}.pt" for n in (100000000, 10, 9)[:keep]]


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
        checkpoint.check_checkpoint(folder / "step-00000008.pt")
    with caplog.at_level(logging.WARNING):
        assert checkpoint.newest_valid(folder)["step"] == 4
    assert "step-00000008" in caplog.text and "falling back to the checkpoint before it" in caplog.text


def test_fault_17_with_none_that_is_sound_nothing_starts_again(folder):
    for path in checkpoint.saved(folder):
        DAMAGES["truncated"](path)
    with pytest.raises(
        CheckpointError,
        match=r"no checkpoint of \S+ is usable: checkpoint \S+step-00000008.pt is damaged: "
        r"[^\n]+; fix it, or delete all to start over",
    ):
        checkpoint.newest_valid(folder)


def test_fault_17_a_sound_hash_of_something_else(folder, caplog):
    path = folder / "step-00000008.pt"
    torch.save({"other": 1}, path)
    path.with_suffix(".sha256").write_text(hashlib.sha256(path.read_bytes()).hexdigest())
    assert checkpoint.newest_valid(folder)["step"] == 4
    assert "is not a vidssl checkpoint" in caplog.text


class Killed(BaseException):
    """The process ends here."""


# Of the hash, of the checkpoint, of the folder, of last.pt.
POINTS = [
    *(("fsync", 1), ("replace", 1)),
    *(("fsync", 2), ("replace", 2)),
    ("fsync", 3),
    *(("symlink", 1), ("replace", 3)),
]


def kill_in(call, count, when, monkeypatch, *arguments):
    """Save, until a process that is killed would be at this place."""
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
            checkpoint.write_checkpoint(*arguments, keep=2)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(("call", "count"), POINTS)
def test_fault_16_a_kill_at_any_moment_leaves_a_checkpoint_that_loads(call, count, when, folder, monkeypatch):
    kill_in(call, count, when, monkeypatch, folder, 12, content(12))
    complete = POINTS.index((call, count)) > 3 or (call, count, when) == ("replace", 2, "after")
    assert checkpoint.newest_valid(folder)["step"] == (12 if complete else 8)
    checkpoint.check_checkpoint(folder / "last.pt")
    checkpoint.write_checkpoint(folder, 12, content(12), keep=2)
    assert names(folder) == files_of(8, 12)  # what the dead process left is gone


AGAIN = [*POINTS[:5], ("fsync", 4), ("replace", 3), ("symlink", 1), ("replace", 4)]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(("call", "count"), AGAIN)
def test_fault_16_a_kill_while_a_step_is_saved_again(call, count, when, tmp_path, monkeypatch, caplog):
    """The only checkpoint is replaced by another of its step: at any moment one of the two is sound."""
    checkpoint.write_checkpoint(tmp_path, 4, content(4), keep=2)
    kill_in(call, count, when, monkeypatch, tmp_path, 4, {**content(4), "other": 1})
    complete = AGAIN.index((call, count)) > 3 or (call, count, when) == ("replace", 2, "after")
    assert ("other" in checkpoint.newest_valid(tmp_path)) == complete and not caplog.text
    checkpoint.check_checkpoint(tmp_path / "last.pt")
    checkpoint.write_checkpoint(tmp_path, 4, {**content(4), "third": 1}, keep=2)
    assert "third" in checkpoint.newest_valid(tmp_path) and names(tmp_path) == files_of(4)
    assert (tmp_path / "step-00000004.sha256").read_text() == checkpoint.check_checkpoint(tmp_path / "last.pt")


def test_fault_16_names_are_on_disk_before_what_they_replace_goes(folder, monkeypatch):
    """After a power cut there is what was synced: the folder is, once the file is in it and nothing is deleted."""
    done, real = [], (os.fsync, os.replace, Path.unlink)

    def fsync(file):
        done.append(("sync", Path(f"/proc/self/fd/{file}").readlink().name))
        real[0](file)

    def replace(old, new):
        done.append(("name", Path(new).name))
        real[1](old, new)

    def unlink(path, missing_ok=False):
        if path.suffix != ".tmp":
            done.append(("delete", path.name))
        real[2](path, missing_ok=missing_ok)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    monkeypatch.setattr(Path, "unlink", unlink)
    checkpoint.write_checkpoint(folder, 12, content(12), keep=2)
    of_this = f"{os.getpid()}.tmp"
    assert done == [
        ("sync", f".step-00000012.sha256.{of_this}"),
        ("name", "step-00000012.sha256"),
        ("sync", f".step-00000012.pt.{of_this}"),
        ("name", "step-00000012.pt"),
        ("sync", "checkpoints"),
        ("name", "last.pt"),
        ("delete", "step-00000004.pt"),
        ("delete", "step-00000004.sha256"),
    ]


def test_fault_16_a_file_system_that_cannot_syncs(tmp_path, monkeypatch):
    real = os.fsync

    def fsync(file):
        if Path(f"/proc/self/fd/{file}").readlink().is_dir():
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        real(file)

    monkeypatch.setattr(os, "fsync", fsync)
    checkpoint.write_checkpoint(tmp_path / "new", 4, content(4), keep=2)
    assert checkpoint.newest_valid(tmp_path / "new")["step"] == 4


# What stays -------------------------------------------------------------------------------------------------


@pytest.fixture
def forgotten(monkeypatch):
    """Forget, as the next process does, which checkpoints are known to be sound."""

    def forget():
        monkeypatch.setattr(checkpoint, "_valid", set())

    return forget


def test_fault_17_damaged_ones_do_not_push_out_sound_ones(folder, forgotten):
    checkpoint.write_checkpoint(folder, 12, content(12), keep=3)
    forgotten()
    for step in (8, 12):
        DAMAGES["flipped"](folder / f"step-{step:08d}.pt")
    assert checkpoint.newest_valid(folder)["step"] == 4
    checkpoint.write_checkpoint(folder, 14, content(14), keep=2)
    assert names(folder) == files_of(4, 8, 12, 14)  # 8 and 12 do not count: 14 and 4 are the two
    checkpoint.write_checkpoint(folder, 18, content(18), keep=2)
    assert names(folder) == files_of(14, 18)


def test_fault_17_damaged_ones_of_later_steps_do_not_push_out_the_one_just_written(folder, forgotten):
    checkpoint.write_checkpoint(folder, 12, content(12), keep=3)
    forgotten()
    for step in (8, 12):
        DAMAGES["truncated"](folder / f"step-{step:08d}.pt")
    checkpoint.write_checkpoint(folder, 6, content(6), keep=2)
    assert names(folder) == files_of(4, 6, 8, 12)
    assert checkpoint.newest_valid(folder)["step"] == 6
    assert (folder / "last.pt").readlink() == Path("step-00000006.pt")
    for step in (8, 12):  # the steps are reached again
        checkpoint.write_checkpoint(folder, step, content(step), keep=2)
        assert checkpoint.newest_valid(folder)["step"] == step
    assert names(folder) == files_of(8, 12)


def test_the_one_just_written_stays_even_before_sound_ones_of_later_steps(folder):
    checkpoint.write_checkpoint(folder, 2, content(2), keep=2)
    assert names(folder) == files_of(2, 4, 8) and (folder / "last.pt").readlink() == Path("step-00000002.pt")


def test_each_checkpoint_is_hashed_once(folder, forgotten, monkeypatch):
    forgotten()
    hashed, real = [], checkpoint_files.file_hash
    monkeypatch.setattr(checkpoint_files, "file_hash", lambda path: hashed.append(path.name) or real(path))
    for step in (12, 16, 20):
        checkpoint.write_checkpoint(folder, step, content(step), keep=2)
    assert [name for name in hashed if not name.endswith(".tmp")] == ["step-00000008.pt"]


def test_hashes_without_a_checkpoint_are_deleted(folder):
    (folder / "step-00000002.sha256").write_text("0" * 64)
    (folder / "other.sha256").write_text("0" * 64)
    checkpoint.write_checkpoint(folder, 12, content(12), keep=2)
    assert names(folder) == sorted([*files_of(8, 12), "other.sha256"])


def test_a_save_does_not_copy_the_tensors(tmp_path):
    """A second copy of a large model is memory that a node may not have."""
    large = {**content(1), "method": {"w": torch.ones(25_000_000)}}  # 100 MB
    tracemalloc.start()
    try:
        checkpoint.write_checkpoint(tmp_path, 1, large, keep=2)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 10e6


# Disks ------------------------------------------------------------------------------------------------------


def test_fault_18_a_file_where_the_folder_should_be(tmp_path):
    (tmp_path / "checkpoints").write_text("")
    with pytest.raises(CheckpointError, match="cannot write"):
        checkpoint.write_checkpoint(tmp_path / "checkpoints", 1, content(1), keep=2)


@pytest.fixture
def limited():
    """Have the kernel refuse to let a file grow above some bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(size):
        resource.setrlimit(resource.RLIMIT_FSIZE, (before[0] if size is None else size, before[1]))

    yield limit
    limit(None)


@pytest.mark.parametrize("size", [0, 10, 1000, 100_000, 1_000_000])
def test_fault_18_a_limit_that_the_kernel_sets(size, folder, limited):
    large = {**content(12), "method": {"w": torch.ones(500_000)}}  # 2 MB
    limited(size)
    with pytest.raises(CheckpointError, match=r"^cannot write \S+/step-00000012.pt: File too large; earlier[^\n]+$"):
        checkpoint.write_checkpoint(folder, 12, large, keep=2)
    limited(None)
    assert names(folder) == files_of(4, 8) and checkpoint.newest_valid(folder)["step"] == 8
    checkpoint.check_checkpoint(folder / "last.pt")
    checkpoint.write_checkpoint(folder, 12, large, keep=2)  # room again
    assert names(folder) == files_of(8, 12) and checkpoint.newest_valid(folder)["step"] == 12


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full on this system")
@pytest.mark.parametrize("which", ["step-00000012.pt", "step-00000012.sha256"])
def test_fault_18_a_disk_that_is_full_for_the_kernel(which, folder, monkeypatch):
    real = atomic.no_link

    def full(path, flags):
        return os.open("/dev/full", os.O_WRONLY) if which in str(path) else real(path, flags)

    with monkeypatch.context() as patch:
        patch.setattr(atomic, "no_link", full)
        with pytest.raises(
            CheckpointError, match=r"step-00000012.pt: No space left on device; earlier .*; free disk space or"
        ):
            checkpoint.write_checkpoint(folder, 12, content(12), keep=2)
    assert names(folder) == files_of(4, 8) and checkpoint.newest_valid(folder)["step"] == 8
    checkpoint.write_checkpoint(folder, 12, content(12), keep=2)
    assert names(folder) == files_of(8, 12)


def test_fault_18_a_read_only_folder(folder, monkeypatch, permissions):
    monkeypatch.chdir(folder)
    folder.chmod(0o555)
    with permissions():
        with pytest.raises(CheckpointError, match=r"^cannot write step-00000012.pt: Permission denied; earlier"):
            checkpoint.write_checkpoint(Path(), 12, content(12), keep=2)
        assert names(Path()) == files_of(4, 8)
    assert checkpoint.newest_valid(folder)["step"] == 8
    folder.chmod(0o755)
    checkpoint.write_checkpoint(folder, 12, content(12), keep=2)
    assert names(folder) == files_of(8, 12)


def test_fault_17_checkpoints_that_may_not_be_read(folder, monkeypatch, permissions):
    """They are not damaged: the message says what the matter is."""
    monkeypatch.chdir(folder)
    for path in folder.glob("*.pt"):
        path.chmod(0)
    with permissions(), pytest.raises(CheckpointError, match=r"no checkpoint of .*step-00000008.pt: Permission denied"):
        checkpoint.newest_valid(Path())


def test_fault_18_the_state_that_could_not_be_saved_is_as_it_was(folder, limited):
    """Training may go on, or save elsewhere."""
    state = content(12)
    before = {key: value.clone() for key, value in state["method"].items()}
    limited(100)
    with pytest.raises(CheckpointError):
        checkpoint.write_checkpoint(folder, 12, state, keep=2)
    limited(None)
    assert all(torch.equal(value, before[key]) for key, value in state["method"].items())
    assert checkpoint.write_checkpoint(folder.parent / "elsewhere", 12, state, keep=2).exists()


@pytest.mark.parametrize("count", [1, 3])
def test_an_interrupt_while_torch_writes_is_not_taken_for_something_else(count, folder, monkeypatch):
    real, calls = checkpoint.torch.save, 0

    def save(content, file):
        def write(data):
            nonlocal calls
            calls += 1
            if calls == count:
                raise KeyboardInterrupt
            return file.write(data)

        real(content, SimpleNamespace(write=write, flush=file.flush))

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.torch, "save", save)
        with pytest.raises(KeyboardInterrupt):
            checkpoint.write_checkpoint(folder, 12, content(12), keep=2)
    assert names(folder) == files_of(4, 8)


class Unsavable:
    def __reduce__(self):
        raise RuntimeError("CUDA error")


def test_an_error_of_a_save_after_a_signal_is_not_taken_for_the_signal(folder):
    with pytest.raises(RuntimeError, match="CUDA error"):
        try:
            raise Interrupted(15)
        except Interrupted:
            checkpoint.write_checkpoint(folder, 12, {**content(12), "more": Unsavable()}, keep=2)
    assert names(folder) == files_of(4, 8)


def test_fault_25_checkpoints_that_hold_objects_are_refused(folder, caplog):
    """They are sound: going back to an older one helps nothing, and deleting them would lose the run."""
    checkpoint.write_checkpoint(folder, 12, {**content(12), "more": Path("x")}, keep=2)
    with pytest.raises(UntrustedError, match=r"holds pathlib\.\w+: only tensors and plain data"):
        checkpoint.newest_valid(folder)
    assert not caplog.text
    assert checkpoint.newest_valid(folder, trust=True)["more"] == Path("x")


def test_fault_26_a_checkpoint_under_the_name_of_another_step(folder, caplog):
    for suffix in ("pt", "sha256"):
        (folder / f"step-00000008.{suffix}").rename(folder / f"step-00000099.{suffix}")
    with caplog.at_level(logging.WARNING):
        assert checkpoint.newest_valid(folder)["step"] == 4
    assert "step-00000099.pt holds step 8, unlike its name" in caplog.text
