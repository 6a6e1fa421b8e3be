"""Compute the hours, cores and memory that a config of a paper needs, and write them in its header.

    python benchmarks/costs.py configs/linear/*.yaml [--write]

Hours: products of the network for the views of all steps, over the speed of that network on an H100, measured by
`train_step.py`; networks that were not measured have the lowest of these speeds. Cores: CPU time of a view in a worker
(docs/results/performance.md), so that they keep up with the GPU. Memory: what the backward pass keeps, weights,
gradients, optimizer and queue. Neither communication nor evaluation counts. `tests/benchmarks/test_costs.py` compares
the headers of all configs with this.
"""

import argparse
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import torch
from scaling import activations, state, untrained
from torch.utils.flop_counter import FlopCounterMode

from vidssl.engine.run_config import Run, load_run
from vidssl.methods import METHODS
from vidssl.methods.momentum_method import MomentumMethod
from vidssl.models import build_backbone

ROOT = Path(__file__).resolve().parents[1]
SPEED = {("resnet3d50", 8, 224): 238, ("resnet3d18", 16, 112): 1358, ("resnet3d18", 8, 224): 594}  # views per second
PASSES = 4  # of a view at these speeds: forward and backward of the online network count 3, the target 1
VIDEO, SHRUNK, IMAGE, SMALL_IMAGE, FRAME, LARGE_IMAGE = 26.7, 13.9, 1.8, 0.6, 7.2, 24.0  # CPU ms of a view
SETS = {  # by folder of the lists: training examples, CPU ms of a view, and of one from shrunk copies
    "lists/k400": (216_000, VIDEO, SHRUNK),
    "lists/k200": (79_000, VIDEO, SHRUNK),
    "lists/ucf101": (9_537, VIDEO, SHRUNK),
    "lists/hmdb51": (3_570, VIDEO, SHRUNK),
    "lists/ssv2": (168_913, VIDEO, SHRUNK),
    "lists/trackingnet_chunks": (120_000, FRAME, None),
    "lists/imagenet": (1_281_167, IMAGE, None),
    "lists/imagenet100": (126_689, IMAGE, None),
    "lists/places205": (2_448_873, IMAGE, None),
    "lists/cifar10": (50_000, SMALL_IMAGE, None),
    "lists/cifar100": (50_000, SMALL_IMAGE, None),
    "lists/stl10": (100_000, SMALL_IMAGE, None),
    "lists/tinyimagenet": (100_000, SMALL_IMAGE, None),
    "lists/div2k": (800, LARGE_IMAGE, None),
}
WHERE = "Computed, not run: docs/results/performance.md, Costs of the configs."
_KEPT: dict[str, int] = {}  # bytes of a view, by network, clip and precision
_PARAGRAPH = re.compile(r"# Cost: .*\n(?:#   .*\n)*")


def computed(config: str) -> bool:
    """Tell whether the cost of a config is computed: its list is one of SETS, and its method has known passes."""
    text = (ROOT / config).read_text(encoding="utf-8")
    train = re.search(r"\n  train: (\S+)/", text)
    return train is not None and train[1] in SETS and "\nmethod:" in text and "view_learning\n" not in text


def hours(config: str) -> tuple[float, float, float | None]:
    """Return the GPU hours of a config, and the cores that decode for one GPU: from files, and from shrunk copies."""
    run = _run(config)
    examples, file_ms, copy_ms = SETS[str(Path(str(run.data.train)).parent)]
    frames, subset = run.data.sampler.frames, run.data.subset
    examples = examples if subset is None else round(examples * subset.fraction)
    flop = sum((3 * online + target) * clips * _flop(run, frames, size) for online, target, clips, size in _views(run))
    step_ms = 1000 * flop / _speed(run)
    copies = None if copy_ms is None else len(run.data.views) * copy_ms / step_ms
    total = run.total_steps(examples) * run.batch_size * step_ms / 3.6e6
    return total, len(run.data.views) * file_ms / step_ms, copies


def cost(config: str) -> str:
    """Write the cost of a config without its memory, as its header has it."""
    run, gpus = _run(config), _gpus(config)
    total, cores, copies = hours(config)
    measured = (run.backbone.name, run.data.sampler.frames, run.data.views[0].size) in SPEED
    how = "" if measured else "about " if run.data.views[0].size > 112 else "at least "
    if gpus > 1:
        text = f"{how}{_short(total)} GPU hours on H100s, {gpus} of them {_short(total / gpus)} hours, if"
        text += f" {_short(cores)} cores for each decode"
    else:
        text = f"{how}{_short(total)} hours on an H100, if {_short(cores)} cores decode"
    text += f" ({_short(copies)} from shrunk copies)" if copies is not None else ""
    if cores > run.data.workers:
        text += f"; with the {run.data.workers} workers of this file {_short(total * cores / run.data.workers)}"
        slower = copies is not None and copies > run.data.workers
        from_copies = (
            f"{_short(total * (copies or 0) / run.data.workers)} from copies" if slower else "from copies no more"
        )
        text += f", {from_copies}" if copies is not None else ""
    return text + (", for each split" if "{split}" in _text(config) else "")


