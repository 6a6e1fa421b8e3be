"""InterCLR's branch: its draws, from pools found by brute force, the whole loss, and when it begins."""

import math
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from torch import nn
from torch.nn.functional import normalize

from vidssl.base import distributed
from vidssl.base.errors import ConfigError
from vidssl.base.schedule import Schedule, constant
from vidssl.base.types import Batch
from vidssl.methods import METHODS, Method
from vidssl.methods.base import Encoded
from vidssl.methods.interclr_branch import Inter, InterBranch, MemoryBank
from vidssl.models import Head

Tiny = runpy.run_path(str(Path(__file__).with_name("tiny.py")))["Tiny"]


CPU = torch.device("cpu")
DIM, RECORDS = 5, 60
HEAD = Head(layers=2, hidden=12, out=DIM, norm="none")
NAMES = ("moco", "npid", "byol")


def unit_rows(count, seed, dim=DIM):
    return normalize(torch.randn(count, dim, generator=torch.Generator().manual_seed(seed)), dim=1)


def make_branch(records, seed=0, **settings):
    """A branch, its bank and a host."""
    torch.manual_seed(seed)
    settings = {"clusters": 4, "negatives": 30, "iterations": 5, **settings}
    temperature = None if settings.get("sampling", "") is None else constant(0.1)  # of the method: BYOL has none
    bank = MemoryBank(DIM, 1.0)
    inter = InterBranch(Inter(**settings), DIM, temperature, bank)
    for module in (bank, inter):
        module.allocate(records)
    return inter, bank, Method(Method.Config(), Tiny())


def begun(records=RECORDS, unseen=(), **settings):
    """A branch and a bank whose records were all seen, except some."""
    inter, bank, host = make_branch(records, **settings)
    index = torch.tensor([n for n in range(records) if n not in unseen])
    for _ in range(2 if unseen else 1):
        bank.hold(index, unit_rows(len(index), 5))
        inter.after_step(host)
    assert inter.get_extra_state()["fits"] == 1
    return inter, bank, host


def draws(inter, host, query, index, steps):
    """Positives (steps, N) and negatives (steps, N, K)."""
    drawn = []
    for host.step in range(steps):
        drawn.append(inter.draw(host, query, index, 0))
    positives, picks = zip(*drawn, strict=True)
    return torch.stack(positives).numpy(), None if picks[0] is None else torch.stack(picks).numpy()


def added(inter, host, query, loss=0.0):
    """Scalars of the branch for one view of records 0, 1, …"""
    index = torch.arange(len(query))
    batch = Batch((torch.zeros(len(query), 3, 2, 4, 4),), torch.zeros_like(index), index)
    return inter(host, batch, Encoded({0: query}, {}), torch.tensor(loss))


def pool(sampling, query, label, labels, rows):
    """The records that a query's negatives may be (section 4.2), by brute force."""
    allowed = [n for n in range(len(rows)) if labels[n] not in (label, -1)]
    cosine = {n: float(sum(a * b for a, b in zip(query, rows[n], strict=True))) for n in allowed}
    nearest = sorted(allowed, key=lambda n: -cosine[n])
    tenth = math.ceil(len(allowed) / 10)
    return {"hard": nearest[:30], "semihard": nearest[:tenth], "random": nearest, "semieasy": nearest[-tenth:]}[
        sampling
    ]


# One query at a time, and all at once.
@pytest.mark.parametrize(
    ("sampling", "block"), [("hard", 2**23), ("semihard", 64), ("random", 2**23), ("semieasy", 2**23)]
)
def test_negatives_are_drawn_from_their_pool_and_equally_often(sampling, block, monkeypatch):
    monkeypatch.setattr("vidssl.methods.interclr_branch._BLOCK", block)
    unseen = (7, 30)
    inter, bank, host = begun(unseen=unseen, sampling=sampling)
    labels, rows = inter.clusters.labels.tolist(), bank.rows.double().tolist()
    index, query = torch.tensor([3, 20, 41]), unit_rows(3, 8)
    positives, picks = draws(inter, host, query, index, 60)
    assert picks.shape == (60, 3, 30)
    for n, record in enumerate(index.tolist()):
        expected = pool(sampling, query[n].double().tolist(), labels[record], labels, rows)
        counts = np.bincount(picks[:, n].ravel(), minlength=RECORDS)
        assert set(np.flatnonzero(counts)) == set(expected)
        assert not {record, *unseen, *positives[:, n]} & set(expected)
        if sampling == "hard":
            assert len(expected) == 30 and (counts[expected] == 60).all()
        else:
            assert len(expected) > 2 and chisquare(counts[expected]).pvalue > 1e-3


