"""benchmarks/report.py: measured rows, notes about differences, rows that were not run, and renewed pages."""

import json
import re
import runpy
import sys
from copy import deepcopy
from pathlib import Path

import pytest

from vidssl.base.errors import ConfigError, DataError
from vidssl.engine.periodic_evaluation import evaluation_clips
from vidssl.engine.run_config import load_run
from vidssl.jobs.measurement_runner import over_splits

TOP = Path(__file__).parents[2]
sys.path.insert(0, str(TOP / "benchmarks"))
from comparison import make_table  # noqa: E402
from references import read_references  # noqa: E402
from report import renewed, report  # noqa: E402
from results import data_set_of, read_results  # noqa: E402

sys.path.pop(0)
REFERENCES = read_references()


def told_by(config, *overrides, split=None):
    """What a test of the run of a config says beside its numbers."""
    run = load_run(TOP / config, overrides, split)
    return {
        "num_videos": 3783,
        "num_train": 9537,
        "missing": [],
        "missing_train": [],
        "list": "lists/ucf101/test1.csv",
        "train_list": None,
        "details": {},
        "protocol": evaluation_clips(run).model_dump(mode="json"),
        "checkpoint": {"path": "output/x/checkpoints/last.pt", "sha256": "0" * 64, "step": 100},
        "config": run.model_dump(mode="json"),
    }


@pytest.fixture(scope="module")
def finetuned():
    init = "init=output/sce_r3d18_k400/checkpoints/last.pt"
    said = told_by("configs/finetune/ucf101.yaml", "backbone.name=resnet3d18", init, split=1)
    splits = {"1": {"top1": 0.89, "num_videos": 3783}, "2": {"top1": 0.90}, "3": {"top1": 0.91}}
    splits["2"]["num_videos"], splits["3"]["num_videos"] = 3734, 3696
    return {**said, "splits": splits, "mean": {"top1": 0.90}, "spread": {"top1": 0.01}}


@pytest.fixture(scope="module")
def searched():
    said = told_by("configs/pretrain/sce_r3d50_k400.yaml")
    said["query"], said["num_queries"], said["num_gallery"] = said.pop("list"), 3783, 9537
    recall = {"R@1": 0.7, "R@5": 0.8, "R@10": 0.9}
    return {**said, **recall, "centered": False, "centered_features": {name: x + 0.05 for name, x in recall.items()}}


@pytest.fixture
def put(tmp_path):
    """Write results into a folder below tmp_path."""

    def write(name, content):
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
        (tmp_path / name / "results.json").write_text(json.dumps(content))
        return tmp_path

    return write


def changed(content, path, value):
    content = deepcopy(content)
    *way, last = path.split(".")
    here = content
    for part in way:
        here = here[int(part)] if isinstance(here, list) else here[part]
    here[last] = value
    return content


def table(folder, name="ucf101"):
    """The rows by their columns, and the notes; cells as they are, without what Markdown needs."""
    made = make_table(name, REFERENCES, read_results([folder]))
    rows = [dict(zip(made.columns, row.cells, strict=True)) | {"row": row} for row in made.rows]
    return rows, made.notes


def own(folder, name="ucf101"):
    """The only row that was measured, and its notes."""
    rows, notes = table(folder, name)
    (row,) = [row for row in rows if row["row"].state == "measured"]
    return row, [notes[n - 1] for n in row["row"].notes]


# What a row says --------------------------------------------------------------------------------------------


def test_a_row_says_what_was_measured(put, finetuned):
    row, notes = own(put("a/b", finetuned))
    assert row["what"] == "finetuned" and row["backbone"] == "resnet3d18"
    assert row["frames x size"] == "8x224², test 256²" and row["pre-trained on"] == "sce_r3d18_k400"
    assert row["top-1"] == "90.0 ± 1.0" and row["where from"] == "a/b"
    assert row["videos, test / training"] == "3696 to 3783 / 9537, 3 splits"
    assert not notes


