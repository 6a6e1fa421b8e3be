"""No command replaces what vidssl did not write: every option of every parser that names an output is tried.

A new option of a command that takes a path must be added here: to `READ`, or with a command line to `OUTPUTS`.
"""

import csv
import json
import os
import runpy
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import numpy as np
import pytest
import torchvision
from PIL import Image

import vidssl.jobs
from vidssl import cli
from vidssl.base import output_folder
from vidssl.base.errors import DataError, VidsslError
from vidssl.base.output_folder import MARK, claim, only_run_in, remove_unused, write_files
from vidssl.base.registry import APPS
from vidssl.cli import COMMANDS, Group, parser_of
from vidssl.cli.options_from_signatures import config_file
from vidssl.jobs.measurement_runner import claim_results
from vidssl.models.read_and_write_weights import weights_file

TOP = Path(__file__).parents[2]
PLACED = runpy.run_path(str(TOP / "tests" / "toys.py"))["placed"]
READ = """annotations backgrounds boxes cfg checkpoint classes columns features gallery labels masks metrics mnist
    more_labels proposals query results root splits test train train_boxes train_list videos"""
INPUTS = {*READ.split()}
NETWORK = "--checkpoint random --cfg CFG data.moving_digits=null --workers 0 --device cpu"
# Words of the commands that fill a folder, by command and option: no file may be there.
FOLDERS = {
    ("train", "settings"): "--cfg CFG PLACED",
    ("show", "out"): "--cfg CFG PLACED --out OUT",
    ("test", "out"): f"LIST --train-list TRAIN --out OUT {NETWORK}",
    ("test of boxes", "out"): "SETS/boxes.json --checkpoint none --out OUT",
    ("test of splits", "out"): f"DIGITS/motion/{{split}}.csv --splits 1 2 --out OUT {NETWORK}",
    ("retrieval", "out"): f"--gallery TRAIN --query LIST --out OUT {NETWORK}",
    ("retrieval", "index"): f"--gallery TRAIN --query LIST --index OUT --out ELSE {NETWORK}",
    ("extract", "out"): f"LIST --out OUT {NETWORK}",
    ("merge", "out"): "--out OUT",
    ("map", "out"): f"LIST --out OUT {NETWORK}",
    ("track", "out"): f"LIST --out OUT {NETWORK}",
    ("shrink", "out"): "LIST --out OUT",
    ("shrink to frames", "out"): "LIST --to frames --out OUT",
    ("check", "out"): "LIST --out OUT",
    ("compare", "out"): "LIST --checkpoint floor:thumbnails --out OUT",
    ("predict", "out"): "TRAIN --labels LIST --checkpoint floor:thumbnails --out OUT",
    **{(f"analyze {name}", "out"): f"LIST --out OUT {NETWORK}" for name in ("invariance", "gradcam", "all")},
    ("prepare colorful-moving-mnist", "out"): "--share digit --train 1 --test 1 --out OUT",
}
# Of commands that write single files, which may be beside others: the words, and the files.
FILES = {
    ("export", "out"): ("vidssl-small --to safetensors --out OUT/a.safetensors", ["a.safetensors"]),
    ("export of a folder", "out"): ("vidssl-small --to folder --out OUT", ["README.md"]),
    ("launch", "folder"): ("--cfg CFG PLACED_ELSE --cluster local --folder OUT", []),
    **{
        (f"prepare {name}", "out"): (f"{words} --out OUT", files)
        for name, words, files in (
            ("folder", "SETS/hmdb --test 0", ["train.csv", "classes.txt", "root.txt"]),
            ("ucf101", "SETS/UCF-101 --splits SETS/ucf", ["train1.csv", "test1.csv"]),
            ("list", "SETS/list.txt --form mmaction2 --root SETS/hmdb --separator ,", ["train.csv", "root.txt"]),
            ("voc-classes", "SETS/voc", ["train.csv", "test.csv"]),
            ("coco", "SETS/coco", ["val.json", "root.txt"]),
            ("chunks", "LIST --frames 4", ["test.csv", "root.txt"]),
            ("torchvision", "Tiny --root SETS", ["train.csv", "images/Tiny/train/0/000000.png"]),
            ("moving-digits", "--train 1 --test 1", ["settings.json"]),
        )
    },
    ("prepare torchvision", "images"): ("Tiny --root SETS --out ELSE --images OUT", ["Tiny/train/0/000000.png"]),
}
# Commands that write as another one in these tables does, by the same function.
ALIKE = {f"prepare {name}" for name in ("hmdb51", "kinetics", "ssv2", "trackingnet", "voc", "ava")}
ALIKE |= {f"analyze {name}" for name in ("robustness", "uniformity", "background")}
OUTPUTS = {key: (words, ["notes.txt"]) for key, words in FOLDERS.items()} | FILES


