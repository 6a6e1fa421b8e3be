"""SCE on video (Denize et al., 2023) in one file: data, augmentation, model, loss, training, retrieval.

    python examples/sce_in_one_file.py     # trains on rendered moving digits, on a CPU; prints R@1

Two random clips of a video are two views of it; the network learns to recognise one from the other, without labels.
Decoding, backbone and image operations come from vidssl. A test compares the losses with those of `vidssl train`.
"""

import argparse
import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize
from torch.utils.data import DataLoader, Dataset

from vidssl.base.keyed_generators import generator
from vidssl.data import read_list
from vidssl.data.moving_digits import MovingDigits, ensure
from vidssl.models import build_backbone
from vidssl.transforms import color, crops, recipes
from vidssl.video import Video, open_video


@dataclass
class Settings:
    """Defaults are those of the first demo, one network: docs/results/diary.md, 22 November 2026."""

    lists: Path  # folder with train.csv and test.csv
    steps: int = 750
    batch_size: int = 32
    seed: int = 0
    workers: int = 2
    frames: int = 8  # of a clip, evenly spaced over `span` native frames of the video
    span: int = 22
    span_jitter: float = 0.0  # multiplies the span by 1 - jitter ... 1 + jitter: another speed
    reverse: float = 0.0  # probability of playing backwards
    # Augmentation; pairs are the values of both views.
    size: int = 32  # pixels
    area: tuple[float, float] = (0.8, 1.0)  # smallest and largest crop, as fractions of the frame
    jitter: tuple[float, float, float, float] = (0.4, 0.4, 0.4, 0.4)  # brightness, contrast, saturation, hue
    blur: tuple[float, float] = (0.0, 0.0)  # probability
    solarize: tuple[float, float] = (0.0, 0.0)  # probability
    difference: float = 0.2  # probability of differences of frames, which show motion without colour
    width: int = 16  # of the ResNet3D-18; 64 in the paper
    hidden: int = 256  # of projector and predictor
    dim: int = 128  # of the embeddings
    predictor: bool = False
    queue: int = 1024  # embeddings of other videos that each query is compared with
    momentum: tuple[float, float] = (0.95, 1.0)  # of the target network, start and end, cosine
    coefficient: tuple[float, float] = (1.0, 0.5)  # lambda, the weight of the positive; start and end, linear
    temperature: float = 0.2
    target_temperature: float = 0.07  # lower: the soft target is sharper
    lr: float = 1e-3
    warmup: float = 0.05  # fraction of the training
    weight_decay: float = 0.01


