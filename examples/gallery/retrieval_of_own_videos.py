"""# Retrieval of own videos

Search a folder of videos with one video. No list and no labels are needed.
"""

# %%
# **A folder of videos**, here rendered ones; put the path of your own in its place. The query is a video that is
# not in it.
from pathlib import Path

from vidssl.cli import run

run("prepare", ["moving-digits", "--out", "output/gallery/digits", "--train", "240", "--test", "80", "--quiet"])
gallery = Path("output/gallery/digits/videos/train")
query = Path("output/gallery/digits/videos/test/00008.mp4")

# %%
# **Search.** The command encodes the folder once, into `--index`: the next query is faster. It prints rank,
# similarity and path, and writes `index.html`, a page with the videos.
out = Path("output/gallery/retrieval")
options = ["--gallery", str(gallery), "--index", str(out / "index"), "--query", str(query)]
run("retrieval", ["--checkpoint", "vidssl-free", *options, "--k", "5", "--out", str(out), "--quiet"])

# %%
# **The results as data** are in `results.json`. `open_video` decodes exact frames by number: here the middle of
# each video.
import json

import matplotlib.pyplot as plt

import vidssl

neighbours = json.loads((out / "results.json").read_text())["neighbours"]
paths = [query, *(gallery / Path(neighbour["path"]).name for neighbour in neighbours)]
titles = ["query", *(f"{neighbour['similarity']:.3f}" for neighbour in neighbours)]
figure, axes = plt.subplots(1, 6, figsize=(9, 1.8), layout="constrained")
for panel, path, title in zip(axes, paths, titles, strict=True):
    with vidssl.open_video(path) as video:
        frame = video.frames([video.meta.num_frames // 2])[0]  # (3, H, W) uint8
    panel.imshow(frame.transpose(1, 2, 0))
    panel.set_title(title, fontsize=10)
    panel.axis("off")
figure.savefig("output/gallery/retrieval_of_own_videos.png", dpi=120)

# %%
# With lists that have labels, the same command measures R@k and kNN, and the page marks right and wrong results:
# [retrieval](../../docs/evaluation.md#search-with-one-video).
