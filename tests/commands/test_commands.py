"""Every tool from its command line to its files, and every mistake to its one line."""

import json
import os
import re
import runpy
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import vidssl
from vidssl import cli
from vidssl.data.video_list import read_list
from vidssl.data.write_lists import write_lists
from vidssl.engine.run_config import load_run
from vidssl.engine.train import train

TOP = Path(__file__).parents[2]
TOY = TOP / "configs" / "toy" / "supervised.yaml"
RANKS = ("R@1", "R@5", "R@10", "R@20", "R@50")


@pytest.fixture(scope="session")
def command(run_script):
    """Run a script as a user does; give what it prints, and what it says beside that."""

    def run(script, *arguments, cwd):
        status, out, err = run_script(TOP / script, *arguments, cwd=cwd)
        assert status == 0, err
        assert "Traceback" not in err
        return out, err

    return run


def vidssl_command(monkeypatch, capsys, *arguments):
    """Run the command `vidssl` in this process; give what it prints."""
    monkeypatch.setattr(sys, "argv", ["vidssl", *map(str, arguments)])
    capsys.readouterr()
    try:
        cli.main()
    except SystemExit as end:
        assert not end.code
    return capsys.readouterr().out


def settings(digits, output, *more):
    return [f"data.train={digits}/motion/train.csv", f"output={output}", "data.moving_digits=null", "steps=6", *more]


@pytest.fixture(scope="module")
def trained(command, digits, tmp_path_factory):
    """Folder of a run that was interrupted after step 4 and finished by the tool; and what the tool said."""
    folder = tmp_path_factory.mktemp("run")
    given = settings(digits, "run", "data.workers=0")  # relative to where the tool is started
    here = Path.cwd()
    os.chdir(folder)
    try:
        train(load_run(TOY, given), until=4)
    finally:
        os.chdir(here)
    out, log = command("tools/train_net.py", "--cfg", TOY, *given, cwd=folder)
    return folder / "run", out, log


@pytest.fixture(scope="module")
def checkpoint(trained):
    return trained[0] / "checkpoints" / "last.pt"


@pytest.fixture(scope="module")
def retrieved(command, trained, digits):
    """Results of the trained and of the untrained backbone."""
    folder = trained[0].parent
    lists = ["--gallery", digits / "motion/train.csv", "--query", digits / "motion/test.csv"]
    out, _ = command(
        "tools/retrieval.py",
        *("--checkpoint", "run/checkpoints/last.pt", *lists, "--out", "pages/trained/motion", "--workers", "0"),
        cwd=folder,
    )
    given = [f"data.train={digits}/motion/train.csv", "data.moving_digits=null"]
    cli.run(
        "retrieval",
        [
            "--checkpoint",
            "random",
            "--cfg",
            str(TOY),
            *map(str, lists),
            "--out",
            str(folder / "pages/random/motion"),
            "--center",
            "--k",
            "3",
            "--workers",
            "0",
            *given,
        ],
    )
    results = [json.loads((folder / f"pages/{run}/motion/results.json").read_text()) for run in ("trained", "random")]
    return folder / "pages", out, *results


def test_training_is_taken_up_again(trained, digits):
    folder, out, log = trained
    assert out.strip().endswith("run/checkpoints/last.pt")
    assert "resumed run at step 4" in log and "supervised on resnet3d18" in log and "40 videos" in log
    steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in steps if "loss" in line] == [1, 2, 3, 4, 5, 6]
    times = [line["time"] for line in steps]
    assert times == sorted(times) and 0 <= time.time() - times[-1] < 3600
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d INFO \w", log)
    names = {path.name for path in (folder / "checkpoints").iterdir()}
    assert {"step-00000006.pt", "step-00000004.pt", "last.pt"} <= names
    assert not [name for name in names if "tmp" in name]
    # The config beside the checkpoint is a config by itself.
    again = load_run(folder / "config.yaml")
    assert (again.steps, again.batch_size, again.data.train) == (6, 8, f"{digits}/motion/train.csv")