@pytest.mark.parametrize(
    ("changes", "what", "start"),
    [
        ({}, "finetuned", "sce_r3d18_k400"),
        ({"config.init": None}, "from scratch", "–"),
        ({"config.method.freeze": True}, "linear probe", "sce_r3d18_k400"),
        ({"config.init": {"file": "weights/other.pth"}}, "finetuned", "other"),
        (
            {"config.data.subset": {"fraction": 0.01, "per_class": None}},
            "finetuned, 1 % of the labels",
            "sce_r3d18_k400",
        ),
        ({"config.data.subset": {"fraction": None, "per_class": 4}}, "finetuned, 4 labels a class", "sce_r3d18_k400"),
        ({"checkpoint": {"path": "random", "seed": 0}}, "untrained", "–"),
        ({"config.method.name": "moco"}, "features, moco", "UCF101"),
        (
            {
                "config.method.name": "moco",
                "config.data.train": [{"list": "lists/ucf101/train1.csv"}, {"list": "lists/mine/train.csv"}],
            },
            "features, moco",
            "ucf101+mine",
        ),
        ({"checkpoint": {"path": "zoo/slow.pyth", "matched": "100 of 100"}}, "features, third-party weights", "slow"),
    ],
)
def test_what_was_tested(put, finetuned, changes, what, start):
    for path, value in changes.items():
        finetuned = changed(finetuned, path, value)
    row, _ = own(put("a", finetuned))
    assert (row["what"], row["pre-trained on"]) == (what, start)


def test_little_is_enough(put):
    row, _ = own(put("a", {"list": "ucf101/test1.csv", "top1": 1}))
    assert [row[name] for name in ("what", "backbone", "frames x size", "top-1")] == ["features", "–", "–", "100.0"]


def test_backbone_of_another_width_or_input_is_named(put, finetuned):
    assert own(put("a", changed(finetuned, "config.backbone.width", 16)))[0]["backbone"] == "resnet3d18, width 16"
    differences = changed(finetuned, "config.backbone.frame_differences", True)
    assert own(put("a", differences))[0]["backbone"] == "resnet3d18, differences"


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("lists/ucf101/test1.csv", "ucf101"),
        ("/x/lists/ucf101-1/test.csv", "ucf101"),
        ("lists/mine_split2/test.csv", "mine"),
        ("lists/weizmann/split{split}/test.csv", "weizmann"),
        ("lists/weizmann/split3/test.csv", "weizmann"),
        ("lists/weizmann/2/test.csv", "weizmann"),
        ("lists/ucf101_6/split1/test.csv", "ucf101_6"),
        ("lists/mine{split}/test.csv", "mine"),
        ("lists/kinetics-400/test.csv", "kinetics-400"),
        ("lists/something-v2/test.csv", "something-v2"),
        ("alone.csv", "alone"),
    ],
)
def test_the_folder_of_a_list_names_the_data_set(path, name):
    assert data_set_of(path) == name


def test_other_names_of_a_data_set_are_known():
    names = ("k400", "Kinetics400", "kinetics-400", "kinetics_400")
    assert {REFERENCES.key(name) for name in names} == {"kinetics-400"}
    assert REFERENCES.key("k4000") == "k4000"


def test_numbers_stand_in_their_columns(put):
    found = {"svm": 0.5, "lowshot@16": 0.4, "lowshot@2": 0.3, "lowshot@2_spread": 0.02, "R@10": 0.9, "R@5": 0.8}
    found |= {"uniformity_loss": -2.345, "knn": 0.6, "top1": 0.7, "chance": 0.25, "knn_k": 10, "R@x": 1, "loss": 3}
    folder = put("a", {"list": "mine/test.csv", **found})
    made = make_table("mine", REFERENCES, read_results([folder]))
    columns = ["top-1", "kNN", "SVM", "SVM, 2 a class", "SVM, 16 a class", "R@5", "R@10", "chance", "uniformity loss"]
    assert [*made.columns[4:-2]] == columns
    (row,) = made.rows
    assert [*row.cells[4:-2]] == ["70.0", "60.0", "50.0", "30.0 ± 2.0", "40.0", "80.0", "90.0", "25.0", "-2.35"]
    assert "draws" in made.remarks[0]


@pytest.mark.parametrize(
    "said", [{"centered": True}, {"protocols": [{"name": "knn"}, {"name": "retrieval", "center": True}]}]
)
def test_recall_of_centred_features_has_columns_of_its_own(put, said):
    plain = {"query": "mine/test.csv", "R@1": 0.5, "centered_features": {"R@1": 0.6}}
    row, _ = own(put("plain", plain), "mine")
    assert (row["R@1"], row["R@1 centred"]) == ("50.0", "60.0")
    row, _ = own(put("plain", {"query": "mine/test.csv", "R@1": 0.6, "uncentered": {"R@1": 0.5}, **said}), "mine")
    assert (row["R@1"], row["R@1 centred"]) == ("50.0", "60.0")


