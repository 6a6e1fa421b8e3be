"""# Long videos

Find the moment of a long video that a short one shows: cut it into windows, encode each, and compare.
"""

# %%
# **A long video**: 20 clips of moving digits, one after the other, 38 seconds in one file.
import csv
from pathlib import Path

import av
import numpy as np

import vidssl
from vidssl.cli import run

digits, out = Path("output/gallery/digits"), Path("output/gallery/long")
run("prepare", ["moving-digits", "--out", str(digits), "--train", "240", "--test", "80", "--quiet"])
with open(digits / "colour" / "test.csv") as file:
    parts = [*csv.DictReader(file)][:20]
out.mkdir(parents=True, exist_ok=True)
with av.open(str(out / "long.mp4"), "w") as container:
    stream = container.add_stream("libx264", rate=25, options={"crf": "18"})
    stream.width = stream.height = 64
    for part in parts:
        with vidssl.open_video(digits / part["path"]) as video:
            for image in video.iter_frames():
                container.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")))
    container.mux(stream.encode())

# %%
# **Windows** of 1.28 seconds, every 0.64 seconds: one row of features for each.
network = ["--checkpoint", "vidssl-free", "--clips", "1", "--quiet"]
windows = ["--window", "1.28", "--stride", "0.64"]
run("extract", [str(out / "long.mp4"), *network, *windows, "--out", str(out / "windows")])
with open(out / "windows" / "rows.csv") as file:
    starts = np.array([float(row["start"]) for row in csv.DictReader(file)])

# %%
# **Search** with the file of the 13th clip. In the long video it was encoded a second time, and windows do not begin
# where the clip does. Centre first: all windows have much in common.
query = digits / parts[12]["path"]
run("extract", [str(query), *network, "--out", str(out / "query")])
windows, query_row = (np.load(out / name / "features.npy") for name in ("windows", "query"))
mean = windows.mean(axis=0)
windows, query_row = ((x - mean) / np.linalg.norm(x - mean, axis=1, keepdims=True) for x in (windows, query_row))
similarity = windows @ query_row[0]
best = starts[similarity.argmax()]
print(f"{len(windows)} windows; the most similar one starts at {best:.1f} s, the clip at {12 * 1.92:.1f} s")

# %%
# **Over time.**
import matplotlib.pyplot as plt

figure, axes = plt.subplots(figsize=(9, 2.8), layout="constrained")
axes.plot(starts + 0.64, similarity, color="#2a5bc7", marker=".")
axes.axvspan(12 * 1.92, 13 * 1.92, color="#2b8a5a", alpha=0.25, label="the clip")
axes.set(xlabel="seconds (middle of the window)", ylabel="cosine similarity", xlim=(0, len(parts) * 1.92))
axes.legend(frameon=False)
figure.savefig("output/gallery/long_videos.png", dpi=110)
