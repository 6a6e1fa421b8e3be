"""Atomic writes: a file is complete under its name, or what was there before is untouched."""

import errno
import json
import math
import os
from pathlib import Path

import pytest

from vidssl.base import atomic
from vidssl.base.atomic import replacing, temporary_for
from vidssl.cli import print_result
from vidssl.engine.log import RunLog

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
        with pytest.raises(OSError, match="No space left") as caught, replacing(path) as file:
            file.write(NEW)
    assert content(path) == before and caught.value.filename == str(path)


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


def test_a_folder_that_is_not_mine_is_an_oserror(tmp_path, permissions):
    tmp_path.chmod(0o500)
    with permissions(), pytest.raises(PermissionError), replacing(tmp_path / "file") as file:
        file.write(NEW)
    tmp_path.chmod(0o700)
    assert not list(tmp_path.iterdir())


def test_the_temporary_is_hidden_beside_it_and_of_this_process(tmp_path):
    temporary = temporary_for(tmp_path / "a.pt")
    assert temporary.parent == tmp_path and temporary.name.startswith(".a.pt.")
    assert str(os.getpid()) in temporary.name.split(".")


UNDEFINED = {"a": math.nan, "b": [1.0, math.inf, {"c": -math.inf}], "d": (2, "nan"), 3: None}


def strict(text):
    """Parse JSON as its standard has it: NaN and Infinity, which Python accepts, are errors."""
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_what_is_undefined_is_null_and_named(tmp_path, caplog):
    atomic.write_json(tmp_path / "results.json", UNDEFINED)
    expected = {"a": None, "b": [1.0, None, {"c": None}], "d": [2, "nan"], "3": None}
    assert strict((tmp_path / "results.json").read_text()) == expected
    assert "results.json: undefined numbers are null: a, b.1, b.2.c" in caplog.text


def test_json_of_commands_and_of_training_has_no_nan(tmp_path, capsys):
    print_result({**UNDEFINED, "path": tmp_path}, as_json=True)
    assert strict(capsys.readouterr().out)["path"] == str(tmp_path)
    log = RunLog(tmp_path, 0, 1, 1, strict=True)
    log.write(1, {"loss": 0.5, "spread": math.nan})
    log.close()
    line = strict((tmp_path / "metrics.jsonl").read_text())
    assert line["loss"] == 0.5 and line["spread"] is None


def test_every_json_file_is_written_by_the_one_writer():
    """`json.dumps` writes NaN; where the text goes to a file of results, it must refuse it."""
    package = Path(atomic.__file__).parents[1]
    for folder in ("jobs", "cli", "engine", "evaluation", "page", "apps"):
        assert (package / folder).is_dir()
        for path in (package / folder).rglob("*.py"):
            for line in path.read_text(encoding="utf-8").splitlines():
                if "json.dump" in line and ("write" in line or "print(" in line):
                    assert "allow_nan=False" in line or "schema" in line, f"{path}: {line}"