class TwoViews(Dataset):
    """(epoch, index) -> two augmented clips of a video, uint8 (2, T, S, S, 3)."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.records = read_list(settings.lists / "train.csv").records

    def __getitem__(self, key: tuple[int, int]) -> Tensor:
        with open_video(self.records[key[1]].path) as video:  # reads the header only
            # Every random choice is a function of (seed, epoch, index, view), whatever the number of workers.
            views = [self.view(video, n, generator(self.settings.seed, *key, n)) for n in range(2)]
        return torch.from_numpy(np.stack(views))

    def view(self, video: Video, number: int, rng: np.random.Generator) -> np.ndarray:
        """Draw a clip and augment all its frames in the same way: (T, S, S, 3)."""
        s, num_frames = self.settings, video.meta.num_frames
        span = max(1, round(s.span * rng.uniform(1 - s.span_jitter, 1 + s.span_jitter)))
        start = int(rng.integers(max(num_frames - span, 0) + 1))
        indices = evenly_spaced(start, span, s.frames) % num_frames  # a short video starts again
        if rng.random() < s.reverse:
            indices = indices[::-1]
        if rng.random() < s.difference:  # each frame minus the next native one
            pairs = color.difference_pairs(indices, start, min(start + span, num_frames) - 1)
            frames = color.rgb_difference(*(decode(video, part) for part in pairs))
        else:
            frames = decode(video, indices)
        frames = crops.random_resized_crop(frames, s.size, s.area, (3 / 4, 4 / 3), rng).frames
        if rng.random() < 0.8:
            frames = recipes.apply(frames, recipes.draw_jitter(s.jitter, rng))
        if rng.random() < 0.2:
            frames = color.grayscale(frames)
        if rng.random() < s.blur[number]:
            frames = color.gaussian_blur(frames, 23, rng.uniform(0.1, 2.0))
        if rng.random() < s.solarize[number]:
            frames = color.solarize(frames)
        if rng.random() < 0.5:
            frames = crops.flip(frames)
        return frames.transpose(0, 2, 3, 1)


def evenly_spaced(start: int, span: int, frames: int) -> np.ndarray:
    """Frame numbers from start to start + span - 1, both included."""
    return start + np.arange(frames) * (span - 1) // max(frames - 1, 1)


def decode(video: Video, indices: np.ndarray) -> np.ndarray:
    """Frames in any order, also repeated: uint8 (T, 3, H, W)."""
    frames, positions = np.unique(indices, return_inverse=True)
    return video.frames(frames)[positions]  # one forward pass of the decoder


def batches(s: Settings, num_videos: int) -> Iterator[list[tuple[int, int]]]:
    """Keys (epoch, index) of each step; epochs follow one another without a gap, so no video is dropped."""
    for step in range(s.steps):
        positions = [divmod(n, num_videos) for n in range(step * s.batch_size, (step + 1) * s.batch_size)]
        yield [(epoch, int(generator(s.seed, epoch).permutation(num_videos)[n])) for epoch, n in positions]


def to_network(clips: Tensor) -> Tensor:
    """Normalise: uint8 (B, T, S, S, 3) -> float (B, 3, T, S, S)."""
    return (clips.permute(0, 4, 1, 2, 3).float() / 255 - 0.45) / 0.225


class SCE(nn.Module):
    """An online network with gradients, a target network (its moving average), and a queue of old keys."""

    def __init__(self, s: Settings) -> None:
        super().__init__()
        self.settings = s
        self.backbone = build_backbone("resnet3d18", width=s.width, zero_init=False)
        layers = mlp(self.backbone.dim, s.hidden, s.hidden, s.dim)
        self.projector = nn.Sequential(layers, nn.BatchNorm1d(s.dim, affine=False))
        self.predictor = mlp(s.dim, s.hidden, s.dim) if s.predictor else nn.Identity()
        self.target = copy.deepcopy(nn.Sequential(self.backbone, self.projector)).requires_grad_(False)
        self.register_buffer("queue", normalize(torch.randn(s.queue, s.dim)))

    def forward(self, views: list[Tensor], progress: float) -> Tensor:
        """Mean loss over both directions: each view is the query once, the other one its key. Progress is in [0, 1]."""
        with torch.no_grad():
            keys = [normalize(self.target(view)) for view in views]  # (B, dim) each
        queries = [normalize(self.predictor(self.projector(self.backbone(view)))) for view in views]
        coefficient = float(np.interp(progress, (0, 1), self.settings.coefficient))
        losses = [self.loss(queries[q], keys[k], coefficient) for q, k in ((0, 1), (1, 0))]
        self.keys = torch.stack(keys, dim=1).flatten(0, 1)
        return torch.stack(losses).mean()

    def loss(self, query: Tensor, key: Tensor, coefficient: float) -> Tensor:
        """Cross-entropy between a soft target and the query's similarities; all rows have length 1.

        Other videos may resemble this one, so they are not plain negatives. The target gives the key the weight
        lambda, and spreads the rest over the queue by its similarity to the key.
        """
        s = self.settings
        relations = torch.softmax(key @ self.queue.T / s.target_temperature, dim=1)  # (B, K), Eq. 5
        positive = torch.full((len(key), 1), coefficient)
        target = torch.cat([positive, (1 - coefficient) * relations], dim=1)  # (B, 1 + K), Eq. 8
        similarity = torch.cat([(query * key).sum(dim=1, keepdim=True), query @ self.queue.T], dim=1)
        return cross_entropy(similarity / s.temperature, target)  # Eq. 9 and 10

    @torch.no_grad()
    def after_step(self, progress: float) -> None:
        """Move the target slowly, so that old keys stay comparable; then replace the oldest keys by the new ones."""
        online = [*self.backbone.parameters(), *self.projector.parameters()]
        for p, q in zip(self.target.parameters(), online, strict=True):
            p.lerp_(q, 1 - cosine(*self.settings.momentum, progress))
        self.queue = torch.cat([self.queue[len(self.keys) :], self.keys])


def mlp(*dims: int) -> nn.Sequential:
    """Linear layers with batch norm and ReLU between them."""
    layers: list[nn.Module] = []
    for inner, outer in pairwise(dims):
        layers += [nn.Linear(inner, outer, bias=False), nn.BatchNorm1d(outer), nn.ReLU()]
    return nn.Sequential(*layers[:-2])


def cosine(start: float, end: float, progress: float) -> float:
    """Half a period of a cosine from start to end."""
    return end + (start - end) * (1 + math.cos(math.pi * progress)) / 2


def train(model: SCE) -> list[float]:
    """Train with AdamW, warm-up and a cosine learning rate; returns the loss of each step."""
    s, losses = model.settings, []
    videos = TwoViews(s)
    loader = DataLoader(videos, batch_sampler=batches(s, len(videos.records)), num_workers=s.workers)
    trained = [p for p in model.parameters() if p.requires_grad]
    matrices, vectors = [p for p in trained if p.ndim > 1], [p for p in trained if p.ndim <= 1]
    groups = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]  # biases and norms do not decay
    optimizer = torch.optim.AdamW(groups, weight_decay=s.weight_decay)
    for step, clips in enumerate(loader):  # (B, 2, T, S, S, 3)
        progress = step / s.steps
        for group in optimizer.param_groups:
            after = (progress - s.warmup) / (1 - s.warmup)
            group["lr"] = s.lr * progress / s.warmup if after < 0 else cosine(s.lr, 0, after)
        loss = model([to_network(view) for view in clips.unbind(dim=1)], progress)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        model.after_step((step + 1) / s.steps)
        losses.append(loss.item())
        if step % 50 == 0:
            print(f"step {step}: loss {losses[-1]:.4f}", flush=True)
    return losses


@torch.no_grad()
def features(model: SCE, path: Path) -> tuple[Tensor, Tensor]:
    """Unit features (N, D) of the backbone, means over evenly spaced clips, and labels (N,) of a list."""
    s, rows, records = model.settings, [], read_list(path).records
    model.eval()
    for record in records:
        with open_video(record.path) as video:
            length = video.meta.num_frames
            starts = np.linspace(0, max(length - s.span, 0), 3).round().astype(int)
            clips = [decode(video, evenly_spaced(start, s.span, s.frames) % length) for start in starts]
        views = [crops.center_crop(clip, s.size).frames.transpose(0, 2, 3, 1) for clip in clips]
        rows.append(model.backbone(to_network(torch.from_numpy(np.stack(views)))).mean(dim=0))
    model.train()
    return normalize(torch.stack(rows)), torch.tensor([record.label for record in records])


def recall_at_1(model: SCE) -> float:
    """Retrieval: fraction of test videos whose nearest training video, by cosine similarity, has the same class."""
    gallery, gallery_labels = features(model, model.settings.lists / "train.csv")
    query, labels = features(model, model.settings.lists / "test.csv")
    return (gallery_labels[(query @ gallery.T).argmax(dim=1)] == labels).float().mean().item()


def main() -> None:
    """Render moving digits, train on them, and print R@1 before and after."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--data", type=Path, default=Path("output/digits"), help="rendered where missing")
    parser.add_argument("--videos", type=int, default=640, help="of the training set")
    parser.add_argument("--steps", type=int, default=Settings.steps)
    options = parser.parse_args()
    ensure(options.data, MovingDigits(train=options.videos, test=options.videos // 4, frames=48, size=48))
    torch.manual_seed(Settings.seed)
    model = SCE(Settings(options.data / "motion", steps=options.steps))
    print(f"untrained: R@1 {recall_at_1(model):.3f}", flush=True)
    train(model)
    print(f"trained: R@1 {recall_at_1(model):.3f}")


if __name__ == "__main__":
    main()