def test_a_finished_run_is_left_as_it_is(trained, digits, monkeypatch, capsys):
    folder = trained[0]
    before = (folder / "metrics.jsonl").read_bytes(), sorted((folder / "checkpoints").iterdir())
    monkeypatch.chdir(folder.parent)
    cli.run("train", ["--cfg", str(TOY), *settings(digits, "run", "data.workers=0")])
    assert capsys.readouterr().out.strip().endswith("last.pt")
    assert before == ((folder / "metrics.jsonl").read_bytes(), sorted((folder / "checkpoints").iterdir()))


def test_retrieval(retrieved, search_page):
    folder, out, results, random = retrieved
    for found in (results, random):
        assert {*RANKS, "knn", "chance", "num_queries", "num_gallery", "centered", "config", "versions"} <= {*found}
        assert (found["num_queries"], found["num_gallery"]) == (16, 40)
        assert found["chance"] == pytest.approx(1 / 8)
        ranks = [found[name] for name in RANKS]
        assert ranks == sorted(ranks) and ranks[0] >= 0 and ranks[-1] <= 1 and 0 <= found["knn"] <= 1
        assert found["versions"]["vidssl"] == vidssl.__version__
        assert found["protocol"]["clips"] == 2 and found["protocol"]["crops"] == 1
    assert not results["centered"] and random["centered"]
    assert {*results["centered_features"]} == {*random["uncentered"]} == {*RANKS}
    assert (results["knn_k"], random["knn_k"]) == (10, 3)
    assert results["checkpoint"]["step"] == 6 and len(results["checkpoint"]["sha256"]) == 64
    assert random["checkpoint"]["path"] == "random"
    assert "16 queries, 40 in the gallery, 2 clips x 1 crop" in out
    assert [line.split()[0] for line in out.splitlines()[2:4]] == ["plain", "centred"]
    assert f"{100 * results['R@1']:.1f}" in out and out.strip().endswith("index.html")
    for run in ("trained", "random"):
        shown = search_page(folder / run / "motion")
        assert [video.name for video, _ in shown] == [f"videos/test/{n:05d}.mp4" for n in range(16)]
        assert all(len(hits) == 6 and all(hit.preview for hit in hits) for _, hits in shown)


def test_center_exchanges_the_two_sets_of_numbers(checkpoint, digits, tmp_path, retrieved):
    lists = ["--gallery", str(digits / "motion/train.csv"), "--query", str(digits / "motion/test.csv")]
    cli.run(
        "retrieval",
        ["--checkpoint", str(checkpoint), *lists, "--out", str(tmp_path), "--center", "--page-queries", "2"],
    )
    found, plain = json.loads((tmp_path / "results.json").read_text()), retrieved[2]
    assert {name: found[name] for name in RANKS} == plain["centered_features"]
    assert found["uncentered"] == {name: plain[name] for name in RANKS}
    assert found["knn"] == plain["knn"]


def test_retrieval_without_labels(checkpoint, digits, tmp_path, capsys):
    """A list searched in itself: no accuracies, and nobody is their own neighbour."""
    names = read_list(digits / "motion/test.csv").names[:5]
    (tmp_path / "few.csv").write_text("\n".join(["path", *names]) + "\n")
    cli.run(
        "retrieval",
        [
            "--checkpoint",
            str(checkpoint),
            "--gallery",
            str(tmp_path / "few.csv"),
            "--query",
            str(tmp_path / "few.csv"),
            "--root",
            str(digits),
            "--out",
            str(tmp_path / "out"),
            "--clips",
            "1",
            "--workers",
            "0",
        ],
    )
    assert "the videos do not have one label each" in capsys.readouterr().out
    found = json.loads((tmp_path / "out/results.json").read_text())
    assert not {*RANKS, "knn", "chance"} & {*found} and found["num_queries"] == 5
    assert (tmp_path / "out/index.html").stat().st_size > 1000