def test_videos_that_are_missing_are_counted(put):
    gap = {"num_queries": 58, "num_gallery": 100, "missing_queries": [{}, {}], "missing_gallery": [{}]}
    row, _ = own(put("a", {"query": "mine/test.csv", "knn": 0.5, **gap}), "mine")
    assert row["videos, test / training"] == "58 of 60 (2 missing) / 100 of 101 (1 missing)"


def test_what_has_no_number_for_a_table_is_no_row(put):
    put("a", {"list": "mine/test.csv", "knn": 0.5})
    folder = put("b", {"list": "mine/test.csv", "invariance_mean": 1.5})  # of an analysis
    assert [result.name for result in read_results([folder])] == ["a"]


def test_counts_of_one_split_are_not_taken_for_all(put):
    whole = {"list": "mine/test.csv", "num_videos": 24, "splits": {"1": {"knn": 0.5}, "2": {"knn": 0.6}}}
    assert own(put("a", whole), "mine")[0]["videos, test / training"] == "24 in the first, 2 splits"


def test_a_number_that_a_split_lacks_is_not_averaged(put):
    row, _ = own(put("a", {"list": "mine/t.csv", "splits": {"1": {"knn": 0.5, "svm": 0.4}, "2": {"knn": 0.7}}}), "mine")
    assert row["kNN"] == "60.0 ± 14.1" and "SVM" not in row


def test_what_a_test_over_splits_writes_is_read(tmp_path):
    said = told_by("configs/finetune/ucf101.yaml", "backbone.name=resnet3d18", split=1)

    def one(split, folder):
        folder.mkdir(parents=True)
        numbers = {"top1": 0.4 + split / 10, "lowshot@2": 0.5, "lowshot@2_spread": 0.1}
        results = {**said, **numbers, "overlap": None, "fingerprints": {}, "request": {}}
        (folder / "results.json").write_text(json.dumps(results))
        return results

    over_splits((1, 2), tmp_path / "run", one)
    assert len(list(tmp_path.rglob("results.json"))) == 3
    row, _ = own(tmp_path)
    assert (row["top-1"], row["SVM, 2 a class"]) == ("55.0 ± 7.1", "50.0 ± 0.0")
    assert row["videos, test / training"].endswith("2 splits")


def test_the_results_of_single_splits_are_no_rows(put, finetuned):
    put("run", finetuned)
    single = told_by("configs/finetune/ucf101.yaml", "backbone.name=resnet3d18", split=1) | {"top1": 0.5}
    put("run/split1", single)
    folder = put("run2", single)  # its name begins like that of the run
    assert [result.name for result in read_results([folder, folder / "run"])] == ["run", "run2"]


# What was published, and what differs -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "settings", "number", "name"),
    [
        ("configs/finetune/ucf101.yaml", ["init=k400.pt"], "top1", "ucf101"),
        ("configs/finetune/hmdb51.yaml", ["init=k400.pt", "backbone.name=resnet3d18"], "top1", "hmdb51"),
        ("configs/linear/k400.yaml", ["init=k200.pt", "backbone.name=resnet3d18"], "top1", "kinetics-200"),
        ("configs/linear/k400.yaml", ["init=k400.pt"], "top1", "kinetics-400"),
        ("configs/linear/k400.yaml", ["init=k400.pt", "optimizer.lr.warmup=0.58333"], "top1", "kinetics-400"),
        ("configs/pretrain/sce_r3d18_k200.yaml", [], "R@1", "ucf101"),
        ("configs/pretrain/sce_r3d50_k400.yaml", [], "R@1", "hmdb51"),
    ],
)
def test_the_configs_follow_the_published_protocols(put, config, settings, number, name):
    splits = 3 if "finetune" in config else 1
    said = told_by(config, *settings, split=1 if splits == 3 else None)
    said |= {"list": f"lists/{name}/test1.csv", "num_videos": 1530 if name == "hmdb51" else 3783}
    said |= {"splits": {str(n): {number: 0.5} for n in range(splits)}}
    assert not own(put("a", said), name)[1]


