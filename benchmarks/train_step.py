"""Time training steps of SCE: `python benchmarks/train_step.py [--device cuda] [--json FILE]`.

vidssl's step is compared with a literal implementation of the paper's Algorithm 1: contiguous tensors, (N, K)
matrices, one operation per weight in the updates of the target and the optimizer. Both start from the same weights,
with SGD and momentum, and train on the same batch on the device; they alternate (A B A B ...), and the fastest round of
each counts, in wall time. `data_path.py` times the same step with the loader. `--torch-norms` and `--compile` add forms
of vidssl's step, with torch's batch norm instead of `vidssl.models.batch_norms.BatchNorm3d`, and compiled, and both.

FLOP are those of the networks' products and convolutions as counted by torch (a multiplication and an addition are
two): forward of the online and the target network, and twice the online one for backward. The peak is that of a large
matrix product on the same device: in bfloat16 on a GPU, in float32 on a CPU. On a CPU the setting is small by default;
`--setting resnet3d18 8 112` selects another, and can be repeated. `--profile` prints the operations of a step that take
longest.
"""

import argparse
import copy
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import torch
from losses import LAMBDA, TAU, TAU_M, sce_algorithm_1
from measure import finish, table
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.profiler import profile
from torch.utils.flop_counter import FlopCounterMode

from vidssl.base.schedule import constant
from vidssl.base.types import Batch
from vidssl.data.to_device import to_device
from vidssl.engine.optim import SGDConfig, build_optimizer, set_lr
from vidssl.engine.parallel import compile_backbones
from vidssl.methods import METHODS
from vidssl.methods.momentum_method import MomentumMethod
from vidssl.models import build_backbone
from vidssl.models.batch_norms import BatchNorm3d

SGD = SGDConfig(name="sgd", lr=constant(0.01), weight_decay=1e-4)
MOMENTUM = 0.99
PIXELS = ((0.45,), (0.225,))  # mean and deviation
Step = Callable[[Batch], Tensor]


class VidsslStep:
    """A step of vidssl: the method and the code around it in `vidssl.engine.train`, on one device.

    A `backend` of torch.compile compiles the backbones; with `torch_norms` their batch norm is torch's BatchNorm3d.
    """

    def __init__(
        self, method: MomentumMethod, device: torch.device, backend: str | None = None, torch_norms: bool = False
    ) -> None:
        self._device = device
        self._method = copy.deepcopy(method).to(memory_format=torch.channels_last_3d).train()
        self._method.watched = False  # as in most steps: statistics are computed for logged steps only
        self._optimizer = build_optimizer(SGD, self._method)
        set_lr(self._optimizer, SGD, 0.0, 1)
        for part in self._method.modules():
            if torch_norms and isinstance(part, BatchNorm3d):
                part.__class__ = nn.BatchNorm3d  # same parameters and buffers
        if backend:
            compile_backbones(self._method, backend)

    def __call__(self, batch: Batch) -> Tensor:
        """Train on a batch; return the loss."""
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._device.type == "cuda"):
            loss = self._method(batch)["loss"]
        loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._method.after_step(0.0)
        return loss.detach()


class LiteralStep:
    """Algorithm 1, lines 29 to 52, on the same networks."""

    def __init__(self, method: MomentumMethod, device: torch.device, half: bool) -> None:
        networks = copy.deepcopy(method).train()
        self._device, self._half = device, half
        self._online = nn.Sequential(networks.backbone, networks.projector)
        self._predictor, self._target = networks.predictor, networks.target
        self._queue, self._pointer = networks.queue.keys, 0
        weights = [*self._online.parameters(), *self._predictor.parameters()]
        self._optimizer = torch.optim.SGD(weights, 0.01, 0.9, weight_decay=1e-4, foreach=False, fused=False)

    def __call__(self, batch: Batch) -> Tensor:
        """Train on a batch; return the loss."""
        x1, x2 = (view.contiguous() for view in batch.views)
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._half):
            with torch.no_grad():
                k1, k2 = (normalize(self._target(x).float(), dim=1) for x in (x1, x2))
            q1, q2 = (normalize(self._predictor(self._online(x)).float(), dim=1) for x in (x1, x2))
        loss = (sce_algorithm_1(q1, k2, self._queue) + sce_algorithm_1(q2, k1, self._queue)) / 2
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        with torch.no_grad():
            for average, weight in zip(self._target.parameters(), self._online.parameters(), strict=True):
                average.mul_(MOMENTUM).add_(weight, alpha=1 - MOMENTUM)
            for key in (k1, k2):
                self._queue[self._pointer : self._pointer + len(key)] = key
                self._pointer = (self._pointer + len(key)) % len(self._queue)
        return loss.detach()


