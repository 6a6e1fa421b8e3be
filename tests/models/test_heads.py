"""Projectors and predictors against Table 24, layer by layer."""

import pytest
from torch import nn

from vidssl.base.errors import ConfigError
from vidssl.models import Head, mlp


def layers(head, dim=512):
    """(kind, in, out, bias or affine) of each layer."""
    collected = []
    for module in mlp(dim, head):
        if isinstance(module, nn.Linear):
            collected.append(("linear", module.in_features, module.out_features, module.bias is not None))
        elif isinstance(module, nn.BatchNorm1d):
            collected.append(("norm", module.num_features, module.affine))
        else:
            collected.append((type(module).__name__.lower(),))
    return collected


@pytest.mark.parametrize("hidden", [1024, 4096])
def test_projector_of_table_24(hidden):
    assert layers(Head(layers=3, hidden=hidden, out=256, norm="all")) == [
        ("linear", 512, hidden, False),
        ("norm", hidden, True),
        ("relu",),
        ("linear", hidden, hidden, False),
        ("norm", hidden, True),
        ("relu",),
        ("linear", hidden, 256, False),
        ("norm", 256, False),  # no scale and shift after the output
    ]


@pytest.mark.parametrize("hidden", [1024, 4096])
def test_predictor_of_table_24(hidden):
    assert layers(Head(layers=2, hidden=hidden, out=256, norm="hidden"), 256) == [
        ("linear", 256, hidden, False),
        ("norm", hidden, True),
        ("relu",),
        ("linear", hidden, 256, False),
    ]


def test_head_of_moco_v2():
    assert layers(Head(layers=2, hidden=2048, out=128, norm="none"), 2048) == [
        ("linear", 2048, 2048, True),
        ("relu",),
        ("linear", 2048, 128, True),
    ]


def test_a_single_layer():
    assert layers(Head(layers=1, out=8, norm="hidden"), 4) == [("linear", 4, 8, False)]
    assert layers(Head(layers=1, out=8, norm="all"), 4) == [("linear", 4, 8, False), ("norm", 8, False)]


@pytest.mark.parametrize("wrong", [{"layers": 0}, {"hidden": 0}, {"out": 0}, {"norm": "batch"}])
def test_shapes_that_cannot_be(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Head(**wrong)
