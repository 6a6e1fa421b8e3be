"""Equality bit by bit of nested values; test files load it by its path."""

import json

import torch

CLOCK = ("time", "clips_per_second")


def logged(output):
    """The lines of a run's metrics.jsonl, less what two equal runs differ in: when, and how fast."""
    lines = (output / "metrics.jsonl").read_text().splitlines()
    return [{key: value for key, value in json.loads(line).items() if key not in CLOCK} for line in lines]


def same(a, b, where="state"):
    """Assert that two nested values are equal bit by bit."""
    assert type(a) is type(b), where
    if isinstance(a, dict):
        assert list(a) == list(b), where
        for key in a:
            same(a[key], b[key], f"{where}.{key}")
    elif isinstance(a, list | tuple):
        assert len(a) == len(b), where
        for n, (x, y) in enumerate(zip(a, b, strict=True)):
            same(x, y, f"{where}.{n}")
    elif isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype and torch.equal(a, b), where
    else:
        assert a == b, where
