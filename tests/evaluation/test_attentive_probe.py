"""The attentive probe: its head against loops, that its rates are trained apart, and what it reads from maps."""

import json
import math

import pytest
import torch

from vidssl import commands
from vidssl.errors import ConfigError, DataError
from vidssl.evaluation.attentive_probe import Attentive, AttentiveHead, train_heads
from vidssl.evaluation.logistic_and_multilabel import Logistic
from vidssl.types import Features

NO_PAIRS = torch.empty(0, 2, dtype=torch.int64)
CHANNELS, CELLS = 4, 6


def marked(count, seed):
    """Maps with a class in each cell, one of three channels; that of the cell which the 4th marks is the video's."""
    source = torch.Generator().manual_seed(seed)
    shown = torch.randint(3, (count, CELLS), generator=source)
    maps = 0.1 * torch.randn(count, CELLS, CHANNELS, generator=source)
    maps[..., :3] += torch.nn.functional.one_hot(shown, 3)
    place = torch.randint(CELLS, (count,), generator=source)
    maps[torch.arange(count), place, 3] += 2
    label = shown[torch.arange(count), place]
    return Features(maps.transpose(1, 2).flatten(1), label, torch.arange(count), cells=CELLS)


def attention_loop(head, maps):
    """Logits of one video (P, C), with scalar loops over heads and positions."""
    at = torch.nn.functional.layer_norm(maps + head.position[0], (CHANNELS,), head.norm.weight, head.norm.bias)
    weights, biases = head.attention.in_proj_weight.chunk(3), head.attention.in_proj_bias.chunk(3)
    query = weights[0] @ head.query[0, 0] + biases[0]
    keys, values = (at @ w.T + b for w, b in zip(weights[1:], biases[1:], strict=True))
    pooled = torch.zeros(CHANNELS)
    width = CHANNELS // head.attention.num_heads
    for n in range(head.attention.num_heads):
        part = slice(n * width, (n + 1) * width)
        scores = [float(query[part] @ key[part]) / math.sqrt(width) for key in keys]
        total = sum(math.exp(score) for score in scores)
        for score, value in zip(scores, values, strict=True):
            pooled[part] += math.exp(score) / total * value[part]
    pooled = head.query[0, 0] + head.attention.out_proj(pooled)
    normed = torch.nn.functional.layer_norm(pooled, (CHANNELS,), head.mlp_norm.weight, head.mlp_norm.bias)
    first, _, second = head.mlp
    hidden = first(normed)
    gelu = 0.5 * hidden * (1 + torch.erf(hidden / math.sqrt(2)))
    return head.classifier(pooled + second(gelu))


@torch.no_grad()
@pytest.mark.parametrize("heads", [1, 2])
def test_the_head_is_attention_from_one_query(heads):
    torch.manual_seed(3)
    head = AttentiveHead(CHANNELS, CELLS, 3, heads)
    for p in head.parameters():
        p.add_(torch.randn_like(p), alpha=0.3)
    maps = torch.randn(5, CELLS, CHANNELS)
    torch.testing.assert_close(head(maps), torch.stack([attention_loop(head, one) for one in maps]))


def test_each_rate_is_trained_as_if_alone():
    maps, label = torch.randn(20, CELLS, CHANNELS), torch.arange(20) % 3
    config = Attentive.Config(heads=2, epochs=3, batch_size=8)
    together = train_heads(maps, label, [1e-3, 1e-2], 3, config)
    for head, rate in zip(together, [1e-3, 1e-2], strict=True):
        (alone,) = train_heads(maps, label, [rate], 3, config)
        assert all(map(torch.equal, head.parameters(), alone.parameters()))
    assert not torch.equal(together[0].query, together[1].query)


def test_it_reads_a_cell_that_the_mean_hides():
    gallery, query = marked(200, 0), marked(100, 1)
    settings = Attentive.Config(heads=2, rates=(1e-4, 1e-2))
    found = Attentive(settings)(gallery, query, NO_PAIRS)
    assert found.numbers["attentive"] > 0.95 and found.numbers["attentive_mean_class"] > 0.95
    assert found.details["rate"] == 0.01
    means = (Features(of.x.unflatten(1, (-1, CELLS)).mean(dim=2), of.label, of.index) for of in (gallery, query))
    assert Logistic(Logistic.Config())(*means, NO_PAIRS).numbers["logistic"] < 0.7
    state = torch.get_rng_state()
    again = Attentive(settings)(gallery, query, NO_PAIRS)
    assert torch.equal(torch.get_rng_state(), state)  # a measurement during training changes no random number of it
    assert torch.equal(again.predicted, found.predicted) and again.details == found.details


def test_the_query_does_not_choose_the_rate():
    gallery = marked(60, 0)
    settings = Attentive.Config(heads=2, epochs=2, rates=(1e-3, 1e-2))
    one, other = (Attentive(settings)(gallery, marked(30, seed), NO_PAIRS).details for seed in (1, 2))
    assert one == other and set(one["held_out_accuracy"]) == {"0.001", "0.01"}


def test_errors():
    gallery, query = marked(30, 0), marked(12, 1)
    with pytest.raises(ConfigError, match="8 attention heads do not divide 4 channels: set heads to a divisor"):
        Attentive(Attentive.Config())(gallery, query, NO_PAIRS)
    few = marked(4, 0)
    with pytest.raises(DataError, match=r"attentive needs at least 2 classes of at least 2 .* give one rate"):
        Attentive(Attentive.Config(heads=2))(few, query, NO_PAIRS)
    one_rate = Attentive(Attentive.Config(heads=2, rates=(1e-3,), epochs=1))(few, query, NO_PAIRS)
    assert one_rate.details == {"rate": 0.001, "held_out_accuracy": {}}


def test_the_command_measures_maps(digits, tmp_path):
    lists = [str(digits / "motion" / "test.csv"), "--train-list", str(digits / "motion" / "train.csv")]
    network = ["--checkpoint", "random", "--cfg", "toy/sce", "--clips", "1", "--crops", "1", "--size", "24"]
    maps = ["--layer", "layer4", "--grid", "2", "--protocol", "attentive", "epochs=2", "svm", "costs=[1.0]"]
    more = ["--workers", "0", "--device", "cpu", "--quiet", "--out", str(tmp_path)]
    commands.run("test", [*lists, *network, *maps, *more])
    found = json.loads((tmp_path / "results.json").read_text())
    assert 0 <= found["attentive"] <= 1 and len(found["details"]["attentive"]["held_out_accuracy"]) == 4
    assert "svm" in found and (tmp_path / "predictions_attentive.csv").exists()
