"""Two processes compute what one computes, and hold the same."""

import runpy
from pathlib import Path

import pytest
import torch

RUNS = runpy.run_path(str(Path(__file__).with_name("runs.py")))
logged = runpy.run_path(str(Path(__file__).parents[1] / "equal.py"))["logged"]
train_toy = RUNS["train_toy"]
# In float64, and gently: networks with batch norm multiply rounding errors at each step, by three at the rates of the
# toy configs. So what differs here by more than float32 can tell apart differs by more than rounding.
STILL = ("optimizer={name: sgd, lr: 0.02}", "checkpoint.every=20")


@pytest.fixture(scope="module")
def alone(run_world, digits, tmp_path_factory):
    """Gradients of a run of one process, and its folder, made once for each kind."""
    made = {}

    def run(name, overrides):
        if (name, overrides) not in made:
            output = tmp_path_factory.mktemp("one")
            (gradients,) = run_world(1, train_toy, name, digits, output, overrides, None, False, True)
            made[name, overrides] = gradients, output
        return made[name, overrides]

    return run


def state(output, rank=0, step=20):
    return torch.load(output / f"rank-{rank}-step-{step}.pt", weights_only=True)


def flat(value, name=""):
    """All tensors of nested values by name."""
    if isinstance(value, torch.Tensor):
        return {name: value}
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return {key: tensor for k, inner in items for key, tensor in flat(inner, f"{name}.{k}").items()}


def agree(actual, expected):
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(
            actual[name], value, rtol=1e-5, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}"
        )


# What talks to other processes, and the toy that runs it here.
FAMILIES = {
    **{"base": "interclr_npid", "interclr_branch": "interclr_npid"},
    **{"momentum_method": "sce", "statistics": "moco", "in_batch": "simclr"},
    **{"cmc": "cmc", "swav": "swav"},
}
OTHERS = ("supervised", "lejepa", "view_learning", "frame_invariance_tracks")  # labels, equal draws, tracks
# On a CPU gradients are averaged after the backward pass, on a GPU by torch's DDP while it runs.
LONG = [
    *(("sce", 20, ddp) for ddp in (True, False)),
    *((name, 4, True) for name in sorted({*FAMILIES.values(), *OTHERS} - {"sce"})),
]


def test_all_that_talks_to_other_processes_is_run_by_two():
    package = Path(__file__).parents[2] / "vidssl"
    files = [path for folder in ("methods", "apps/views") for path in (package / folder).glob("*.py")]
    assert {path.stem for path in files if "distributed." in path.read_text(encoding="utf-8")} == {*FAMILIES}


@pytest.mark.parametrize(
    ("name", "steps", "ddp", "more"),
    [
        ("sce", 3, False, ()),
        ("sce", 3, False, ("data.augment=device",)),
        *(pytest.param(*case, (), marks=pytest.mark.long) for case in LONG),
    ],
)
def test_two_processes_are_one(name, steps, ddp, more, alone, run_world, digits, tmp_path):
    has_dropout = hasattr(RUNS["toy"](name, digits, tmp_path, ()).method, "dropout")
    overrides = (f"steps={steps}", *STILL, *more, *(("method.dropout=0.0",) if has_dropout else ()))
    (single, one), two = alone(name, overrides), tmp_path
    both = run_world(2, train_toy, name, digits, two, overrides, None, ddp, True)
    for step, gradient in enumerate(single):
        for other in both:
            difference = (other[step] - gradient).norm() / gradient.norm()
            assert difference < 1e-5, f"gradients of step {step + 1} differ by {difference:.1e}"
    for a, b in zip(logged(two), logged(one), strict=True):
        assert a == pytest.approx(b, rel=1e-5, abs=1e-6)
    expected = flat(state(one, step=steps)["method"])
    agree(flat(state(two, step=steps)["method"]), expected)
    ranks = [flat({**state(two, rank, steps), "rng": None}) for rank in (0, 1)]
    for key, value in ranks[0].items():
        assert torch.equal(value, ranks[1][key]), key  # bit by bit, statistics and queue too
