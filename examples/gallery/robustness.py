"""# Robustness

How much accuracy is left when videos are noisy, compressed, or played at another rate?
"""

# %%
# **A classifier** of the colour of a digit: 40 steps of finetuning the network that comes with vidssl.
from vidssl.cli import run

digits, out = "output/gallery/digits", "output/gallery/robustness"
run("prepare", ["moving-digits", "--out", digits, "--train", "240", "--test", "80", "--quiet"])
settings = ["init=vidssl-small", "data.lists=null", f"data.train={digits}/colour/train.csv"]
settings += ["method.method.classes=6", "method.method.dropout=0"]
view = "data.views.0={name: train_crop, size: 64, short_side: [64, 72]}"
settings += [view, "steps=40", "batch_size=24", "data.workers=1", "evaluate={clips: 2, crops: 1}"]
run("train", ["--cfg", "finetune/small", *settings, f"output={out}/run", "--quiet"])

# %%
# **Measure** it on corrupted test videos: here three of 24 corruptions, in three of five severities. mPC is the mean
# over corruptions and severities, rPC its fraction of the accuracy on clean videos.
network = ["--checkpoint", f"{out}/run/checkpoints/last.pt", "--protocol", "accuracy"]
corruptions = ["--corruptions", "gaussian_noise", "h264_crf", "rate", "--severities", "1", "3", "5"]
run("analyze", ["robustness", f"{digits}/colour/test.csv", *network, *corruptions, "--out", f"{out}/test", "--quiet"])

# %%
# **Look** at what was measured: the command writes examples of the corruptions, a page, and all numbers.
import json

import matplotlib.pyplot as plt

with open(f"{out}/test/results.json") as file:
    results = json.load(file)
severities = {"clean": results["top1"]} | {f"severity {n}": row["top1"] for n, row in results["severities"].items()}
groups = {name: row["top1"] for name, row in results["groups"].items()}
figure, (above, below) = plt.subplots(2, 1, figsize=(6, 6), layout="constrained")
above.imshow(plt.imread(f"{out}/test/examples.png"))
above.axis("off")
below.bar([*severities, *groups], [100 * value for value in (*severities.values(), *groups.values())])
below.set_ylabel("accuracy, percent")
below.tick_params(axis="x", rotation=30)
figure.savefig("output/gallery/robustness.png", dpi=140)

# %%
# All corruptions, and the definitions of mPC and rPC: [robustness](../../docs/analysis.md#robustness).
