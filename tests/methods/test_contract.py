"""The contract of methods, tested with every toy config: a new method is covered by its toy config."""

import ast
import copy
import io
import re
import runpy
from functools import cache
from pathlib import Path

import pytest
import torch

from vidssl.base.config import build
from vidssl.base.registry import APPS
from vidssl.base.types import Batch
from vidssl.engine.run_config import load_run
from vidssl.methods import METHODS
from vidssl.models.backbones import BACKBONES

ROOT = Path(__file__).parents[2]
PLACES = runpy.run_path(str(ROOT / "tests" / "toys.py"))
TOYS = PLACES["TOYS"]
same = runpy.run_path(str(ROOT / "tests" / "equal.py"))["same"]
NUM_RECORDS = 8  # a step is an epoch
STEPS = 12

toys = pytest.mark.parametrize("name", TOYS)


def make(name):
    """A toy's method as a run makes it."""
    run, method = made(name)
    return run, copy.deepcopy(method)


@cache
def made(name):
    run = load_run(PLACES["CONFIGS"] / f"{name}.yaml")
    torch.manual_seed(run.seed)
    method = build(METHODS, run.method, build(BACKBONES, run.backbone))
    method.allocate(NUM_RECORDS)
    return run, method.train()


def batch_of(run, seed):
    """Noise of the shapes that the run's loader gives."""
    source = torch.Generator().manual_seed(seed)
    size, frames = run.batch_size, run.data.sampler.frames
    sides = [view.size for view in run.data.views]
    views = tuple(torch.randn(size, 3, frames, side, side, generator=source) for side in sides)
    boxes = None
    if run.tracks is not None:
        corners = torch.tensor([[0.1 * side, 0.2 * side, 0.7 * side, 0.9 * side] for side in sides])
        boxes = corners.expand(size, -1, -1)
    mask = None
    if run.data.moving_digits.masks:
        mask = torch.randint(0, 3, (size, sides[0], sides[0]), generator=source)
    label = torch.arange(size) % 4
    index = torch.randperm(NUM_RECORDS, generator=source)[:size]
    return Batch(views, label, index, boxes=boxes, mask=mask)


def step(method, run, number, bfloat16=False):
    """One step of the loop; give the scalars and the gradients."""
    optimizer = torch.optim.SGD([p for p in method.parameters() if p.requires_grad], lr=0.01)
    torch.manual_seed(number)  # the loop's random numbers are in the checkpoint
    with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
        scalars = method(batch_of(run, number))
    scalars["loss"].backward()
    gradients = [p.grad.clone() for p in method.parameters() if p.grad is not None]
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    method.after_step(number / STEPS)
    return {key: value.detach() for key, value in scalars.items()}, gradients


def types(state):
    return {key: value.dtype for key, value in state.items() if isinstance(value, torch.Tensor)}


@toys
def test_half_precision_stays_inside_the_networks(name, monkeypatch):
    # oneDNN writes beyond its memory where a bfloat16 convolution of stride 2 meets a map of one pixel.
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    (run, exact), (_, half) = make(name), make(name)
    before, features = types(half.state_dict()), []
    layers = [layer for layer in half.backbone.modules() if isinstance(layer, torch.nn.Conv3d)]
    layers[-1].register_forward_hook(lambda layer, inputs, output: features.append(output.dtype))
    (expected, _), (actual, gradients) = step(exact, run, 1), step(half, run, 1, bfloat16=True)
    assert actual.keys() == expected.keys()
    for key, value in actual.items():
        assert value.dtype == torch.float32 and value.ndim == 0 and torch.isfinite(value), key
        torch.testing.assert_close(
            value, expected[key], rtol=0.05, atol=0.05, msg=lambda text, key=key: f"{key}: {text}"
        )
    # The flow of view_learning works in float32: its volumes are sums over all pixels.
    assert {*features} == {torch.float32 if name == "view_learning" else torch.bfloat16}
    assert gradients and all(torch.isfinite(gradient).all() for gradient in gradients)
    assert types(half.state_dict()) == before
    assert not {torch.bfloat16, torch.float16} & {*before.values()}


@toys
def test_state_dict_is_complete(name):
    run, method = make(name)
    for number in range(1, 4):  # into the second epoch: what begins after the first is there
        step(method, run, number)
    file = io.BytesIO()
    torch.save(method.state_dict(), file)
    file.seek(0)
    _, other = make(name)
    other.load_state_dict(torch.load(file, weights_only=True))
    same(other.state_dict(), method.state_dict())
    for number in (4, 5):
        expected, actual = step(method, run, number), step(other, run, number)
        same(actual, expected, f"step {number}")
        same(other.state_dict(), method.state_dict())


@toys
def test_loss_does_not_depend_on_watched(name):
    (run, watched), (_, other) = make(name), make(name)
    other.watched = False
    expected, actual = step(watched, run, 1)[0], step(other, run, 1)[0]
    assert torch.equal(actual["loss"], expected["loss"]) and actual.keys() <= expected.keys()
    same(other.state_dict(), watched.state_dict())


def registered():
    """The modules of `vidssl.methods` that register a method, with what they register and import."""
    methods = {}
    for path in sorted((ROOT / "vidssl" / "methods").glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = [
            node.args[0].value
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "METHODS.register"
        ]
        imported = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        if names:
            methods[path.stem] = names, imported
    return methods


def test_all_methods_are_in_the_package():
    own = [name for names, _ in registered().values() for name in names]
    assert sorted([*own, *APPS["method"]]) == [*METHODS]


def test_a_method_is_a_screen_or_two():
    lengths = {
        stem: len((ROOT / "vidssl" / "methods" / f"{stem}.py").read_text(encoding="utf-8").splitlines())
        for stem in registered()
    }
    assert {stem: length for stem, length in lengths.items() if length > 140} == {}


def test_no_method_imports_another():
    actual = registered()
    modules = {f"vidssl.methods.{stem}" for stem in actual}
    assert {stem: imported & modules for stem, (_, imported) in actual.items() if imported & modules} == {}


@pytest.mark.parametrize("name", list(METHODS))
def test_a_method_has_a_page_a_row_and_a_golden(name):
    index = (ROOT / "docs" / "methods" / "index.md").read_text(encoding="utf-8")
    (page,) = re.findall(rf"^\| \[`{name}`\]\((.*?)\) \|", index, re.MULTILINE)
    text = (ROOT / "docs" / "methods" / page).read_text(encoding="utf-8")
    assert f"name: {name}" in text, f"{page} does not show the settings"
    assert f"configs/toy/{name}.yaml" in text, f"{page} does not say how the toy is run"
    assert (ROOT / "tests" / "golden" / f"{name}.json").exists()
