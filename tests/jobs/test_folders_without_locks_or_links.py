"""Outputs on file systems without locks (NFS, Lustre) or links (Google Drive, exFAT), and runs copied through them."""

import errno
import fcntl
import logging
import os
import runpy
import shutil
from pathlib import Path

import pytest
import torch

import vidssl
from vidssl import cli
from vidssl.models.read_and_write_weights import weights_file

TOP = Path(__file__).parents[2]
CFG = TOP / "configs" / "toy" / "moco.yaml"
PLACED = runpy.run_path(str(TOP / "tests" / "toys.py"))["placed"]


@pytest.fixture(scope="module")
def place(digits, tmp_path_factory):
    """A folder with small lists, and runs of two and of four steps."""
    folder = tmp_path_factory.mktemp("place")
    for name, count in (("train", 10), ("test", 6)):
        header, *rows = (digits / f"motion/{name}.csv").read_text().splitlines()
        rows = sorted(rows, key=lambda row: (rows.index(row) % (len(rows) // count), rows.index(row)))[:count]
        (folder / f"{name}.csv").write_text("\n".join([header, *rows]) + "\n")
    for name in ("classes.txt", "root.txt"):
        if (digits / "motion" / name).exists():
            shutil.copy(digits / "motion" / name, folder / name)
    (folder / "root.txt").write_text(f"{digits}\n")
    cli.run("train", ["--cfg", str(CFG), *settings(folder, digits, folder / "run")])
    return folder


def settings(place, digits, output):
    placed = [*PLACED("moco", digits, output), "data.moving_digits=null", f"data.train={place}/train.csv"]
    return [*placed, "steps=4", "checkpoint.every=2"]


def _fail(number):
    def fail(*_, **__):
        raise OSError(number, os.strerror(number))

    return fail


KINDS = [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP]
NETWORK = "--checkpoint RUN --workers 0 --device cpu"
COMMANDS = [
    "train --cfg CFG PLACED",
    f"retrieval --gallery TRAIN --query LIST --index OUT/index --out OUT/page {NETWORK}",
    f"extract LIST --out OUT {NETWORK}",
    "export RUN --to folder --out OUT/a",
    "shrink LIST --to frames --out OUT",
]


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words.split()[:4])[:24])
def test_every_command_that_writes_works_and_warns_once(words, place, digits, tmp_path, monkeypatch, caplog):
    number = KINDS[len(words) % 3]
    monkeypatch.setattr(fcntl, "flock", _fail(number))
    monkeypatch.setattr(os, "symlink", _fail(errno.ENOTSUP if len(words) % 2 else errno.EPERM))
    monkeypatch.setattr(os, "link", _fail(errno.ENOTSUP))
    out = tmp_path / "out"
    places = {"OUT": out, "LIST": place / "test.csv", "TRAIN": place / "train.csv", "RUN": place / "run"}
    places |= {"CFG": CFG, "PLACED": " ".join(settings(place, digits, out))}
    for name, path in places.items():
        words = words.replace(name, str(path))
    for repeated in (False, True):  # the second time outputs are there, and a run is complete
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            if not words.startswith("export") or not (out / "a").exists():
                cli.run(words.split()[0], words.split()[1:])
        warnings = [line for line in caplog.messages if "the file system of the output has no" in line]
        assert len(warnings) == len({*warnings}) <= 2
        if words.startswith("train") and not repeated:
            assert [warning.partition(" (")[0][-5:] for warning in warnings] == ["locks", "links"]
            assert (out / "checkpoints/last.pt").read_text() == "step-00000004.pt"
    assert any(path.is_file() for path in out.rglob("*")) and not list(out.rglob("*.tmp"))


def test_a_failed_command_leaves_nothing_there(place, tmp_path, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", _fail(errno.ENOLCK))
    with pytest.raises(vidssl.base.errors.VidsslError):
        vidssl.extract("vidssl-small", place / "train.csv", out=tmp_path / "out", layer="none", workers=0)
    assert not (tmp_path / "out").exists()


# Runs that were copied --------------------------------------------------------------------------------------


# What `last.pt` is in the copy: a text, a link or a copy of another file; and patterns of files that were not copied.
COPIES = {
    "a text": ("text", "step-00000004.pt", ()),
    "a text with a line break": ("text", "step-00000004.pt\r\n", ()),
    "a copy": ("copy", "step-00000004.pt", ()),
    "an old copy": ("copy", "step-00000002.pt", ()),
    "an old text": ("text", "step-00000002.pt", ()),
    "an old link": ("link", "step-00000002.pt", ()),
    "a dangling link": ("link", "step-00000099.pt", ()),
    "a text of nothing": ("text", "step-00000099.pt", ()),
    "a newer copy": ("copy", "step-00000004.pt", ("step-00000004.*",)),
    "the only copy": ("copy", "step-00000004.pt", ("step-*",)),
    "missing": ("", "", ()),
    "empty": ("text", "", ()),
    "without hashes": ("", "", ("*.sha256",)),
}


def copied(place, tmp_path, name):
    """Copy the run as a file system without links does."""
    folder, (kind, target, gone) = tmp_path / "run/checkpoints", COPIES[name]
    shutil.copytree(place / "run", folder.parent, symlinks=True)
    last = folder / "last.pt"
    last.unlink()
    if kind == "text":
        last.write_text(target)
    elif kind == "link":
        last.symlink_to(target)
    elif kind == "copy":
        shutil.copy(folder / target, last)
    for pattern in gone:
        for path in folder.glob(pattern):
            path.unlink()
    return folder


@pytest.fixture(scope="module")
def newest(place):
    return vidssl.load_backbone(place / "run/checkpoints/step-00000004.pt").state_dict()


@pytest.mark.parametrize("name", COPIES)
def test_the_newest_checkpoint_of_a_copied_run_is_found(name, place, newest, tmp_path, caplog):
    folder = copied(place, tmp_path, name)
    for path in (folder.parent, folder / "last.pt"):
        caplog.clear()
        weights = vidssl.load_backbone(path).state_dict()
        assert all(torch.equal(weights[key], newest[key]) for key in newest)
        assert torch.load(weights_file(path), weights_only=True)["step"] == 4
        is_warned = any("is used, the newest that is valid" in line for line in caplog.messages)
        assert is_warned == (name in ("a dangling link", "a text of nothing") or "old" in name)


@pytest.mark.parametrize("name", ["a text", "an old copy", "the only copy", "missing"])
def test_a_copied_run_goes_on_at_its_newest_step(name, place, digits, tmp_path, caplog):
    folder = copied(place, tmp_path, name)
    with caplog.at_level(logging.INFO):
        assert torch.load(vidssl.train(CFG, *settings(place, digits, folder.parent)), weights_only=True)["step"] == 4
    assert f"resumed {folder.parent} at step 4" in caplog.messages