@pytest.mark.parametrize(
    ("path", "value", "given"),
    [
        ("protocol.clips", 2, "clips 2 (published 10)"),
        ("protocol.crops", 1, "crops 1 (published 3)"),
        ("protocol.size", 224, "size 224 (published 256 or 128)"),
        ("protocol.clip.seconds", 1.0, "clip.seconds 1 (published 2.56 or 1.28)"),
        ("config.epochs", 100.0, "epochs 100 (published 200)"),
        ("config.epochs", None, "epochs not set (published 200)"),
        ("config.batch_size", 32, "batch_size 32 (published 64)"),
        ("config.optimizer.name", "adamw", "optimizer.name adamw (published sgd)"),
        ("config.optimizer.lr.start", 0.2, "optimizer.lr.start 0.2 (published 0.1)"),
        ("config.optimizer.lr.warmup", 0.1, "optimizer.lr.warmup 0.1 (published 0)"),
        ("config.method.dropout", 0.5, "method.dropout 0.5 (published 0.8)"),
        (
            "config.data.views.0.short_side",
            [224, 256],
            "data.views.0.short_side [224, 256] (published [256, 320] or [256, 256] or [128, 160] or [128, 128])",
        ),
        ("splits", {"1": {"top1": 0.5}}, "splits 1 (published 3)"),
        ("splits.2.num_videos", 3000, "tested videos [3000, 3696, 3783] (published 3783 or 3734 or 3696)"),
    ],
)
def test_each_difference_is_told_with_both_values(put, finetuned, path, value, given):
    _, notes = own(put("a", changed(finetuned, path, value)))
    assert len(notes) == 1 and notes[0].endswith(f": {given}.") and "finetuning" in notes[0]


def test_equal_notes_are_one(put, finetuned):
    put("a", changed(finetuned, "protocol.clips", 2))
    rows, notes = table(put("b", changed(finetuned, "protocol.clips", 2)))
    assert sum("clips 2" in note for note in notes) == 1
    assert [row["row"].notes for row in rows[:2]] == [(1,), (1,)]


def test_of_weights_of_others_the_config_says_nothing(put, searched):
    content = changed(searched, "checkpoint", {"path": "zoo.pyth", "matched": "all"})
    _, notes = own(put("a", changed(changed(content, "config.epochs", 3), "protocol.clips", 1)))
    assert "clips 1" in notes[0] and "epochs" not in notes[0] and "training settings unknown" in notes[0]


def test_a_published_row_stands_below_the_last_result_of_its_config(put, finetuned, searched):
    put("one", finetuned)
    put("two", finetuned)
    rows, _ = table(put("r50", searched))
    said = [(row["what"], row["row"].state, row["top-1"], row["R@1 centred"], row["where from"]) for row in rows]
    assert said[:5] == [
        ("features, sce", "measured", "–", "75.0", "r50"),
        ("published: features, SCE", "published", "–", "81.5", "Denize et al., 2023, Table 19"),
        ("finetuned", "measured", "90.0 ± 1.0", "–", "one"),
        ("finetuned", "measured", "90.0 ± 1.0", "–", "two"),
        ("published: finetuned, SCE", "published", "90.9", "–", "Denize et al., 2023, Table 18"),
    ]
    assert all(row[4].endswith("; not run here") for row in said[5:] if row[1] == "published")
    assert "81.5" not in [row[3] for row in said[2:]] and "90.9" not in [row[2] for row in said[5:]]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("config.backbone.width", 32),
        ("config.backbone.frame_differences", True),
        ("protocol.clip.frames", 16),
        ("config.data.views.0.size", 112),
        ("config.init", "output/other/checkpoints/last.pt"),
        ("config.init", "output/k4000/checkpoints/last.pt"),
        ("config.data.subset", {"fraction": 0.1}),
        ("config.method.freeze", True),
    ],
)
def test_another_run_does_not_count_as_the_published_one(put, finetuned, path, value):
    rows, _ = table(put("a", changed(finetuned, path, value)))
    assert rows[1]["row"].state != "published"
    (r18,) = [row for row in rows if row["top-1"] == "90.9"]
    assert r18["where from"].endswith("not run here")


