"""Every command that measures: what its `results.json` states, and what it says of tested videos that it should not."""

import csv
import json
import re
import shutil
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

import vidssl
from vidssl import cli
from vidssl.base.errors import DataError
from vidssl.data.video_list import read_list
from vidssl.engine.run_config import load_run
from vidssl.engine.train import train
from vidssl.evaluation.result_files import RESULTS_FORMAT

TOP = Path(__file__).parents[2]
TOY = TOP / "configs" / "toy" / "supervised.yaml"
EVERY = {"overlap", "fingerprints", "request", "command", "date", "versions", "format"}
SHARED = {"videos": 3, "copies": 1, "groups": 1, "group_videos": 1, "tested": 7, "missing": 0}

# The words of each command; those that name the training list compare with it.
QUERY = ["retrieval", "--page-queries", "0", "--query", "INPUT"]
MEASURES = {
    "test": ["test", "INPUT", "--train-list", "TRAIN", "--protocol", "accuracy", "knn"],
    "test --splits": ["test", "INPUT{split}", "--train-list", "TRAIN", "--splits", "1", "2"],
    "retrieval": [*QUERY, "--gallery", "TRAIN"],
    "retrieval --index": [*QUERY, "--index", "INDEX"],
    "retrieval --window": [*QUERY, "--gallery", "TRAIN", "--window", "0.4"],
    "map": ["map", "INPUT", "--layout", "pca", "--thumbnails", "0"],
    "analyze uniformity": ["analyze", "uniformity", "INPUT"],
}


def write(folder, name, rows, classes, root):
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{path},{label}\n" for path, label in rows)
    (folder / f"{name}.csv").write_text(f"path,label\n{text}")
    (folder / "classes.txt").write_text("".join(f"{each}\n" for each in classes))
    (folder / "root.txt").write_text(f"{root}\n")
    return folder / f"{name}.csv"


@pytest.fixture(scope="module")
def data(digits, tmp_path_factory):
    """A training list of six videos, a test list of seven, of which four are shared in some way, and a network."""
    folder = tmp_path_factory.mktemp("overlap")
    root = folder / "videos"
    (root / "train").mkdir(parents=True)
    (root / "test").mkdir()

    def sources(half):
        records = read_list(digits / f"motion/{half}.csv").records
        return {label: iter([record.path for record in records if record.label == label]) for label in (0, 1)}

    def place(name, label, paths):
        shutil.copy(next(paths[label]), root / name)
        return name, label

    train_paths, test_paths = sources("train"), sources("test")
    names = [*(f"train/{n}.mp4" for n in range(5)), "train/v_a_g01_c01.mp4"]
    trained = [place(name, n % 2, train_paths) for n, name in enumerate(names)]
    (root / "test/link.mp4").symlink_to(root / "train/1.mp4")
    shutil.copy(root / "train/2.mp4", root / "test/copy.mp4")
    tested = [("train/0.mp4", 0), ("test/link.mp4", 1), ("test/copy.mp4", 0)]
    names = ("test/0.mp4", "test/1.mp4", "test/2.mp4", "test/v_a_g01_c02.mp4")
    tested += [place(name, n % 2, test_paths) for n, name in enumerate(names)]
    classes = read_list(digits / "motion/train.csv").classes
    lists = {"train": write(folder / "train", "list", trained, classes, root)}
    for name in ("test", "test1", "test2"):  # the last two are splits
        write(folder / name, "list", tested, classes, root)
    settings = [f"data.train={lists['train']}", "data.moving_digits=null", "data.workers=0", "device=cpu", "steps=1"]
    settings += [f"output={folder}/run", "batch_size=4", "evaluate.clips=1"]
    train(load_run(TOY, settings))
    cli.run("extract", [str(lists["train"]), *network(folder), "--out", str(folder / "index"), "--quiet"])
    return folder


def network(folder):
    return ["--checkpoint", f"{folder}/run/checkpoints/last.pt", "--workers", "0", "--device", "cpu"]


def words_of(folder, words):
    places = {"INPUT{split}": f"{folder}/test{{split}}/list.csv", "INPUT": f"{folder}/test/list.csv"}
    places |= {"TRAIN": f"{folder}/train/list.csv", "INDEX": f"{folder}/index"}
    return [places.get(word, word) for word in words]


def run(folder, out, words, *more):
    """Run a command on the lists; return its results.json."""
    command, *rest = words_of(folder, words)
    cli.run(command, [*rest, *network(folder), "--out", str(out), *more])
    return json.loads((out / "results.json").read_text())


