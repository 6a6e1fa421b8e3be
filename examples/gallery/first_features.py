"""# First features

Extract the features of some videos with a network that comes with vidssl, and draw a map of them. Nothing is
downloaded, and nothing is trained.
"""

# %%
# **Videos.** `vidssl prepare` renders 320 short videos of moving digits, with lists of their motions, colours and
# digits. `run` is the command line in Python: `vidssl prepare moving-digits --out …` in a shell does the same.
from vidssl.cli import run

digits = "output/gallery/digits"
run("prepare", ["moving-digits", "--out", digits, "--train", "240", "--test", "80", "--quiet"])

# %%
# **Features.** One row of 256 numbers for each video: the mean of four clips. Your own folder of videos can stand
# in place of the list. `vidssl extract` in a shell writes the same to a folder.
import torch

import vidssl

videos = vidssl.read_input(f"{digits}/motion/test.csv")
features = vidssl.extract("vidssl-free", videos, progress=False)

# %%
# **Nearest neighbours**: subtract the mean of all videos, and compare by cosine similarity. Without a query, `search`
# compares the videos with one another.
near = vidssl.search(features, k=1, center=True)
same_motion = (features.label == features.label[near.index[:, 0]]).float().mean()
count, n = torch.bincount(features.label), len(features.label)
chance = (count * (count - 1)).sum() / (n * (n - 1))
print(f"{n} videos; nearest neighbour of the same motion: {same_motion:.0%}, by chance {chance:.0%}")

# %%
# **A map**: each video is drawn at the place of its features, t-SNE of two dimensions.
import matplotlib.pyplot as plt
from matplotlib.offsetbox import AnnotationBbox, OffsetImage
from sklearn.manifold import TSNE

x = features.x - features.x.mean(dim=0)
positions = TSNE(metric="cosine", init="pca", perplexity=12, random_state=0).fit_transform(x.numpy())
figure, axes = plt.subplots(figsize=(8, 6), layout="constrained")
axes.scatter(*positions.T, s=0)
for row, point in zip(features.index.tolist(), positions, strict=True):
    with vidssl.open_video(videos.root / videos.names[row]) as video:
        frame = video.frames([video.meta.num_frames // 2])[0]  # (3, H, W) uint8
    axes.add_artist(AnnotationBbox(OffsetImage(frame.transpose(1, 2, 0), zoom=0.5), point, frameon=False))
axes.axis("off")
figure.savefig("output/gallery/first_features.png", dpi=110)

# %%
# The network was trained on generated videos of things that move over textures, and has never seen digits: what it
# sees of these is how they move and what is behind them. More about features:
# [evaluation](../../docs/evaluation.md#features).