@pytest.mark.parametrize("name", REFERENCES.data_sets)
def test_what_was_not_run_has_no_number(name, tmp_path):
    rows, _ = table(tmp_path, name)
    absent = [row for row in rows if row["row"].state == "not run"]
    assert absent and not [row for row in rows if row["row"].state == "measured"]
    for row in absent:
        numbers = [*row.values()][4:-2]
        assert {*numbers} <= {"not run", "–"} and "not run" in numbers
        config, *settings = row["where from"].split()
        several = "{split}" in (TOP / config).read_text().split("\noutput:", 1)[1]
        assert load_run(TOP / config, settings, split=1 if several else None).output


def test_a_result_takes_the_place_of_not_run(put, searched):
    def expected(folder):
        return [row for row in table(folder)[0] if row["row"].state == "not run"]

    folder = put("empty", {"list": "mine/test.csv"})
    before = expected(folder)
    after = expected(put("a", searched))
    assert len(before) == len(after) + 1
    assert "configs/pretrain/sce_r3d50_k400.yaml" not in [row["where from"] for row in after]


def test_the_published_numbers_are_those_of_the_papers(tmp_path):
    """SCE, Tables 12, 17, 18, 19; the model list of the authors' code of Feichtenhofer et al., 2021."""

    def numbers(name, column):
        rows, _ = table(tmp_path, name)
        return sorted(row[column] for row in rows if row["row"].state == "published" and row[column] != "–")

    zoo = ["66.6", "71.0", "61.5", "67.4", "70.1"], ["91.3", "94.5", "88.3", "94.0", "94.7"]
    assert numbers("kinetics-200", "top-1") == ["63.9", "66.0", "72.0"]
    assert numbers("kinetics-400", "top-1") == sorted(["56.6", "59.8", "67.6", "69.6", "74.6–75.2", *zoo[0]])
    finetuned = ["88.4", "86.3", "89.1", "90.9", "94.1", "95.3", "87.5"]
    assert numbers("ucf101", "top-1") == sorted([*finetuned, *zoo[1]])
    assert numbers("hmdb51", "top-1") == sorted(["62.0", "57.0", "66.6", "65.7", "70.5", "74.7", "60.1"])
    for name, recall in {
        "ucf101": ("74.5/85.9/90.5", "74.4/85.6/90.0", "81.5/89.7/92.8", "83.9/92.2/94.9"),
        "hmdb51": ("37.8/62.1/73.8", "40.1/63.3/75.4", "43.0/67.0/79.0", "45.9/69.9/80.5"),
    }.items():
        rows, _ = table(tmp_path, name)
        columns = [f"R@{k} centred" for k in (1, 5, 10)]
        assert {"/".join(row[c] for c in columns) for row in rows if row["row"].state == "published"} >= {*recall}


@pytest.mark.parametrize(
    ("old", "new", "given"),
    [
        ("protocols: [sce_linear]", "protocols: [sce_liner]", "unknown protocol 'sce_liner'"),
        ("pretrained: kinetics-200", "pretrained: kinetics-20", "'kinetics-20'"),
        ("published: {top1: 66.0}", "published: {top_1: 66.0}", "unknown number 'top_1'"),
        ("published: {top1: 66.0}", "published: {}", "go together"),
        ("kind: untrained", "kind: untraind", "untraind"),
    ],
)
def test_a_mistake_among_the_references_is_named(tmp_path, old, new, given):
    text = (TOP / "benchmarks/references.yaml").read_text()
    assert old in text
    (tmp_path / "r.yaml").write_text(text.replace(old, new, 1))
    with pytest.raises(ConfigError, match=re.escape(given)):
        read_references(tmp_path / "r.yaml")


# Files ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "given"),
    [
        ("{", "not JSON"),
        ("[]", "names no tested list"),
        ('{"top1": 0.5}', "names no tested list"),
        ('{"list": "a/test.csv", "top1": "0.5"}', 'top1 is "0.5", not a number'),
        ('{"list": "a/test.csv", "top1": true}', "top1 is true, not a number"),
        ('{"list": "a/test.csv", "splits": {}}', "'splits' does not hold"),
        ('{"list": "a/test.csv", "splits": {"1": 0.5}}', "'splits' does not hold"),
    ],
)
def test_a_file_that_is_no_result_is_named(tmp_path, text, given):
    (tmp_path / "results.json").write_text(text)
    with pytest.raises(DataError, match=re.escape(given)) as caught:
        report([tmp_path], tmp_path)
    assert str(tmp_path / "results.json") in str(caught.value) and "\n" not in str(caught.value)


