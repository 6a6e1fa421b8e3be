"""The loop: interrupted and straight runs are equal bit by bit, and what must stop a run does."""

import fcntl
import itertools
import json
import logging
import runpy
import shutil
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from vidssl.base.config import read
from vidssl.base.errors import CheckpointError, ConfigError, DataError, TrainingError
from vidssl.data.video_list import read_list
from vidssl.engine import checkpoint
from vidssl.engine.log import warn_of_collapse
from vidssl.engine.run_config import bind_run, load_run
from vidssl.engine.run_setup import Training, set_determinism
from vidssl.engine.train import train
from vidssl.engine.training_lists import training_list, warn_of_few
from vidssl.methods import METHODS
from vidssl.methods.momentum_method import MomentumMethod
from vidssl.models import convolution_check as bfloat16_check
from vidssl.video import packet_index as index

TOY = Path(__file__).parents[2] / "configs" / "toy"
EQUAL = runpy.run_path(str(Path(__file__).parents[1] / "equal.py"))
same, logged = EQUAL["same"], EQUAL["logged"]


def state(path):
    """All that a checkpoint holds but the config, which names the folder, and when it was last evaluated."""
    content = torch.load(path, weights_only=True)
    return {key: value for key, value in content.items() if key not in ("config", "evaluated")}


def as_straight(last, output, straight):
    """Assert that a run has ended as the straight one, and logged the same."""
    same(state(last), state(straight / "checkpoints" / "last.pt"))
    assert logged(output) == logged(straight)


# 40 videos in batches of 8: 5 steps are an epoch. The second tracks are made before step 9.
@pytest.mark.parametrize("name", ["sce", "frame_invariance_tracks"])
def test_fault_19_an_interrupted_run_is_a_straight_one(name, straight, toy_run, tmp_path):
    parts = toy_run(name, "parts")
    for until in (3, 9, None):  # in the middle of epochs
        last = train(parts, until)
        assert torch.load(last, weights_only=True)["step"] == (until or 12)
    as_straight(last, tmp_path / "parts", straight(name))
    assert [line["step"] for line in logged(tmp_path / "parts")] == list(range(1, 13))


# Two processes that accumulate: tests/distributed.
def test_fault_19_an_interrupted_run_that_accumulates_is_a_straight_one(toy_run, tmp_path):
    straight, parts = (toy_run("sce", folder, "micro_batch_size=4", "steps=4") for folder in ("straight", "parts"))
    train(straight)
    train(parts, 2)
    as_straight(train(parts), tmp_path / "parts", tmp_path / "straight")


# With sce and tracks above: a queue, tracks, a bank with clusters, none, and random numbers of dropout. That the state
# of every toy's method is complete is in its contract.
@pytest.mark.parametrize("name", ["interclr_moco", "byol", "supervised"])
def test_fault_19_other_families_go_on_from_a_checkpoint(name, straight, toy_run, tmp_path):
    """All that is left of a run is the checkpoint of step 4, in the middle of the first epoch."""
    newer = shutil.ignore_patterns("last.pt", "step-00000008.*", "step-00000012.*")
    shutil.copytree(straight(name), tmp_path / "parts", ignore=newer)
    assert checkpoint.newest_valid(tmp_path / "parts" / "checkpoints")["step"] == 4
    as_straight(train(toy_run(name, "parts")), tmp_path / "parts", straight(name))


def test_fault_19_a_run_that_died_between_checkpoints(straight, toy_run, metrics, tmp_path, monkeypatch):
    expected = straight("sce")
    after_step = MomentumMethod.after_step

    def die(self, progress):
        if progress > 0.5:
            raise KeyboardInterrupt
        after_step(self, progress)

    with monkeypatch.context() as patch:
        patch.setattr(MomentumMethod, "after_step", die)
        with pytest.raises(KeyboardInterrupt):
            train(toy_run("sce", "died"))
    assert [line["step"] for line in metrics("died")] == [1, 2, 3, 4, 5, 6]  # the checkpoint is that of step 4
    as_straight(train(toy_run("sce", "died")), tmp_path / "died", expected)


