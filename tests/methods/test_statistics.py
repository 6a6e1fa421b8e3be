"""The statistics that are logged beside the loss, against plain formulas."""

import math

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from vidssl.methods.statistics import key_statistics

DIM = 3


def rows(count, source):
    return normalize(torch.randn(count, DIM, generator=source), dim=1)


def test_key_statistics_are_those_of_loops():
    source = torch.Generator().manual_seed(5)
    query, key, negatives = rows(6, source), rows(6, source), rows(9, source)
    statistics = {name: value.item() for name, value in key_statistics(query, key, negatives, key[::2]).items()}
    q, k, n = (x.double().numpy() for x in (query, key, negatives))
    similarities = [float(sum(a * b for a, b in zip(x, y, strict=True))) for x in k for y in n]
    mean = sum(similarities) / len(similarities)
    spread = math.sqrt(sum((x - mean) ** 2 for x in similarities) / (len(similarities) - 1))
    values = np.linalg.svd(k[::2], compute_uv=False)
    shares = values / values.sum()
    assert statistics == {
        "positive_similarity": pytest.approx(sum(float(q[i] @ k[i]) for i in range(6)) / 6, abs=1e-6),
        "negative_similarity": pytest.approx(mean, abs=1e-6),
        "negative_spread": pytest.approx(spread, abs=1e-6),
        "key_rank": pytest.approx(math.exp(-sum(x * math.log(x) for x in shares)), rel=1e-5),
        "key_rank_limit": 3,
    }


@pytest.mark.parametrize(
    ("key", "rank"),
    [
        (torch.eye(4), 4.0),
        (torch.eye(4)[[0, 0, 0, 0]], 1.0),
        (torch.eye(4)[[0, 0, 1, 1]], 2.0),
        (torch.eye(4)[[0, 0, 0, 0, 1]], 3 / 2 ** (2 / 3)),  # singular values 2 and 1: shares 2/3 and 1/3
    ],
)
def test_effective_rank_of_known_keys(key, rank):
    assert key_statistics(key, key, key, key)["key_rank"].item() == pytest.approx(rank, rel=1e-5)


def test_the_limit_of_the_rank_is_the_fewer_of_videos_and_dimensions():
    key = rows(8, torch.Generator().manual_seed(5))
    assert key.shape[1] < 8
    limits = [key_statistics(key, key, key, one_each)["key_rank_limit"].item() for one_each in (key[:2], key)]
    assert limits == [2, key.shape[1]]


def test_statistics_use_the_first_4096_negatives():
    key = torch.eye(2)[:1]
    negatives = torch.cat([torch.eye(2)[1:].expand(4096, -1), torch.eye(2)[:1].expand(100, -1)])
    assert key_statistics(key, key, negatives, key)["negative_similarity"] == 0


@pytest.mark.parametrize("negatives", [0, 1])
def test_one_key_alone_has_no_spread_and_no_nan(negatives):
    key = rows(1, torch.Generator().manual_seed(2))
    statistics = key_statistics(key, key, rows(negatives, torch.Generator().manual_seed(3)), key)
    assert statistics["negative_similarity"] == statistics["negative_spread"] == 0
    assert statistics["positive_similarity"].item() == pytest.approx(1)