def memory(config: str) -> str:
    """Write the memory of a GPU; the pixels and the network of one view are measured on the CPU, seconds."""
    run = _run(config)
    if getattr(run.method, "freeze", False):
        return "The backbone is frozen: memory as for a test."
    videos = run.micro_batch_size or run.batch_size // _gpus(config)
    frames, size = run.data.sampler.frames, run.data.views[0].size
    pixels = sum(online * clips * side**2 for online, _, clips, side in _views(run)) / size**2
    kept = _kept(json.dumps([run.backbone.model_dump(), frames, size, run.precision]), config)
    total = kept * pixels * videos + sum(state(run, untrained(run)).values())
    return f"Memory of a GPU: {_short(total / 1e9)} GB for {videos} {'videos' if frames > 1 else 'images'}."


def stated(config: str) -> str:
    """Return what the header of a config says of its cost, in one line."""
    match = _PARAGRAPH.search(_text(config))
    return re.sub(r"\n#\s*", " ", match[0]).removeprefix("# Cost: ").strip() if match else ""


def _text(config: str) -> str:
    return (ROOT / config).read_text(encoding="utf-8")


@cache
def _run(config: str) -> Run:
    return load_run(ROOT / config, split=1 if "{split}" in _text(config) else None)


def _gpus(config: str) -> int:
    match = re.search(rf"--nproc-per-node (\d+) -m vidssl train --cfg {config}", _text(config))
    return int(match[1]) if match else 1


def _views(run: Run) -> Iterator[tuple[int, int, int, int]]:
    """Yield the views of a video: passes of the online network and of the target, clips, and their size.

    As `batch_norm` of scaling.py counts them. A frozen backbone passes once, without a backward pass, as a target does.
    """
    method, sizes = METHODS[run.method.name], [view.size for view in run.data.views]
    jigsaw, frozen = getattr(run.method, "jigsaw", None), getattr(run.method, "freeze", False)
    if jigsaw is not None:
        side = round(0.75 * (sizes.pop(jigsaw.view) // jigsaw.grid))  # of a patch, as in `jigsaw_branch.cut`
        yield 1, 0, jigsaw.grid**2, side
    for view, size in enumerate(sizes):
        if issubclass(method, MomentumMethod):
            keys = run.method.key_views
            yield any(view != key for key in keys), view in keys, 1, size
        else:
            yield not frozen, frozen, 1, size


def _flop(run: Run, frames: int, size: int) -> float:
    settings = run.backbone.model_dump()
    return _count(json.dumps(settings, sort_keys=True), frames, size)


@cache
def _count(backbone: str, frames: int, size: int) -> float:
    """Count the FLOP of the forward pass of one clip; colour spaces need values, other networks none."""
    settings = json.loads(backbone)
    with torch.device("cpu" if settings["name"] == "two_encoders" else "meta"):
        network = build_backbone(**settings).eval()
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            network(torch.zeros(1, 3, frames, size, size))
    return float(counter.get_total_flops())


def _kept(key: str, config: str) -> int:
    if key not in _KEPT:
        _KEPT[key] = activations(_run(config))
    return _KEPT[key]


def _speed(run: Run) -> float:
    """FLOP per second of the network on an H100."""
    speeds = {
        (name, frames): PASSES * views * _count(json.dumps({"name": name}), frames, size)
        for (name, frames, size), views in SPEED.items()
    }
    return speeds.get((run.backbone.name, run.data.sampler.frames), min(speeds.values()))


def _short(number: float) -> str:
    return f"{number:,.0f}" if number >= 9.95 else f"{max(number, 0.1):.1f}"


def _wrapped(text: str) -> str:
    """Break a paragraph of a header into lines."""
    lines, line = [], "#"
    for word in text.split():
        if len(line) + len(word) > 140:
            lines.append(line)
            line = "#  "
        line += f" {word}"
    return "\n".join([*lines, line])


def main() -> None:
    """Print the costs, or write them into the headers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("configs", nargs="+", type=Path)
    parser.add_argument("--write", action="store_true", help="replace the costs in the headers")
    parsed = parser.parse_args()
    for path in parsed.configs:
        config = str(path.resolve().relative_to(ROOT))
        if not computed(config):
            print(f"{config}: not computed")
            continue
        text = f"{cost(config)}. {memory(config)} {WHERE}"
        print(f"{config}: {text}")
        if parsed.write:
            paragraph = _wrapped(f"Cost: {text}{stated(config).partition(WHERE)[2]}") + "\n"
            path.write_text(_PARAGRAPH.sub(lambda _, new=paragraph: new, _text(config), count=1), encoding="utf-8")


if __name__ == "__main__":
    main()
