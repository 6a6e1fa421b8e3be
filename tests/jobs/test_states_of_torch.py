"""What a notebook has switched in torch: public functions give the same results, and leave it as it is."""

import inspect
import runpy
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import vidssl
from vidssl.base.errors import ConfigError
from vidssl.models.eval_mode import usual_torch

TOP = Path(__file__).parents[2]
CFG = TOP / "configs" / "toy" / "moco.yaml"
PLACED = runpy.run_path(str(TOP / "tests" / "toys.py"))["placed"]
CLIPS = {"clips": 1, "crops": 1, "workers": 0, "device": "cpu"}


@contextmanager
def default_dtype(dtype):
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        assert torch.get_default_dtype() == dtype
        torch.set_default_dtype(torch.float32)


@contextmanager
def default_device():
    torch.set_default_device("meta")
    try:
        yield
    finally:
        assert torch.get_default_device().type == "meta"
        torch.set_default_device(None)


@contextmanager
def no_gradients():
    torch.set_grad_enabled(False)
    try:
        yield
    finally:
        assert not torch.is_grad_enabled()
        torch.set_grad_enabled(True)


@contextmanager
def inference():
    with torch.inference_mode():
        yield
        assert torch.is_inference_mode_enabled()


@contextmanager
def half_precision():
    with torch.autocast("cpu", torch.bfloat16):
        yield
        assert torch.is_autocast_enabled("cpu")


@contextmanager
def together(*states):
    with ExitStack() as stack:
        for state in states:
            stack.enter_context(state)
        yield


# Together, where they do not hide each other, as each job takes its time.
STATES = {
    "float64, no gradients": lambda: together(default_dtype(torch.float64), no_gradients()),
    "meta, inference": lambda: together(default_device(), inference()),
    "a block of meta, bfloat16, autocast": lambda: together(
        torch.device("meta"), default_dtype(torch.bfloat16), half_precision()
    ),
}


@pytest.fixture(scope="module")
def place(digits, tmp_path_factory):
    """A folder with small lists, and a run of two steps."""
    folder = tmp_path_factory.mktemp("place")
    header, *rows = (digits / "motion/train.csv").read_text().splitlines()
    rows.sort(key=lambda row: row.rpartition(",")[2])  # by class
    (folder / "train.csv").write_text("\n".join([header, *rows[:8]]) + "\n")
    (folder / "classes.txt").write_bytes((digits / "motion/classes.txt").read_bytes())
    (folder / "root.txt").write_text(f"{digits}\n")
    vidssl.train(CFG, *settings(folder, digits, folder / "run"))
    return folder


def settings(place, digits, output):
    lists = ["data.moving_digits=null", f"data.train={place}/train.csv"]
    return [*PLACED("moco", digits, output), *lists, "steps=2", "batch_size=4"]


def save(run, out):
    network = vidssl.load_backbone(run)
    return vidssl.save_backbone(network, out / "a.safetensors", cfg=run / "config.yaml")


# Each has the run, the lists, an output, and the settings of a training.
JOBS = {
    "train": lambda run, train, out, settings: vidssl.train(CFG, *settings),
    "extract": lambda run, train, out, _: vidssl.extract(vidssl.load_backbone(run), train, **CLIPS).x,
    "save_backbone": lambda run, train, out, _: save(run, out),
}


def result(job, place, digits, out, state):
    """What a function returns, and the tensors and the names of the files that it writes."""
    where = place / "run", place / "train.csv", out
    out.mkdir()
    made = settings(place, digits, out)
    with state():
        actual = JOBS[job](*where, made)
    tensors = [actual] if isinstance(actual, torch.Tensor) else []
    for path in sorted(out.rglob("*.safetensors")):
        tensors += load_file(path).values()
    for path in sorted(out.rglob("step-*.pt")):
        tensors += [x for x in torch.load(path, weights_only=True)["method"].values() if isinstance(x, torch.Tensor)]
    return tensors, sorted(path.name for path in out.rglob("*") if "tfevents" not in path.name)


@pytest.mark.parametrize("job", JOBS)
def test_a_public_function_does_not_depend_on_the_state_of_torch(job, place, digits, tmp_path, check_all):
    tensors, names = result(job, place, digits, tmp_path / "usual", nullcontext)

    def check(name):
        actual, files = result(job, place, digits, tmp_path / name, STATES[name])
        assert files == names and len(actual) == len(tensors)
        assert all(
            one.dtype == other.dtype and torch.equal(one, other) for one, other in zip(actual, tensors, strict=True)
        )

    check_all(check, {name: (name,) for name in STATES})


def test_every_public_function_is_a_job():
    """Or applies `usual_torch` itself: what holds for those above holds for all."""
    functions = {name: getattr(vidssl, name) for name in vidssl._PUBLIC if inspect.isfunction(getattr(vidssl, name))}
    plain = {name for name, function in functions.items() if not hasattr(function, "__wrapped__")}
    # These run no network.
    listed = {name for name in plain if name.startswith("list_")}
    others = {"build_backbone", "doctor", "load_features", "open_video", "prepare_folder", "read_input", "schema"}
    assert plain - listed == others


def test_a_module_in_float64_is_refused_with_the_remedy(place):
    network = vidssl.load_backbone(place / "run").double()
    with pytest.raises(ConfigError, match=r"^this \w+ has float64 weights, clips are float32: give module.float"):
        vidssl.extract(network, place / "train.csv", **CLIPS)


@pytest.mark.parametrize("caller", [nullcontext, half_precision])
def test_steps_in_half_precision_see_the_weights_of_the_step_before(caller):
    """Casts of weights that autocast keeps are those of one step, whatever the caller's state."""

    def losses():
        layer = torch.nn.Linear(4, 1, bias=False)
        torch.nn.init.ones_(layer.weight)
        collected = []
        for _ in range(3):
            with torch.autocast("cpu", torch.bfloat16):
                loss = layer(torch.ones(2, 4)).sum()
            loss.backward()
            with torch.no_grad():
                layer.weight -= 0.1 * layer.weight.grad
            layer.weight.grad = None
            collected.append(loss.item())
        return collected

    expected = losses()
    assert len({*expected}) == 3
    with caller(), usual_torch():
        assert losses() == expected
