"""# Frame invariance with tracks

Find the same object in frames that are far apart, and train a network to encode both alike.
"""

# %%
# **A first network**, trained without tracks: two frames of a video that are at least 40 frames apart are the two
# views. 80 steps are enough to distinguish digits from textures.
from vidssl.cli import run

digits, out = "output/gallery/digits", "output/gallery/tracks"
run("prepare", ["moving-digits", "--out", digits, "--train", "240", "--test", "80", "--quiet"])
small = ["batch_size=24", "backbone.width=16", "method.queue=128", "log_every=1"]
lists = [f"data.train={digits}/colour/train.csv"]
run("train", ["--cfg", "frame_invariance_small", *lists, *small, "steps=80", f"output={out}/plain", "--quiet"])

# %%
# **Track.** The tracker proposes regions in each frame and links those with similar features, without labels and
# without a trained detector. The settings fit videos of 64 pixels. 16 videos are enough here.
run("prepare", ["moving-digits", "--out", f"{out}/digits", "--train", "16", "--test", "0", "--quiet"])
videos, checkpoint = f"{out}/digits/colour/train.csv", f"{out}/plain/checkpoints/last.pt"
settings = ["size=128", "search.short_side=96", "stride=3", "max_step=0.3", "min_gap=39"]
run("track", [videos, "--checkpoint", checkpoint, "--out", f"{out}/files", "--tracker", *settings, "--quiet"])

# %%
# **The best pair** of regions of four videos: frames 0 and 39.
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import vidssl
from vidssl.data.track_files import read_tracks
from vidssl.tracking.overlay import draw_pairs

figure, axes = plt.subplots(1, 4, figsize=(10, 1.6), layout="constrained")
for panel, path in zip(axes, sorted(Path(out, "digits/videos/train").iterdir()), strict=False):
    tracks, _ = read_tracks(Path(out, f"files/tracks/videos/train/{path.name}.npz"))
    pair = np.flatnonzero(tracks.track == tracks.track[tracks.scores.argmax()])
    with vidssl.open_video(path) as video:
        frames = video.frames(tracks.frames[pair])
    panel.imshow(draw_pairs(frames, tracks.boxes[pair][None], tracks.scores[pair][:1]))
    panel.axis("off")
figure.savefig("output/gallery/frame_invariance_with_tracks.png", dpi=110)

# %%
# **Train with tracks**: half of the loss compares the two regions of a track. `tracked` in the log is the
# fraction of videos whose augmented views both contain their region.
import json

more = ["init=" + checkpoint, f"tracks.folder={out}/files", "batch_size=16", "steps=60", f"output={out}/tracked"]
run("train", ["--cfg", "frame_invariance_tracks_small", f"data.train={videos}", *small, *more, "--quiet"])
lines = [json.loads(line) for line in open(f"{out}/tracked/metrics.jsonl")]
for key in ("tracked", "positive_similarity", "negative_similarity"):
    first, last = (np.mean([line[key] for line in part]) for part in (lines[:10], lines[-10:]))
    print(f"{key:20} {first:.2f} -> {last:.2f}")

# %%
# With `tracks.refresh` a run makes new tracks while it learns. What tracks change, in numbers: [frame
# invariance](../../docs/methods/frame_invariance.md#effect-of-tracks). The tracker:
# [tracking](../../docs/tracking.md).
