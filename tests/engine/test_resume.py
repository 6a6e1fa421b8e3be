"""A run that goes on with other files than it was trained on says so."""

import shutil
from pathlib import Path

import pytest
import torch

from vidssl.base.atomic import file_hash
from vidssl.base.errors import DataError
from vidssl.engine.checkpoint import _restore_rng
from vidssl.engine.log import RunLog
from vidssl.engine.run_config import bind_stored, load_run
from vidssl.engine.train import train
from vidssl.models import load_backbone


@pytest.fixture
def go_on(toy_run, toy_folder, tmp_path, caplog):
    """Train one step more, with the videos of a root, and give the warnings: `go_on(1, root)`."""

    def run(step, root, output="a"):
        caplog.clear()
        where = f"data.train={toy_folder}/data/motion/train.csv", f"data.root={root}"
        train(toy_run("supervised", output, *where, "data.moving_digits=null", "steps=4"), until=step)
        return [line for line in caplog.messages if "files" in line]

    return run


def saved(folder):
    return torch.load(folder / "checkpoints" / "last.pt", weights_only=True)


def test_a_run_on_the_same_files_is_silent(go_on, toy_folder, tmp_path):
    root = toy_folder / "data"
    (tmp_path / "link").symlink_to(root)
    assert go_on(1, root) == [] and go_on(2, root) == [] and go_on(3, tmp_path / "link") == []
    data = saved(tmp_path / "a")["data"]
    assert (data["root"], data["files"], data["missing"]) == (str(root), 40, 0)


def test_another_root_is_named(go_on, toy_folder, tmp_path):
    root, moved = toy_folder / "data", tmp_path / "moved"
    shutil.copytree(root / "videos", moved / "videos")
    go_on(1, root)
    (line,) = go_on(2, moved)
    assert line.startswith(f"{tmp_path}/a/checkpoints/step-00000001.pt was trained on other files: ")
    assert line.endswith(f": data.root {root}, now {moved}; exact only if their content is the same")
    assert go_on(3, moved) == []  # it was said once
    assert saved(tmp_path / "a")["step"] == 3 and saved(tmp_path / "a")["data"]["root"] == str(moved)


def test_other_files_of_the_same_names_are_named(go_on, toy_folder, tmp_path):
    moved = tmp_path / "moved"
    shutil.copytree(toy_folder / "data/videos", moved / "videos")
    go_on(1, moved)
    shutil.copy(moved / "videos/train/00001.mp4", moved / "videos/train/00000.mp4")
    (line,) = go_on(2, moved)
    assert "was trained on other files: data.bytes " in line and "; data.sizes " in line
    assert "data.root" not in line
    (moved / "shrink.json").write_text('{"short_side": 128, "quality": 18}')
    (line,) = go_on(3, moved)
    assert "data.copies None, now {'quality': 18, 'short_side': 128}" in line


def test_another_number_of_processes_is_named(toy_run, caplog):
    states = [{"cpu": torch.get_rng_state()}] * 2
    _restore_rng(toy_run("supervised", "a"), {"rng": states, "step": 3}, Path("a/step.pt"), False)
    assert caplog.messages == [
        "a/step.pt was written by 2 processes on CPUs, this run has 1 process on CPUs: it continues, but not "
        "bit-exactly"
    ]


def test_damaged_lines_of_the_log_are_counted(tmp_path, caplog):
    log = tmp_path / "metrics.jsonl"
    log.write_text('{"step": 1}\n{"loss": 2}\n{"step": 2}\n{"step": 3}\n{"ste')
    RunLog(tmp_path, 2, 4, 8, strict=True).close()
    assert log.read_text() == '{"step": 1}\n{"step": 2}\n'
    assert caplog.messages == [f"{log}: damaged lines are dropped: 2"]


def test_settings_of_copies_that_cannot_be_read(go_on, toy_folder, tmp_path):
    moved = tmp_path / "moved"
    shutil.copytree(toy_folder / "data/videos", moved / "videos")
    (moved / "shrink.json").write_text("{")
    with pytest.raises(DataError, match=r"cannot read the settings of shrunk copies in .*shrink\.json"):
        go_on(1, moved)


STORED = Path(__file__).parents[1] / "data" / "stored"  # of a run of two steps, written on 28 November 2026


def test_a_stored_run_goes_on(toy_folder, tmp_path):
    """With its own config; all weights are equal, so that the file is small."""
    path = tmp_path / "run/checkpoints/step-00000002.pt"
    path.parent.mkdir(parents=True)
    shutil.copy(STORED / "run.pt", path)
    path.with_suffix(".sha256").write_text(file_hash(path))
    (tmp_path / "run/.vidssl.json").write_text('{"format": 1, "kind": "a run", "inputs": {}, "files": {}}')
    data, train_list = toy_folder / "data", toy_folder / "data/motion/train.csv"
    where = f"output={tmp_path}/run", f"data.moving_digits.out={data}", f"data.train={train_list}"
    assert saved_step(train(load_run(STORED / "run.yaml", where), until=3)) == 3


def saved_step(path):
    return torch.load(path, weights_only=True)["step"]


def test_stored_weights_are_loaded():
    network, config = load_backbone(STORED / "run.pt"), load_run(STORED / "run.yaml")
    assert bind_stored(network.run_config, "a checkpoint").model_dump() == config.model_dump()
    assert {round(p.mean().item(), 6) for p in network.parameters()} == {0.1}