def test_too_few_hard_negatives_are_repeated():
    inter, _, host = begun(records=12, sampling="hard", clusters=2)
    labels, index = inter.clusters.labels, torch.tensor([0])
    _, picks = draws(inter, host, unit_rows(1, 8), index, 1)
    other = torch.nonzero(labels != labels[0]).flatten().tolist()
    assert 1 < len(other) < 30
    assert picks[0, 0].tolist() == (other * 30)[:30]


def test_a_positive_is_any_other_member_equally_often():
    inter, _, host = begun(unseen=(7,))
    index, labels = torch.tensor([0, 11, 33]), inter.clusters.labels
    positives, _ = draws(inter, host, unit_rows(3, 8), index, 1500)
    for n, record in enumerate(index.tolist()):
        members = [m for m in torch.nonzero(labels == labels[record]).flatten().tolist() if m != record]
        counts = np.bincount(positives[:, n], minlength=RECORDS)
        assert set(np.flatnonzero(counts)) == set(members) and len(members) > 3
        assert chisquare(counts[members]).pvalue > 1e-3


@pytest.mark.parametrize("sampling", ["random", None])
def test_a_record_that_is_alone_is_its_own_positive(sampling):
    inter, _, host = begun(records=6, clusters=6, sampling=sampling)
    positives, picks = draws(inter, host, unit_rows(6, 8), torch.arange(6), 20)
    assert (positives == np.arange(6)).all()
    if sampling is not None:
        assert (picks != np.arange(6)[:, None]).all()


@pytest.mark.parametrize("sampling", ["semihard", "random"])
def test_a_record_without_a_cluster_uses_the_nearest(sampling):
    inter, _, host = begun(unseen=(7, 30), sampling=sampling)
    query, labels = unit_rows(2, 8), inter.clusters.labels.numpy()
    distance = ((query.double()[:, None] - inter.clusters.centroids) ** 2).sum(dim=2)
    positives, picks = draws(inter, host, query, torch.tensor([7, 30]), 400)
    for n in range(2):
        nearest = int(distance[n].argmin())
        counts = np.bincount(positives[:, n], minlength=RECORDS)
        assert set(np.flatnonzero(counts)) == set(np.flatnonzero(labels == nearest))
        assert chisquare(counts[labels == nearest]).pvalue > 1e-3
        assert not {nearest, -1} & set(labels[picks[:, n].ravel()])


@pytest.mark.parametrize("sampling", ["hard", "semihard"])
def test_draws_are_a_function_of_seed_step_and_view_whatever_the_micro_batches(sampling):
    inter, _, host = begun(sampling=sampling)
    query, index = unit_rows(8, 8), torch.tensor([5, 9, 33, 2, 14, 50, 9, 21])
    host.step = 3
    positives, picks = inter.draw(host, query, index, 1)
    for count in (2, 4, 8):
        parts = []
        for n, (q, i) in enumerate(zip(query.chunk(count), index.chunk(count), strict=True)):
            host.micro_batch = n, count
            parts.append(inter.draw(host, q, i, 1))
        assert torch.equal(torch.cat([part[0] for part in parts]), positives)
        assert torch.equal(torch.cat([part[1] for part in parts]), picks)
    host.micro_batch = 0, 1
    redrawn = [inter.draw(host, query, index, 2)]
    seed = host.seed
    for host.step, host.seed in ((4, seed), (3, seed + 1)):
        redrawn.append(inter.draw(host, query, index, 1))
    for other_positives, other_picks in redrawn:
        assert not torch.equal(other_positives, positives)
        assert torch.equal(other_picks, picks) == (sampling == "hard")


# When it begins, and goes on.


def taken(inter, bank, host, batches):
    """Steps with the given numbers of records, in order and then again from the first; yields after each."""
    first, records = 0, len(bank.rows)
    for host.step, size in enumerate(batches, start=1):
        bank.hold(torch.arange(first, first + size) % records, unit_rows(size, 100 + host.step))
        inter.after_step(host)
        first += size
        yield inter.get_extra_state()["fits"]


def silent(records=40, **settings):
    return make_branch(records, negatives=6, iterations=3, **settings)


@pytest.mark.parametrize(("size", "epoch"), [(16, 3), (39, 2)])
def test_the_branch_starts_when_every_record_was_seen(size, epoch):
    inter, bank, host = silent()
    for step, fits in enumerate(taken(inter, bank, host, [size] * 8), start=1):
        assert (fits == 1) == (step >= epoch) == bool(bank.seen.all())
        assert (inter.clusters.labels >= 0).all() == (step >= epoch)
        scalars = added(inter, host, unit_rows(3, 1), 2.0)
        assert set(scalars) == ({"loss", "intra_loss", "inter_loss"} if fits else {"loss"})
        assert (scalars["loss"] == 2.0) == (not fits)