@pytest.mark.parametrize("name", MEASURES)
def test_results_state_what_they_are_of(data, tmp_path, name, caplog):
    words = MEASURES[name]
    compares = not {"TRAIN", "INDEX"}.isdisjoint(words)
    with caplog.at_level("INFO"):
        results = run(data, tmp_path / "out", words)
    assert results.keys() >= EVERY
    assert results["format"] == RESULTS_FORMAT and results["versions"]["vidssl"] == vidssl.__version__
    assert results["command"].startswith(f"vidssl {words[0]} ") and str(tmp_path) in results["command"]
    age = datetime.now(timezone.utc) - datetime.fromisoformat(results["date"])
    assert timedelta(0) - timedelta(seconds=1) <= age < timedelta(minutes=10)
    splits = ["1", "2"] if "--splits" in words else [None]
    for split in splits:
        overlap, prints = (
            results[key] if split is None else results[key][split] for key in ("overlap", "fingerprints")
        )
        request = results["request"] if split is None else results["request"]["splits"][split]
        assert request["weights"]["sha256"] and request["list"] == prints["query"]
        assert request["data"]["files"] == 7
        if name == "map":  # nothing is tested
            assert overlap is None
            continue
        trained = read_list(data / "train/list.csv").fingerprint
        assert prints["training"] == trained and prints["gallery"] == (trained if compares else None)
        assert {key: overlap["training"][key] for key in SHARED} == SHARED
        assert overlap["training"]["changed"] is False
        if compares:
            assert {key: overlap["gallery"][key] for key in SHARED} == SHARED and not overlap["gallery"]["one_list"]
        else:
            assert overlap["gallery"] is None
    lines = [r.getMessage() for r in caplog.records if r.levelname == "WARNING" and "3 of 7 videos" in r.getMessage()]
    assert lines or name == "map"
    assert len({*lines}) == len(lines), "a command says it once"


@pytest.mark.parametrize("shared", ["train/0.mp4", "test/link.mp4", "test/copy.mp4"])
def test_what_learns_refuses_its_own_videos(data, tmp_path, shared):
    """By path, by a link, and by content."""
    rows = [row for row in csv.reader(open(data / "test/list.csv")) if row[0] == shared or re.match(r"test/\d", row[0])]
    folder = tmp_path / "lists"
    query = write(folder, "list", rows, read_list(data / "test/list.csv").classes, data / "videos")
    words = ["test", str(query), "--train-list", "TRAIN", "--protocol", "svm"]
    with pytest.raises(DataError, match=f"1 videos of .* are in .* too, the first '{shared}'.*svm would be tested"):
        run(data, tmp_path / "out", words)


def test_a_training_list_that_is_gone_or_changed(data, tmp_path, caplog):
    lists = data / "train/list.csv"
    text = lists.read_text()
    words = ["test", "INPUT", "--protocol", "accuracy"]
    try:
        lists.unlink()
        with caplog.at_level("INFO"):
            results = run(data, tmp_path / "gone", words)
        assert results["overlap"]["training"]["not_checked"] == "its list is not there"
        (line,) = (r for r in caplog.records if "was not compared" in r.getMessage())
        assert line.levelname == "INFO" and line.getMessage().endswith(f"{lists}: its list is not there")
        lists.write_text("path\n../../etc/passwd\n")
        results = run(data, tmp_path / "broken", words)
        assert "leaves the root" in results["overlap"]["training"]["not_checked"]
        lists.write_text(text.replace("train/2.mp4,0\n", ""))
        results = run(data, tmp_path / "changed", words)
        overlap = results["overlap"]["training"]
        assert (overlap["videos"], overlap["copies"], overlap["changed"]) == (2, 0, True)
        assert overlap["fingerprint"] == results["fingerprints"]["training"] != read_list(lists).fingerprint
    finally:
        lists.write_text(text)


def test_an_untrained_network_has_no_training_list(data, tmp_path):
    words = words_of(data, ["test", "INPUT", "--train-list", "TRAIN", "--protocol", "knn"])
    more = ["--checkpoint", "random", "--cfg", str(TOY), "data.moving_digits=null", "data.workers=0", "--clips", "1"]
    cli.run(words[0], [*words[1:], *more, "--out", str(tmp_path)])
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["overlap"]["training"] is None and results["overlap"]["gallery"]["videos"] == 3