def test_folders_without_results_are_told(tmp_path):
    with pytest.raises(DataError, match=r"no results\.json in .*run vidssl test"):
        report([tmp_path], tmp_path)
    with pytest.raises(DataError, match="none is not a folder"):
        report([tmp_path / "none"], tmp_path)


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Run benchmarks/report.py in tmp_path; returns the exit status, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(TOP / "benchmarks"))

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["report.py", *map(str, arguments)])
        status = 0
        try:
            runpy.run_path(str(TOP / "benchmarks" / "report.py"), run_name="__main__")
        except SystemExit as end:
            status = end.code
        return status, *capsys.readouterr()

    return run


def test_tables_are_printed_and_written_with_links_to_the_results(command, put, finetuned, tmp_path):
    put("output/a b", finetuned)
    put("output/other", {"list": "mine/test.csv", "knn": 0.5})
    status, text, _ = command("output")
    assert not status and text.index("## UCF101") < text.index("## mine") and "## HMDB51" not in text
    assert "[a b](output/a%20b/results.json)" in text
    assert command("output", "--out", "page/here/report.md")[:2] == (0, "")
    text = (tmp_path / "page/here/report.md").read_text()
    assert "[a b](../../output/a%20b/results.json)" in text and "| 90.0 ± 1.0 |" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none"], "error: none is not a folder"),
        (["."], "error: no results.json in ."),
        ([".", "--into", "none.md"], "none.md"),
        ([".", "--into", "a", "--out", "b"], "not allowed with"),
        ([], "required"),
    ],
)
def test_errors_of_the_command_are_one_line(command, arguments, message):
    status, out, err = command(*arguments)
    assert status and not out and message in f"{status} {err}" and "Traceback" not in err


BLOCK = "<!-- report: hmdb51 -->\nold\n<!-- end of report -->\n"


def test_a_page_keeps_all_but_its_tables(command, put, finetuned, tmp_path):
    folder = put("results/a", finetuned)
    page = tmp_path / "page.md"
    page.write_text(f"# Title\n\n{BLOCK}\nbetween | <b>\n\n{BLOCK.replace('hmdb51', 'ucf101')}end\n")
    assert command(folder / "results", "--into", page)[0] == 0
    text = page.read_text()
    assert "old" not in text and text.startswith("# Title\n\n<!-- report: hmdb51 -->\n\n| what")
    assert "\n<!-- end of report -->\n\nbetween | <b>\n\n<!-- report: ucf101 -->\n" in text
    assert text.endswith("<!-- end of report -->\nend\n") and "[a](results/a/results.json)" in text
    assert renewed(page, [folder / "results"]) == text
    table = make_table("ucf101", REFERENCES, read_results([folder / "results"]))
    assert table.markdown(tmp_path) in text


@pytest.mark.parametrize(
    ("text", "given"),
    [
        ("nothing\n", "has no table"),
        (BLOCK.replace("hmdb51", "hmdb"), ":1: unknown data set 'hmdb'; known: "),
        ("\n<!-- report: hmdb51 -->\n", ":2: '<!-- report: NAME -->' without '<!-- end of report -->'"),
        ("<!-- report: hmdb51 -->\n" + BLOCK, ":1: '<!-- report: NAME -->' without '<!-- end of report -->'"),
        (BLOCK + "<!-- end of report -->\n", ":4: '<!-- end of report -->' without"),
    ],
)
def test_a_page_with_a_mistake_is_left_as_it_is(tmp_path, text, given):
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(DataError, match=re.escape(given)) as caught:
        renewed(page, [tmp_path])
    assert str(page) in str(caught.value) and "\n" not in str(caught.value)
    assert page.read_text() == text and [*tmp_path.iterdir()] == [page]


def test_reproduce_is_what_the_tool_makes_of_the_results():
    page = TOP / "docs" / "results" / "reproduce.md"
    given = "it is stale: python benchmarks/report.py docs/results --into docs/results/reproduce.md"
    assert renewed(page, [TOP / "docs" / "results"]) == page.read_text(encoding="utf-8"), given


def test_kept_results_name_no_place_of_a_machine():
    def texts(content):
        if isinstance(content, dict | list):
            return [t for part in (content.values() if isinstance(content, dict) else content) for t in texts(part)]
        return [content] if isinstance(content, str) else []

    for result in read_results([TOP / "docs" / "results"]):
        assert not [text for text in texts(result.content) if text.startswith(("/", "~", ".."))], result.file
