"""A map of what a network finds similar: t-SNE of several random views of some videos (InterCLR, Fig. 7).

    python examples/tsne.py output/demo/run/checkpoints/last.pt output/demo/data/motion/test.csv --out tsne.png

Each point is a view that the training would make; its colour is the class, its number the video. Points of one number
that lie together: the network ignores the augmentations. Points of one colour: it finds videos of a class similar.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from sklearn.manifold import TSNE

from vidssl.base.config import build
from vidssl.base.keyed_generators import generator
from vidssl.data import SAMPLERS, ClipDataset, read_list
from vidssl.data.to_device import normalised
from vidssl.data.video_list import VideoList
from vidssl.jobs.load_network import load_subject
from vidssl.page.figure_style import COLORS, INK, new_figure, png
from vidssl.transforms import RECIPES


def main() -> None:
    """Draw the map."""
    parser = argparse.ArgumentParser(description="t-SNE of random views of some videos.")
    parser.add_argument("checkpoint", help="checkpoint of a run")
    parser.add_argument("list", type=Path, help="list of videos, with labels")
    parser.add_argument("--out", type=Path, required=True, help="PNG")
    parser.add_argument("--videos", type=int, default=4, help="of each class (default 4)")
    parser.add_argument("--classes", type=int, default=5, help="the first ones of the list (default 5)")
    parser.add_argument("--views", type=int, default=8, help="of each video (default 8)")
    parser.add_argument("--seed", type=int, default=0)
    parsed = parser.parse_args()
    videos = read_list(parsed.list)
    rows = draw_rows(videos, parsed.classes, parsed.videos, parsed.seed)
    x = encode(parsed.checkpoint, videos, rows, parsed.views, parsed.seed)
    xy = TSNE(metric="cosine", init="pca", perplexity=min(30, len(x) // 3), random_state=parsed.seed).fit_transform(x)
    draw(xy.reshape(len(rows), parsed.views, 2), videos, rows, parsed.out)


def draw_rows(videos: VideoList, classes: int, count: int, seed: int) -> list[int]:
    """Draw rows of the list: `count` of each of the first classes."""
    rows = []
    for label in sorted({*videos.labels.tolist()} - {-1})[:classes]:
        rows += generator(seed, label).permutation(np.flatnonzero(videos.labels == label))[:count].tolist()
    return rows


@torch.no_grad()
def encode(checkpoint: str, videos: VideoList, rows: list[int], views: int, seed: int) -> np.ndarray:
    """Encode random views of the rows with the sampler and the first recipe of the run: (rows * views, dim)."""
    subject = load_subject(checkpoint, {})
    data = subject.require_run("the views of a run").data
    recipes = [build(RECIPES, data.views[0])] * 2  # samplers of pairs need two
    dataset = ClipDataset(videos, build(SAMPLERS, data.sampler), recipes, seed)
    views_of_rows = [dataset[epoch, row].views[0] for row in rows for epoch in range(views)]
    clips = torch.from_numpy(np.stack(views_of_rows)).to(subject.device)
    parts = [subject.backbone(normalised(part, data.mean, data.std)) for part in torch.split(clips, 16)]
    return torch.cat(parts).cpu().numpy()


def draw(xy: np.ndarray, videos: VideoList, rows: list[int], out: Path) -> None:
    """Draw the points (rows, views, 2)."""
    figure = new_figure(7, 6)
    axes = figure.add_subplot()
    labels = videos.labels[rows].tolist()
    for number, label in enumerate(sorted({*labels})):
        color = COLORS[number % len(COLORS)]
        for video, row in enumerate(np.flatnonzero(np.array(labels) == label)):
            for x, y in xy[row]:
                axes.text(x, y, str(video + 1), color=color, fontsize=8, ha="center", va="center")
        name = videos.classes[label] if videos.classes else f"class {label}"
        axes.plot([], [], "o", color=color, label=name)
    low, high = xy.min(axis=(0, 1)), xy.max(axis=(0, 1))
    axes.set(xlim=(low[0] - 2, high[0] + 2), ylim=(low[1] - 2, high[1] + 2), xticks=[], yticks=[])
    axes.legend(fontsize=8, frameon=False, labelcolor=INK, loc="upper left", bbox_to_anchor=(1, 1))
    axes.spines[:].set_visible(False)
    out.write_bytes(png(figure))


if __name__ == "__main__":
    main()
