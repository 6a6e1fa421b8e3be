"""The objectives against formulas written as loops, number by number, and identities between them."""

import math

import pytest
import torch
from torch.nn.functional import normalize
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from vidssl import losses
from vidssl.base.errors import ConfigError
from vidssl.losses import info_nce, margin_nce, ressl, sce, squared_distance, unit

TAU, TAU_M, LAMBDA, MARGIN = 0.1, 0.05, 0.3, 0.15


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
    return math.exp(dot(anchor[i], z[k]) / tau) / sum(math.exp(dot(anchor[i], other) / tau) for other in z[1:])


def info_nce_loop(query, key, negatives, tau):  # Eq. (3)
    return -sum(math.log(p(query, key, negatives, i, 0, tau)) for i in range(len(query))) / len(query)


def margin_nce_loop(query, key, negatives, tau, margin, picks=None):  # InterCLR, Eq. (5)
    total = 0.0
    for i in range(len(query)):
        compared = negatives if picks is None else [negatives[k] for k in picks[i]]
        top = math.exp((dot(query[i], key[i]) - margin) / tau)
        total += math.log(top / (top + sum(math.exp(dot(query[i], z) / tau) for z in compared)))
    return -total / len(query)


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


def equation_11_loop(query, key, negatives, tau, tau_m, coefficient, relational, ceiling):
    vectors = query, key, negatives
    contrast, relation = info_nce_loop(*vectors, tau), ressl_loop(*vectors, tau, tau_m)
    return coefficient * contrast + relational * relation + ceiling * ceil_loop(*vectors, tau)


