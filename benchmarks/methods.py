"""Time a step of every method, and its memory: `python benchmarks/methods.py [--device cuda] [--json FILE]`.

Forward, backward, optimizer and `after_step` of all methods: equal backbones, batches and clips that are on the device
already, SGD, and the default heads and queue of each method. They run in turn (A B C A B C ...): milliseconds are those
of the fastest round, wall clock, or CPU time with one thread (OMP_NUM_THREADS=1); ratios are medians over the rounds,
relative to MoCo with two clips in the same round.

Peak memory is that of the tensors that a step allocates, gradients included, as counted by torch's allocator on a GPU
and by torch's profiler on a CPU, without the workspace of libraries. The state remains between steps: weights, buffers
(queue, bank, clusters), optimizer.

Banks have `--records` rows, drawn from a mixture, and are clustered by a global k-means before the first step, so that
InterCLR's branch is active, with a hundredth as many clusters as records, at most 10,000. The default setting on a CPU
is small; `--setting resnet3d50 8 224` chooses another. `--into docs/results/performance.md` writes the table there.
"""

import argparse
import os
import time
from argparse import Namespace
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from inter import fill
from measure import finish, machine, ratio, table
from torch.profiler import ProfilerActivity, profile
from train_step import PIXELS, VidsslStep

from vidssl.base.atomic import replacing
from vidssl.base.types import Batch
from vidssl.data.to_device import to_device
from vidssl.methods import METHODS, Method
from vidssl.methods.interclr_branch import Inter
from vidssl.methods.jigsaw_branch import Jigsaw
from vidssl.models import build_backbone

BASE = "MoCo, 2 clips"
BEGIN, END = "<!-- methods: begin -->", "<!-- methods: end -->"
LOCAL = (192 / 224, 160 / 224, 128 / 224, 96 / 224)  # sides of SCE's local views, in sides of its whole ones


@dataclass(frozen=True)
class Variant:
    """A method, its settings that are not defaults, and its views."""

    method: str
    settings: dict[str, Any] = field(default_factory=dict)
    clips: int = 2
    local: tuple[float, ...] = ()  # sides of more clips
    boxes: bool = False


