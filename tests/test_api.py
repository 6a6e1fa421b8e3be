"""The commands as functions: the same numbers, no global state, in threads, in notebooks and with progress."""

import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import vidssl
from vidssl import cli
from vidssl.base.config import read
from vidssl.base.errors import ConfigError, DataError, VidsslError
from vidssl.data import read_list
from vidssl.losses import unit
from vidssl.models.read_and_write_weights import read_checkpoint

TOP = Path(__file__).parents[1]
CLIPS = {"clips": 2, "crops": 1, "workers": 0}
OPTIONS = ["--clips", "2", "--crops", "1", "--workers", "0", "--device", "cpu"]


@pytest.fixture
def settings(digits):
    return {
        "steps": 2,
        "batch_size": 4,
        "checkpoint.every": 1,
        "device": "cpu",
        "data.workers": 0,
        "data.moving_digits": None,
        "data.train": digits / "motion" / "train.csv",
        "evaluate.every": None,
    }


def words(settings):
    return [f"{key}={'null' if value is None else value}" for key, value in settings.items()]


def weights(checkpoint):
    return read_checkpoint(checkpoint)["method"]


def same(one, other):
    assert one.keys() == other.keys()
    return all(torch.equal(one[name], other[name]) for name in one if isinstance(one[name], torch.Tensor))


# Training ---------------------------------------------------------------------------------------------------


def test_training_is_that_of_the_command(settings, tmp_path):
    cli.run("train", ["--cfg", "toy/sce", *words(settings), f"output={tmp_path}/a", "--quiet"])
    calls = []
    config = dict(read(TOP / "configs" / "toy" / "sce.yaml"))
    before = json.dumps(config)
    last = vidssl.train(config, settings, f"output={tmp_path}/b", progress=lambda *call: calls.append(call))
    assert last == tmp_path / "b" / "checkpoints" / "last.pt"
    assert same(weights(tmp_path / "a" / "checkpoints" / "last.pt"), weights(last))
    assert [call for call in calls if call[2] == "train"] == [(1, 2, "train"), (2, 2, "train")]
    assert json.dumps(config) == before  # the dictionary of the caller is not changed


@pytest.mark.parametrize("kind", ["list", "csv"])
def test_videos_replace_the_list(kind, settings, digits, tmp_path):
    listed = digits / "motion" / "train.csv"
    listed_rows = vidssl.read_input(listed)
    videos = {"list": listed_rows.rows([3, 1]), "csv": str(listed)}[kind]
    del settings["data.train"], settings["data.moving_digits"]
    last = vidssl.train("toy/sce", settings, f"output={tmp_path}", "steps=1", "batch_size=2", videos=videos)
    config = read_checkpoint(last)["config"]
    assert config["data"]["moving_digits"] is None
    if kind == "csv":
        assert config["data"]["train"] == str(listed)
        return
    trained = read_list(config["data"]["train"])
    assert trained.path == tmp_path / "videos" / "train.csv"
    assert [*trained.records] == [listed_rows.records[3], listed_rows.records[1]]
    assert trained.classes == listed_rows.classes


def test_a_thread_trains_with_workers_and_resumes(settings, tmp_path):
    changed, actual = {**settings, "steps": 3, "data.workers": 1}, []

    def stop(done, total, title):
        if title == "train" and done == 2:
            raise KeyError("stop")

    def work(progress):
        try:
            actual.append(vidssl.train("toy/sce", changed, f"output={tmp_path}", progress=progress))
        except KeyError as error:
            actual.append(error)

    for progress in (stop, False):
        thread = threading.Thread(target=work, args=(progress,))
        thread.start()
        thread.join()
        saved = sorted(path.name for path in (tmp_path / "checkpoints").glob("step-*.pt"))
        assert len(actual) == 1 or saved == ["step-00000002.pt", "step-00000003.pt"]
    assert isinstance(actual[0], KeyError) and actual[1].resolve().name == "step-00000003.pt"


def test_an_interrupt_saves_and_the_next_call_goes_on(settings, tmp_path):
    handler = signal.getsignal(signal.SIGINT)

    def stop(done, total, title):
        if title == "train" and done == 1:
            os.kill(os.getpid(), signal.SIGINT)

    arguments = ["toy/sce", {**settings, "steps": 3, "checkpoint.every": 100}, f"output={tmp_path}/a"]
    with pytest.raises(KeyboardInterrupt):
        vidssl.train(*arguments, progress=stop)
    assert signal.getsignal(signal.SIGINT) is handler
    saved = [path.name for path in (tmp_path / "a" / "checkpoints").glob("step-*.pt")]
    assert saved in (["step-00000001.pt"], ["step-00000002.pt"])
    last = vidssl.train(*arguments, progress=False)
    whole = vidssl.train(*arguments, f"output={tmp_path}/b", progress=False)
    assert same(weights(last), weights(whole))


