"""# Linear probe and finetuning

Three classifiers of the colour of a digit, with the same number of steps: a linear layer on the frozen network
that comes with vidssl, the whole network finetuned, and the same network from scratch.
"""

# %%
# **One method, three uses.** The settings of `supervised` select the use: `init` loads weights, `freeze` keeps
# them.
import json

from vidssl.cli import run

digits, out = "output/gallery/digits", "output/gallery/supervised"
run("prepare", ["moving-digits", "--out", digits, "--train", "240", "--test", "80", "--quiet"])
uses = {
    "linear probe": [
        "init=vidssl-small",
        "method.method.freeze=true",
        "optimizer={name: sgd, lr: {start: 0.5, end: 0.0}}",
    ],
    "finetuning": ["init=vidssl-small"],
    "from scratch": ["init=null"],
}

# %%
# **Train and test** each. `finetune/small` has the streams of that network, and clips of the same length and size.
# Augmentation that changes colours is switched off, as the colours are the classes.
view = "data.views.0={name: train_crop, size: 64, short_side: [64, 72]}"
lists = ["data.lists=null", f"data.train={digits}/colour/train.csv", "data.workers=1", "evaluate={clips: 2, crops: 1}"]
accuracy = {}
for use, settings in uses.items():
    folder = f"{out}/{use.replace(' ', '_')}"
    common = ["method.method.classes=6", "method.method.dropout=0", "steps=40", "batch_size=24", view, *lists]
    run("train", ["--cfg", "finetune/small", *common, *settings, f"output={folder}", "--quiet"])
    checkpoint = f"{folder}/checkpoints/last.pt"
    test = [f"{digits}/colour/test.csv", "--checkpoint", checkpoint, "--protocol", "accuracy"]
    run("test", [*test, "--out", f"{folder}/test", "--quiet"])
    accuracy[use] = 100 * json.load(open(f"{folder}/test/results.json"))["top1"]

# %%
# **Compare.** Six colours: chance is 17 %.
import matplotlib.pyplot as plt

figure, axes = plt.subplots(figsize=(6.4, 2.4), layout="constrained")
bars = axes.barh(list(accuracy), list(accuracy.values()), color=["#2a5bc7", "#c2570c", "#6b7078"])
axes.bar_label(bars, fmt="%.1f", padding=3)
axes.axvline(100 / 6, color="#b3262e", linestyle="--", linewidth=1)
axes.set(xlim=(0, 100), xlabel="accuracy on 80 test videos, percent (dashed: chance)")
axes.invert_yaxis()
figure.savefig("output/gallery/linear_probe_and_finetuning.png", dpi=120)

# %%
# One seed and 80 videos: differences of ten points are noise. Splits, few labels, and the settings of papers:
# [supervised](../../docs/methods/supervised.md).