def test_extract(command, trained, checkpoint, digits, retrieved):
    folder = trained[0].parent
    out, _ = command(
        "tools/extract.py",
        *("--checkpoint", "run/checkpoints/last.pt", digits / "motion/test.csv", "--out", "new/all.features"),
        cwd=folder,
    )
    features = np.load(folder / "new/all.features/features.npy")
    rows = [line.split(",") for line in (folder / "new/all.features/rows.csv").read_text().splitlines()[1:]]
    path, label, index, *_ = zip(*rows, strict=True)
    listed = read_list(digits / "motion/test.csv")
    assert features.shape == (16, vidssl.load_backbone(checkpoint).dim) and features.dtype == np.float32
    assert f"16 videos x {features.shape[1]} features" in out
    assert [*map(int, label)] == [record.label for record in listed.records]
    assert [*map(int, index)] == list(range(16)) and path == tuple(listed.names)
    assert np.isfinite(features).all() and features.std(axis=0).max() > 0


def test_help_and_schema(monkeypatch, capsys):
    out = vidssl_command(monkeypatch, capsys, "--help")
    assert all(name in out for name in ("train", "retrieval", "extract", "schema"))
    assert vidssl_command(monkeypatch, capsys, "--version").strip() == vidssl.__version__
    schema = json.loads(vidssl_command(monkeypatch, capsys, "schema"))
    assert {"data", "method", "backbone", "optimizer", "output"} <= {*schema["properties"]}
    assert "sce" in json.dumps(schema) and "resnet3d18" in json.dumps(schema)


def test_make_moving_digits(command, tmp_path, monkeypatch, capsys):
    given = ["--out", "set", "--train", "3", "--test", "2", "--frames", "6", "--size", "32"]
    out, _ = command("datasets/make_moving_digits.py", *given, cwd=tmp_path)
    assert out.startswith("rendered 3 training and 2 test videos in set\n") and out.endswith("set/motion/train.csv\n")
    found = read_list(tmp_path / "set/motion/train.csv")
    assert len(found) == 3 and len(found.classes) == 8
    with vidssl.open_video(found.records[0].path) as video:
        assert video.frames([5]).shape == (1, 3, 32, 32)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["make_moving_digits.py", *given])
    runpy.run_path(str(TOP / "datasets/make_moving_digits.py"), run_name="__main__")
    assert "found 3 training" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["make_moving_digits.py", *given, "--seed", "1"])
    with pytest.raises(SystemExit) as caught:
        runpy.run_path(str(TOP / "datasets/make_moving_digits.py"), run_name="__main__")
    assert caught.value.code == 2 and "seed is 0, requested 1" in capsys.readouterr().err


def test_a_folder_of_real_videos(command, real, tmp_path, capsys, checkpoint):
    """From a folder to its retrieval page: nothing but two commands."""
    out, _ = command(
        "datasets/prepare_folder.py", real / "weizmann", "--out", "lists", "--group", r"person\d+", cwd=tmp_path
    )
    assert "lists written to lists" in out
    gallery, query = (read_list(tmp_path / "lists" / f"{side}.csv") for side in ("train", "test"))
    assert gallery.classes == ("bend", "jack", "wave1", "wave2")
    assert len(gallery) + len(query) == 72
    cli.run(
        "retrieval",
        [
            "--checkpoint",
            str(checkpoint),
            "--gallery",
            str(gallery.path),
            "--query",
            str(query.path),
            "--out",
            str(tmp_path / "out"),
            "--clips",
            "2",
            "--page-queries",
            "4",
            "--workers",
            "1",
        ],
    )
    found = json.loads((tmp_path / "out/results.json").read_text())
    assert (found["num_queries"], found["num_gallery"]) == (len(query), len(gallery))
    assert found["chance"] == pytest.approx(0.25)


# Mistakes ---------------------------------------------------------------------------------------------------