@pytest.mark.parametrize(("refresh", "due"), [(0.5, (5, 8, 10, 13, 15, 18, 20)), (2.0, (5, 15))])
def test_offline_labels_change_with_each_global_k_means_only(refresh, due):
    inter, bank, host = silent(refresh=refresh)
    before, fitted = inter.clusters.labels.clone(), []
    sums = inter.clusters.sums.clone()
    for step, _ in enumerate(taken(inter, bank, host, [8] * 20), start=1):
        if not torch.equal(inter.clusters.sums, sums):
            fitted.append(step)
        assert (step in fitted) == (not torch.equal(inter.clusters.labels, before))
        before, sums = inter.clusters.labels.clone(), inter.clusters.sums.clone()
    assert tuple(fitted) == due


def test_temperature_of_the_branch_follows_its_schedule():
    falling, cold = (begun(temperature=t) for t in (Schedule(start=0.5, end=0.1), constant(0.1)))
    expected = added(cold[0], cold[2], unit_rows(6, 1))["inter_loss"]
    losses = []
    for falling[2].progress in (0.0, 1.0):
        losses.append(added(falling[0], falling[2], unit_rows(6, 1))["inter_loss"])
    assert losses[1] == expected and abs(losses[0] - expected) > 0.1


# What it takes from the method that it is added to.


@pytest.mark.parametrize("name", ["byol", "moco", "npid"])
def test_defaults_are_those_of_the_method(name):
    """Supplement A: semi-hard negatives, m = -0.5, tau of the method; with BYOL no negatives and no margin."""
    shared = {} if name == "byol" else {"temperature": 0.3}
    shared |= {} if name == "npid" else {"predictor": HEAD}
    method = METHODS[name](METHODS[name].Config(projector=HEAD, inter=Inter(clusters=4), **shared), Tiny())
    branch = method.branches["inter"]
    assert branch.sampling == (None if name == "byol" else "semihard") and branch.margin == -0.5
    assert (branch.temperature and branch.temperature.at(0.5)) == shared.get("temperature")
    assert (branch.bank is getattr(method, "bank", None)) == (name == "npid")


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"sampling": "semihard"}, "inter.sampling"),
        ({"temperature": constant(0.1), "margin": 0.0}, "inter.margin and inter.temperature"),
    ],
)
def test_byol_refuses_settings_of_negatives(settings, named):
    config = METHODS["byol"].Config(projector=HEAD, predictor=HEAD, inter=Inter(clusters=4, **settings))
    with pytest.raises(ConfigError, match=rf"^{named} cannot be set: the method has no negatives"):
        METHODS["byol"](config, Tiny())


# The whole loss.


def make(name, records=40):
    """A method in float64 with the branch."""
    torch.manual_seed(4)
    defaults = {
        "moco": {"queue": 11, "margin": 0.1},
        "npid": {"negatives": 9, "bank_momentum": 0.5},
        "byol": {"predictor": HEAD},
    }[name]
    branch = {"clusters": 4, "negatives": 12, "iterations": 3, "intra_weight": 0.6}
    if name != "byol":
        branch["margin"] = -0.4
    shared = {} if name == "npid" else {"momentum": constant(0.9)}
    config = METHODS[name].Config(projector=HEAD, inter=Inter(**branch), **shared, **defaults)
    method = METHODS[name](config, Tiny())
    method.allocate(records)
    return method.double().train()


def batch(step, index, views=2):
    """Clips of records: each a function of step, record and view."""

    def clip(record, view):
        source = torch.Generator().manual_seed(int(record) * 1000 + step * 10 + view)
        return torch.randn(3, 2, 4, 4, generator=source, dtype=torch.float64)

    index = torch.as_tensor(index)
    clips = tuple(torch.stack([clip(record, view) for record in index]) for view in range(views))
    return Batch(clips, torch.zeros_like(index), index)


