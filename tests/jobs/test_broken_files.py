"""Files that cannot be read, in every job that applies a network to videos: which are left out, and who says so."""

import csv
import html
import json
import logging
import os
import re
import shutil
import tarfile
from pathlib import Path

import pytest

from vidssl import cli
from vidssl.base.command_line_and_notices import leave_out, left_out, noticing
from vidssl.base.errors import VidsslError
from vidssl.data.dataset import most_broken
from vidssl.evaluation.features import TestClips
from vidssl.video.reader import DecodeSettings

TOY = Path(__file__).parents[2] / "configs" / "toy" / "supervised.yaml"
# Folders and names that a shell, a page, a list or a URL could take apart.
FOLDERS = ("ピアノ", 'street "cameras"', "Pferde–Rennen", "it's & <b>")
BROKEN = ("ピアノ/broken.mp4", "it's & <b>/cut short's \"end\".mp4")
GOOD = 40


@pytest.fixture(scope="module")
def folder(digits, tmp_path_factory):
    """Forty videos in four folders, a damaged file, one that was cut off, and a text."""
    top = tmp_path_factory.mktemp("my videos")
    for n in range(GOOD):
        place = top / FOLDERS[n % len(FOLDERS)]
        place.mkdir(exist_ok=True)
        shutil.copy(digits / f"videos/train/{n:05d}.mp4", place / f"ünï {n:02d}.mp4")
    (top / BROKEN[0]).write_bytes(b"no video" * 99)
    (top / BROKEN[1]).write_bytes((digits / "videos/train/00000.mp4").read_bytes()[:900])
    (top / "notes.txt").write_text("not a video, and no file of the list")
    return top


# What is the matter with a file, and what its reason says.
DAMAGED = {
    "text.mp4": "not a video",
    "empty.mp4": "the file is empty",
    "cut.mp4": "not a video",
    "half.mp4": "",
    "sound.mp4": "no video stream",
    "zeros.mp4": "not a video",
}


