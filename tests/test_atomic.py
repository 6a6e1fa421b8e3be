"""Atomic writes: a file is complete under its name, or what was there before is untouched."""

import errno
import os

import pytest

from vidssl import atomic
from vidssl.atomic import replacing, temporary_for

OLD, NEW = b"old\n", b"new" * 1000


@pytest.fixture(params=[True, False], ids=["over an old one", "new"])
def path(request, tmp_path):
    """Where a file is to be: in one case there is one already."""
    path = tmp_path / "file.bin"
    if request.param:
        path.write_bytes(OLD)
    return path


def content(path):
    return [(other, other.read_bytes()) for other in sorted(path.parent.iterdir())]


def test_the_name_is_given_when_all_is_on_disk(path, monkeypatch):
    before, seen = content(path), []
    fsync, replace = os.fsync, os.replace

    def syncing(number):
        seen.append(("fsync", os.fstat(number).st_size))
        fsync(number)

    def replacing_(source, target):
        seen.append(("replace", source.stat().st_size))
        assert target == path and source.parent == path.parent
        replace(source, target)

    monkeypatch.setattr(atomic.os, "fsync", syncing)
    monkeypatch.setattr(atomic.os, "replace", replacing_)
    with replacing(path) as file:
        file.write(NEW)
        others = [entry for entry in content(path) if entry[0] != temporary_for(path)]
        assert others == before
    assert seen == [("fsync", len(NEW)), ("replace", len(NEW))]
    assert content(path) == [(path, NEW)]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, OSError])
def test_a_block_that_fails_leaves_what_was_there(error, path):
    before = content(path)
    with pytest.raises(error, match="half way"), replacing(path) as file:
        file.write(NEW[:100])
        file.flush()
        raise error("half way")
    assert content(path) == before


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_full_disk_leaves_what_was_there(step, path, monkeypatch):
    before = content(path)

    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(atomic.os, step, full)
        with pytest.raises(OSError, match="No space left"), replacing(path) as file:
            file.write(NEW)
    assert content(path) == before


def test_what_a_killed_process_left_is_written_over(path):
    temporary_for(path).write_bytes(b"left behind by a process of the same number, longer" * 1000)
    with replacing(path) as file:
        file.write(NEW)
    assert content(path) == [(path, NEW)]


@pytest.mark.parametrize("where", ["missing/file", "file/file", "folder"])
def test_what_cannot_be_written_is_an_oserror(where, tmp_path):
    (tmp_path / "file").write_bytes(OLD)
    (tmp_path / "folder").mkdir()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(OSError), replacing(tmp_path / where) as file:
        file.write(NEW)
    assert sorted(tmp_path.rglob("*")) == before and (tmp_path / "file").read_bytes() == OLD


def test_a_folder_that_is_not_mine_is_an_oserror(tmp_path):
    tmp_path.chmod(0o500)
    user = os.geteuid()
    if user == 0:  # root may write anywhere
        os.seteuid(65534)
    try:
        with pytest.raises(PermissionError), replacing(tmp_path / "file") as file:
            file.write(NEW)
    finally:
        os.seteuid(user)
        tmp_path.chmod(0o700)
    assert not list(tmp_path.iterdir())


def test_the_temporary_is_hidden_beside_it_and_of_this_process(tmp_path):
    temporary = temporary_for(tmp_path / "a.pt")
    assert temporary.parent == tmp_path and temporary.name.startswith(".a.pt.")
    assert str(os.getpid()) in temporary.name.split(".")