def test_an_exception_of_the_progress_ends_the_training(settings, tmp_path):
    def stop(*_):
        raise KeyError("stop")

    with pytest.raises(KeyError, match="stop"):
        vidssl.train("toy/sce", settings, f"output={tmp_path}", progress=stop)
    assert vidssl.train("toy/sce", settings, f"output={tmp_path}", progress=False).exists()  # nothing is locked


def test_nothing_global_changes(settings, tmp_path):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    torch.use_deterministic_algorithms(True, warn_only=True)
    root, own = logging.getLogger(), logging.getLogger("vidssl")
    before = [*root.handlers], root.level, [*own.handlers], own.level
    try:
        last = vidssl.train("toy/sce", settings, f"output={tmp_path}", progress=False)
        vidssl.extract("random", settings["data.train"], cfg="toy/sce", progress=False, device="cpu", **CLIPS)
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.equal(torch.rand(3), expected)
    assert before == ([*root.handlers], root.level, [*own.handlers], own.level)
    assert last.exists()


# Features ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def commanded(digits, tmp_path_factory):
    """The features of a list that the command writes."""
    out = tmp_path_factory.mktemp("api") / "features"
    arguments = [str(digits / "motion" / "test.csv"), "--checkpoint", "vidssl-small", *OPTIONS, "--quiet"]
    cli.run("extract", [*arguments, "--out", str(out)])
    return np.load(out / "features.npy")


@pytest.mark.parametrize("model", ["folder", "module"])
def test_features_are_those_of_the_command(model, digits, commanded, tmp_path):
    listed, options = digits / "motion" / "test.csv", dict(CLIPS)
    backbone = vidssl.load_backbone("vidssl-small")
    if model == "folder":
        cli.run("export", ["vidssl-small", "--to", "folder", "--out", str(tmp_path / "net"), "--quiet"])
    if model == "module":  # its clips as the card of the network states them
        clip = vidssl.ClipSettings(frames=4, seconds=1.28)
        options = {"test": vidssl.TestClips(clip=clip, size=64, mean=(0.45,), std=(0.225,), **CLIPS)}
    models = {"folder": tmp_path / "net", "module": nn.Sequential(backbone).train()}
    calls = []
    features = vidssl.extract(models[model], listed, progress=lambda *call: calls.append(call), **options)
    assert isinstance(features, vidssl.Features)
    x = features.x
    if model == "module":  # of one that is not a backbone of vidssl the streams are not known, nor that they are joined
        x = torch.cat([unit(stream) for stream in x.chunk(2, dim=1)], dim=1)
    torch.testing.assert_close(x, torch.from_numpy(commanded), rtol=0, atol=1e-6 if model == "module" else 0)
    assert features.label.tolist() == read_list(listed).labels.tolist()
    assert calls[-1] == (16, 16, "features")
    assert models["module"].training  # as it was


def test_videos_are_named_in_any_way(digits, commanded):
    listed = vidssl.read_input(digits / "motion" / "test.csv")
    paths = [record.path for record in listed.records]
    for videos in (listed, paths, [Path(path) for path in paths]):
        features = vidssl.extract("vidssl-small", videos, progress=False, **CLIPS)
        assert np.array_equal(features.x.numpy(), commanded)
    features = vidssl.extract("vidssl-small", paths[2], progress=False, **CLIPS)
    assert np.allclose(features.x.numpy(), commanded[2:3], atol=1e-5)
    assert vidssl.read_input([paths[2], paths[0]]).records[0].path == paths[2]


class Maps(nn.Module):
    def forward(self, x):
        return x.mean(dim=2)


TEST = vidssl.TestClips(
    clip=vidssl.ClipSettings(frames=2, sampling_rate=1), clips=1, crops=1, size=8, mean=(0.5,), std=(0.5,)
)