def path_options():
    """(command, option) of every option whose value is a path."""
    for name, entry in COMMANDS.items():
        for command in [f"{name} {job}" for job in entry.jobs] if isinstance(entry, Group) else [name]:
            for action in parser_of(command)[1]._actions:
                if action.type in (Path, config_file) or action.dest in ("out", "output", "folder", "settings"):
                    yield command, action.dest


def test_every_option_that_takes_a_path_is_known():
    actual = {*path_options()}
    known = {(name.partition(" of ")[0].partition(" to ")[0], option) for name, option in OUTPUTS}
    known |= {(name, "out") for name in ALIKE}
    settings = {(name, "settings") for name, _ in actual} - {("train", "settings")}  # of networks: nothing is written
    unknown = {(name, option) for name, option in actual - settings - known if option not in INPUTS}
    assert not unknown, "add it to READ, or to OUTPUTS with a command line"
    assert known <= actual


class Tiny:
    """An image set of torchvision with one image."""

    classes = ("one",)

    def __init__(self, root, train=True):
        self.image = Image.fromarray(np.zeros((8, 8, 3), np.uint8))

    def __len__(self):
        return 1

    def __getitem__(self, number):
        return self.image, 0


MODULES = {f"vidssl.jobs.{module.name}" for module in iter_modules(vidssl.jobs.__path__)}
MODULES |= {module for kind in ("command", "analysis", "data set") for module in APPS[kind].values()}


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    """Miniatures of data sets."""
    folder = tmp_path_factory.mktemp("sets")

    def write(name, text=""):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    for name in ("UCF-101/Archery/a.avi", "UCF-101/Archery/b.avi", "hmdb/wave/a.avi", "hmdb/wave/b.avi"):
        write(name)
    write("ucf/classInd.txt", "1 Archery\n")
    write("ucf/trainlist01.txt", "Archery/a.avi 1\n")
    write("ucf/testlist01.txt", "Archery/b.avi\n")
    write("k400/yoga/-aaaaaaaaaa_000001_000011.mp4")
    write("train.csv", "label,youtube_id,time_start,time_end,split\nyoga,-aaaaaaaaaa,1,11,train\n")
    write("list.txt", "wave/b.avi,3\n")
    box = "<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>2</xmax><ymax>2</ymax></bndbox>"
    size = "<size><width>4</width><height>4</height></size>"
    write("voc/Annotations/1.xml", f"<annotation>{size}<object><name>cat</name>{box}</object></annotation>")
    write("voc/JPEGImages/1.jpg")
    for name, text in {"test": "1\n", "cat_trainval": "1 1\n", "cat_test": "1 1\n"}.items():
        write(f"voc/ImageSets/Main/{name}.txt", text)
    write("coco/val/1.jpg")
    image = {"id": 1, "file_name": "1.jpg", "height": 4, "width": 4}
    write(
        "coco/annotations/instances_val.json",
        json.dumps({"images": [image], "annotations": [], "categories": [{"id": 1, "name": "cat"}]}),
    )
    return folder


