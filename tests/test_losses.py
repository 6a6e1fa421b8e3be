"""The objectives against formulas written as loops, number by number, and what the formulas say of each other."""

import math

import pytest
import torch
from torch.nn.functional import normalize

from vidssl.errors import ConfigError
from vidssl.losses import info_nce, relations, ressl, sce

TAU, TAU_M, LAMBDA = 0.1, 0.05, 0.3


@pytest.fixture
def vectors():
    """Queries, keys and negatives: float64, unit rows."""
    source = torch.Generator().manual_seed(3)
    query, key, negatives = (
        normalize(torch.randn(n, 6, generator=source, dtype=torch.float64), dim=1) for n in (5, 5, 7)
    )
    return query, normalize(key + query, dim=1), negatives


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def instances(key, negatives, i):
    """The instances that query i is compared with; its positive is number 0."""
    return [key[i], *negatives]


def p(query, key, negatives, i, k, tau):  # Eq. (9)
    z = instances(key, negatives, i)
    return math.exp(dot(query[i], z[k]) / tau) / sum(math.exp(dot(query[i], other) / tau) for other in z)


def s(anchor, key, negatives, i, k, tau):  # Eq. (4) with a query, Eq. (5) with a key as the anchor
    if k == 0:
        return 0.0
    z = instances(key, negatives, i)
    return math.exp(dot(anchor[i], z[k]) / tau) / sum(
        math.exp(dot(anchor[i], other) / tau) for other in z[1:]
    )


def info_nce_loop(query, key, negatives, tau):  # Eq. (3)
    return -sum(math.log(p(query, key, negatives, i, 0, tau)) for i in range(len(query))) / len(query)


def ressl_loop(query, key, negatives, tau, tau_m):  # Eq. (6)
    total = 0.0
    for i in range(len(query)):
        for k in range(1, len(negatives) + 1):
            total += s(key, key, negatives, i, k, tau_m) * math.log(s(query, key, negatives, i, k, tau))
    return -total / len(query)


def sce_loop(query, key, negatives, tau, tau_m, coefficient):  # Eq. (8) and (10)
    total = 0.0
    for i in range(len(query)):
        for k in range(len(negatives) + 1):
            w = coefficient * (k == 0) + (1 - coefficient) * s(key, key, negatives, i, k, tau_m)
            total += w * math.log(p(query, key, negatives, i, k, tau))
    return -total / len(query)


def algorithm_1_loop(query, key, negatives, tau, tau_m, coefficient):
    total = 0.0
    for i in range(len(query)):
        sim2 = [0.0] + [dot(key[i], negative) / tau_m for negative in negatives]  # lines 15-17
        for k in range(len(negatives) + 1):
            s2 = math.exp(sim2[k]) / sum(math.exp(x) for x in sim2)  # line 18
            w2 = coefficient * (k == 0) + (1 - coefficient) * s2  # line 19
            total += w2 * math.log(p(query, key, negatives, i, k, tau))
    return -total / len(query)


def ceil_loop(query, key, negatives, tau):  # of Proposition 1
    total = 0.0
    for i in range(len(query)):
        terms = [math.exp(dot(query[i], z) / tau) for z in instances(key, negatives, i)]
        total += math.log(sum(terms[1:]) / sum(terms))
    return -total / len(query)