def test_a_finished_run_is_not_changed(toy_run, metrics):
    last = train(toy_run("supervised", "a", "steps=3"))
    content, lines = last.read_bytes(), metrics("a")
    assert train(toy_run("supervised", "a", "steps=3")) == last
    assert last.read_bytes() == content and metrics("a") == lines


def test_fault_32_workers_change_nothing(toy_run, metrics):
    results = []
    for workers in (0, 2):
        last = train(toy_run("sce", f"w{workers}", "steps=3", f"data.workers={workers}"))
        results.append((state(last), metrics(f"w{workers}")))
    for result in results[1:]:
        same(result[0], results[0][0])
        assert result[1] == results[0][1]


def test_epochs_are_counted_in_steps(toy_run, metrics):
    last = train(toy_run("supervised", "a", "steps=null", "epochs=0.6"))
    assert last.resolve().name == "step-00000003.pt"
    assert [line["epoch"] for line in metrics("a")] == [0.2, 0.4, 0.6]
    assert metrics("a")[0]["lr"] == 0.001 and metrics("a")[-1]["lr"] < 0.0005


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["epochs=1"], "set exactly one of epochs and steps"),
        (["steps=null"], "set exactly one of epochs and steps"),
        (
            ["evaluate.every=2", "tracks={}", "steps=0"],  # listed at once
            "3 mistakes: steps: .* tracks: set folder .* evaluate: every needs the list query",
        ),
        (["imports=[no_such_module]"], "imports: cannot import 'no_such_module'"),
        (["method.name=scf"], r"no 'scf' \(did you mean 'sce'\?\); there are: .*moco, .*ressl, sce"),
    ],
)
def test_invalid_runs_are_refused(overrides, said, toy_run):
    with pytest.raises(ConfigError, match=said):
        toy_run("sce", "a", *overrides)


def test_fault_23_a_loss_that_is_not_finite_ends_the_run(toy_run, tmp_path, monkeypatch):
    last = train(toy_run("moco", "a"), until=1)
    before = last.read_bytes()
    calls = 0

    def loss(self, query, key):
        nonlocal calls
        calls += 1
        return (query * (float("nan") if calls == 3 else 1.0)).sum()  # two pairs a step: in the second step

    monkeypatch.setattr(METHODS["moco"], "pair_loss", loss)
    with pytest.raises(
        TrainingError, match=r"^the loss of step 3 is nan, or its gradients are not finite; its videos are listed in"
    ):
        train(toy_run("moco", "a"))
    (content,) = json.loads((tmp_path / "a" / "not-finite-step-00000003.json").read_text())
    names = read_list(toy_run("moco", "a").data.train).names
    assert len(content["records"]) == 8
    assert all(names[int(index)] == name for index, name in content["records"].items())
    assert last.resolve().name == "step-00000001.pt" and last.read_bytes() == before


def test_a_label_beyond_the_classes_is_found_before_training(toy_run):
    with pytest.raises(ConfigError, match=r"^method.classes is 3, and .*train.csv has label 7: raise it$"):
        train(toy_run("view_learning", "a", "method.classes=3"))


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ("steps=20", "steps 12, now 20"),
        ("batch_size=10", "batch_size 8, now 10"),
        ("method.dropout=0.5", "method.dropout 0.2, now 0.5"),
        ("data.views.0.size=24", "data.views.0.size 32, now 24"),
        ("precision=bfloat16", 'precision "float32", now "bfloat16"'),
    ],
)
def test_fault_26_changed_settings_are_refused(change, field, one_step):
    with pytest.raises(CheckpointError, match=rf"holds a run with other settings: {field}; choose another output"):
        train(one_step(change))