@pytest.fixture
def run(digits, sets, tmp_path, monkeypatch):
    """Run the command line of an output into a folder; no work may be begun."""

    def work(*_, **__):
        raise AssertionError("work was begun before it was decided that the output may be written")

    def begin(name, option, out):
        monkeypatch.setattr(torchvision.datasets, "Tiny", Tiny, raising=False)
        # All of them, before the first is changed: one that is imported later would keep the function replaced here.
        for module in [import_module(name) for name in sorted(MODULES)]:
            for function in ("load_subject", "encode_key_frames", "check_video"):
                if hasattr(module, function):
                    monkeypatch.setattr(module, function, work)
        elsewhere = tmp_path / "elsewhere"
        words = OUTPUTS[name, option][0].replace("OUT", str(out)).replace("ELSE", str(elsewhere))
        places = {"DIGITS": digits, "SETS": sets, "LIST": digits / "motion/test.csv"}
        places |= {"TRAIN": digits / "motion/train.csv", "CFG": TOP / "configs/toy/moco.yaml"}
        for word, path in places.items():
            words = words.replace(word, str(path))
        collected = []
        for word in words.split():
            if word.startswith("PLACED"):
                collected += PLACED("moco", digits, elsewhere if "elsewhere" in word else out)
            else:
                collected.append(word)
        command, *analysis = name.partition(" of ")[0].partition(" to ")[0].split()
        cli.run(command, [*analysis, *collected])

    return begin


def contents(folder):
    """What is in a folder, apart from the mark and the lock."""
    return {
        str(path.relative_to(folder)): path.readlink() if path.is_symlink() else path.read_bytes()
        for path in folder.rglob("*")
        if not path.is_dir() and path.name not in (MARK, ".lock")
    }


@pytest.mark.parametrize(("name", "option"), OUTPUTS, ids=lambda value: str(value))
def test_a_command_replaces_nothing_and_writes_through_no_link(run, tmp_path, name, option):
    """Nor does it begin its work before it has said so."""

    def refused(out, place):
        with pytest.raises(VidsslError) as caught:
            run(name, option, out)
        message = str(caught.value)
        assert str(place) in message and "\n" not in message and "delete" not in message

    precious, files = tmp_path / "precious", OUTPUTS[name, option][1]
    precious.write_text("precious")
    for kind, target in (("file", None), ("link", precious), ("broken", tmp_path / "nothing")):
        for file in files[: 1 if target else None]:
            out = tmp_path / kind / file.replace("/", "-")
            (out / file).parent.mkdir(parents=True)
            (out / file).write_text("precious") if target is None else (out / file).symlink_to(target)
            before = contents(out)
            refused(out, out)
            assert contents(out) == before and not (tmp_path / "nothing").exists()
    for out in (precious, precious / "x"):
        refused(out, precious)
    assert precious.read_text() == "precious"


INPUT_FILES = [
    ("prepare kinetics", "SETS/k400 --train OUT/train.csv", "train.csv", "train.csv"),
    ("prepare list", "OUT/train.csv --form mmaction2 --root SETS/hmdb --separator ,", "list.txt", "train.csv"),
    ("prepare folder", "SETS/hmdb --test 0 --labels OUT/train.csv", "labels.csv", "train.csv"),
    ("prepare chunks", "OUT/mine.csv --root DIGITS --frames 4", "LIST", "mine.csv"),
    ("check", "OUT/mine.csv --root DIGITS", "LIST", "mine.csv"),
    ("shrink", "OUT/mine.csv --root DIGITS", "LIST", "mine.csv"),
    ("shrink", "OUT/mine.csv --root DIGITS --to frames", "LIST", "mine.csv"),
    ("export", "OUT/a.safetensors --to safetensors --out OUT/a.safetensors", "WEIGHTS", "a.safetensors"),
]


@pytest.mark.parametrize(("name", "words", "source", "file"), INPUT_FILES, ids=lambda value: str(value)[:20])
def test_inputs_are_not_replaced(run, sets, digits, tmp_path, monkeypatch, name, words, source, file):
    linked = name in ("prepare list", "export")
    out = tmp_path / "out"
    out.mkdir()
    (sets / "labels.csv").write_text("path,label,person\nwave/a.avi,wave,1\nwave/b.avi,wave,2\n")
    original = {"LIST": digits / "motion/test.csv", "WEIGHTS": weights_file("vidssl-small")}
    content = original.get(source, sets / source).read_bytes()
    (out / file).write_bytes(content)
    if linked:  # by another name
        os.link(out / file, tmp_path / file)
        words = words.replace(f"OUT/{file}", f"{tmp_path}/{file}", 1)
    words += "" if "--out" in words else " --out OUT"
    monkeypatch.setitem(OUTPUTS, (name, "out"), (words, [file]))
    with pytest.raises(VidsslError, match=r"(is an input|is the list|there already|made from)"):
        run(name, "out", out)
    assert contents(out) == {file: content}


