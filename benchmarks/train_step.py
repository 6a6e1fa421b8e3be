"""Time training steps of SCE: `python benchmarks/train_step.py [--device cuda] [--json FILE]`.

vidssl's step is compared with a literal implementation of the paper's Algorithm 1: contiguous tensors, (N, K)
matrices, one operation per weight in the updates of the target and the optimizer. Both start from the same weights,
with SGD and momentum, and train on the same batch on the device; they alternate (A B A B ...), and the fastest round of
each counts, in wall time. `data_path.py` times the same step with the loader.

FLOP are those of the networks' products and convolutions as counted by torch (a multiplication and an addition are
two): forward of the online and the target network, and twice the online one for backward. The peak is that of a large
matrix product on the same device: in bfloat16 on a GPU, in float32 on a CPU. On a CPU the setting is small by default;
`--setting resnet3d18 8 112` selects another, and can be repeated.
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
from torch.utils.flop_counter import FlopCounterMode

from vidssl.data.to_device import to_device
from vidssl.engine.optim import SGDConfig, build_optimizer, set_lr
from vidssl.methods import METHODS
from vidssl.methods.momentum_method import MomentumMethod
from vidssl.models import build_backbone
from vidssl.schedule import constant
from vidssl.types import Batch

SGD = SGDConfig(name="sgd", lr=constant(0.01), weight_decay=1e-4)
MOMENTUM = 0.99
PIXELS = ((0.45,), (0.225,))  # mean and deviation
Step = Callable[[Batch], Tensor]


class Ours:
    """A step of vidssl: the method and the code around it in `vidssl.engine.train`, on one device."""

    def __init__(self, method: MomentumMethod, device: torch.device, compiled: bool) -> None:
        self._device = device
        self._method = copy.deepcopy(method).to(memory_format=torch.channels_last_3d).train()
        self._method.watched = False  # as in most steps: statistics are computed for logged steps only
        self._optimizer = build_optimizer(SGD, self._method)
        set_lr(self._optimizer, SGD, 0.0, 1)
        if compiled:
            self._method.backbone.compile()

    def __call__(self, batch: Batch) -> Tensor:
        """Train on a batch; return the loss."""
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._device.type == "cuda"):
            loss = self._method(batch)["loss"]
        loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._method.after_step(0.0)
        return loss.detach()


class AsWritten:
    """Algorithm 1, lines 29 to 52, on the same networks."""

    def __init__(self, method: MomentumMethod, device: torch.device, half: bool) -> None:
        twin = copy.deepcopy(method).train()
        self._device, self._half = device, half
        self._online = nn.Sequential(twin.backbone, twin.projector)
        self._predictor, self._target = twin.predictor, twin.target
        self._queue, self._pointer = twin.queue.keys, 0
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
            for old, new in zip(self._target.parameters(), self._online.parameters(), strict=True):
                old.mul_(MOMENTUM).add_(new, alpha=1 - MOMENTUM)
            for key in (k1, k2):
                self._queue[self._pointer : self._pointer + len(key)] = key
                self._pointer = (self._pointer + len(key)) % len(self._queue)
        return loss.detach()


def make_method(backbone: str, queue: int, device: torch.device) -> MomentumMethod:
    """SCE with the paper's heads, and Algorithm 1's positive."""
    torch.manual_seed(0)
    schedules = {"temperature": TAU, "target_temperature": TAU_M, "coefficient": LAMBDA, "momentum": MOMENTUM}
    config = METHODS["sce"].Config(
        queue=queue, positive_slot="zero", **{name: constant(value) for name, value in schedules.items()}
    )
    method = METHODS["sce"](config, build_backbone(backbone))
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


def peak(device: torch.device) -> float:
    """Measure FLOP per second: the best of ten large products."""
    n, dtype = (8192, torch.bfloat16) if device.type == "cuda" else (3072, torch.float32)
    a = torch.randn(n, n, device=device).to(dtype)
    return 2 * n**3 / min(seconds(lambda: a @ a, device) for _ in range(10))


def seconds(action: Callable[[], object], device: torch.device) -> float:
    """Measure the wall time of an action until the device has finished."""
    start = time.perf_counter()
    action()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def measure(backbone: str, frames: int, size: int, parsed: Namespace) -> dict[str, dict[str, float]]:
    """Time all forms of the step: seconds per step, and the loss of the first one."""
    device, cuda = parsed.device, parsed.device.type == "cuda"
    method, batch = (make_method(backbone, parsed.queue, device), synthetic(parsed.batch, frames, size, device))
    forms: dict[str, Step] = {"Algorithm 1, float32": AsWritten(method, device, half=False)}
    if cuda:
        forms["Algorithm 1, bfloat16"] = AsWritten(method, device, half=True)
    ours = Ours(method, device, parsed.compile)
    forms[f"**vidssl**, {'bfloat16' if cuda else 'float32'}{', compiled' * parsed.compile}"] = ours
    loss = {name: step(batch).item() for name, step in forms.items()}  # warms up
    times: dict[str, list[float]] = {name: [] for name in forms}
    for _ in range(parsed.rounds):
        for name, step in forms.items():
            took = seconds(lambda step=step: [step(batch) for _ in range(parsed.steps)], device)
            times[name].append(took / parsed.steps)
    flop, fastest = flop_of_step(method, frames, size, parsed.batch), {n: min(t) for n, t in times.items()}
    return {
        name: {
            "clips_a_second": 2 * parsed.batch / took,
            "tflop_a_second": flop / took / 1e12,
            "to_algorithm_1": fastest["Algorithm 1, float32"] / took,
            "first_loss": loss[name],
        }
        for name, took in fastest.items()
    }


def main() -> None:
    """Print the table, write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    parser.add_argument("--setting", nargs=3, action="append", metavar=("BACKBONE", "FRAMES", "SIZE"))
    parser.add_argument("--batch", type=int, help="videos per step, two clips each")
    parser.add_argument("--queue", type=int, default=65536)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, help="steps of each form in a round")
    parser.add_argument("--compile", action="store_true", help="compile vidssl's backbone with torch.compile")
    parser.add_argument("--json", type=Path, help="file for the figures")
    parsed = parser.parse_args()
    cuda = parsed.device.type == "cuda"
    parsed.batch, parsed.steps = parsed.batch or (64 if cuda else 4), parsed.steps or (10 if cuda else 1)
    large = [(name, *clip) for name in ("resnet3d18", "resnet3d50") for clip in ((8, 224), (16, 112))]
    settings = parsed.setting or (large if cuda else [("resnet3d18", 8, 112)])
    torch.backends.cudnn.benchmark = True
    tops, figures, rows = [peak(parsed.device)], {}, []
    for backbone, frames, size in settings:
        figures[f"{backbone}, {frames} x {size}"] = measure(backbone, int(frames), int(size), parsed)
        tops.append(peak(parsed.device))
    top = max(tops)
    for title, forms in figures.items():
        for name, x in forms.items():
            fraction, faster = 1e12 * x["tflop_a_second"] / top, x["to_algorithm_1"]
            speed = f"{x['clips_a_second']:.2f}", f"{x['tflop_a_second']:.3g}", f"{fraction:.0%}"
            rows.append([title, name, *speed, f"{faster:.2f}", f"{x['first_loss']:.4f}"])
    header = ["setting", "step", "clips/s", "TFLOP/s", "of the peak", "times faster", "first loss"]
    print(table(header, rows))
    print(f"\n{parsed.batch} videos x 2 views, queue {parsed.queue}, {parsed.rounds} rounds of {parsed.steps}")
    print(f"{parsed.device}, {torch.get_num_threads()} threads; peak {top / 1e12:.3g} TFLOP/s")
    kept = {"batch": parsed.batch, "queue": parsed.queue, "device": str(parsed.device), "peak": top}
    finish({**kept, "train_step": figures}, parsed.json)


if __name__ == "__main__":
    main()
