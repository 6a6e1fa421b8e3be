"""An extraction that is killed, at any moment and in any way, keeps what was encoded; files are those of one run."""

import contextlib
import json
import shutil
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

import vidssl
from vidssl.data.video_list import read_list
from vidssl.evaluation import features as evaluation
from vidssl.jobs import extract as extraction
from vidssl.jobs.extract import extract

TOY = Path(__file__).parents[2] / "configs" / "toy" / "supervised.yaml"
OPTIONS = {
    **{"cfg": str(TOY), "settings": ["data.moving_digits=null", "data.train=none.csv", "backbone.width=4"]},
    **{"clips": 1, "crops": 1, "size": 24, "batch_size": 2, "workers": 0, "device": "cpu"},
}
WORDS = ["--checkpoint", "random", "--cfg", str(TOY), *OPTIONS["settings"], "--clips", "1", "--crops", "1"]
WORDS += ["--size", "24", "--batch-size", "2", "--device", "cpu", "--allow-missing"]
FILES = ("features.npy", "rows.csv", "meta.json")
COUNTED = ("replace", "unlink", "rmdir", "fsync")  # of os: before each of them the process may be killed
KILLED = """
import json, os, sys
from vidssl.jobs import extract
arguments, seconds, number = json.loads(sys.argv[1])
extract._SECONDS, calls = seconds, 0

def counted(function):
    def call(*arguments, **options):
        global calls
        calls += 1
        if calls == number:
            os._exit(9)
        return function(*arguments, **options)
    return call

for name in COUNTED:
    setattr(os, name, counted(getattr(os, name)))
extract.extract("random", **arguments)
""".replace("COUNTED", str(COUNTED))
SIGNALLED = """
import os, sys
from vidssl import cli
from vidssl.jobs import extract
number, seconds, *sys.argv[1:] = sys.argv[1:]
extract._SECONDS, batches, is_due = float(seconds), 0, extract._Kept.is_due

def signalled(kept):
    global batches
    batches += 1
    if batches == 3:
        os.kill(os.getpid(), int(number))
    return is_due(kept)

extract._Kept.is_due = signalled
cli.main()
"""


@pytest.fixture
def videos(digits, tmp_path):
    """A list of seven videos, of which the second is broken."""
    (tmp_path / "videos").mkdir()
    for n, record in enumerate(read_list(digits / "motion/test.csv").records[:7]):
        shutil.copy(record.path, tmp_path / f"videos/{n}.mp4")
    (tmp_path / "videos/1.mp4").write_text("<html>")
    return listed(tmp_path, "0123456")


def listed(folder, names):
    (folder / "list.csv").write_text("".join(["path,label\n", *(f"videos/{n}.mp4,{ord(n) % 3}\n" for n in names)]))
    return folder / "list.csv"


@pytest.fixture
def encoded(monkeypatch):
    """The names of the videos that were encoded since it was asked last."""
    seen, plain = [], evaluation.encode_videos

    def recording(encoder, dataset, *rest, **more):
        rows = rest[5]
        seen.extend(Path(dataset.videos.names[n]).stem for n in (range(len(dataset)) if rows is None else rows))
        return plain(encoder, dataset, *rest, **more)

    monkeypatch.setattr(evaluation, "encode_videos", recording)

    def names():
        found = "".join(seen)
        seen.clear()
        return found

    return names


def same_bytes(one, other):
    for name in FILES:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    assert {path.name for path in one.iterdir() if not path.name.startswith(".")} == {*FILES}


@pytest.mark.parametrize("case", ["new", "grown"])
def test_a_kill_before_any_write_keeps_what_was_there(case, videos, encoded, forked_python, tmp_path):
    """New features lose what is in no part yet; those that grow have all rows of before, or all of now."""
    fresh = extract("random", videos, out=tmp_path / "fresh", allow_missing=True, **OPTIONS)
    if case == "grown":
        extract("random", listed(tmp_path, "01234"), out=tmp_path / "before", allow_missing=True, **OPTIONS)
        listed(tmp_path, "0123456")
    lost, number = [], 0
    while True:
        number += 1 if case == "grown" else 3
        out = tmp_path / f"x{number}"
        if case == "grown":
            shutil.copytree(tmp_path / "before", out)
        arguments = {"videos": str(videos), "out": str(out), "allow_missing": True, **OPTIONS}
        code = [forked_python, "-c", KILLED, json.dumps([arguments, -1 if case == "new" else 60, number])]
        status = subprocess.run(code, capture_output=True, timeout=120).returncode
        if status == 0:
            break
        assert status == 9
        if case == "grown":
            there = vidssl.load_features(out)
            assert len(there) in (4, 6) and torch.equal(there.x, fresh.x[: len(there)])
        encoded()
        again = extract("random", **arguments)
        lost.append(len({*encoded()} - {"1"}))
        assert torch.equal(again.x, fresh.x)
        same_bytes(out, tmp_path / "fresh")
        shutil.rmtree(out)
    most = 6 if case == "new" else 2
    assert lost[0] == most and lost[-1] == 0 and lost == sorted(lost, reverse=True)
    assert case == "grown" or {5, 3, 1} <= {*lost}  # those of each batch are kept