@pytest.fixture
def refused(capsys):
    """Run a command that must end with status 2; give its message."""

    def run(tool, *arguments):
        with pytest.raises(SystemExit) as caught:
            cli.guarded(lambda: cli.run(tool, [str(a) for a in arguments]))
        assert caught.value.code == 2
        message = capsys.readouterr().err
        assert "Traceback" not in message
        start = message.rindex("error: ")
        assert start == 0 or message[start - 1] in "\n\r "  # after argparse's usage or a cleared bar
        return message[start:].rstrip("\n")

    return run


@pytest.fixture
def training(refused, digits, tmp_path):
    def run(*changes):
        return refused("train", "--cfg", TOY, *settings(digits, tmp_path / "run", "data.workers=0"), *changes)

    return run


def test_mistakes_in_a_config(training):
    assert "unknown key" in (message := training("metod.name=sce")) and "did you mean 'method'" in message
    assert "batch_size" in (message := training("batch_size=many")) and "1 mistake" in message
    message = training("batch_size=many", "data.workers=-1", "backbone.widht=8")
    assert "3 mistakes" in message and message.count("\n") == 3
    assert all(word in message for word in ("batch_size", "data.workers", "widht", "did you mean 'width'"))
    assert "supervised" in training("method.name=supervisd")
    assert "supervised.yaml" in message
    assert "\n" not in training("no_equals_sign")


def test_mistakes_in_lists(training, tmp_path):
    assert training(f"data.train={tmp_path}/none.csv").startswith(
        f"error: data.train: cannot read list {tmp_path}/none.csv: "
    )
    (tmp_path / "empty.csv").write_text("path,label\n")
    assert "has no rows" in training(f"data.train={tmp_path}/empty.csv")
    (tmp_path / "classes.txt").write_text("a\nb\n")
    (tmp_path / "one.csv").write_text("path,label\na.mp4,1\nb.mp4,2\n")
    message = training(f"data.train={tmp_path}/one.csv")
    assert message.startswith(f"error: data.train: {tmp_path}/one.csv:3: label 2 is out of range")
    (tmp_path / "web.csv").write_text("path,label\nhttp://127.0.0.1:9/a.mp4,1\n")
    assert "is a URL" in training(f"data.train={tmp_path}/web.csv")
    assert not (tmp_path / "run/checkpoints").exists()


def test_a_missing_config(refused, tmp_path):
    message = refused("train", "--cfg", tmp_path / "none.yaml")
    assert f"{tmp_path}/none.yaml is neither a file nor the name of a config" in message and "\n" not in message


def test_a_gpu_that_is_absent(training, refused, digits, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert training("device=cuda") == (
        "error: device: cuda was asked for and torch sees no GPU here; use device: auto or cpu"
    )
    message = refused(
        "extract",
        *("--checkpoint", "random", "--cfg", TOY, "--device", "cuda", digits / "motion/test.csv"),
        *("--out", tmp_path / "x", "data.moving_digits=null"),
    )
    assert "torch sees no GPU" in message


def test_mistakes_about_checkpoints(refused, digits, tmp_path, checkpoint):
    rest = (digits / "motion/test.csv", "--out", tmp_path / "x")
    none = tmp_path / "none.pt"
    assert refused("extract", "--checkpoint", none, *rest).startswith(f"error: cannot read checkpoint {none}: ")
    assert "needs a config, --cfg FILE" in refused("extract", "--checkpoint", "random", *rest)
    assert "brings its own config" in refused("extract", "--checkpoint", checkpoint, "--cfg", TOY, *rest)
    assert "brings its own config" in refused("extract", "--checkpoint", checkpoint, *rest, "seed=1")
    (tmp_path / "cut.pt").write_bytes(checkpoint.read_bytes()[:5000])
    (tmp_path / "text.pt").write_text("no checkpoint")
    torch.save({"weights": torch.zeros(3)}, tmp_path / "other.pt")
    for name in ("cut", "text", "other"):
        message = refused("extract", "--checkpoint", tmp_path / f"{name}.pt", *rest)
        assert f"{name}.pt" in message and "\n" not in message
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    "wrong",
    [["--clips", "0"], ["--size", "-1"], ["--batch-size", "0"], ["--workers", "-1"], ["--crops", "0"], ["--k", "0"]],
)
def test_numbers_that_make_no_sense(refused, checkpoint, digits, tmp_path, wrong):
    lists = ("--gallery", digits / "motion/train.csv", "--query", digits / "motion/test.csv")
    message = refused("retrieval", "--checkpoint", checkpoint, *lists, "--out", tmp_path / "out", *wrong)
    assert wrong[0] in message and wrong[1].strip("-") in message and "\n" not in message