def test_merged_parts_replace_nothing(digits, tmp_path):
    options = f"--cfg {TOP}/configs/toy/moco.yaml data.moving_digits=null --workers 0 --clips 1 --crops 1"
    words = [str(digits / "motion/test.csv"), "--checkpoint", "random", *options.split(), "--out", str(tmp_path / "x")]
    for shard in ("0/2", "1/2"):
        cli.run("extract", [*words, "--shard", shard])
    (tmp_path / "x").mkdir()
    for name in ("notes.txt", "features.npy"):
        (tmp_path / "x" / name).write_text("precious")
        with pytest.raises(VidsslError, match=f"{tmp_path}/x"):
            cli.run("merge", ["--out", str(tmp_path / "x")])
        assert contents(tmp_path / "x") == {name: b"precious"}
        (tmp_path / "x" / name).unlink()
    cli.run("merge", ["--out", str(tmp_path / "x")])
    assert (tmp_path / "x/features.npy").exists()


# The same command again ----------------------------------------------------------------------------------------


def lists_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_lists_of_one_folder(sets, tmp_path):
    """The same command again, and lists beside each other; not those of another file, root or edit."""

    def prepare(form, name, root="hmdb", line="wave/b.avi,3\n", source="a.txt"):
        (tmp_path / source).write_text(line)
        words = [tmp_path / source, "--form", form, "--root", sets / root, "--separator", ",", "--name", name]
        cli.run("prepare", ["list", *map(str, words), "--out", str(tmp_path / "lists")])

    prepare("mmaction2", "train")
    first = lists_of(tmp_path / "lists")
    prepare("mmaction2", "train")
    assert lists_of(tmp_path / "lists") == first
    prepare("mmaction2", "train", line="wave/a.avi,1\n")  # the file was changed
    assert b"a.avi" in (tmp_path / "lists/train.csv").read_bytes()
    prepare("mmaction2", "test", source="b.txt")
    with pytest.raises(VidsslError, match=r"train\.csv was made from \.\./a\.txt .*, not from \.\./b\.txt"):
        prepare("mmaction2", "train", source="b.txt")
    with pytest.raises(VidsslError, match=r"root\.txt belongs to other lists"):
        prepare("mmaction2", "more", root="UCF-101", line="Archery/a.avi,1\n", source="c.txt")
    with (tmp_path / "lists/train.csv").open("a") as file:
        file.write("wave/b.avi,0\n")
    edited = (tmp_path / "lists/train.csv").read_bytes()
    with pytest.raises(VidsslError, match="was changed since"):
        prepare("mmaction2", "train")
    assert (tmp_path / "lists/train.csv").read_bytes() == edited
    for name in ("../train", "a/b", "x" * 300):
        with pytest.raises(VidsslError, match="cannot be the name of a file"):
            prepare("mmaction2", name)