@pytest.mark.parametrize(
    ("number", "seconds", "workers", "status"),
    [(signal.SIGTERM, 60, 2, 75), (signal.SIGINT, 60, 0, 130), (signal.SIGKILL, -1, 1, 137)],
)
def test_a_signal_keeps_what_was_encoded(number, seconds, workers, status, videos, encoded, forked_python, tmp_path):
    out = tmp_path / "x"
    words = [
        str(int(number)),
        str(seconds),
        "extract",
        str(videos),
        *WORDS,
        "--out",
        str(out),
        "--workers",
        str(workers),
    ]
    done = subprocess.run([forked_python, "-c", SIGNALLED, *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == status, done.stderr
    said = (
        f"{number.name}: the features so far are kept in {out}, the same command goes on; send it again to end at once"
    )
    assert (said in done.stderr.splitlines()) == (number != signal.SIGKILL) and "Traceback" not in done.stderr
    assert {path.name for path in out.iterdir()} == {".lock", ".vidssl.json", ".parts"}
    extract("random", videos, out=out, allow_missing=True, **OPTIONS)
    assert encoded() == ("1456" if number == signal.SIGKILL else "16")
    extract("random", videos, out=tmp_path / "fresh", allow_missing=True, **OPTIONS)
    same_bytes(out, tmp_path / "fresh")


class Stopped(BaseException):
    """Of a process that ends in the middle."""


def stop_after(parts, videos, out):
    """Extract in parts of a batch, and end after some; return which rows are lacking at the start, and the parts."""
    kept, plain = [], extraction._Kept.keep

    def keep(self, part):
        plain(self, part)
        kept.append(part.index.tolist())
        if len(kept) == parts:
            raise Stopped

    lacking, encode = [], evaluation.encode_videos

    def encoding(*arguments, **options):
        lacking.append([*arguments[7]])
        return encode(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(extraction, "_SECONDS", -1)
        patch.setattr(extraction._Kept, "keep", keep)
        patch.setattr(evaluation, "encode_videos", encoding)
        with contextlib.suppress(Stopped):
            extract("random", videos, out=out, allow_missing=True, **OPTIONS)
    return lacking[0], kept


def test_processes_of_one_run_keep_their_parts_together(run_world, videos, tmp_path):
    extract("random", videos, out=tmp_path / "fresh", allow_missing=True, **OPTIONS)
    first, second = run_world(2, stop_after, 1, videos, tmp_path / "x")
    assert first == second == ([*range(7)], [[0, 2, 3]])
    first, second = run_world(2, stop_after, 9, videos, tmp_path / "x")
    assert first == second == ([1, 4, 5, 6], [[4, 5, 6]])
    same_bytes(tmp_path / "x", tmp_path / "fresh")


def test_an_extraction_that_is_stopped_again_and_again(videos, tmp_path):
    extract("random", videos, out=tmp_path / "fresh", allow_missing=True, **OPTIONS)
    for lacking in ([0, 1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6], [1, 3, 4, 5, 6]):
        assert stop_after(1, videos, tmp_path / "x")[0] == lacking
        assert len([*(tmp_path / "x/.parts").iterdir()]) <= 2
    assert stop_after(9, videos, tmp_path / "x")[0] == [1, 4, 5, 6]
    same_bytes(tmp_path / "x", tmp_path / "fresh")


@pytest.mark.parametrize("sizes", ["equal", "falling", "random"])
def test_parts_are_few_and_rows_are_written_few_times(sizes, tmp_path, monkeypatch):
    """Of 1500 parts, a day of minutes: whatever their sizes, also with those of runs before."""
    counts = {"equal": [500] * 1500, "falling": [*range(2000, 500, -1)]}
    counts["random"] = np.random.RandomState(0).randint(1, 1000, 1500).tolist()
    folders, written, start = {}, [0], 0

    def write(path, request, listed, pieces, *_):
        path.mkdir(parents=True, exist_ok=True)
        rows = torch.cat([piece.rows for piece in pieces])
        folders[path] = rows
        written[0] += len(rows)

    monkeypatch.setattr(evaluation, "write_folder", write)
    kept = extraction._Kept(None, tmp_path, {}, ())
    kept._rows_of = kept._state_of = kept._made_by = None
    for count in counts[sizes]:
        index = torch.arange(start, start + count)
        kept._write_part(vidssl.Features(torch.empty(count, 1), index, index))
        start += count
        there = [*(tmp_path / ".parts").iterdir()]
        assert len(there) <= 11
    assert torch.equal(torch.cat([folders[path] for path in sorted(there)]), torch.arange(start))
    assert written[0] < 20 * start
