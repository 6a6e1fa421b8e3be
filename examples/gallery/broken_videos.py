"""# Broken videos

Cut, overwritten and empty files are common in large sets. `vidssl check` finds them before a run, with the
reason.
"""

# %%
# **Break some videos** on purpose.
import shutil
from pathlib import Path

from vidssl.cli import run

run("prepare", ["moving-digits", "--out", "output/gallery/digits", "--train", "240", "--test", "80", "--quiet"])
source, folder = Path("output/gallery/digits/videos/train"), Path("output/gallery/broken/videos")
shutil.rmtree(folder.parent, ignore_errors=True)
folder.mkdir(parents=True)
content = [(source / f"{number:05d}.mp4").read_bytes() for number in range(5)]
half = len(content[0]) // 2
(folder / "intact.mp4").write_bytes(content[0])
(folder / "cut.mp4").write_bytes(content[1][: half // 2])
(folder / "overwritten.mp4").write_bytes(content[2][:half] + bytes(400) + content[2][half + 400 :])
(folder / "empty.mp4").write_bytes(b"")
(folder / "a_web_page.mp4").write_bytes(b"<!doctype html><title>404</title>")

# %%
# **Check the folder.** Each file is decoded completely, in a process that may crash or hang. The command writes a
# list of the intact videos, and a report.
import csv

out = Path("output/gallery/broken/checked")
try:
    run("check", [str(folder), "--out", str(out), "--quiet"])
except SystemExit as status:
    print(f"exit status {status.code}: some videos are broken")
with open(out / "report.csv") as file:
    findings = {Path(row["path"]).name: row["finding"] for row in csv.DictReader(file)}

# %%
# **What can still be decoded?** `open_video` never returns a damaged frame: it raises an error that names file
# and frame.
import matplotlib.pyplot as plt

import vidssl
from vidssl.base.errors import VidsslError

numbers = [0, 9, 18, 27, 36, 45]
paths = sorted(folder.iterdir(), key=lambda path: (path.name != "intact.mp4", path.name))
figure, axes = plt.subplots(len(paths), 6, figsize=(7.5, 6.4), layout="constrained")
for row, path in zip(axes, paths, strict=True):
    row[0].set_ylabel(
        f"{path.stem}\n{findings.get(path.name, 'kept')}", rotation=0, ha="right", va="center", fontsize=9
    )
    for panel, number in zip(row, numbers, strict=True):
        panel.set(xticks=[], yticks=[], facecolor="#f3d9d6", box_aspect=1)
        try:
            with vidssl.open_video(path) as video:
                panel.imshow(video.frames([number])[0].transpose(1, 2, 0))
        except VidsslError:
            panel.text(0.5, 0.5, "error", transform=panel.transAxes, ha="center", va="center", color="#b3262e")
for panel, number in zip(axes[0], numbers, strict=True):
    panel.set_title(f"frame {number}", fontsize=9)
figure.savefig("output/gallery/broken_videos.png", dpi=110)

# %%
# All findings: [videos](../../docs/videos.md#check). What a run does with a broken video:
# [data](../../docs/data.md).
