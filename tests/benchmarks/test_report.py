"""benchmarks/report.py: measured rows, notes about differences, rows that were not run, and renewed pages."""

import json
import re
import sys
from copy import deepcopy
from pathlib import Path

import pytest

from vidssl.base.errors import DataError
from vidssl.engine.periodic_evaluation import evaluation_clips
from vidssl.engine.run_config import load_run

TOP = Path(__file__).parents[2]
sys.path.insert(0, str(TOP / "benchmarks"))
from comparison import make_table  # noqa: E402
from references import read_references  # noqa: E402
from report import renewed, report  # noqa: E402
from results import read_results  # noqa: E402

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


SUM = "floor:motion+timm:resnet50"


@pytest.mark.parametrize(("name", "what"), [("floor:thumbnails", "floor, thumbnails"), (SUM, f"features, {SUM}")])
def test_encoders_without_a_config_have_their_names(put, name, what):
    row, _ = own(put("a", {"list": "lists/ucf101/test1.csv", "knn": 0.5, "checkpoint": {"path": name}, "config": None}))
    assert row["what"] == what and row["kNN"] == "50.0"


def test_rows_of_other_clips_or_steps_say_so(put, finetuned):
    put("a", finetuned)
    put("b", changed(finetuned, "checkpoint.step", 100))
    rows, _ = table(put("c", changed(finetuned, "checkpoint.path", "random")))
    assert not {"test clips x crops", "steps"} & {*rows[0]}
    put("b", changed(finetuned, "protocol.clips", 2))
    rows, _ = table(put("c", changed(finetuned, "checkpoint.step", 6000)))
    told = {row["where from"]: (row["test clips x crops"], row["steps"]) for row in rows}
    assert [told[name] for name in "abc"] == [("10 x 3", "100"), ("2 x 3", "100"), ("10 x 3", "6,000")]
    assert {(row["test clips x crops"], row["steps"]) for row in rows if row["row"].state != "measured"} == {("–", "–")}


LISTS = {"1": "a/test1.csv", "2": "a/test2.csv", "3": "a/test3.csv"}


@pytest.mark.parametrize(
    ("lists", "more", "cell", "said", "remark"),
    [
        (LISTS, {"command": "x"}, "90.0 ± 1.0", "3 splits", "over splits (n - 1)."),
        (LISTS, {}, "90.0 ± 1.0", "3 splits", "over splits (n - 1)."),
        (dict.fromkeys("123", "a/test.csv"), {}, "90.0 ± 1.0", "3 seeds", "over seeds of one split (n - 1)."),
        (
            LISTS,
            {"command": "vidssl train seed={split}"},
            "90.0 ± 1.0",
            "3 splits, a seed each",
            "over splits (n - 1); with a seed each it is of lists and seeds together.",
        ),
        (
            LISTS,
            {"seeds": ["0", "1"], "seed_spread": {"top1": 0.004}, "command": "x seed=0"},
            "90.0 ± 1.0 (0.4)",
            "3 splits x 2 seeds",
            "over splits of the means over seeds (n - 1), in brackets over the seeds of a split, averaged over splits.",
        ),
    ],
)
def test_a_spread_is_said_to_be_of_splits_or_seeds(put, finetuned, lists, more, cell, said, remark):
    content = {**deepcopy(finetuned), **more}
    for split, name in lists.items():
        content["splits"][split]["list"] = name
    folder = put("a", content)
    row, _ = own(folder)
    assert row["top-1"] == cell and row["videos, test / training"].endswith(f" / 9537, {said}")
    assert f"±: standard deviation {remark}" in report([folder], folder)


# What was published, and what differs -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "value", "given"),
    [
        ("protocol.clips", 2, "clips 2 (published 10)"),
        ("protocol.clip.seconds", 1.0, "clip.seconds 1 (published 2.56 or 1.28)"),
        ("config.epochs", None, "epochs not set (published 200)"),
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


# Files ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "given"),
    [
        ("{", "not JSON"),
        ('{"top1": 0.5}', "names no tested list"),
        ('{"list": "a/test.csv", "top1": "0.5"}', 'top1 is "0.5", not a number'),
        ('{"list": "a/test.csv", "splits": {"1": 0.5}}', "'splits' does not hold"),
    ],
)
def test_a_file_that_is_no_result_is_named(tmp_path, text, given):
    (tmp_path / "results.json").write_text(text)
    with pytest.raises(DataError, match=re.escape(given)) as caught:
        report([tmp_path], tmp_path)
    assert str(tmp_path / "results.json") in str(caught.value) and "\n" not in str(caught.value)


BLOCK = "<!-- report: hmdb51 -->\nold\n<!-- end of report -->\n"


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
    remedy = "it is stale: python benchmarks/report.py docs/results --into docs/results/reproduce.md"
    assert renewed(page, [TOP / "docs" / "results"]) == page.read_text(encoding="utf-8"), remedy