LOSSES = {
    "info_nce": (lambda *v: info_nce(*v, TAU), lambda *v: info_nce_loop(*v, TAU)),
    "margin_nce": (lambda *v: margin_nce(*v, TAU, MARGIN), lambda *v: margin_nce_loop(*v, TAU, MARGIN)),
    "margin_nce, looser": (lambda *v: margin_nce(*v, TAU, -0.5), lambda *v: margin_nce_loop(*v, TAU, -0.5)),
    "ressl": (lambda *v: ressl(*v, TAU, TAU_M), lambda *v: ressl_loop(*v, TAU, TAU_M)),
    "sce": (lambda *v: sce(*v, TAU, TAU_M, LAMBDA), lambda *v: sce_loop(*v, TAU, TAU_M, LAMBDA)),
    "sce, Algorithm 1": (
        lambda *v: sce(*v, TAU, TAU_M, LAMBDA, "zero"),
        lambda *v: algorithm_1_loop(*v, TAU, TAU_M, LAMBDA),
    ),
    "sce, Eq. 11": (
        lambda *v: sce(*v, TAU, TAU_M, LAMBDA, relational=0.9, ceiling=0.3),
        lambda *v: equation_11_loop(*v, TAU, TAU_M, LAMBDA, 0.9, 0.3),
    ),
    "sce, Eq. 11 without L_Ceil": (
        lambda *v: sce(*v, TAU, TAU_M, 0.5, ceiling=0.0),
        lambda *v: equation_11_loop(*v, TAU, TAU_M, 0.5, 0.5, 0.0),
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_value_is_that_of_the_formula(name, vectors):
    ours, loop = LOSSES[name]
    assert ours(*vectors).item() == pytest.approx(loop(*(v.tolist() for v in vectors)), rel=1e-12)


# The values are those of the formula, so differences of them are those of the formula, too.


@pytest.mark.parametrize("name", LOSSES)
def test_gradient_is_that_of_the_values(name, vectors, monkeypatch):
    ours, _ = LOSSES[name]
    leaves = [v.clone().requires_grad_() for v in vectors]  # keys and negatives too, where somebody asks for theirs
    assert torch.autograd.gradcheck(ours, leaves, rtol=1e-6, atol=1e-7)
    monkeypatch.setitem(losses._BLOCK, "cpu", 0)
    query, key, negatives = batch(300, rows=3)
    assert torch.autograd.gradcheck(lambda x: ours(x, key, negatives), query.requires_grad_())


@pytest.mark.parametrize("coefficient", [0.0, 0.25, 0.5, 1.0])
def test_proposition_1(coefficient, vectors):
    contrast, relation = info_nce(*vectors, TAU), ressl(*vectors, TAU, TAU_M)
    ceil = ceil_loop(*(v.tolist() for v in vectors), TAU)
    assert ceil > 0.01
    expected = coefficient * contrast + (1 - coefficient) * (relation + ceil)
    torch.testing.assert_close(sce(*vectors, TAU, TAU_M, coefficient), expected, rtol=1e-12, atol=0)


def test_positive_slots_differ_by_the_weight_of_the_positive(vectors):
    masked, zero = (sce(*vectors, TAU, TAU_M, LAMBDA, slot) for slot in ("masked", "zero"))
    assert abs(masked - zero) > 1e-4  # far above the 1e-12 that the tests of values allow
    # Where all negatives are as similar as 0, Algorithm 1 gives the positive 1 / (K + 1) of the relations.
    query = key = torch.eye(8, dtype=torch.float64)[:1]
    negatives = torch.eye(8, dtype=torch.float64)[1:4]
    log_p = torch.log_softmax(torch.tensor([1.0, 0, 0, 0], dtype=torch.float64) / TAU, dim=0)
    assert sce(query, key, negatives, TAU, TAU_M, 0.0, "zero").item() == pytest.approx(-log_p.mean().item(), rel=1e-12)
    assert sce(query, key, negatives, TAU, TAU_M, 0.0, "masked").item() == pytest.approx(-log_p[1].item(), rel=1e-12)


def test_unknown_positive_slot_is_refused(vectors):
    with pytest.raises(ConfigError, match="positive_slot 'mask' is neither masked nor zero"):
        sce(*vectors, TAU, TAU_M, LAMBDA, "mask")


@pytest.mark.parametrize("name", ["info_nce", "ressl", "masked", "zero"])
def test_extreme_similarities_stay_finite_in_float32(name):
    query = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], requires_grad=True)
    key, negatives = (torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([[-1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]))
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


# The losses stream over the queue; where keys or negatives ask for gradients they are computed plainly, by the
# same formulas from (N, K) matrices. The tests of gradients above take that path.


def batch(num_negatives, dtype=torch.float64, rows=5, dim=6):
    source = torch.Generator().manual_seed(num_negatives)
    query, key, negatives = (
        normalize(torch.randn(n, dim, generator=source, dtype=torch.float64), dim=1)
        for n in (rows, rows, num_negatives)
    )
    return query.to(dtype), normalize(key + query, dim=1).to(dtype), negatives.to(dtype)


def value_and_gradient(ours, query, key, negatives):
    query = query.clone().requires_grad_()
    loss = ours(query, key, negatives)
    return loss.detach(), torch.autograd.grad(loss, query)[0]


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("block", [0, 3_000, 2**20])  # chunks of 256, of 300 or 600, and all at once
@pytest.mark.parametrize("num_negatives", [1, 255, 256, 257, 600, 1000])
def test_streaming_is_the_plain_form(name, block, num_negatives, monkeypatch):
    monkeypatch.setitem(losses._BLOCK, "cpu", block)
    ours, _ = LOSSES[name]
    query, key, negatives = batch(num_negatives)
    streamed = value_and_gradient(ours, query, key, negatives)
    for asks in (key, negatives):
        plain = value_and_gradient(ours, query, *(x.clone().requires_grad_(x is asks) for x in (key, negatives)))
        for by_chunks, at_once in zip(streamed, plain, strict=True):
            torch.testing.assert_close(by_chunks, at_once, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", LOSSES)
def test_streaming_keeps_nothing_of_the_queue_for_backward(name):
    ours, _ = LOSSES[name]
    query, key, negatives = batch(2000, rows=40, dim=10)

    def kept():
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x: sizes.append(x.numel()) or x, lambda x: x):
            ours(query.requires_grad_(), key, negatives)
        return max(sizes)

    assert kept() <= 2 * 40 * 10  # rows of queries and keys
    negatives.requires_grad_()
    assert kept() >= 40 * 2000  # the plain form: what this test looks for is seen


def assert_float32_is_close(ours, query, key, negatives, in_float64):
    exact = value_and_gradient(ours, query, key, in_float64)
    rounded = value_and_gradient(ours, query.float(), key.float(), negatives.float())
    for in_32, in_64 in zip(rounded, exact, strict=True):
        assert torch.isfinite(in_32).all()
        torch.testing.assert_close(in_32.double(), in_64, rtol=0, atol=1e-5 * in_64.abs().max().item())


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("tau", [1.0, 1e-2, 1e-4])
@pytest.mark.parametrize("name", ["info_nce", "ressl", "masked", "zero"])
def test_streaming_in_float32_is_right_at_any_temperature(name, tau, descending, monkeypatch):
    monkeypatch.setitem(losses._BLOCK, "cpu", 0)
    query, key, negatives = batch(1000)
    # The largest similarity of the first query changes with each chunk, or stays that of the first one.
    negatives = negatives[(negatives @ query[0]).argsort(descending=descending)]
    ours = {
        "info_nce": lambda *v: info_nce(*v, tau),
        "ressl": lambda *v: ressl(*v, tau, 0.1),
        "masked": lambda *v: sce(*v, tau, 0.1, LAMBDA),
        "zero": lambda *v: sce(*v, tau, 0.1, LAMBDA, "zero"),
    }[name]
    assert_float32_is_close(ours, query, key, negatives, in_float64=negatives.clone().requires_grad_())


def test_gradients_of_gradients_are_refused():
    query, key, negatives = batch(20)
    (gradient,) = torch.autograd.grad(info_nce(query.requires_grad_(), key, negatives, TAU), query, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


# Negatives that each query has for itself.


def picked(rows=5, records=30, count=12, dtype=torch.float64):
    """Queries, keys, a bank and picks: some rows of the bank, with repetition."""
    query, key, bank = batch(records, dtype, rows)
    source = torch.Generator().manual_seed(count)
    return query, key, bank, torch.randint(records, (rows, count), generator=source)


@pytest.mark.parametrize("margin", [-0.5, 0.0, 0.2])
@pytest.mark.parametrize("block", [0, 2 * 12 * 6, 2**20])  # one query at a time, two, and all at once
def test_own_negatives_are_those_of_the_formula(margin, block, monkeypatch):
    monkeypatch.setitem(losses._BLOCK, "cpu", block)
    query, key, bank, picks = picked()
    expected = margin_nce_loop(*(x.tolist() for x in (query, key, bank)), TAU, margin, picks.tolist())
    assert margin_nce(query, key, bank, TAU, margin, picks).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("block", [0, 2 * 12 * 6, 2**20])
def test_gradient_with_own_negatives_is_that_of_the_values(block, monkeypatch):
    monkeypatch.setitem(losses._BLOCK, "cpu", block)
    query, key, bank, picks = picked()
    query.requires_grad_()
    key.requires_grad_()
    assert torch.autograd.gradcheck(lambda q, k: margin_nce(q, k, bank, TAU, -0.5, picks), (query, key))


def test_own_negatives_are_neither_kept_for_backward_nor_held_all_at_once(monkeypatch):
    rows, count, dim = 40, 50, 6
    query, key, bank, picks = picked(rows, 300, count)

    class Largest(TorchDispatchMode):
        numel = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            out = function(*args, **(kwargs or {}))
            self.numel = max([self.numel, *(x.numel() for x in tree_leaves(out) if isinstance(x, torch.Tensor))])
            return out

    def largest(block):
        monkeypatch.setitem(losses._BLOCK, "cpu", block)
        kept = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.numel()) or x, lambda x: x):
            with Largest() as held:
                margin_nce(query.requires_grad_(), key, bank, TAU, -0.5, picks)
        assert max(kept) <= rows * dim
        return held.numel

    assert largest(3 * count * dim) <= max(3 * count * dim, bank.numel(), picks.numel())
    assert largest(2**20) >= rows * count * dim  # what this test looks for is seen


