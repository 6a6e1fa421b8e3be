"""benchmarks/learned_views.py: CMC sees the views of the flow that was learned, which stays as it is."""

import runpy
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
SHORT = ["steps=3", "batch_size=8"]


@pytest.fixture
def views(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))  # where `measure` is
    monkeypatch.chdir(ROOT)
    return runpy.run_path(str(ROOT / "benchmarks" / "learned_views.py"), run_name="learned_views")


def images(known=40):
    source = torch.Generator().manual_seed(0)
    labels = torch.arange(40) % 10
    labels[known:] = -1
    return torch.rand(40, 3, 1, 32, 32, generator=source), labels


def test_cmc_is_trained_on_the_learned_flow_which_is_frozen(views, monkeypatch):
    name = "not volume preserving, semi-supervised"
    flows, fit = [], views["fit"]

    def spy(run, method, lists):
        actual = fit(run, method, lists)
        split = getattr(method.backbone, "split", None)
        flow = method.backbone if split is None else split.flow
        flows.append({key: value.clone() for key, value in flow.state_dict().items()})
        return actual

    monkeypatch.setitem(views["measure"].__globals__, "fit", spy)
    lists = {"train": images(), "test": images(), "labels10": images(known=8)}
    actual = views["measure"](name, 1, lists, SHORT)
    learned, used = flows
    assert learned.keys() == used.keys() and all(torch.equal(used[key], value) for key, value in learned.items())
    assert any(value.any() for key, value in learned.items() if ".f.2." in key)  # it starts as the identity
    assert {"i_nce", "knn", "logistic", "flow i_nce"} <= actual.keys()
    assert ("flow accuracy_first" in actual) == ("semi" in name)