LOSSES = {
    "info_nce": (lambda *v: info_nce(*v, TAU), lambda *v: info_nce_loop(*v, TAU)),
    "ressl": (lambda *v: ressl(*v, TAU, TAU_M), lambda *v: ressl_loop(*v, TAU, TAU_M)),
    "sce": (lambda *v: sce(*v, TAU, TAU_M, LAMBDA), lambda *v: sce_loop(*v, TAU, TAU_M, LAMBDA)),
    "sce, Algorithm 1": (
        lambda *v: sce(*v, TAU, TAU_M, LAMBDA, "zero"),
        lambda *v: algorithm_1_loop(*v, TAU, TAU_M, LAMBDA),
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_value_is_that_of_the_formula(name, vectors):
    ours, loop = LOSSES[name]
    assert ours(*vectors).item() == pytest.approx(loop(*(v.tolist() for v in vectors)), rel=1e-12)


@pytest.mark.parametrize("name", LOSSES)
def test_gradient_is_that_of_the_formula(name, vectors):
    ours, loop = LOSSES[name]
    leaves = [v.clone().requires_grad_() for v in vectors]
    gradients = torch.autograd.grad(ours(*leaves), leaves)
    for n in range(3):  # queries; and keys and negatives, where somebody asks for theirs
        numeric = torch.empty_like(vectors[n])
        for i in range(len(numeric)):
            for j in range(numeric.shape[1]):
                sides = []
                for step in (1e-6, -1e-6):
                    moved = [v.clone() for v in vectors]
                    moved[n][i, j] += step
                    sides.append(loop(*(v.tolist() for v in moved)))
                numeric[i, j] = (sides[0] - sides[1]) / 2e-6
        torch.testing.assert_close(gradients[n], numeric, rtol=1e-6, atol=1e-7)


def test_relations_are_eq_5(vectors):
    _, key, negatives = vectors
    ours = relations(key, negatives, TAU_M)
    lists = key.tolist(), negatives.tolist()
    expected = [[s(lists[0], *lists, i, k, TAU_M) for k in range(1, 8)] for i in range(5)]
    torch.testing.assert_close(ours, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("coefficient", [0.0, 0.25, 0.5, 1.0])
def test_proposition_1(coefficient, vectors):
    contrast, relation = info_nce(*vectors, TAU), ressl(*vectors, TAU, TAU_M)
    ceil = ceil_loop(*(v.tolist() for v in vectors), TAU)
    assert ceil > 0.01
    expected = coefficient * contrast + (1 - coefficient) * (relation + ceil)
    torch.testing.assert_close(sce(*vectors, TAU, TAU_M, coefficient), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("slot", ["masked", "zero"])
def test_coefficient_1_is_info_nce(slot, vectors):
    assert torch.equal(sce(*vectors, TAU, TAU_M, 1.0, slot), info_nce(*vectors, TAU))


def test_coefficient_0_without_the_positive_is_ressl(vectors):
    query, _, negatives = vectors
    away = -query  # at tau = 0.005 nothing of the positive is left in the online distribution
    assert (query @ negatives.T).max(dim=1).values.min() > -0.5
    ours, expected = (
        sce(query, away, negatives, 0.005, TAU_M, 0.0),
        ressl(query, away, negatives, 0.005, TAU_M),
    )
    torch.testing.assert_close(ours, expected, rtol=1e-13, atol=0)


def test_positive_slots_differ_by_the_weight_of_the_positive(vectors):
    masked, zero = (sce(*vectors, TAU, TAU_M, LAMBDA, slot) for slot in ("masked", "zero"))
    assert abs(masked - zero) > 1e-4  # far above the 1e-12 that the tests of values allow
    # Where all negatives are as similar as 0, Algorithm 1 gives the positive 1 / (K + 1) of the relations.
    query = key = torch.eye(8, dtype=torch.float64)[:1]
    negatives = torch.eye(8, dtype=torch.float64)[1:4]
    log_p = torch.log_softmax(torch.tensor([1.0, 0, 0, 0], dtype=torch.float64) / TAU, dim=0)
    assert sce(query, key, negatives, TAU, TAU_M, 0.0, "zero").item() == pytest.approx(
        -log_p.mean().item(), rel=1e-12
    )
    assert sce(query, key, negatives, TAU, TAU_M, 0.0, "masked").item() == pytest.approx(
        -log_p[1].item(), rel=1e-12
    )


def test_unknown_positive_slot_is_refused(vectors):
    with pytest.raises(ConfigError, match="positive_slot 'mask' is neither masked nor zero"):
        sce(*vectors, TAU, TAU_M, LAMBDA, "mask")


@pytest.mark.parametrize("name", ["info_nce", "ressl", "masked", "zero"])
def test_extreme_similarities_stay_finite_in_float32(name):
    query = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], requires_grad=True)
    key, negatives = (
        torch.tensor([[1.0, 0.0], [1.0, 0.0]]),
        torch.tensor([[-1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]),
    )
    tau, tau_m = 1e-3, 1e-4
    if name == "info_nce":
        loss = info_nce(query, key, negatives, tau)
    elif name == "ressl":
        loss = ressl(query, key, negatives, tau, tau_m)
    else:
        loss = sce(query, key, negatives, tau, tau_m, 0.5, name)
    loss.backward()
    assert torch.isfinite(loss) and torch.isfinite(query.grad).all()
    assert 900 < loss.item() < 2100  # the second query is 2 / tau from its key
