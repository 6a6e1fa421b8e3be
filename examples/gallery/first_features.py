"""# First features

Extract the features of some videos with the network that comes with vidssl, and draw a map of them. Nothing is
downloaded, and nothing is trained.
"""

# %%
# **Videos.** `vidssl prepare` renders 320 short videos of moving digits, with lists of their motions, colours and
# digits. `run` is the command line in Python: `vidssl prepare moving-digits --out …` in a shell does the same.
from vidssl.commands import run

digits = "output/gallery/digits"
run("prepare", ["moving-digits", "--out", digits, "--train", "240", "--test", "80", "--quiet"])

# %%
# **Features.** One row of 128 numbers for each video: the mean of four clips. Your own folder of videos can stand
# in place of the list.
out = "output/gallery/first_features"
run("extract", [f"{digits}/colour/test.csv", "--checkpoint", "vidssl-small", "--out", out, "--quiet"])

# %%
# **Nearest neighbours.** Subtract the mean of all videos, and compare by cosine similarity.
import csv

import numpy as np

x = np.load(f"{out}/features.npy")
with open(f"{out}/rows.csv") as file:
    rows = [*csv.DictReader(file)]
x = x - x.mean(axis=0)
x = x / np.linalg.norm(x, axis=1, keepdims=True)
similarity = x @ x.T - 2 * np.eye(len(x))  # a video is not its own neighbour
label = np.array([int(row["label"]) for row in rows])
same = (label == label[similarity.argmax(axis=1)]).mean()
chance = (np.sum(np.bincount(label) ** 2) - len(label)) / (len(label) * (len(label) - 1))
print(f"{len(x)} videos; nearest neighbour of the same colour: {same:.0%}, by chance {chance:.0%}")

# %%
# **A map**: each video is drawn at the place of its features, t-SNE of two dimensions.
import matplotlib.pyplot as plt
from matplotlib.offsetbox import AnnotationBbox, OffsetImage
from sklearn.manifold import TSNE

import vidssl

place = TSNE(metric="cosine", init="pca", perplexity=12, random_state=0).fit_transform(x)
figure, axes = plt.subplots(figsize=(8, 6), layout="constrained")
axes.scatter(*place.T, s=0)
for row, point in zip(rows, place, strict=True):
    with vidssl.open_video(f"{digits}/{row['path']}") as video:
        frame = video.frames([video.meta.num_frames // 2])[0]  # (3, H, W) uint8
    axes.add_artist(AnnotationBbox(OffsetImage(frame.transpose(1, 2, 0), zoom=0.5), point, frameon=False))
axes.axis("off")
figure.savefig("output/gallery/first_features.png", dpi=110)

# %%
# The network was trained on videos of people, to tell scenes apart: it sees the colours of the background more
# than those of the small digits. More about features: [evaluation](../../docs/evaluation.md#features).
