"""Count the bytes that a run sends and holds by the number of processes, from its config.

python benchmarks/scaling.py --cfg configs/pretrain/sce_r3d50_k400.yaml --world 1 8 64

`tests/distributed/test_scaling.py` compares the bytes with those of a real run. With `--step-ms`, for one video on one
GPU, and `--network`, it also estimates the time of computation, network and decoding. `--activations` encodes a view on
the CPU, and adds up what its backward pass keeps. The hours of a whole run are in `costs.py`.
"""

import argparse
from pathlib import Path

import torch
from measure import table

from vidssl.base.config import build
from vidssl.engine.run_config import Run, load_run
from vidssl.engine.run_setup import channels_last
from vidssl.methods import METHODS, Method
from vidssl.methods.momentum_method import MomentumMethod
from vidssl.models.backbones import BACKBONES
from vidssl.models.batch_norms import batch_norms

FLOAT = 4  # bytes


def gradients(method: Method) -> int:
    """Bytes of all gradients, which are averaged once per step."""
    return FLOAT * sum(p.numel() for p in method.parameters() if p.requires_grad)


def keys(run: Run, method: Method, world: int) -> int:
    """Bytes of the keys that a process sends to all others in a step."""
    if not isinstance(method, MomentumMethod):
        return 0
    return FLOAT * run.batch_size // world * len(method.config.key_views) * method.queue.keys.shape[1]


def batch_norm(run: Run, method: Method, world: int, own_form: bool = False) -> tuple[int, int]:
    """Bytes that a process sends for synchronised batch norm in a step, and the number of messages.

    The forward pass sends mean, variance and count of each layer for each view; the backward pass the gradients of the
    online network: 2 numbers per channel in torch's version (GPUs), 2 C + 1 per process in ours (`own_form`, CPUs).
    """
    if world == 1:
        return 0, 0
    views, micro = (len(run.data.views), run.batch_size // world // (run.micro_batch_size or run.batch_size // world))
    target = batch_norms(method.target) if isinstance(method, MomentumMethod) else []
    online = [norm for norm in batch_norms(method) if not any(norm is norm_of_target for norm_of_target in target)]
    # Methods with keys encode each view that has a key in another view; the supervised method all views at once.
    key_views = method.config.key_views if isinstance(method, MomentumMethod) else ()
    passes = sum(any(q != k for k in key_views) for q in range(views)) if target else 1
    sent = [2 * norm.num_features + 1 for norm in online]
    back = [world * n if own_form else n - 1 for n in sent]
    numbers = passes * (sum(sent) + sum(back))
    messages = 2 * passes * len(online)
    if target:
        numbers += len(key_views) * sum(2 * norm.num_features + 1 for norm in target)
        messages += len(key_views) * len(target)
    return FLOAT * micro * numbers, micro * messages


def state(run: Run, method: Method) -> dict[str, int]:
    """Bytes that each process holds: weights, gradients, optimizer, queue."""
    weights = FLOAT * sum(p.numel() for p in method.parameters())
    copies = {"lars": 1, "sgd": 1, "adamw": 2}[run.optimizer.name]
    queue = method.queue.keys.numel() * FLOAT if isinstance(method, MomentumMethod) else 0
    return {"weights": weights, "gradients": gradients(method), "optimizer": copies * gradients(method), "queue": queue}


def clips(run: Run, world: int) -> int:
    """Bytes of the uint8 pixels that a process copies to its device in a step."""
    pixels = sum(3 * view.size**2 for view in run.data.views)
    return run.batch_size // world * run.data.sampler.frames * pixels


def activations(run: Run) -> int:
    """Bytes that the backward pass of the backbone keeps of one view, in the precision of the run.

    Measured on a CPU: of two views less those of one, so that weights in that precision do not count.
    """
    sizes, size = [], run.data.views[0].size
    backbone = build(BACKBONES, run.backbone)
    channels_last(backbone)
    for views in (1, 2):
        saved: list[torch.Tensor] = []
        clips_of_views = torch.rand(views, 3, run.data.sampler.frames, size, size)
        with (
            torch.autograd.graph.saved_tensors_hooks(lambda x, saved=saved: saved.append(x) or x, lambda x: x),
            torch.autocast("cpu", torch.bfloat16, enabled=run.precision == "bfloat16"),
        ):
            backbone(clips_of_views.contiguous(memory_format=torch.channels_last_3d))
        storages = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in saved}
        sizes.append(sum(storages.values()))
    return sizes[1] - sizes[0]


def untrained(run: Run) -> Method:
    """Build the method of a run without allocating its weights."""
    with torch.device("meta"):
        method: Method = build(METHODS, run.method, build(BACKBONES, run.backbone))
    return method


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cfg", type=Path, required=True)
    parser.add_argument("--world", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--step-ms", type=float, help="forward and backward of one video on one GPU, milliseconds")
    parser.add_argument(
        "--network", type=float, default=25.0, help="GB/s that each GPU sends and receives (default 25)"
    )
    parser.add_argument("--message-us", type=float, default=40.0, help="time of a small message (default 40)")
    parser.add_argument("--view-ms", type=float, default=26.7, help="CPU time of a view in a worker (default 26.7)")
    parser.add_argument("--activations", action="store_true", help="memory of the backward pass")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    parsed = parser.parse_intermixed_args()
    run = load_run(parsed.cfg, parsed.overrides)
    method = untrained(run)
    mega = 1e6
    rows = []
    for world in parsed.world:
        norm, messages = batch_norm(run, method, world)
        volume = gradients(method) if world > 1 else 0
        key = keys(run, method, world) if world > 1 else 0
        row = [str(world), str(run.batch_size // world), f"{volume / mega:.0f}", f"{key / mega:.2f}"]
        row += [f"{norm / mega:.2f}", str(messages), f"{clips(run, world) / mega:.0f}"]
        if parsed.step_ms is not None:
            # A ring all-reduce sends 2 (w - 1) / w of its data, an all-gather w - 1 times that of one process.
            sent = 2 * (world - 1) / world * (volume + norm) + (world - 1) * key
            step = parsed.step_ms * run.batch_size / world
            row += [f"{step:.0f}", f"{sent / parsed.network / mega:.1f}", f"{messages * parsed.message_us / 1000:.0f}"]
            row += [f"{len(run.data.views) * parsed.view_ms / parsed.step_ms:.1f}"]
        rows.append(row)
    header = ["processes", "videos each", "gradients", "keys", "batch norm", "its messages", "clips to the device"]
    if parsed.step_ms is not None:
        header += ["compute, ms", "network, ms", "small messages, ms", "cores for decoding, each"]
    print("A step of one process, MB:\n")
    print(table(header, rows))
    sizes = state(run, method)
    print("\nHeld by each process, MB: " + ", ".join(f"{name} {size / mega:.0f}" for name, size in sizes.items()))
    if parsed.activations:
        of_view = activations(run) / mega
        micro = (run.micro_batch_size or run.batch_size // world for world in parsed.world)
        in_all = (f"{of_view * len(run.data.views) * n / 1000:.0f} of {n}" for n in micro)
        print(f"\nActivations of a view, MB: {of_view:.0f}; of the videos of a process, GB: {', '.join(in_all)}")


if __name__ == "__main__":
    main()