def test_a_search_in_one_list_warns_of_nothing_but_copies(data, tmp_path, caplog):
    """A plain line names the recordings."""
    folder = data / "videos/train"
    shutil.copytree(folder, tmp_path / "own")
    shutil.move(tmp_path / "own/0.mp4", tmp_path / "own/v_a_g01_c02.mp4")
    words = ["retrieval", "--query", str(tmp_path / "own"), "--gallery", str(tmp_path / "own"), "--page-queries", "0"]
    with caplog.at_level("INFO"):
        results = run(data, tmp_path / "out", words)
    overlap = results["overlap"]["gallery"]
    assert overlap["one_list"] and (overlap["videos"], overlap["group_videos"], overlap["groups"]) == (0, 2, 1)
    assert not [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert [r.levelname for r in caplog.records if "recording (" in r.getMessage()] == ["INFO"]
    shutil.copy(tmp_path / "own/1.mp4", tmp_path / "own/again.mp4")
    caplog.clear()
    results = run(data, tmp_path / "out", words)
    assert results["overlap"]["gallery"]["videos"] == 2 and results["duplicates"] == 1  # a pair is counted once
    (line,) = (r.getMessage() for r in caplog.records if r.levelname == "WARNING")
    assert "2 of 7 videos" in line and "are in this list under another name" in line and "--drop-duplicates" in line


def test_periodic_evaluation_warns_and_counts(data, tmp_path, caplog):
    settings = [f"data.train={data}/train/list.csv", f"evaluate.query={data}/test/list.csv", "data.moving_digits=null"]
    settings += [
        f"evaluate.gallery={data}/train/list.csv",
        "evaluate.every=1",
        "steps=1",
        "batch_size=4",
        "evaluate.clips=1",
    ]
    train(load_run(TOY, [*settings, f"output={tmp_path}", "data.workers=0", "device=cpu"]))
    (line,) = (r.getMessage() for r in caplog.records if "3 of 7 videos" in r.getMessage())
    assert f"the gallery and the list that the network was trained on, {data}/train/list.csv" in line
    steps = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    measured = [step for step in steps if "top1" in step]
    assert [(step["overlap_training"], step["overlap_gallery"]) for step in measured] == [(3, 3)]
    with pytest.raises(DataError, match="svm would be tested on training videos"):
        train(load_run(TOY, [*settings, f"output={tmp_path}/svm", "evaluate.protocols=[{name: svm}]", "device=cpu"]))


def test_results_of_another_format_or_version_are_measured_again(data, tmp_path, caplog):
    """And those that are reused warn as the first time."""
    words = ["test", "INPUT", "--train-list", "TRAIN", "--protocol", "knn"]
    said = []
    for _ in range(2):
        caplog.clear()
        first = run(data, tmp_path / "out", words)
        said.append((first, [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]))
    assert said[0] == said[1] and len(said[0][1]) == 2  # with its date: reused
    for change in ({"format": None}, {"versions": {"vidssl": "0.0.1"}}):
        edited = {**first, "knn": 0.123, **change}
        (tmp_path / "out/results.json").write_text(json.dumps({k: v for k, v in edited.items() if v is not None}))
        caplog.clear()
        with caplog.at_level("INFO"):
            again = run(data, tmp_path / "out", words)
        assert again["knn"] == first["knn"] and again["format"] == RESULTS_FORMAT
        (line,) = (r.getMessage() for r in caplog.records if "replacing it" in r.getMessage())
        assert ("vidssl 0.0.1" if "versions" in change else "format") in line


def test_the_format_is_raised_with_each_change_of_numbers():
    """results.json of before is not reused: FORMAT is the number of lines "Numbers change" in the changelog."""
    text = (TOP / "CHANGELOG.md").read_text(encoding="utf-8")
    assert len(re.findall(r"^\* .*numbers change", text, re.IGNORECASE | re.MULTILINE)) == RESULTS_FORMAT


def test_a_search_in_python_warns_of_copies(data, caplog):
    network, options = f"{data}/run/checkpoints/last.pt", {"workers": 0, "device": "cpu", "progress": False}
    query, gallery = (vidssl.extract(network, f"{data}/{name}/list.csv", **options) for name in ("test", "train"))
    hits = vidssl.search(gallery, query, k=3)
    lines = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    videos = f"{data}/videos"
    assert len(lines) == 2 and lines[0].startswith(
        f"3 of 7 videos of {videos} are in the gallery {videos} too (1 under"
    )
    assert f"1 of 7 videos of {videos} are of 1 recording (" in lines[1]
    assert hits.index[2, 0] == 2  # the copy is found, and the video itself is not
    assert 0 not in hits.index[0] and 1 not in hits.index[1]


def test_several_lists_and_shrunk_copies_of_the_tested_videos(data, tmp_path):
    """A copy that was encoded again has the name of the original; each list of a run is compared."""
    vidssl.shrink(data / "train/list.csv", out=tmp_path / "small", short_side=32)
    classes = read_list(data / "train/list.csv").classes
    one = write(tmp_path / "one", "list", [("test/0.mp4", 0)], classes, data / "videos")
    options = [f"data.train=[{{list: {tmp_path}/small/list.csv, weight: 2}}, {one}]", "data.moving_digits=null"]
    options += ["data.workers=0", "device=cpu", "steps=1", "batch_size=4", "evaluate.clips=1", f"output={tmp_path}/run"]
    train(load_run(TOY, options))
    for name, videos, copies in (("train", 6, 6), ("test", 2, 1)):  # of the test list train/0.mp4 is a copy by name
        words = ["test", f"{data}/{name}/list.csv", "--checkpoint", f"{tmp_path}/run", "--workers", "0"]
        cli.run(words[0], [*words[1:], "--device", "cpu", "--protocol", "accuracy", "--out", f"{tmp_path}/{name}"])
        stored = json.loads((tmp_path / name / "results.json").read_text())["overlap"]["training"]
        assert (stored["videos"], stored["copies"], stored["changed"]) == (videos, copies, False)
        assert stored["list"] == f"{tmp_path}/small/list.csv and {one}"