@pytest.fixture(scope="module")
def one_step(toy_folder, tmp_path_factory):
    """A run of the supervised toy that was stopped after its first step."""
    folder = tmp_path_factory.mktemp("one_step")
    where = [
        f"data.moving_digits.out={toy_folder}/data",
        f"data.train={toy_folder}/data/motion/train.csv",
        f"output={folder}/run",
        "data.workers=0",
    ]

    def run(*overrides):
        return load_run(TOY / "supervised.yaml", [*where, *overrides])

    train(run(), until=1)
    return run


def test_fault_26_a_checkpoint_from_before_a_setting_was_there_goes_on(toy_run):
    straight, old = train(toy_run("moco", "straight", "steps=2")), train(toy_run("moco", "old", "steps=2"), 1)
    content = torch.load(old, weights_only=True)
    method, views = content["config"]["method"], content["config"]["data"]["views"]
    for section, name in ((method, "margin"), (method, "inter"), *((view, "operations") for view in views)):
        del section[name]
    checkpoint.write_checkpoint(old.parent, 1, content, keep=2)
    same(state(train(toy_run("moco", "old", "steps=2"))), state(straight))


def test_settings_of_where_and_how_fast_may_change(toy_run):
    last = train(toy_run("supervised", "a"), until=1)
    again = train(
        toy_run("supervised", "a", "data.workers=1", "log_every=3", "checkpoint.every=5", "evaluate.clips=3"), 2
    )
    assert again == last and torch.load(last, weights_only=True)["step"] == 2


def test_fault_26_other_videos_are_refused(toy_run, toy_folder):
    train(toy_run("sce", "a"), until=1)
    other = f"data.train={toy_folder}/data/digit/train.csv"
    with pytest.raises(CheckpointError, match=r"other settings: other videos than .*digit/train.csv lists"):
        train(toy_run("sce", "a", other, "data.moving_digits=null"))


def test_fault_17_a_damaged_last_checkpoint_costs_steps_and_nothing_else(straight, toy_run, tmp_path, caplog):
    expected = straight("moco")
    damaged = train(toy_run("moco", "damaged"), until=8).resolve()
    damaged.write_bytes(damaged.read_bytes()[:1000])
    with caplog.at_level(logging.INFO):
        last = train(toy_run("moco", "damaged"))
    assert "falling back" in caplog.text and "at step 4" in caplog.text
    as_straight(last, tmp_path / "damaged", expected)