@pytest.mark.parametrize("tau", [1.0, 1e-2, 1e-4])
def test_own_negatives_in_float32_are_right_at_any_temperature(tau):
    query, key, bank, picks = picked()

    assert_float32_is_close(lambda *v: margin_nce(*v, tau, -0.5, picks), query, key, bank, in_float64=bank)


def test_squared_distance_is_that_of_unit_vectors(vectors):
    query, key, _ = vectors
    expected = sum(
        (a - b) ** 2 for q, k in zip(query.tolist(), key.tolist(), strict=True) for a, b in zip(q, k, strict=True)
    ) / len(query)
    assert squared_distance(query, key).item() == pytest.approx(expected, rel=1e-12)
    assert squared_distance(query, query).item() == pytest.approx(0, abs=1e-12)
    assert squared_distance(query, -query).item() == pytest.approx(4, rel=1e-12)
    gradient = torch.autograd.grad(squared_distance(query.requires_grad_(), key), query)[0]
    torch.testing.assert_close(gradient, -2 * key / len(query))


def test_unit_is_float32_and_of_length_1():
    x = torch.randn(4, 7).bfloat16() * 100
    assert unit(x).dtype == torch.float32
    torch.testing.assert_close(unit(x), x.float() / x.float().pow(2).sum(dim=1, keepdim=True).sqrt())
    assert torch.equal(unit(torch.zeros(1, 3)), torch.zeros(1, 3))