def write_list(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([["path"], *[[row] for row in rows]])
    return path


@pytest.mark.parametrize("to", ["video", "frames"])
def test_copies_of_two_roots_do_not_share_a_folder(tmp_path, write_video, numbered, to):
    for root in ("train", "val"):
        write_video(tmp_path / root / "run/0.mp4", numbered(6))
        words = [write_list(tmp_path / f"{root}.csv", ["run/0.mp4"]), "--root", tmp_path / root, "--out"]
        words = [str(word) for word in (*words, tmp_path / "small", "--to", to, "--workers", "1")]
        if root == "train":
            cli.run("shrink", words)
            before = contents(tmp_path / "small")
        else:
            with pytest.raises(VidsslError, match=r"holds copies of other inputs \(.*root \.\./train, now \.\./val\)"):
                cli.run("shrink", words)
            assert contents(tmp_path / "small") == before


@pytest.mark.parametrize("to", ["video", "frames"])
def test_originals_of_another_size_or_time_are_copied_again(tmp_path, write_video, numbered, capsys, to):
    """The time to the nanosecond and the size count: a changed original may have the second of its copy."""
    video, other = tmp_path / "videos/a.mp4", write_video(tmp_path / "b.mp4", numbered(9))
    words = [write_list(tmp_path / "all.csv", ["a.mp4"]), "--root", tmp_path / "videos", "--out", tmp_path / "small"]

    def shrink():
        cli.run("shrink", [*map(str, words), "--to", to, "--workers", "1", "--json"])
        stored = json.loads(capsys.readouterr().out)
        return stored["made"], stored["kept"]

    write_video(video, numbered(6))
    os.utime(video, ns=(10**18, 10**18))
    assert shrink() == (1, 0) and shrink() == (0, 1)
    os.utime(video, ns=(10**18 + 1, 10**18 + 1))
    assert shrink() == (1, 0) and shrink() == (0, 1)
    video.write_bytes(other.read_bytes())
    os.utime(video, ns=(10**18 + 1, 10**18 + 1))
    assert shrink() == (1, 0) and shrink() == (0, 1)


# Locks ---------------------------------------------------------------------------------------------------------


def test_the_lock_is_not_opened_through_a_link_and_truncates_nothing(tmp_path):
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/.lock").symlink_to(tmp_path / "precious")
    with pytest.raises(VidsslError, match=r"its \.lock is a link"), only_run_in(tmp_path / "out"):
        raise AssertionError
    assert (tmp_path / "precious").read_text() == "precious"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/.lock").write_text("of another program")
    with only_run_in(tmp_path / "mine"):
        assert (tmp_path / "mine/.lock").read_text() == "of another program"


def test_shards_share_a_lock(tmp_path, monkeypatch):
    monkeypatch.setattr(output_folder, "_PATIENCE", 0.0)
    with only_run_in(tmp_path, shared=True), only_run_in(tmp_path, shared=True):
        with pytest.raises(VidsslError, match="another run is writing"), only_run_in(tmp_path):
            raise AssertionError
    with only_run_in(tmp_path), pytest.raises(VidsslError, match="another run is writing"):
        with only_run_in(tmp_path, shared=True):
            raise AssertionError


def test_a_run_waits_for_the_workers_of_a_killed_one(tmp_path):
    """They have the lock until they have noticed: at once a new run would write to the files that they write."""
    code = """
import os, sys, time
from pathlib import Path
from vidssl.base.output_folder import only_run_in
with only_run_in(Path(sys.argv[1])):
    if os.fork() == 0:
        time.sleep(1.0)
        os._exit(0)
    print("locked", flush=True)
    time.sleep(60)
"""
    running = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert running.stdout.readline() == "locked\n"
    running.kill()
    running.wait()
    with only_run_in(tmp_path):
        running.stdout.close()


# Results ---------------------------------------------------------------------------------------------------------


def test_a_folder_holds_one_kind_of_results_of_the_same_inputs(tmp_path):
    out, lists = tmp_path / "out", {"list": tmp_path / "a.csv"}
    claim_results(out, "test", lists)
    claim_results(out, "test", {"list": tmp_path / "b.csv"})  # nothing was written: the name may have been mistyped
    (out / "results.json").write_text("{}")
    claim_results(out, "test", {"list": tmp_path / "b.csv"})
    with pytest.raises(VidsslError, match=r"holds test of other inputs .*list \.\./b\.csv, now \.\./a\.csv"):
        claim_results(out, "test", lists)
    with pytest.raises(VidsslError, match=r"results\.json is there already, and the folder holds test: choose another"):
        claim_results(out, "robustness", {"list": tmp_path / "b.csv"})
    with pytest.raises(VidsslError, match=r"results\.json is an input, and an output could replace it"):
        claim_results(out, "test", {}, [out / "results.json"])
    (out / "link").symlink_to(tmp_path / "b.csv")
    with pytest.raises(VidsslError, match=r"out/link is a link, and nothing is written through links"):
        claim_results(out, "test", {})
    (out / "link").unlink()
    write_files(out, {"videos.csv": b"path\n"})
    with pytest.raises(VidsslError, match=r"videos\.csv is an input"):
        claim_results(out, "test", {}, [out / "videos.csv"])
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").write_text("mine")  # without a mark
    with pytest.raises(
        VidsslError, match=r"notes\.txt is there already, and vidssl has no record of writing it as test"
    ):
        claim_results(tmp_path / "mine", "test", lists)


# Before the work -------------------------------------------------------------------------------------------------


def test_names_that_no_list_can_hold_are_found_before_a_video_is_decoded(tmp_path, write_video, numbered):
    write_video(tmp_path / "videos/a.mp4", numbered(6))
    write_video(tmp_path / "videos/b\nc.mp4", numbered(6))
    with pytest.raises(VidsslError, match="holds a line break"):
        cli.run("check", [str(tmp_path / "videos"), "--out", str(tmp_path / "out"), "--workers", "1"])
    assert not (tmp_path / "out").exists()


def test_a_run_does_not_replace_a_config_of_the_user(digits, tmp_path):
    """Also if it is read; but the one that a run wrote may be read to continue it."""
    out = tmp_path / "out"
    out.mkdir()
    (out / "config.yaml").write_bytes((TOP / "configs/toy/moco.yaml").read_bytes())
    before = contents(out)
    words = ["--cfg", str(out / "config.yaml"), *PLACED("moco", digits, out), "steps=1"]
    with pytest.raises(VidsslError, match=r"config\.yaml is there already, and vidssl has no record"):
        cli.run("train", words)
    assert contents(out) == before
    (out / "config.yaml").rename(tmp_path / "config.yaml")
    cli.run("train", ["--cfg", str(tmp_path / "config.yaml"), *words[2:]])
    cli.run("train", words)


def test_subfolders_are_not_written_through_links(digits, tmp_path):
    (tmp_path / "precious").mkdir()
    (tmp_path / "out").mkdir()
    for name in ("videos", "features", "lists"):
        (tmp_path / "out" / name).symlink_to(tmp_path / "precious")
    words = [str(digits / "videos/test"), "--cfg", str(TOP / "configs/toy/moco.yaml"), "--out", str(tmp_path / "out")]
    for command in (["show"], ["map", "--checkpoint", "random"], ["analyze", "all", "--checkpoint", "random"]):
        with pytest.raises(VidsslError, match=r"is not a folder|is a link|is there already"):
            cli.run(command[0], [*command[1:], *words])
    assert not [*(tmp_path / "precious").iterdir()]


def test_claims_of_a_failed_command_are_taken_back(tmp_path):
    """Else a file that the user puts there later would count as one of vidssl; lists that are there stay known."""
    (tmp_path / "mine").mkdir()
    write_files(tmp_path / "lists", {"a.csv": b"path"})
    for name in ("mine", "new", "lists"):
        claim(tmp_path / name, "results")
    remove_unused()
    assert {path.name for path in tmp_path.rglob("*")} == {"mine", "lists", "a.csv", MARK}
    (tmp_path / "mine/results.json").write_text("mine")
    with pytest.raises(DataError, match=r"results.json is there already, and vidssl has no record"):
        claim(tmp_path / "mine", "results")
    write_files(tmp_path / "lists", {"a.csv": b"path,label"})
    claim(tmp_path / "lists", "map")


def test_a_failed_command_leaves_no_mark(tmp_path, monkeypatch):
    class Broken(Tiny):
        def __getitem__(self, number):
            raise OSError("damaged")

    monkeypatch.setattr(torchvision.datasets, "Tiny", Broken, raising=False)
    with pytest.raises(VidsslError, match="damaged"):
        words = ["torchvision", "Tiny", "--root", str(tmp_path), "--out", str(tmp_path / "out")]
        cli.run("prepare", words)
    assert not (tmp_path / "out/images/Tiny").exists() and not [*tmp_path.rglob(MARK)]


def test_a_failed_command_leaves_what_others_write(tmp_path):
    claim(tmp_path, "results")
    with only_run_in(tmp_path):  # of another run, that has begun since
        remove_unused()
    claim(tmp_path, "results")
    (tmp_path / "results.json").write_text("{}")
    remove_unused()
    assert json.loads((tmp_path / MARK).read_text())["kind"] == "results"