def test_fault_27_two_runs_in_one_output(toy_run, tmp_path):
    (tmp_path / "a").mkdir()
    with open(tmp_path / "a" / ".lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match=r"another run is writing to .*/a: wait for it, or choose"):
            train(toy_run("supervised", "a", "steps=1"))
    assert train(toy_run("supervised", "a", "steps=1")).exists()


def test_fault_18_an_output_folder_that_cannot_be_created(toy_run, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"cannot write .*file/run: Not a directory"):
        train(toy_run("supervised", "file/run", "steps=1"))


def test_the_config_beside_the_checkpoint_is_the_run(toy_run, tmp_path):
    run = toy_run("sce", "a", "steps=1")
    content = torch.load(train(run), weights_only=True)
    for tree in (read(tmp_path / "a" / "config.yaml"), content["config"]):
        assert tree == content["config"]
        assert bind_run(tree, "test").model_dump() == run.model_dump()


FROZEN = ("method.freeze=true", "method.dropout=0.0")
TWO = (
    "backbone={name: two_streams, streams: {a: {name: resnet3d18, width: 4}, b: {name: resnet3d18, width: 4, "
    "frame_differences: true}}}",
)


@pytest.mark.parametrize(
    ("name", "settings"), [("sce", ()), ("interclr_npid", ()), ("supervised", (*FROZEN, *TWO, "method.layer=a.layer2"))]
)
def test_evaluation_does_not_change_training(name, settings, toy_run, toy_folder, metrics):
    lists = [
        f"evaluate.{role}={toy_folder}/data/motion/{half}.csv"
        for role, half in (("gallery", "train"), ("query", "test"))
    ]
    watched = train(toy_run(name, "watched", "steps=3", "evaluate.every=2", *settings, *lists))
    alone = train(toy_run(name, "alone", "steps=3", *settings))
    same(state(watched), state(alone))
    assert metrics("watched") == metrics("alone")
    measured = metrics("watched", "uniformity_loss")
    assert [line["step"] for line in measured] == [2, 3] and not metrics("alone", "uniformity_loss")
    assert len({json.dumps(line) for line in measured}) == 2


def test_a_method_with_a_setting_of_the_name_method(toy_run, caplog):
    """It holds no other method."""
    kind = METHODS["sce"]

    class Named(kind):
        class Config(kind.Config):
            method: str = "sinkhorn"

    METHODS.register("named_setting")(Named)
    try:
        with caplog.at_level(logging.INFO):
            train(toy_run("sce", "a", "steps=1", "method.name=named_setting"))
    finally:
        del METHODS._all()["named_setting"]
    assert "named_setting on resnet3d18 (0.3 M parameters), 40 videos" in caplog.text
    assert "steps 0-1 of 8 videos x 2 views; cpu, float32, batch norm local;" in caplog.text


GOOD, BAD = {"key_rank": 30.0, "negative_similarity": 0.1}, {"key_rank": 1.2, "negative_similarity": 0.1}


@pytest.mark.parametrize(
    ("values", "named"),
    [
        (BAD, "keys"),
        ({"key_rank": 3.1, "negative_similarity": 0.94}, None),
        ({"key_rank": 30.0, "negative_similarity": 0.96}, "keys"),
        ({"key_rank": 2.1, "key_rank_limit": 8.0, "negative_similarity": 0.1}, None),
        ({"key_rank": 1.9, "key_rank_limit": 8.0, "negative_similarity": 0.1}, "keys"),
        ({"key_rank": 2.9, "key_rank_limit": 2048.0, "negative_similarity": 0.1}, "keys"),
        ({"key_rank": 1.0, "key_rank_limit": 2.0, "negative_similarity": 0.96}, "keys"),
        ({"loss": 1.0}, None),
        ({f"rgb.{name}": value for name, value in GOOD.items()}, None),
        ({f"{of}.{name}": x for of, y in (("rgb", GOOD), ("flow", BAD)) for name, x in y.items()}, "keys of flow"),
    ],
)
def test_when_collapse_is_warned_of_and_of_which_stream(values, named, caplog):
    warn_of_collapse(7, values)
    assert [line.partition(" have collapsed: ")[0] for line in caplog.messages] == [f"step 7: the {named}"] * bool(
        named
    )


TWO_STREAMS = (
    "backbone={name: two_streams, streams: {rgb: {name: resnet3d18, width: 16}, "
    "differences: {name: resnet3d18, width: 16, frame_differences: true}}}"
)


@pytest.mark.parametrize(
    ("more", "warns"),
    [
        (("data.moving_digits=null",), True),
        ((), False),  # rendered
        (("data.moving_digits=null", "method={name: supervised, classes: 8}"), False),
        (("data.moving_digits=null", "init=vidssl-small", TWO_STREAMS), False),
    ],
)
def test_pretraining_on_few_videos_is_warned_of(digits, tmp_path, caplog, more, warns):
    settings = [f"data.train={digits}/motion/train.csv", f"output={tmp_path}/run", "steps=1", "device=cpu"]
    run = load_run(TOY / "simclr.yaml", [*settings, f"data.moving_digits.out={digits}", *more])
    warn_of_few(run, training_list(run))
    assert ("40 videos are few: with fewer than 200, pre-training was no better" in caplog.text) is warns


def test_a_run_that_collapses_warns(toy_run, caplog, monkeypatch):
    encode = METHODS["moco"].__init__

    def one_direction(self, config, backbone):
        encode(self, config, backbone)
        for projector in (self.projector, self.target[1]):
            nn.init.zeros_(projector[-1].weight)
            nn.init.ones_(projector[-1].bias)  # all that comes out

    monkeypatch.setattr(METHODS["moco"], "__init__", one_direction)
    train(toy_run("moco", "a", "steps=1"))
    assert "the keys have collapsed: effective rank 1.0" in caplog.text


def test_a_cache_changes_nothing_and_is_filled(straight, toy_run, tmp_path, monkeypatch):
    expected = straight("supervised")
    monkeypatch.setattr(index, "_cache", type(index._cache)())  # as in a new process
    cache = tmp_path / "cache"
    as_straight(train(toy_run("supervised", "cached", f"data.cache={cache}")), tmp_path / "cached", expected)
    assert len(list(cache.rglob("*.npz"))) == 40


def test_fault_18_a_checkpoint_that_cannot_be_written_stops_the_run_or_not(toy_run, monkeypatch, caplog):
    real, lost, settings = checkpoint.write_checkpoint, [], ("steps=3", "checkpoint.every=1")

    def full(folder, step, content, keep):
        if step < 3:
            lost.append(step)
            raise CheckpointError(f"cannot write step {step}: No space left on device")
        return real(folder, step, content, keep)

    monkeypatch.setattr(checkpoint, "write_checkpoint", full)
    with pytest.raises(CheckpointError, match="cannot write step 1"):
        train(toy_run("supervised", "stops", *settings))
    with caplog.at_level(logging.WARNING):
        last = train(toy_run("supervised", "goes on", *settings, "checkpoint.on_error=continue"))
    assert lost == [1, 1, 2] and "cannot write step 2: No space left on device; the run continues" in caplog.text
    assert last.resolve().name == "step-00000003.pt"


def test_fault_18_the_last_checkpoint_must_be_written(toy_run, monkeypatch):
    def full(folder, step, content, keep):
        raise CheckpointError("cannot write: No space left on device")

    monkeypatch.setattr(checkpoint, "write_checkpoint", full)
    with pytest.raises(CheckpointError, match="No space left"):
        train(toy_run("supervised", "a", "steps=5", "checkpoint.on_error=continue"))


@pytest.mark.long
def test_a_compiled_backbone_computes_the_same(toy_run, metrics):
    gentle = ("steps=3", "optimizer={name: sgd, lr: 0.01}")
    runs = [train(toy_run("sce", name, *gentle, f"compile={name}")) for name in ("true", "false")]
    compiled, plain = (state(path)["method"] for path in runs)
    assert list(compiled) == list(plain)  # the names are those of the network that is not compiled
    losses = [[line["loss"] for line in metrics(name)] for name in ("true", "false")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def test_fault_23_keys_that_are_not_numbers(toy_run):
    """The statistics of a logged step must not fail before the step does."""
    with pytest.raises(TrainingError, match="lower the learning rate"):
        train(toy_run("moco", "a", "optimizer={name: sgd, lr: 1e30}", "log_every=1"))


def test_deterministic_is_of_one_run():
    for expected in (True, False):
        set_determinism(expected, torch.device("cpu"))
        assert torch.are_deterministic_algorithms_enabled() is expected


def test_missing_labels_are_an_error_before_training(toy_run, toy_folder, tmp_path):
    folder = toy_folder / "data" / "motion"
    header, first, *rows = (folder / "train.csv").read_text().splitlines()
    (tmp_path / "mixed.csv").write_text("\n".join([header, first.split(",")[0] + ",-1", *rows]))
    settings = f"data.train={tmp_path}/mixed.csv", f"data.root={(folder / 'root.txt').read_text().strip()}"
    with pytest.raises(ConfigError, match=r"^supcon needs labels, but 1 of 40 videos of .*mixed\.csv have none"):
        train(toy_run("supcon", "a", *settings))
    assert not (tmp_path / "a" / "metrics.jsonl").exists()
    train(toy_run("simclr", "a", "steps=1", *settings))


@pytest.mark.parametrize(
    ("setting", "content"), [("data.train", None), ("evaluate.query", "path,label\n"), ("evaluate.gallery", None)]
)
def test_a_list_that_cannot_be_read_is_named_by_its_setting(toy_run, toy_folder, tmp_path, setting, content):
    path = tmp_path / "other.csv"
    if content is not None:
        path.write_text(content)
    lists = {f"evaluate.{role}": toy_folder / "data/motion/test.csv" for role in ("gallery", "query")} | {setting: path}
    with pytest.raises(DataError, match=rf"^{setting}: .*other\.csv"):
        train(toy_run("sce", "a", "evaluate.every=9", *(f"{key}={value}" for key, value in lists.items())))


def test_a_monitor_does_not_compare_copies_with_originals(toy_run, toy_folder, metrics, tmp_path):
    shutil.copytree(toy_folder / "data", tmp_path / "copies")
    (tmp_path / "copies" / "shrink.json").write_text('{"short_side": 48}')
    (tmp_path / "copies/motion/root.txt").write_text(f"{tmp_path}/copies\n")
    lists = (
        f"evaluate.gallery={toy_folder}/data/motion/train.csv",
        f"evaluate.query={tmp_path}/copies/motion/test.csv",
    )
    with pytest.raises(DataError, match=r"original videos, .* shrunk copies \(short_side 48\)"):
        train(toy_run("sce", "a", "evaluate.every=9", *lists))
    assert not (tmp_path / "a" / "metrics.jsonl").exists()


def test_a_monitor_that_is_added_later_measures_once(toy_run, toy_folder, metrics):
    train(toy_run("supervised", "a", "steps=2"))
    lists = [f"evaluate.{role}={toy_folder}/data/motion/test.csv" for role in ("gallery", "query")]
    for _ in range(2):
        train(toy_run("supervised", "a", "steps=2", "evaluate.every=2", *lists))
    assert len(metrics("a", "uniformity_loss")) == 1


def test_a_failed_evaluation_does_not_cost_the_trained_steps(toy_run, toy_folder, metrics, monkeypatch):
    lists = [f"evaluate.{role}={toy_folder}/data/motion/test.csv" for role in ("gallery", "query")]
    run = toy_run("supervised", "a", "steps=5", "evaluate.every=3", *lists)

    def fail(*_, **__):
        raise DataError("a video cannot be decoded")

    with monkeypatch.context() as patch:
        patch.setattr("vidssl.engine.periodic_evaluation.measure", fail)
        with pytest.raises(DataError, match="a video cannot be decoded"):
            train(run)
    (saved,) = checkpoint.saved(Path(run.output) / "checkpoints")
    assert saved.name == "step-00000003.pt" and not metrics("a", "uniformity_loss")
    last = train(run)  # it evaluates step 3 first
    assert [line["step"] for line in metrics("a", "uniformity_loss")] == [3, 5]
    assert [line["step"] for line in metrics("a")] == [1, 2, 3, 4, 5]
    same(state(last), state(train(toy_run("supervised", "straight", "steps=5"))))


LISTS = {"gallery": "train", "query": "test"}


def test_the_monitor_runs_its_protocols_and_the_classifier(toy_run, toy_folder, metrics):
    lists = [f"evaluate.{role}={toy_folder}/data/motion/{half}.csv" for role, half in LISTS.items()]
    settings = "evaluate.protocols=[{name: accuracy}, {name: svm, costs: [1.0]}, {name: knn, k: 3}]"
    train(toy_run("supervised", "a", "steps=3", "evaluate.every=3", settings, *lists))
    names = {"step", "top1", "top5", "mean_class", "ece", "majority", "majority_mean_class"}
    assert [set(line) for line in metrics("a", "top1")] == [names | {"svm", "svm_mean_class", "knn", "knn_mean_class"}]
    # Without a gallery: what needs none.
    train(toy_run("supervised", "b", "steps=3", "evaluate.every=3", lists[1]))
    assert [set(line) for line in metrics("b", "top1")] == [names]
    same = [line["top1"] for name in ("a", "b") for line in metrics(name, "top1")]
    assert same[0] == same[1]


def test_the_probe_of_a_layer_is_evaluated_on_its_layer(toy_run, toy_folder, metrics, tmp_path):
    lists = [f"evaluate.{role}={toy_folder}/data/motion/{half}.csv" for role, half in LISTS.items()]
    probe = ["method.freeze=true", "method.layer=layer2", "method.grid=2", "steps=3", "evaluate.every=3", *lists]
    train(toy_run("supervised", "a", *probe))
    assert {"top1", "knn"} <= {*metrics("a", "top1")[0]}
    # Features of another layer do not fit the classifier.
    train(toy_run("supervised", "b", *probe, "evaluate.layer=layer1"))
    assert not metrics("b", "top1") and metrics("b", "knn")
    # Also where it would be computed after the last step only.
    for every in ((), ("evaluate.every=9", *lists)):
        with pytest.raises(ConfigError, match="ResNet3D18 has no layer 'layer9'"):
            train(toy_run("sce", "c", "evaluate.layer=layer9", *every))
    assert not (tmp_path / "c" / "metrics.jsonl").exists()


@pytest.mark.parametrize(
    ("method", "given", "message"),
    [
        ("sce", "[{name: accuracy}]", "protocol accuracy needs a classifier .* this network has none"),
        ("sce", "[{name: knn}, {name: knn, k: 1}]", "protocol knn is given twice"),
        ("sce", "[{name: knnn}]", r"no 'knnn' \(did you mean 'knn'\?\)"),
        ("sce", "[]", "at least 1 item"),
    ],
)
def test_invalid_protocols_of_the_monitor_are_refused(method, given, message, toy_run, toy_folder, tmp_path):
    lists = [f"evaluate.{role}={toy_folder}/data/motion/{half}.csv" for role, half in LISTS.items()]
    with pytest.raises(ConfigError, match=message):
        train(toy_run(method, "a", "evaluate.every=9", f"evaluate.protocols={given}", *lists))
    assert not (tmp_path / "a" / "metrics.jsonl").exists()


def test_a_monitor_that_learns_from_the_videos_that_it_tests(toy_run, toy_folder):
    lists = [f"evaluate.{role}={toy_folder}/data/motion/test.csv" for role in LISTS]
    with pytest.raises(
        DataError, match=r"16 videos of .* are in .* too, the first .*: svm would be tested on training videos"
    ):
        train(toy_run("sce", "a", "evaluate.every=9", "evaluate.protocols=[{name: svm}]", *lists))


def test_a_subset_holds_as_many_of_each_class(toy_run, toy_folder):
    whole = training_list(toy_run("supervised", "a"))
    tenth, half = (training_list(toy_run("supervised", "a", f"data.subset={{fraction: {x}}}")) for x in (0.1, 0.5))
    labels = [record.label for record in whole.records]
    for chosen, count in ((tenth, 1), (half, round(0.5 * labels.count(0) + 1e-9))):
        actual = [record.label for record in chosen.records]
        assert {label: actual.count(label) for label in set(labels)} == dict.fromkeys(set(labels), count)
        assert set(chosen.names) <= set(whole.names)
        assert list(chosen.names) == [name for name in whole.names if name in chosen.names]  # in the order of the list
    assert set(tenth.names) < set(half.names)
    other = training_list(toy_run("supervised", "a", "data.subset={fraction: 0.5, seed: 1}"))
    assert set(other.names) != set(half.names) and len(other.names) == len(half.names)
    three = training_list(toy_run("supervised", "a", "data.subset={per_class: 3}"))
    assert len(three) == 3 * len(set(labels))
    with pytest.raises(DataError, match=r"has 5 videos of class '.*', the subset needs 6: lower data.subset.per_class"):
        training_list(toy_run("supervised", "a", "data.subset={per_class: 6}"))
    with pytest.raises(ConfigError, match="set exactly one of fraction and per_class"):
        toy_run("supervised", "a", "data.subset={per_class: 6, fraction: 0.1}")


FIRST_STEPS = {"sce": ["data.views.1.size=24"], "moco_jigsaw": [], "supervised": ["method.freeze=true"]}


@pytest.mark.parametrize("name", FIRST_STEPS)
def test_all_convolutions_of_the_first_step_in_bfloat16_are_checked_before_its_backward(name, toy_run, monkeypatch):
    """Of branches, target networks and encoders too, at each size; gradients where they flow."""
    events, ran = [], {}

    def note(layer, inputs, output):
        if isinstance(layer, nn.Conv2d | nn.Conv3d) and output.dtype == torch.bfloat16 and not events:
            key = str(layer), tuple(inputs[0].shape[1:])
            ran[key] = ran.get(key, False) or output.requires_grad

    def wrong(layers):
        events.append({(str(layer), size[1:]): trains for layer, size, trains in layers})
        return {}

    monkeypatch.setattr(bfloat16_check, "_wrong", wrong)

    def stop(*_):  # where this machine is wrong a backward pass can end the process, as nothing is checked now
        events.append("backward")
        raise TrainingError("enough")

    monkeypatch.setattr(torch.autograd, "backward", stop)
    hook = nn.modules.module.register_module_forward_hook(note)
    with pytest.raises(TrainingError, match="enough"):
        train(toy_run(name, "a", "steps=2", "precision=bfloat16", "evaluate.every=null", *FIRST_STEPS[name]))
    hook.remove()
    assert events[0] == ran and ran and {*events[1:]} == {"backward"}
    assert any(ran.values()) == (name != "supervised")


def test_a_finished_run_names_how_to_train_its_network_further(toy_run, tmp_path):
    train(toy_run("sce", "a", "steps=2"))
    with pytest.raises(CheckpointError, match=r"steps 2, now 3; .*with init=\S+ to train its network further"):
        train(toy_run("sce", "a", "steps=3"))
    train(toy_run("sce", "b", "steps=1", f"init={tmp_path}/a"))


def test_a_run_reads_its_initial_weights_once(toy_run, tmp_path, monkeypatch):
    train(toy_run("sce", "a", "steps=1"))
    train(toy_run("sce", "b", "steps=2", f"init={tmp_path}/a"), until=1)

    def read_again(*_):
        raise AssertionError("init is read at the first start only")

    monkeypatch.setattr("vidssl.engine.run_setup.load_initial", read_again)
    train(toy_run("sce", "b", "steps=2", f"init={tmp_path}/a"))


@pytest.mark.parametrize(
    ("seconds", "at", "waited", "workers"), [(0.5, 10, 0.25, 1), (4, 4, 0.35, 1), (0.5, 10, 0.35, 9)]
)
def test_the_time_to_go_and_the_wait_for_data_are_logged_once(
    toy_run, monkeypatch, caplog, seconds, at, waited, workers
):
    caplog.set_level("INFO", "vidssl")
    clock = itertools.count(0, seconds)
    monkeypatch.setattr("vidssl.engine.log.time", SimpleNamespace(perf_counter=lambda: next(clock)))
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(8), raising=False)
    with ExitStack() as stack:
        log = Training(toy_run("sce", "a", "steps=40", f"data.workers={workers}"), None, stack).log
        for _ in range(40):
            log.advance(waited * seconds)
    left = timedelta(seconds=round(seconds * (40 - at)))
    (line,) = [line for line in caplog.messages if "to go" in line]
    assert line.startswith(f"{at} steps are done, {1 / seconds:.2g} a second: about {left} to go, to 20")
    more = f" or more data.workers (now {workers}, there are 8 cores)" * (workers < 8)
    hint = f"waiting for data {100 * waited:.0f} % of the time: use copies of the videos by vidssl shrink{more}"
    assert [line for line in caplog.messages if "waiting" in line] == [hint] * (waited > 0.3)
