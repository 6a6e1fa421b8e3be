"""Learn colour spaces and train CMC on their views, over several seeds: a table of docs/results/views.md.

    python benchmarks/coloured_digits.py --mnist /data/mnist --gray 0.7 --out data/pale_digits
    python benchmarks/learned_views.py --lists data/pale_digits --out output/studies/views/learned

For each seed: `learn_views.yaml` with volume preserving and other flows, without and with labels of a tenth of the
images; then `learned_small.yaml` on the views of each flow, frozen, and `channels_small.yaml` on those of RGB and Lab.
All are in configs/studies/views/. Their settings hold except for the data: the images are read once and not cropped, so
that a run takes seconds. Writes OUT/results.json after each run; the same command continues.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev

import torch
from measure import table
from torch import Tensor
from torch.nn import functional

from vidssl.apps.views.cmc import Split, TwoEncoders
from vidssl.base.atomic import write_json
from vidssl.base.keyed_generators import generator
from vidssl.base.types import Batch, Features
from vidssl.data.video_list import read_list
from vidssl.engine.optim import build_optimizer, set_lr
from vidssl.engine.run_config import Run, load_run
from vidssl.evaluation.protocols import KNN, Logistic
from vidssl.methods import METHODS
from vidssl.methods.base import Method
from vidssl.models.backbones import build_backbone
from vidssl.video.reader import open_video

CONFIGS = Path("configs/studies/views")
FLOWS = {
    "volume preserving": (True, None),
    "not volume preserving": (False, None),
    "volume preserving, semi-supervised": (True, 10),
    "not volume preserving, semi-supervised": (False, 10),
}
SPACES = ("rgb", "lab")
UNTRAINED = "rgb, untrained"
Images = tuple[Tensor, Tensor]  # (N, 3, 1, S, S) in [0, 1], labels (N,)
Numbers = dict[str, float]


def main() -> None:
    """Run all seeds and print a table."""
    parser = argparse.ArgumentParser(description="Learn views, and train CMC on them, over several seeds.")
    parser.add_argument("--lists", type=Path, required=True, help="folder of benchmarks/coloured_digits.py")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="for all runs")
    parsed = parser.parse_intermixed_args()
    torch.set_num_threads(1)
    images = {name: read_images(parsed.lists / f"{name}.csv") for name in ("train", "test", "labels10")}
    file = parsed.out / "results.json"
    results: dict[str, dict[str, Numbers]] = json.loads(file.read_text()) if file.exists() else {}
    for seed in map(str, parsed.seeds):
        for name in (UNTRAINED, *SPACES, *FLOWS):
            if seed not in results.get(name, {}):
                results.setdefault(name, {})[seed] = measure(name, int(seed), images, parsed.overrides)
                write_json(file, results)
                print(name, seed, results[name][seed], flush=True)
    print(summary(results))


def read_images(file: Path) -> Images:
    """Read the images of a list."""
    records = read_list(file).records
    pixels = []
    for record in records:
        with open_video(record.path) as video:
            pixels.append(torch.from_numpy(video.frames([0])[0].copy()))
    return torch.stack(pixels)[:, :, None].float() / 255, torch.tensor([record.label for record in records])


def measure(name: str, seed: int, images: dict[str, Images], overrides: Sequence[str]) -> Numbers:
    """Learn views, unless `name` is that of a colour space, and measure CMC on them."""
    numbers: Numbers = {}
    common = [f"seed={seed}", *overrides]
    if name in SPACES or name == UNTRAINED:
        run = load_run(CONFIGS / "channels_small.yaml", [*common, f"backbone.split.space={name.split(',')[0]}"])
        method = build(run)
    else:
        preserving, classes = FLOWS[name]
        text = str(preserving).lower()
        flow_run = load_run(
            CONFIGS / "learn_views.yaml",
            [*common, f"backbone.volume_preserving={text}", f"method.classes={'null' if classes is None else classes}"],
        )
        learner = build(flow_run)
        numbers_of_flow = fit(flow_run, learner, images["labels10"])
        numbers |= {f"flow {key}": value for key, value in numbers_of_flow.items()}
        run = load_run(CONFIGS / "learned_small.yaml", [*common, f"backbone.split.flow.volume_preserving={text}"])
        method = build(run)
        assert isinstance(method.backbone, TwoEncoders) and isinstance(method.backbone.split, Split)
        method.backbone.split.flow.load_state_dict(learner.backbone.state_dict())
    if name != UNTRAINED:
        numbers["i_nce"] = fit(run, method, images["train"])["i_nce"]
    return numbers | test(run, method, images["train"], images["test"])


def build(run: Run) -> Method:
    """Build the method of a run with the weights of its seed."""
    torch.manual_seed(run.seed)
    backbone = build_backbone(**run.backbone.model_dump())
    return METHODS[run.method.name](run.method, backbone)


def fit(run: Run, method: Method, images: Images) -> Numbers:
    """Train, and return what the last tenth of the steps measured."""
    pixels, labels = resized(run, images)
    optimizer = build_optimizer(run.optimizer, method)
    method.train()
    method.watched = True
    history: list[Numbers] = []
    for step in range(run.steps):
        set_lr(optimizer, run.optimizer, step / run.steps, run.batch_size)
        rows = torch.from_numpy(generator(run.seed, step).choice(len(pixels), run.batch_size, replace=False))
        scalars = method(Batch((pixels[rows],), labels[rows], rows))
        optimizer.zero_grad(set_to_none=True)
        scalars["loss"].backward()
        optimizer.step()
        method.after_step((step + 1) / run.steps)
        history.append({key: float(scalars[key]) for key in scalars if key == "i_nce" or key.startswith("accuracy")})
    last_steps = history[-max(1, run.steps // 10) :]
    return {key: mean(scalars[key] for scalars in last_steps) for key in last_steps[0]}


@torch.no_grad()
def test(run: Run, method: Method, train: Images, test: Images) -> Numbers:
    """Measure kNN and the linear probe of the features of both views, joined."""
    method.eval()
    features = []
    for pixels, labels in (resized(run, train), resized(run, test)):
        x = torch.cat([method.backbone(part) for part in pixels.split(200)])
        features.append(Features(x, labels, torch.arange(len(x))))
    exclude = torch.empty(0, 2, dtype=torch.int64)
    knn, probe = KNN(KNN.Config()), Logistic(Logistic.Config(costs=(1.0,)))
    return knn(*features, exclude).numbers | probe(*features, exclude).numbers


def resized(run: Run, images: Images) -> Images:
    """Resize images to the size of the run's views."""
    pixels, size = images[0][:, :, 0], run.data.views[0].size
    shift, scale = (torch.tensor(value).view(-1, 1, 1) for value in (run.data.mean, run.data.std))
    small = functional.interpolate(pixels, (size, size), mode="bilinear", antialias=True, align_corners=False)
    return ((small - shift) / scale)[:, :, None], images[1]


def summary(results: dict[str, dict[str, Numbers]]) -> str:
    """Table of means and standard deviations over seeds."""
    columns = {
        "I_NCE": ("i_nce", 1),
        "kNN": ("knn", 100),
        "linear probe": ("logistic", 100),
        "I_NCE of the last steps of the flow": ("flow i_nce", 1),
    }
    rows = []
    for name, seeds in results.items():
        cells = []
        for key, scale in columns.values():
            values = [scale * numbers[key] for numbers in seeds.values() if key in numbers]
            spread = f" ± {stdev(values):.2f}" if len(values) > 1 else ""
            cells.append(f"{mean(values):.2f}{spread}" if values else "–")
        rows.append([name, *cells])
    return table(["views", *columns], rows)


if __name__ == "__main__":
    main()
