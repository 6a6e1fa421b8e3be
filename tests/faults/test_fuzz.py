"""Damaged files of all kinds are read, or are a VidsslError of one line, under limits of memory and CPU time."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vidssl.apps.detection import prepare_voc_coco_ava as ava
from vidssl.base.errors import DataError
from vidssl.data.video_list import parse_whole_number, read_official_json

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
import fuzz  # noqa: E402
import fuzz_kinds  # noqa: E402
import mutate  # noqa: E402

sys.path.pop(0)
OTHERS = [kind for kind in fuzz_kinds.KINDS if kind != "videos"]


def run(*words):
    """Fuzz in a process of its own: the findings, and the summary."""
    environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(HERE / "fuzz.py"), *words], env=environment, capture_output=True, text=True, timeout=600
    )
    *findings, summary = [json.loads(line) for line in done.stdout.splitlines()] or pytest.fail(done.stderr)
    assert done.returncode == bool(findings), done.stderr
    return findings, summary


def test_some_damaged_files():
    findings, summary = run("--seed", "100", "--count", "videos=80", "lists=20", "packed=20", "networks=20")
    assert not findings
    assert summary["mutants"] == 140 and summary["peak"] < 1.5 * 2**30  # half of it are the imports


@pytest.mark.long
def test_600_damaged_videos():
    findings, summary = run("--seed", "101", "--count", "videos=600")
    assert not findings and summary["mutants"] == 600
    assert 120 < summary["refused"] < 480  # neither are all mutants refused, nor do all of them work


@pytest.mark.long
def test_many_damaged_files():
    findings, summary = run("--seed", "102", "--count", *(f"{kind}=100" for kind in OTHERS))
    assert not findings and summary["refused"] > 0.02 * summary["mutants"]


# Numbers that a file can hold and that no array, network or chart can -----------------------------------------
_DIGITS = "9" * 5000  # above the limit of Python's int()


def test_huge_numbers_in_annotations(tmp_path):
    (tmp_path / "classes.pbtxt").write_text(f'name: "a"\nlabel_id: {_DIGITS}\n')
    with pytest.raises(DataError, match=r"classes\.pbtxt: '9999.*is not a whole number"):
        ava._read_classes(tmp_path / "classes.pbtxt")
    (tmp_path / "instances.json").write_text(f'{{"images": {_DIGITS}}}')
    with pytest.raises(DataError, match=r"instances\.json is not JSON: Exceeds the limit"):
        read_official_json(tmp_path / "instances.json")
    for text in (_DIGITS, f"-{_DIGITS}", f"{_DIGITS}.0"):
        with pytest.raises(ValueError, match="is not a whole number") as caught:
            parse_whole_number(text)
        assert len(str(caught.value)) < 100


# What the fuzzer finds --------------------------------------------------------------------------------------


def _type_error(folder, name):
    if b"X" in (folder / name).read_bytes():
        raise TypeError("of our own code")


def _crash(folder, name):
    if b"X" in (folder / name).read_bytes():
        os.kill(os.getpid(), signal.SIGSEGV)


def _spin(folder, name):
    while b"X" in (folder / name).read_bytes():
        pass


def _hang(folder, name):
    if b"X" in (folder / name).read_bytes():
        time.sleep(100)


@pytest.mark.parametrize(
    ("read", "what"),
    [
        (_type_error, "TypeError: of our own code"),
        (_crash, "killed: SIGSEGV"),
        (_spin, "killed: more than 0.3 s of CPU time"),
        (_hang, "hangs without using the CPU"),
    ],
)
def test_the_fuzzer_finds(tmp_path, monkeypatch, read, what):
    def build(folder):
        (folder / "a").write_bytes(b"good")
        return ["a"]

    monkeypatch.setitem(fuzz.KINDS, "made up", fuzz_kinds.Kind(build, mutate.mutate_bytes, read))
    monkeypatch.setattr(fuzz, "CPU", 0.3)
    monkeypatch.setattr(fuzz, "WALL", 1.0 if read is _hang else 60.0)
    fuzzer = fuzz.Fuzzer(tmp_path)
    fuzzer.seeds("made up")
    bad = fuzz.Mutant("made up", "a", b"much that is good, X and more")
    good = [("good", fuzz.Mutant("made up", "a", b"good"))]
    findings = list(fuzzer.read([*good, ("bad", bad), *good]))
    assert [finding.label for finding in findings] == ["bad"]
    assert findings[0].what.startswith(what)
    assert (tmp_path / "made up" / "a").read_bytes() == b"good"


def test_a_mutant_is_a_function_of_its_number(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one, other = (fuzz.Fuzzer(tmp_path / name) for name in "ab")
    assert one.mutant("tars", 3, 4) == one.mutant("tars", 3, 4) == other.mutant("tars", 3, 4)
    different = {one.mutant("videos", 3, number).content for number in range(60)}
    assert len(different) > 50