def keys_of_step(step, size=8, records=40):
    """Records of a step: each epoch in another order."""
    epochs = [
        torch.randperm(records, generator=torch.Generator().manual_seed(e)) for e in range(step * size // records + 2)
    ]
    return torch.cat(epochs)[step * size : (step + 1) * size]


def trained(method, steps, micro=8, rank=0, world=1):
    """Steps of gradient descent; give the losses."""
    optimizer = torch.optim.SGD([p for p in method.parameters() if p.requires_grad], lr=0.05)
    losses = []
    for step in range(steps):
        of_process = keys_of_step(step).chunk(world)[rank]
        parts = []
        for n, index in enumerate(of_process.split(micro)):
            method.micro_batch = n, len(of_process) // micro
            parts.append(method(batch(step, index)))
        loss = torch.stack([part["loss"] for part in parts]).mean()
        optimizer.zero_grad()
        loss.backward()
        for p in method.parameters():
            if p.grad is not None:
                p.grad.copy_(distributed.mean(p.grad))
        optimizer.step()
        method.after_step((step + 1) / steps)
        losses.append(
            {name: distributed.mean(torch.stack([p[name] for p in parts]).mean()).item() for name in parts[0]}
        )
    return losses


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def margin_loop(query, key, negatives, tau, margin):  # one query, Eq. (5)
    top = math.exp((cosine(query, key) - margin) / tau)
    return -math.log(top / (top + sum(math.exp(cosine(query, z) / tau) for z in negatives)))


def intra_loop(name, method, data, queries):
    """The base's own loss, the mean over queries; views 0 and 1 are each other's keys."""
    bank, total = method.branches["inter"].bank.rows.tolist(), []
    if name == "npid":
        picks = method.draw(data.index).tolist()
    else:
        keys = [normalize(method.target(view), dim=1).tolist() for view in data.views]
    for view, rows in enumerate(queries):
        for n, query in enumerate(rows):
            if name == "npid":
                negatives = [bank[k] for k in picks[n]]
                total.append(margin_loop(query, bank[int(data.index[n])], negatives, 0.1, 0.0))
            elif name == "moco":
                total.append(margin_loop(query, keys[1 - view][n], method.queue.keys.tolist(), 0.1, 0.1))
            else:
                total.append(2 - 2 * cosine(query, keys[1 - view][n]))
    return sum(total) / len(total)


def inter_loop(name, method, data, queries):
    inter = method.branches["inter"]
    bank, labels, total = inter.bank.rows.tolist(), inter.clusters.labels, []
    for view, rows in enumerate(queries):
        positives, picks = inter.draw(method, torch.tensor(rows).double(), data.index, view)
        assert torch.equal(labels[positives], labels[data.index])
        for n, query in enumerate(rows):
            key = bank[int(positives[n])]
            if name == "byol":
                total.append(sum((a - b) ** 2 for a, b in zip(query, key, strict=True)))
            else:
                negatives = [bank[k] for k in picks[n].tolist()]
                total.append(margin_loop(query, key, negatives, 0.1, -0.4))
    return sum(total) / len(total)


@pytest.mark.parametrize("name", NAMES)
def test_the_whole_loss_is_that_of_loops(name):
    method = make(name)
    trained(method, 7)
    data = batch(7, keys_of_step(7))
    heads = nn.Sequential(method.backbone, method.projector, getattr(method, "predictor", nn.Identity()))
    with torch.no_grad():
        queries = [normalize(heads(view), dim=1).tolist() for view in data.views]
        intra, inter = (loop(name, method, data, queries) for loop in (intra_loop, inter_loop))
    scalars = method(data)
    assert scalars["intra_loss"].item() == pytest.approx(intra, rel=1e-9)
    assert scalars["inter_loss"].item() == pytest.approx(inter, rel=1e-9)
    assert scalars["loss"].item() == pytest.approx(0.6 * intra + 0.4 * inter, rel=1e-9)


def test_the_bank_holds_the_newest_keys():
    method, data = make("moco"), batch(0, [4, 30, 2])
    with torch.no_grad():
        keys = [normalize(method.target(view), dim=1) for view in data.views]
    method(data)
    method.after_step(0.1)
    bank = method.branches["inter"].bank
    torch.testing.assert_close(bank.rows[[4, 30, 2]], normalize(keys[0] + keys[1], dim=1))
    assert torch.nonzero(bank.seen).flatten().tolist() == [2, 4, 30]


def settled(name, world=None, micro=8, steps=9):
    """A trained method's losses, bank and clusters; of one of several processes, where `world` says how many."""
    with distributed.joined(CPU):
        method = make(name)
        losses = trained(method, steps, micro, distributed.rank(), world or 1)
        inter = method.branches["inter"]
        clusters = inter.clusters
        return losses, inter.bank.rows, clusters.labels, clusters.sums, inter.get_extra_state()


def agree(actual, expected):
    for ours, theirs in zip(actual[0], expected[0], strict=True):
        # Statistics of the keys and i_nce are of a batch, not a mean over its parts.
        for key in ("loss", *({"intra_loss", "inter_loss"} & theirs.keys())):
            assert ours[key] == pytest.approx(theirs[key], rel=1e-9)
        assert ours.keys() == theirs.keys()
    torch.testing.assert_close(actual[1], expected[1], rtol=0, atol=1e-9)
    assert torch.equal(actual[2], expected[2]) and actual[4] == expected[4]
    torch.testing.assert_close(actual[3], expected[3], rtol=0, atol=1e-8)


def test_two_processes_are_one(run_world):
    expected = settled("npid")
    for of_process in run_world(2, settled, "npid", 2, 2):
        agree(of_process, expected)