def number_of_clusters(records: int) -> int:
    """Number of InterCLR's clusters: a hundredth of the rows, at most 10,000, as on ImageNet."""
    return min(10_000, max(2, records // 100))


def variants(clusters: int) -> dict[str, Variant]:
    """All compared methods, by their names in the table."""
    inter = {"inter": Inter(clusters=clusters)}
    return {
        "supervised, 1 clip": Variant("supervised", {"classes": 400}, clips=1),
        BASE: Variant("moco"),
        "MoCo, 4 clips": Variant("moco", {"key_views": (0, 1, 2, 3)}, clips=4),
        "MoCo and JigSaw": Variant("moco", {"jigsaw": Jigsaw()}),
        "frame invariance": Variant("frame_invariance"),
        "frame invariance, regions": Variant("frame_invariance", {"patch_weight": 0.5}, boxes=True),
        "ReSSL": Variant("ressl"),
        "SCE": Variant("sce"),
        "SCE, 4 local clips more": Variant("sce", local=LOCAL),
        "BYOL": Variant("byol"),
        "SimCLR": Variant("simclr"),
        "SupCon": Variant("supcon"),
        "NPID, 1 clip": Variant("npid", clips=1),
        "InterCLR on NPID, 1 clip": Variant("npid", inter, clips=1),
        "InterCLR on MoCo": Variant("moco", inter),
        "InterCLR on BYOL": Variant("byol", inter),
    }


def make_method(variant: Variant, backbone: str, records: int, device: torch.device) -> Method:
    """Make a method whose bank, if it has one, is filled and clustered."""
    torch.manual_seed(0)
    method_class = METHODS[variant.method]
    method: Method = method_class(method_class.Config(**variant.settings), build_backbone(backbone))
    method.allocate(records)
    method.to(device)
    branch = dict(method.branches.items()).get("inter")
    bank = getattr(method if branch is None else branch, "bank", None)
    if bank is not None:
        fill(bank, max(2, records // 100))
    if branch is not None:
        branch.clusters.fit(bank, torch.Generator(device).manual_seed(0))
        branch.set_extra_state({"taken": records, "fits": 1})
    return method


def make_batch(variant: Variant, frames: int, size: int, parsed: Namespace) -> Batch:
    """Clips of noise on the device, two videos of each class."""
    source = torch.Generator().manual_seed(0)
    sides = [size] * variant.clips + [round(share * size) for share in variant.local]
    views = tuple(
        torch.randint(0, 256, (parsed.batch, frames, side, side, 3), generator=source, dtype=torch.uint8).permute(
            0, 1, 4, 2, 3
        )
        for side in sides
    )
    index = torch.randperm(parsed.records, generator=source)[: parsed.batch]
    boxes = torch.tensor([size / 4, size / 4, 3 * size / 4, size]).expand(parsed.batch, len(sides), 4)
    label = torch.arange(parsed.batch) // 2
    batch = Batch(views, label, index, boxes=boxes if variant.boxes else None)
    return to_device(batch, parsed.device, *PIXELS)


def peak(step: VidsslStep, batch: Batch) -> float:
    """Peak MiB of tensors in a step, minus those before it."""
    if batch.label.is_cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step(batch)
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler logs each start and stop
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        step(batch)
    events = [x for x in profiled.profiler.kineto_results.events() if x.name() == "[memory]"]
    events.sort(key=lambda x: x.start_ns())
    return float(np.cumsum([x.nbytes() for x in events]).max()) / 2**20


def state(step: VidsslStep) -> float:
    """MiB that remain between steps."""
    method, optimizer = step._method, step._optimizer
    averages = [x for p in optimizer.state.values() for x in p.values() if isinstance(x, torch.Tensor)]
    return float(sum(x.nbytes for x in (*method.parameters(), *method.buffers(), *averages))) / 2**20


def measure(backbone: str, frames: int, size: int, parsed: Namespace) -> dict[str, dict[str, float]]:
    """Time all methods in turn, then measure the memory of each."""
    cuda = parsed.device.type == "cuda"
    clock = time.process_time if torch.get_num_threads() == 1 and not cuda else time.perf_counter
    compared = variants(number_of_clusters(parsed.records))
    steps, batches = {}, {}
    for name, variant in compared.items():
        method = make_method(variant, backbone, parsed.records, parsed.device)
        steps[name] = VidsslStep(method, parsed.device)
        batches[name] = make_batch(variant, frames, size, parsed)
        del method
    times: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(parsed.rounds + 1):
        for name, step in steps.items():
            start = clock()
            step(batches[name])
            if cuda:
                torch.cuda.synchronize()
            if number:  # the first round warms up
                times[name].append(1000 * (clock() - start))
    ms = {name: np.array(values) for name, values in times.items()}
    figures = {
        name: {
            "ms": float(ms[name].min()),
            "to_base": ratio(ms, name, BASE),
            "peak_mib": peak(step, batches[name]),
            "state_mib": state(step),
        }
        for name, step in steps.items()
    }
    for x in figures.values():
        x["peak_to_base"] = x["peak_mib"] / figures[BASE]["peak_mib"]
    return figures


def write_between(file: Path, text: str) -> None:
    """Replace the text between the marks of a file."""
    before, tail = file.read_text(encoding="utf-8").split(BEGIN)
    after = tail.split(END)[1]
    with replacing(file) as out:
        out.write(f"{before}{BEGIN}\n{text}\n{END}{after}".encode())


def has_marks(file: Path) -> bool:
    """Whether a file has the two marks, each once and in order."""
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    return text.count(BEGIN) == text.count(END) == 1 and text.index(BEGIN) < text.index(END)


def main() -> None:
    """Print the table, write it and the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    parser.add_argument("--setting", nargs=3, metavar=("BACKBONE", "FRAMES", "SIZE"))
    parser.add_argument("--batch", type=int, help="videos per step")
    parser.add_argument("--records", type=int, default=100_000, help="rows of the banks")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--into", type=Path, help=f"page for the table, between {BEGIN} and {END}")
    parsed = parser.parse_args()
    if parsed.into is not None and not has_marks(parsed.into):
        raise SystemExit(f"{parsed.into} must contain {BEGIN} and {END} once each, where the table belongs")
    cuda = parsed.device.type == "cuda"
    parsed.batch = parsed.batch or (64 if cuda else 8)
    backbone, frames, size = parsed.setting or (("resnet3d50", 8, 224) if cuda else ("resnet3d18", 4, 64))
    torch.backends.cudnn.benchmark = True
    figures = measure(backbone, int(frames), int(size), parsed)
    rows = [
        [
            *(name, f"{x['ms']:.0f}", f"{x['to_base']:.2f}"),
            *(f"{x['peak_mib']:.0f}", f"{x['peak_to_base']:.2f}", f"{x['state_mib']:.0f}"),
        ]
        for name, x in figures.items()
    ]
    header = ["step of", "ms", f"times {BASE}", "MiB at the peak", f"times {BASE}", "MiB of state"]
    text = table(header, rows)
    print(text)
    clusters = number_of_clusters(parsed.records)
    setup = {
        "setting": f"{backbone}, {frames} x {size}",
        **{name: getattr(parsed, name) for name in ("batch", "records", "rounds")},
        "clusters": clusters,
        "device": str(parsed.device),
        "threads": torch.get_num_threads(),
    }
    where = torch.cuda.get_device_name() if cuda else f"{machine()['cpu']}, threads: {setup['threads']}"
    caption = (
        f"{setup['setting']}², {parsed.batch} videos, SGD, {'bfloat16' if cuda else 'float32'}; banks of "
        f"{parsed.records:,} rows, {clusters:,} clusters; {parsed.rounds} rounds; {where}, torch {torch.__version__}."
    )
    print(f"\n{caption}")
    if parsed.into is not None:
        write_between(parsed.into, f"{text}\n\n{caption}")
    finish({**setup, "methods": figures}, parsed.json)


if __name__ == "__main__":
    main()