def make_method(backbone: str, queue: int, device: torch.device, width: int = 64) -> MomentumMethod:
    """SCE with the paper's heads, and Algorithm 1's positive; `width` is the number of channels of the stem."""
    torch.manual_seed(0)
    schedules = {"temperature": TAU, "target_temperature": TAU_M, "coefficient": LAMBDA, "momentum": MOMENTUM}
    config = METHODS["sce"].Config(
        queue=queue, positive_slot="zero", **{name: constant(value) for name, value in schedules.items()}
    )
    method = METHODS["sce"](config, build_backbone(backbone, width=width))
    assert isinstance(method, MomentumMethod)
    return method.to(device)


def synthetic(batch: int, frames: int, size: int, device: torch.device) -> Batch:
    """Return two views of noise on the device, in the memory format of the loader."""
    source = torch.Generator().manual_seed(0)
    views = tuple(
        torch.randint(0, 256, (batch, frames, size, size, 3), generator=source, dtype=torch.uint8)
        .permute(0, 1, 4, 2, 3)
        .to(device)
        for _ in range(2)
    )
    return to_device(Batch(views, torch.zeros(batch).long(), torch.arange(batch)), device, *PIXELS)


def flop_of_step(method: MomentumMethod, frames: int, size: int, batch: int) -> float:
    """Count two views of each video: once through the target, three times through the online network."""
    method = copy.deepcopy(method).eval()
    clip = torch.zeros(1, 3, frames, size, size, device=method.queue.keys.device)
    counts = []
    for networks in ((method.target,), (method.backbone, method.projector, method.predictor)):
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            nn.Sequential(*networks)(clip)
        counts.append(counter.get_total_flops())
    return 2.0 * batch * (counts[0] + 3 * counts[1])