@pytest.fixture(scope="module")
def half(digits, write_sound, tmp_path_factory):
    """Six videos in two folders and as many files that are damaged in several ways, and a folder named x.mp4."""
    top = tmp_path_factory.mktemp("half") / "videos"
    damaged = top / "damaged"
    for n in range(6):
        (top / "ab"[n % 2]).mkdir(parents=True, exist_ok=True)
        shutil.copy(digits / f"videos/train/{n:05d}.mp4", top / "ab"[n % 2] / f"{n}.mp4")
    (damaged / "x.mp4").mkdir(parents=True)
    whole = (digits / "videos/train/00000.mp4").read_bytes()
    (damaged / "text.mp4").write_text("<html>not found</html>")
    (damaged / "empty.mp4").touch()
    (damaged / "cut.mp4").write_bytes(whole[:900])
    (damaged / "half.mp4").write_bytes(whole[: len(whole) // 2])
    (damaged / "zeros.mp4").write_bytes(bytes(5000))
    write_sound(damaged / "sound.mp4")
    if os.geteuid() != 0:  # root may read all files
        (damaged / "text.mp4").chmod(0)
    (top.parent / "known.csv").write_text("path,label\na/0.mp4,a\nb/1.mp4,b\na/2.mp4,a\nb/3.mp4,b\n")
    return top


@pytest.fixture(scope="module")
def labelled(folder, tmp_path_factory):
    """A list of the folder with labels, and boxes for all of it."""
    top = tmp_path_factory.mktemp("lists")
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.mp4"))
    with (top / "list.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("path", "label"), *((name, FOLDERS.index(name.split("/")[0])) for name in names)])
    with (top / "boxes.csv").open("w", encoding="utf-8", newline="") as file:
        boxes = [(name, frame, 4, 4, 30, 30) for name in names for frame in range(24)]
        csv.writer(file).writerows([("path", "frame", "x1", "y1", "x2", "y2"), *boxes])
    (top / "root.txt").write_text(f"{folder}\n")
    (top / "classes.txt").write_text("".join(f"{name}\n" for name in FOLDERS))
    return top / "list.csv"


NETWORK = ("--checkpoint", "random", "--cfg", TOY, "--workers", 0, "--device", "cpu")
ONE = (*NETWORK, "--clips", 1)


SEARCH = ("retrieval", *ONE, "--page-queries", 1)


def run(command, *words):
    return cli.run(command, [*map(str, words), "data.moving_digits=null"])


def said(caplog):
    return [record.getMessage() for record in caplog.records if " left out: " in record.getMessage()]


# Each command, its arguments after the input, and the key of its results that names what is missing.
UNLABELLED = {
    "retrieval with an index": (
        (*SEARCH, "--gallery", "INPUT", "--query", "INPUT", "--index", "OUT/../index"),
        "missing_gallery missing_queries",
    ),
    "map": (("map", "INPUT", *ONE, "--layout", "pca"), "missing"),
    "extract": (("extract", "INPUT", *ONE), "missing"),
    "compare": (("compare", "INPUT", *ONE, "--shots", 1), "missing"),
    "test": (("test", "INPUT", *ONE, "--protocol", "uniformity", "--train-list", "INPUT"), "missing"),
    "gradcam": (("analyze gradcam", "INPUT", *NETWORK, "--target", "similarity"), "missing"),
}
LABELLED = {
    "retrieval": ((*SEARCH, "--gallery", "INPUT", "--query", "INPUT"), "missing_gallery missing_queries"),
    "test a classifier": (("test", "INPUT", "--checkpoint", "TRAINED", "--workers", 0, "--clips", 1), "missing"),
    "uniformity": (("analyze uniformity", "INPUT", *ONE), "missing"),
    "invariance": (("analyze invariance", "INPUT", *ONE, "--transformations", "blur"), "missing"),
    "robustness": (
        (
            *("analyze robustness", "INPUT", "--checkpoint", "TRAINED", "--workers", 0),
            *("--corruptions", "fog", "--severities", 1),
        ),
        "missing",
    ),
}


@pytest.fixture(scope="module")
def trained(labelled, tmp_path_factory):
    """A classifier of the list, after two steps: the two files that cannot be read are replaced."""
    out = tmp_path_factory.mktemp("trained") / "run"
    options = (f"data.train={labelled}", f"output={out}", "steps=2", "method.classes=4", "data.workers=0", "device=cpu")
    return run("train", "--cfg", TOY, *options)


@pytest.fixture
def started(labelled, trained, tmp_path):
    """Run a command of the tables on an input; give its results and its page, if it writes one."""

    def start(command, *words, videos):
        places = {
            "INPUT": videos,
            "TRAINED": trained,
            "BOXES": labelled.with_name("boxes.csv"),
            "OUT/../index": tmp_path / "index",
        }
        out = tmp_path / "out"
        last = ["data.moving_digits=null"] if "random" in words else []
        cli.run(command, [*(str(places.get(word, word)) for word in words), "--out", str(out), *last])
        files = [out / name for name in ("results.json", "meta.json")]
        page = out / "index.html"
        return json.loads(next(file for file in files if file.exists()).read_text()), page.exists() and page.read_text()

    return start


def check_named(results, keys, page, caplog):
    """Both files are named in the results, once on the terminal, and in the page, each with its reason."""
    for key in keys.split():
        assert {Path(each["path"]).name for each in results[key]} == {Path(name).name for name in BROKEN}
        assert all("not a video" in each["reason"] for each in results[key])
    (report,) = said(caplog)
    assert report.startswith("2 videos cannot be read and are left out: ") and "names all" not in report
    for name in BROKEN:
        assert report.count(f"{name}: not a video") == 1
        assert caplog.text.count(f"{name}: ") == 1
    if page:
        listed = html.unescape(page.partition('class="left-out"')[2].partition("</details>")[0])
        assert "2 videos cannot be read" in listed
        assert all(listed.count(name) == 1 for name in BROKEN) and listed.count("not a video") == len(BROKEN)


@pytest.mark.parametrize("name", ["extract", "retrieval with an index", "map"])
def test_without_labels_a_few_are_left_out_and_named(name, started, folder, caplog):
    caplog.set_level(logging.INFO)
    (command, *words), keys = UNLABELLED[name]
    results, page = started(command, *words, videos=folder)
    check_named(results, keys, page, caplog)
    assert bool(page) == (command in ("retrieval", "map"))


ANY_INPUT = {
    "retrieval": (*SEARCH, "--gallery", "INPUT", "--query", "INPUT"),
    "retrieval of moments": (*SEARCH, "--gallery", "INPUT", "--query", "INPUT", "--window", 0.4, "--stride", 0.2),
    **{name: words for name, (words, _) in UNLABELLED.items()},
    "invariance": ("analyze invariance", "INPUT", *ONE, "--transformations", "blur", "--variant", "goodfellow"),
    "show": ("show", "INPUT", *NETWORK[:4], "--limit", 12),
    "predict": ("predict", "INPUT", *ONE, "--labels", "KNOWN"),
}


@pytest.mark.parametrize("name", ANY_INPUT)
def test_half_of_a_folder_stops_nothing_and_all_of_it_is_one_line(name, half, tmp_path, caplog, capsys):
    places = {"KNOWN": half.parent / "known.csv", "OUT/../index": tmp_path / "index"}
    command, *words = (str(places.get(word, word)) for word in ANY_INPUT[name])
    rest = ["--out", str(tmp_path / "out"), "data.moving_digits=null"]
    cli.run(command, [word.replace("INPUT", str(half)) for word in words] + rest)
    (report,) = said(caplog)
    files = ["results.json", "meta.json", "index.html"]
    listed = next(path for path in (tmp_path / "out" / file for file in files) if path.exists())
    assert re.match(r"6 videos cannot be read and are left out: (\S+: .*; ){2}\S+: .* and 3 more; ", report)
    assert report.endswith(f"; {listed} names all") and "\n" not in report
    assert "left out, as they cannot be read: 1 ('damaged/x.mp4': an empty folder" in caplog.text
    text = html.unescape(listed.read_text())
    assert all(file in text and reason in text for file, reason in DAMAGED.items())
    capsys.readouterr()
    shutil.rmtree(tmp_path / "index", ignore_errors=True)
    with pytest.raises(VidsslError) as caught:
        again = [word.replace("INPUT", str(half / "damaged")) for word in words]
        cli.run(command, [*again, "--out", str(tmp_path / "none"), *rest[2:]])
    assert "\n" not in str(caught.value) and not (tmp_path / "none" / listed.name).exists()
    assert name == "predict" or "none of the 6 videos" in str(caught.value)


def test_a_pattern_and_a_tar_are_no_test_sets_either(half, tmp_path, caplog):
    with tarfile.open(tmp_path / "all.tar", "w") as tar:
        for file in sorted(half.rglob("*.mp4")):
            if file.is_file():
                tar.add(file, file.relative_to(half))
    for number, videos in enumerate((f"{half}/**/*.mp4", tmp_path / "all.tar")):
        caplog.clear()
        measured = ("--protocol", "uniformity", "--train-list", videos)
        run("test", videos, *ONE, *measured, "--out", tmp_path / str(number))
        results = json.loads((tmp_path / str(number) / "results.json").read_text())
        assert results["num_videos"] == 6 and len(results["missing"]) == 6 and len(said(caplog)) == 1


def test_a_training_has_its_report_whatever_its_test_list_holds(half, tmp_path):
    """The training keeps its own rule, and what the network is measured on another: here nothing can be read."""
    for name, folder in (("train", half), ("test", half / "damaged")):
        rows = [f"{path.relative_to(folder)},{n % 2}" for n, path in enumerate(sorted(folder.rglob("*.mp4")))]
        (tmp_path / name).mkdir()
        (tmp_path / name / "list.csv").write_text("\n".join(["path,label", *rows]) + "\n")
        (tmp_path / name / "root.txt").write_text(f"{folder}\n")
    out = tmp_path / "run"
    run(
        *("train", "--cfg", TOY.with_name("sce.yaml"), f"data.train={tmp_path}/train/list.csv", f"output={out}"),
        *("steps=2", "data.workers=0", "device=cpu", "data.max_broken=1.0", f"evaluate.query={tmp_path}/test/list.csv"),
    )
    page = html.unescape((out / "training.html").read_text())
    assert "none of the 7 videos" in page


def test_a_training_on_a_folder_leaves_out_what_cannot_be_read(half, tmp_path, caplog):
    """However many there are, and though they follow each other by name."""
    words = "train", "--cfg", TOY.with_name("sce.yaml"), half, "steps=2", "batch_size=2", "data.workers=0", "device=cpu"
    run(*words, f"output={tmp_path}/run")
    assert sum("takes its place" in line for line in caplog.messages) > 1
    with pytest.raises(VidsslError, match=r"videos are broken"):
        run(*words, f"output={tmp_path}/strict", "data.max_broken=0.05")


@pytest.mark.parametrize("name", LABELLED)
def test_with_labels_one_is_an_error_unless_allowed(name, started, labelled, caplog):
    (command, *words), keys = LABELLED[name]
    with pytest.raises(VidsslError) as caught:
        started(command, *words, videos=labelled)
    message = str(caught.value)
    assert any(f"{each}: not a video" in message for each in BROKEN) and "\n" not in message
    assert message.endswith("skip such videos with --allow-missing, or find all of them with vidssl check")
    assert not said(caplog)
    results, page = started(command, *words, "--allow-missing", videos=labelled)
    check_named(results, keys, page, caplog)


def test_a_background_that_cannot_be_read_is_named_with_its_video(started, labelled, caplog):
    words = ("analyze background", "INPUT", "--checkpoint", "TRAINED", "--workers", 0, "--boxes", "BOXES")
    with pytest.raises(VidsslError, match=r"not a video.*--allow-missing"):
        started(*words, videos=labelled)
    results, _ = started(*words, "--allow-missing", videos=labelled)
    (report,) = said(caplog)
    assert report.startswith(f"{len(results['missing'])} videos cannot be read") and len(results["missing"]) > 2
    assert len(results["missing"]) + results["num_videos"] == 42
    named = [path if reason.startswith(path) else f"{path}: {reason}"
             for path, reason in (each.values() for each in results["missing"])]  # fmt: skip
    assert sum(name in report for name in named) in (3, 4)  # the reason of one may name another


@pytest.mark.parametrize("command", ["extract", "map"])
def test_features_of_a_list_with_labels_are_no_numbers(command, started, labelled, caplog):
    more = ("--layout", "pca") if command == "map" else ()
    results, page = started(command, "INPUT", *ONE, *more, videos=labelled)
    check_named(results, "missing", page, caplog)
    caplog.clear()
    results, page = started(command, "INPUT", *ONE, *more, videos=labelled)  # of the features that are there
    check_named(results, "missing", page, caplog)


def test_features_that_lack_videos_are_no_index_for_numbers_on_labels(started, labelled, tmp_path, caplog):
    cli.run("extract", [*map(str, (labelled, *ONE, "--out", tmp_path / "index")), "data.moving_digits=null"])
    words = (*SEARCH, "--query", "INPUT", "--index", "OUT/../index")
    for gallery in ((), ("--gallery", "INPUT")):
        with pytest.raises(VidsslError, match=r"index lacks 2 videos that cannot be read: .*--allow-missing"):
            started(*words, *gallery, videos=labelled)
        caplog.clear()
        results, page = started(*words, *gallery, "--allow-missing", videos=labelled)
        check_named(results, "missing_gallery missing_queries", page, caplog)


def test_show_names_what_training_replaces(folder, tmp_path, caplog):
    run("show", "--cfg", TOY.with_name("sce.yaml"), folder, "--limit", 42, "--draws", 1, "--out", tmp_path / "out")
    check_named({}, "", (tmp_path / "out/index.html").read_text(), caplog)


def test_parts_of_a_list_count_on_their_own(folder, tmp_path, caplog):
    parts = [("extract", folder, *ONE, "--out", tmp_path / "x", "--shard", f"{n}/2") for n in range(2)]
    for part in parts:
        run(*part)
    caplog.clear()
    cli.run("merge", ["--out", str(tmp_path / "x")])
    check_named(json.loads((tmp_path / "x/meta.json").read_text()), "missing", None, caplog)


# The rule ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "fraction", "most"),
    [
        (1, 0.05, 1),
        (19, 0.05, 1),
        (40, 0.05, 2),
        (59, 0.05, 2),
        (60, 0.05, 3),
        (10, 0.0, 0),
        (10, 1.0, 10),
        (3, 0.1, 1),
    ],
)
def test_the_broken_videos_of_a_training_are_a_fraction(count, fraction, most):
    assert most_broken(count, fraction) == most


def test_what_may_be_left_out_is_no_part_of_a_request():
    test = TestClips(clip={"frames": 2, "sampling_rate": 1})
    assert test.skipping().skips and not test.skips and isinstance(test.skipping(), DecodeSettings)
    assert test.skipping().model_dump() == test.model_dump()


def test_only_the_outer_block_names_and_a_failed_one_none(caplog):
    with noticing():
        with noticing():
            leave_out([("b", "b: gone"), ("a", "a: gone")])
        assert not said(caplog) and left_out() == {"a": "a: gone", "b": "b: gone"}
        leave_out([("a", "a: gone")])
        with noticing(at_once=True):
            leave_out([("c", "c: gone")])
        assert said(caplog) == ["1 video cannot be read and is left out: c: gone"]
    assert said(caplog)[1:] == ["2 videos cannot be read and are left out: a: gone; b: gone"]
    caplog.clear()
    with pytest.raises(VidsslError), noticing():
        leave_out([("a", "a: gone")])
        raise VidsslError("another one")
    assert not said(caplog) and left_out() == {}
    leave_out([("a", "a: gone")])  # outside of a job, as in a loop of one's own
    assert len(said(caplog)) == 1