@pytest.mark.parametrize(
    ("model", "videos", "options", "error", "message"),
    [
        (nn.Flatten(), "LIST", {}, ConfigError, r"this Flatten does not state its clips: give test=vidssl.TestClips"),
        (Maps(), "LIST", {"test": TEST}, ConfigError, r"Maps makes \(1, 3, 8, 8\) of clips \(1, 3, 2, 8, 8\), not"),
        ("vidssl-small", "LIST", {"test": TEST, "clips": 1}, ConfigError, r"leave out cfg and the other options"),
        ("vidssl-small", "LIST", {"clips": 0}, ConfigError, r"^clips=0 is less than 1$"),
        ("vidssl-small", "LIST", {"grid": 2}, ConfigError, r"the options of the clips do not fit: .*grid"),
        (
            "vidssl-small",
            "LIST",
            {"precision": "half"},
            ConfigError,
            r"precision is 'half': choose one of float32, bfloat16",
        ),
        ("vidssl-small", ["no.mp4"], {}, DataError, r"1 of 1 files do not exist: /.*no.mp4"),
        ("vidssl-small", [], {}, DataError, r"no file is named"),
        (
            "random",
            "LIST",
            {"cfg": "sce_smal"},
            ConfigError,
            r"nor the name of a config \(did you mean 'sce_small'\?\)",
        ),
        ("no.pt", "LIST", {}, VidsslError, r"cannot read checkpoint no.pt"),
    ],
)
def test_mistakes_are_errors_of_one_line(model, videos, options, error, message, digits):
    listed = digits / "motion" / "test.csv" if videos == "LIST" else videos
    with pytest.raises(error, match=message) as caught:
        vidssl.extract(model, listed, **options)
    assert "\n" not in str(caught.value)


def test_a_table_without_pandas_is_an_error_with_the_remedy(monkeypatch):
    features = vidssl.Features(torch.zeros(2, 3), torch.zeros(2, dtype=torch.long), torch.arange(2))
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigError, match="pip install pandas"):
        features.to_pandas()


def test_a_list_that_was_read_has_its_root(digits):
    listed = vidssl.read_input(digits / "motion" / "test.csv")
    with pytest.raises(ConfigError, match="root and allow_external are for reading a list"):
        vidssl.extract("vidssl-small", listed, root=digits)


# Search -----------------------------------------------------------------------------------------------------


# Programs ---------------------------------------------------------------------------------------------------


@pytest.fixture
def my_videos(digits, tmp_path, monkeypatch):
    """A current folder with `my_videos`, and `lists` with labels."""
    shutil.copytree(digits / "motion", tmp_path / "lists")
    (tmp_path / "my_videos").mkdir()
    for name, record in zip("abcdef", vidssl.read_input(digits / "motion" / "test.csv").records, strict=False):
        shutil.copy(record.path, tmp_path / "my_videos" / f"{name}.mp4")
    monkeypatch.chdir(tmp_path)


def test_the_program_of_the_page_for_services_runs(my_videos):
    page = (TOP / "docs" / "service.md").read_text(encoding="utf-8")
    names = {}
    block = re.search(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[1]
    exec(block.replace("vidssl-default", "vidssl-small"), names)
    expected = vidssl.extract("vidssl-small", "my_videos", workers=0).x[0].numpy()
    np.testing.assert_allclose(names["embed"]("my_videos/a.mp4"), expected, atol=1e-5)


def test_the_page_runs(my_videos, capsys):
    page = (TOP / "docs" / "python.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    names = {}
    for block in blocks:
        exec(compile(block, "docs/python.md", "exec"), names)
    assert len(blocks) >= 6
    printed = capsys.readouterr().out.splitlines()
    assert "features: 6 of 6" in printed
    assert "torch.Size([2, 3, 4, 64, 64])" in printed
    recipe = next(block for block in blocks if "class Clips" in block)
    body = recipe[recipe.index("class Clips") : recipe.index("\n\n\nvideos = ")]
    assert len(body.splitlines()) <= 15


def test_the_programs_of_the_readme_run(my_videos, monkeypatch):
    page = (TOP / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    shorter = {
        "/data/videos": "my_videos",
        '"vidssl-default"': '"vidssl-small"',
        '"output=': '"steps=1", "batch_size=4", "data.workers=0", "data.sampler.seconds=0.5", "output=',
        "range(10)": "range(1)",
        "seconds=1.0": "seconds=0.5",
        "workers=2": "workers=0",
    }
    names = {}
    for block in blocks:
        for long, short in shorter.items():
            block = block.replace(long, short)
        exec(compile(block, "README.md", "exec"), names)
    assert names["features"].x.shape[0] == 6
    assert torch.isfinite(names["loss"])
    assert all(parameter.grad is not None for parameter in names["backbone"].parameters())


def test_a_program_without_a_file_has_workers(my_videos):
    """As in a notebook: `__main__` has no file that a worker could import."""
    program = "import vidssl; print(vidssl.extract('vidssl-small', 'my_videos', workers=2, clips=1, crops=1).x.shape)"
    environment = {**os.environ, "PYTHONPATH": str(TOP), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-"], input=program, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "torch.Size([6, 256])\n"