@pytest.mark.parametrize("workers", [0, 1])
def test_4_a_broken_video_in_evaluation(refused, checkpoint, digits, tmp_path, workers):
    for name in ("a", "b"):
        (tmp_path / f"{name}.mp4").write_bytes((digits / "videos/test/00000.mp4").read_bytes())
    (tmp_path / "broken.mp4").write_bytes((tmp_path / "a.mp4").read_bytes()[:900])
    write_lists(tmp_path, tmp_path, {"all": [("a.mp4", 0), ("broken.mp4", 1), ("b.mp4", 1)]}, ["no", "yes"])
    whole = tmp_path / "all.csv"
    rest = ("--checkpoint", checkpoint, "--workers", workers)
    message = refused("retrieval", *rest, "--gallery", whole, "--query", whole, "--out", tmp_path / "out")
    assert message.startswith(f"error: {tmp_path}/broken.mp4: not a video") and "\n" not in message
    assert not (tmp_path / "out").exists()


@pytest.fixture
def with_gaps(digits, tmp_path):
    """Two lists of which some videos are broken, and the same without them: ["gallery", "query", …]."""
    lists = {}
    for name, number, broken in (("gallery", 18, {0, 6, 7}), ("query", 8, {2, 3})):
        source = read_list(digits / "motion/train.csv")
        rows = []
        for n in range(number):
            record = source.records[n]
            content = Path(record.path).read_bytes()
            video = tmp_path / "videos" / ("both" if n < 5 else name) / f"{n}.mp4"
            video.parent.mkdir(parents=True, exist_ok=True)
            if n in broken:  # those of the query list that are broken are in the gallery with another name
                video = video.with_name(f"{name}-{n}.mp4")
            video.write_bytes(content[:900] if n in broken else content)
            rows.append((str(video.relative_to(tmp_path)), record.label))
        lists[name] = rows
        lists[f"{name}_whole"] = [row for n, row in enumerate(rows) if n not in broken]
    write_lists(tmp_path / "lists", tmp_path, lists, source.classes)
    return {name: tmp_path / "lists" / f"{name}.csv" for name in lists}


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.long)])
def test_4_allow_missing_measures_the_others_and_says_so(
    with_gaps, checkpoint, tmp_path, capsys, refused, workers, search_page
):
    rest = ("--checkpoint", checkpoint, "--workers", workers)
    lists = ("--gallery", with_gaps["gallery"], "--query", with_gaps["query"])
    assert "not a video" in refused("retrieval", *rest, *lists, "--out", tmp_path / "none")
    given = [*rest, *lists, "--out", tmp_path / "out", "--allow-missing"]
    cli.run("retrieval", [str(word) for word in given])
    out = capsys.readouterr().out
    found = json.loads((tmp_path / "out/results.json").read_text())
    assert (found["num_queries"], found["num_gallery"]) == (6, 15)
    missing = {side: found[f"missing_{side}"] for side in ("queries", "gallery")}
    assert [Path(video["path"]).name for video in missing["queries"]] == ["query-2.mp4", "query-3.mp4"]
    assert {Path(video["path"]).name for video in missing["gallery"]} == {f"gallery-{n}.mp4" for n in (0, 6, 7)}
    assert all("not a video" in video["reason"] for side in missing.values() for video in side)
    assert "6 of 8 (2 missing) queries, 15 of 18 (3 missing) in the gallery" in out
    page = (tmp_path / "out/index.html").read_text()
    assert "5 videos cannot be read" in page
    assert all(page.count(f"<li>{video['path']}<small>") == 1 for side in missing.values() for video in side)
    # The numbers, and the neighbours on the page, are those of lists that never had the broken ones.
    whole = ("--gallery", with_gaps["gallery_whole"], "--query", with_gaps["query_whole"])
    cli.run("retrieval", [str(word) for word in (*rest, *whole, "--out", tmp_path / "whole")])
    assert "6 queries, 15 in the gallery" in capsys.readouterr().out
    other = json.loads((tmp_path / "whole/results.json").read_text())
    for name in (*RANKS, "knn", "chance", "num_queries", "num_gallery", "centered_features"):
        assert found[name] == other[name], name
    assert other["missing_queries"] == other["missing_gallery"] == []
    shown = [search_page(tmp_path / name) for name in ("out", "whole")]
    assert [video.name for video, _ in shown[0]] == [video.name for video, _ in shown[1]]
    hits = [[hit._replace(link="") for hit in near] for found in shown for _, near in found]
    assert hits[:6] == hits[6:] and "videos/both/1.mp4" in [hit.name for near in hits for hit in near]


