"""benchmarks/frozen.py: what is counted, groups that stay together, and intervals that cover what they should."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch.nn.functional import normalize

from vidssl.base.types import Features

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TOY = Path(__file__).parents[2] / "configs" / "toy" / "two_streams.yaml"


@pytest.fixture(scope="module")
def frozen(import_from):
    return vars(import_from(BENCHMARKS, "frozen"))


def made(count, seed, spread=1.0):
    source = torch.Generator().manual_seed(seed)
    label = torch.arange(count) % 3
    x = torch.eye(8)[label] + spread * torch.randn(count, 8, generator=source)
    return Features(x, label, torch.arange(count))


def test_accuracies_are_those_of_other_code(frozen):
    gallery, query = made(60, 0, 0.5), made(31, 1, 0.5)
    groups = np.array([f"{n % 3} {n // 12}" for n in range(60)])
    actual = frozen["judge"](gallery, query, groups)
    cosine = normalize(query.x, dim=1) @ normalize(gallery.x, dim=1).T
    near = cosine.topk(20, dim=1)
    votes = torch.zeros(31, 3).index_put_(
        (torch.arange(31)[:, None].expand(31, 20), gallery.label[near.indices]),
        (near.values / 0.07).exp(),
        accumulate=True,
    )
    assert np.array_equal(actual[0], gallery.label[near.indices[:, 0]] == query.label)
    assert np.array_equal(actual[1], votes.argmax(dim=1) == query.label)
    mean, deviation = gallery.x.mean(dim=0), gallery.x.std(dim=0, correction=0)
    x, y = (((part.x - mean) / deviation).double().numpy() for part in (gallery, query))
    right = [
        LogisticRegression(C=cost, max_iter=5000).fit(x, gallery.label).predict(y) == query.label.numpy()
        for cost in frozen["COSTS"]
    ]
    assert any(np.array_equal(actual[2], each) for each in right)


def test_a_difference_is_over_all_videos_and_groups_stay_together(frozen):
    groups = {"1": np.array(["a"] * 6 + ["b"] * 2), "2": np.array(["a"] * 4)}
    one = {(split, seed): np.ones((3, len(of)), bool) for split, of in groups.items() for seed in (0, 1)}
    other = {("1", 0): np.zeros((3, 8), bool), ("2", 0): np.ones((3, 4), bool)}
    for difference, low, high in frozen["differences"](one, other, groups):
        assert difference == pytest.approx(100 * 8 / 12)
        assert low == 0 and high == 100  # draws of the third group alone, and without it
    assert frozen["format_difference"]([8, 1.04, 15]) == "+8.0 (+1.0 to +15.0)*"
    assert frozen["format_difference"]([8, -1, 15]) == "+8.0 (-1.0 to +15.0)"


def test_the_command(frozen, digits, tmp_path, monkeypatch, capsys):
    lists = digits / "motion"
    arguments = ["--lists", str(lists), "--splits", "1", "--seeds", "0", "1", "--group", r"(\d)\.mp4", "--clips", "1"]
    untrained = f"random:{TOY};seed={{seed}};data.workers=0"
    networks = [f"both={untrained}", "sum=floor:thumbnails+0.5*floor:differences"]
    monkeypatch.setattr(sys, "argv", ["frozen.py", *networks, *arguments, "--out", str(tmp_path)])
    for _ in range(2):  # the second time from the features that are kept
        frozen["main"]()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "| network | R@1 | kNN | logistic |" and any(line.startswith("| both minus") for line in lines)
    assert {line.split(" | ")[0] for line in lines} >= {"| sum"}
    kept = json.loads((tmp_path / "results.json").read_text())
    assert kept["accuracies"]["both"].keys() == {"1, seed 0", "1, seed 1"}
    monkeypatch.setattr(sys, "argv", ["frozen.py", *networks, *arguments[:-3], "_g(.)", "--out", str(tmp_path)])
    with pytest.raises(SystemExit, match="--group _g"):
        frozen["main"]()
