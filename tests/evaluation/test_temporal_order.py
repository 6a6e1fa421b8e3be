"""The protocol `order`: against scikit-learn, exact chance without temporal features, and what is refused."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from vidssl.base.config import bind
from vidssl.base.errors import ConfigError, DataError
from vidssl.base.keyed_generators import generator
from vidssl.base.types import Features
from vidssl.data.moving_digits import MovingDigits, ensure
from vidssl.data.video_list import read_list
from vidssl.engine.run_config import load_run
from vidssl.engine.train import train
from vidssl.evaluation.features import extract_features
from vidssl.evaluation.measure import check_measurable, measure
from vidssl.evaluation.temporal_order import Order
from vidssl.jobs.load_network import load_subject
from vidssl.jobs.test import test as measure_network

CONFIGS = Path(__file__).parents[2] / "configs"
TOY, ORDER = CONFIGS / "toy" / "sce.yaml", CONFIGS / "studies" / "order" / "supervised.yaml"
NO_PAIRS = torch.empty(0, 2, dtype=torch.int64)
NAMES = ("open", "close", "other")


def features(count, seed, shift=1.0):
    """Features whose first unit holds the direction, and whose second one the class."""
    rng = generator(seed)
    label = np.arange(count) % 3
    x, reverse = rng.normal(size=(2, count, 4)).astype(np.float32)
    x[:, 0] += shift
    reverse[:, 0] -= shift
    x[:, 1] += label
    tensors = (torch.from_numpy(array) for array in (x, label))
    return Features(*tensors, torch.arange(count), reverse=torch.from_numpy(reverse), classes=NAMES)


def by_hand(train, train_label, test, test_label, cost):
    """Mean accuracy of the two labels."""
    model = LogisticRegression(C=cost, max_iter=5000).fit(train, train_label)
    right = model.predict(test) == test_label
    return np.mean([right[test_label == label].mean() for label in (0, 1)])


def test_the_numbers_are_those_of_scikit_learn():
    gallery, query = features(60, 0), features(45, 1)
    every = np.concatenate([gallery.x, gallery.reverse]).astype(np.float64)
    (train, back), (test, test_back) = (
        [(of.numpy().astype(np.float64) - every.mean(axis=0)) / every.std(axis=0, ddof=1) for of in (f.x, f.reverse)]
        for f in (gallery, query)
    )
    actual = Order(Order.Config(costs=(0.1,), pairs=(("close", "open"),)))(gallery, query, NO_PAIRS)
    label, test_label = np.repeat([1, 0], 60), np.repeat([1, 0], 45)
    expected = by_hand(np.concatenate([train, back]), label, np.concatenate([test, test_back]), test_label, 0.1)
    assert actual.numbers["order"] == pytest.approx(expected) and 0.75 < expected < 1
    a, b = gallery.label.numpy(), query.label.numpy()
    expected = by_hand(train[a < 2], a[a < 2], test[b < 2], b[b < 2], 0.1)
    assert actual.numbers["order_pairs"] == pytest.approx(expected) == actual.details["pairs"]["close, open"]
    assert actual.predicted is None and actual.details["cost"] == 0.1


def test_equal_features_are_exactly_at_chance():
    """Also with differences of rounding, and with a probe that memorises its training list."""
    gallery, query = features(40, 0), features(31, 1)
    noise = generator(2).normal(size=(40, 4)).astype(np.float32) * 1e-6
    gallery = replace(gallery, reverse=gallery.x + torch.from_numpy(noise))
    query = replace(query, reverse=query.x + torch.from_numpy(noise[:31]))
    for costs in ((1e6,), (0.001, 1.0)):
        assert Order(Order.Config(costs=costs))(gallery, query, NO_PAIRS).numbers == {"order": 0.5}
    # A probe that has learned a direction from other features decides neither.
    assert Order(Order.Config())(features(40, 3), query, NO_PAIRS).numbers == {"order": 0.5}


@pytest.fixture
def subject(digits):
    def load(backbone):
        settings = ("data.moving_digits=null", "data.train=none.csv", f"backbone={backbone}")
        clips = {"clips": 2, "crops": 1, "size": 24, "workers": 0, "device": "cpu"}
        return load_subject("random", {"cfg": TOY, "settings": settings, **clips})

    return load


def test_a_network_that_averages_frames_is_at_chance(subject, digits):
    """Features of a 2D network do not depend on the order of frames; those of a 3D network do."""
    gallery, query = (read_list(digits / f"motion/{name}.csv").rows(range(8)) for name in ("train", "test"))
    for backbone, equal in (("{name: resnet18}", True), ("{name: resnet3d18, width: 8, zero_init: false}", False)):
        network = subject(backbone)
        test, device, encoder = network.test, network.device, network.encoder
        both = extract_features(encoder, query, test, device, reverse=True)
        assert torch.equal(both.x, extract_features(encoder, query, test, device).x)
        assert torch.allclose(both.x, both.reverse, atol=1e-5) is equal
        results = measure(network.backbone, {"order": Order(Order.Config())}, gallery, query, test, device).numbers
        assert 0 <= results["order"] <= 1 and (not equal or results["order"] == 0.5)


def test_reversed_clips_are_reversed(subject, digits):
    """The features of reversed clips are those of the flipped clip."""
    network = subject("{name: resnet3d18, width: 8, zero_init: false}")
    query = read_list(digits / "motion/test.csv").rows([0, 5])
    both = extract_features(network.encoder, query, network.test, network.device, reverse=True)
    dataset, rows = network.test.dataset(query), []
    for n in range(2):
        views = [torch.from_numpy(view[::-1].copy()) for view in dataset[0, n].views]
        clips = torch.stack(views).permute(0, 2, 1, 3, 4).float() / 255
        mean, std = (torch.tensor(value).view(-1, 1, 1, 1) for value in (network.test.mean, network.test.std))
        with torch.no_grad():
            rows.append(network.backbone((clips - mean) / std).mean(dim=0))
    torch.testing.assert_close(both.reverse, torch.stack(rows), atol=1e-5, rtol=1e-4)


def test_pairs_are_read_and_checked(digits, tmp_path):
    path = tmp_path / "pairs.csv"
    path.write_text('bounce,rock\n\n"pulse",circle\n')
    config = bind(Order.Config, {"pairs": str(path)}, "test")
    assert config.pairs == (("bounce", "rock"), ("pulse", "circle"))
    assert bind(Order.Config, config.model_dump(mode="json"), "a checkpoint") == config
    gallery, query = (read_list(digits / f"motion/{name}.csv") for name in ("train", "test"))
    check_measurable({"order": Order(config)}, gallery, query, 0)
    wrong = {"order": Order(Order.Config(pairs=(("bounce", "fly"),)))}
    with pytest.raises(DataError, match=r"'fly' of pairs is not a class of .*train\.csv"):
        check_measurable(wrong, gallery, query, 0)
    with pytest.raises(DataError, match=r"train\.csv has 2 videos of 'rock', order needs 3"):
        check_measurable({"order": Order(config)}, gallery.rows([3, 11, 19, 4, 12]), query, 0)
    with pytest.raises(DataError, match="at least 3 training videos, got 2"):
        check_measurable({"order": Order(Order.Config())}, gallery.rows([0, 1]), query, 0)
    with pytest.raises(DataError, match=r"in .* too"):
        check_measurable({"order": Order(Order.Config())}, gallery, gallery, 0)
    with pytest.raises(ConfigError, match=r"cannot read .*none\.csv"):
        bind(Order.Config, {"pairs": str(tmp_path / "none.csv")}, "test")
    path.write_text("bounce,rock,pulse\n")
    with pytest.raises(ConfigError, match="pairs"):
        bind(Order.Config, {"pairs": str(path)}, "test")


@pytest.mark.long
def test_a_trained_video_network_holds_the_order_of_time(tmp_path):
    """A short run of configs/studies/order/supervised.yaml; what a whole one reaches: docs/results/analyses.md."""
    data = tmp_path / "data"
    ensure(data, MovingDigits(train=240, test=60, frames=24, size=48, motions="asymmetric"))
    motion = {name: data / f"motion/{name}.csv" for name in ("train", "test")}
    passed = [f"data.train={motion['train']}", "data.workers=0", "device=cpu", "steps=150", "batch_size=16"]
    passed += ["evaluate.query=null"]
    train(load_run(ORDER, [*passed, "evaluate.gallery=null", "evaluate.protocols=null", f"output={tmp_path / 'run'}"]))
    options = {"model": tmp_path / "run/checkpoints/last.pt", "workers": 0, "device": "cpu"}
    pairs = [{"name": "order", "pairs": str(data / "pairs.csv")}]
    lists = {"videos": motion["test"], "train_list": motion["train"]}
    results = measure_network(out=tmp_path / "pairs", protocol=pairs, **lists, **options)
    assert results["order_pairs"] > 0.7  # measured 0.87; chance is 0.5
    lists = {"videos": data / "forward/test.csv", "train_list": data / "forward/train.csv"}
    results = measure_network(out=tmp_path / "forward", protocol=["order"], **lists, **options)
    assert results["order"] > 0.7  # measured 0.85