def test_4_allow_missing_in_extract(with_gaps, checkpoint, tmp_path, capsys):
    given = ["--checkpoint", checkpoint, with_gaps["gallery"], "--out", tmp_path / "x"]
    cli.run("extract", [str(word) for word in (*given, "--allow-missing")])
    x, meta = np.load(tmp_path / "x/features.npy"), json.loads((tmp_path / "x/meta.json").read_text())
    rows = [line.split(",") for line in (tmp_path / "x/rows.csv").read_text().splitlines()]
    whole = [n for n in range(18) if n not in (0, 6, 7)]
    names = read_list(with_gaps["gallery"]).names
    assert [row[0] for row in rows] == ["path", *(names[n] for n in whole)]
    assert [row[2] for row in rows] == ["index", *map(str, whole)] and len(x) == 15
    assert [Path(gap["path"]).name for gap in meta["missing"]] == [f"gallery-{n}.mp4" for n in (0, 6, 7)]
    assert f"15 of 18 (3 missing) videos x {x.shape[1]} features" in capsys.readouterr().out


def test_lists_with_different_classes(refused, checkpoint, digits, tmp_path):
    message = refused(
        "retrieval",
        *("--checkpoint", checkpoint, "--gallery", digits / "motion/train.csv"),
        *("--query", digits / "digit/test.csv", "--out", tmp_path / "out"),
    )
    assert "different classes.txt" in message and "\n" not in message


def test_outputs_that_cannot_be_written(refused, training, checkpoint, digits, tmp_path):
    (tmp_path / "file").write_text("in the way")
    message = refused(
        "extract",
        *("--checkpoint", checkpoint, digits / "motion/test.csv", "--workers", 0, "--clips", 1),
        *("--out", tmp_path / "file" / "x"),
    )
    assert message.startswith(f"error: cannot write {tmp_path}/file/x: ")
    assert training(f"output={tmp_path}/file").startswith(f"error: cannot write to {tmp_path}/file: ")


def test_log_lines_have_time_and_rank(run_script, tmp_path):
    """The rank is that of the environment, which Slurm's processes set after the start."""
    (tmp_path / "script.py").write_text(
        "import logging, os\n"
        "from vidssl.cli import guarded\n"
        "def work():\n"
        "    log = logging.getLogger('vidssl.some')\n"
        "    log.info('alone')\n"
        "    os.environ.update(WORLD_SIZE='4', RANK='3')\n"
        "    log.warning('together')\n"
        "guarded(work)\n"
    )
    status, _, err = run_script(tmp_path / "script.py", cwd=tmp_path)
    stamp = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
    assert status == 0 and re.fullmatch(f"{stamp} INFO alone\n{stamp} WARNING rank 3 together\n", err), err


def test_ctrl_c_is_one_line(capsys):
    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as caught:
        cli.guarded(interrupted)
    assert caught.value.code == 130 and capsys.readouterr().err == "interrupted: Ctrl-C\n"