def peak(device: torch.device, n: int) -> float:
    """Measure FLOP per second: the best of ten products of matrices (n, n)."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    a = torch.randn(n, n, device=device).to(dtype)
    return 2 * n**3 / min(seconds(lambda: a @ a, device) for _ in range(10))


def seconds(action: Callable[[], object], device: torch.device) -> float:
    """Measure the wall time of an action until the device has finished."""
    start = time.perf_counter()
    action()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def slowest_operations(step: Step, batch: Batch, device: torch.device) -> str:
    """Profile a step: a table of its operations by their own time on the device."""
    with profile() as profiled:
        seconds(lambda: step(batch), device)
    return str(profiled.key_averages().table(sort_by=f"self_{device.type}_time_total", row_limit=30))


def measure(backbone: str, frames: int, size: int, parsed: Namespace) -> dict[str, dict[str, float]]:
    """Time all forms of the step: seconds per step, and the loss of the first one."""
    device, cuda = parsed.device, parsed.device.type == "cuda"
    method = make_method(backbone, parsed.queue, device, parsed.width)
    batch = synthetic(parsed.batch, frames, size, device)
    forms: dict[str, Step] = {}
    if not parsed.only_vidssl:
        forms["Algorithm 1, float32"] = LiteralStep(method, device, half=False)
        if cuda:
            forms["Algorithm 1, bfloat16"] = LiteralStep(method, device, half=True)
    base_form = f"**vidssl**, {'bfloat16' if cuda else 'float32'}"
    for torch_norms in (False, True)[: 1 + parsed.torch_norms]:
        for backend in (None, parsed.compile)[: 1 + bool(parsed.compile)]:
            name = f"{base_form}{', norms of torch' * torch_norms}{', compiled' * bool(backend)}"
            forms[name] = VidsslStep(method, device, backend, torch_norms)
    loss = {name: step(batch).item() for name, step in forms.items()}  # warms up
    times: dict[str, list[float]] = {name: [] for name in forms}
    for _ in range(parsed.rounds):
        for name, step in forms.items():
            took = seconds(lambda step=step: [step(batch) for _ in range(parsed.steps)], device)
            times[name].append(took / parsed.steps)
    if parsed.profile:
        print(slowest_operations(forms[base_form], batch, device))
    flop, fastest = flop_of_step(method, frames, size, parsed.batch), {n: min(t) for n, t in times.items()}
    reference = next(iter(fastest.values()))
    return {
        name: {
            "clips_a_second": 2 * parsed.batch / took,
            "tflop_a_second": flop / took / 1e12,
            "to_first_form": reference / took,
            "first_loss": loss[name],
        }
        for name, took in fastest.items()
    }


def main() -> None:
    """Print the table, write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    parser.add_argument("--setting", nargs=3, action="append", metavar=("BACKBONE", "FRAMES", "SIZE"))
    parser.add_argument("--width", type=int, default=64, help="channels of the network's stem (default 64)")
    parser.add_argument("--batch", type=int, help="videos per step, two clips each")
    parser.add_argument("--queue", type=int, default=65536)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, help="steps of each form in a round")
    parser.add_argument("--only-vidssl", action="store_true", help="do not time Algorithm 1")
    parser.add_argument("--torch-norms", action="store_true", help="time vidssl's step with torch's BatchNorm3d too")
    parser.add_argument("--compile", nargs="?", const="inductor", metavar="BACKEND", help="with torch.compile too")
    parser.add_argument("--profile", action="store_true", help="print the slowest operations of vidssl's step")
    parser.add_argument("--product", type=int, help="side of the matrices whose product is the peak")
    parser.add_argument("--json", type=Path, help="file for the figures")
    parsed = parser.parse_args()
    cuda = parsed.device.type == "cuda"
    parsed.batch, parsed.steps = parsed.batch or (64 if cuda else 4), parsed.steps or (10 if cuda else 1)
    side = parsed.product or (8192 if cuda else 3072)
    large = [(name, *clip) for name in ("resnet3d18", "resnet3d50") for clip in ((8, 224), (16, 112))]
    settings = parsed.setting or (large if cuda else [("resnet3d18", 8, 112)])
    torch.backends.cudnn.benchmark = True
    tops, figures, rows = [peak(parsed.device, side)], {}, []
    for backbone, frames, size in settings:
        figures[f"{backbone}, {frames} x {size}"] = measure(backbone, int(frames), int(size), parsed)
        tops.append(peak(parsed.device, side))
    top = max(tops)
    for title, forms in figures.items():
        for name, x in forms.items():
            fraction, faster = 1e12 * x["tflop_a_second"] / top, x["to_first_form"]
            speed = f"{x['clips_a_second']:.2f}", f"{x['tflop_a_second']:.3g}", f"{fraction:.0%}"
            rows.append([title, name, *speed, f"{faster:.2f}", f"{x['first_loss']:.4f}"])
    header = ["setting", "step", "clips/s", "TFLOP/s", "of the peak", "times faster", "first loss"]
    print(table(header, rows))
    print(f"\n{parsed.batch} videos x 2 views, queue {parsed.queue}, {parsed.rounds} rounds of {parsed.steps}")
    print(f"{parsed.device}, {torch.get_num_threads()} threads; peak {top / 1e12:.3g} TFLOP/s")
    setup = {"batch": parsed.batch, "queue": parsed.queue, "device": str(parsed.device), "peak": top}
    finish({**setup, "train_step": figures}, parsed.json)


if __name__ == "__main__":
    main()
