"""# Robustness

How much accuracy is left when videos are noisy, compressed, or played at another rate?
"""

# %%
# **Measure.** The training videos stay clean, the test videos are corrupted. Here three of 24 corruptions in
# three of five severities, on the colours of moving digits; kNN on the features of the network that comes with
# vidssl.
from vidssl.commands import run

digits, out = "output/gallery/digits", "output/gallery/robustness"
run("prepare", ["moving-digits", "--out", digits, "--train", "240", "--test", "80", "--quiet"])
lists = [f"{digits}/colour/test.csv", "--train-list", f"{digits}/colour/train.csv"]
chosen = ["--corruptions", "gaussian_noise", "h264_crf", "rate", "--severities", "1", "3", "5"]
network = ["--checkpoint", "vidssl-small", "--protocol", "knn", "--clips", "2"]
run("analyze", ["robustness", *lists, *network, *chosen, "--out", out, "--quiet"])

# %%
# **Look** at what was measured: the command writes examples of all corruptions, a chart, and all numbers.
import matplotlib.pyplot as plt

figure, axes = plt.subplots(2, 1, figsize=(8, 8), layout="constrained")
for place, name in zip(axes, ("examples", "robustness"), strict=True):
    place.imshow(plt.imread(f"{out}/{name}.png"))
    place.axis("off")
figure.savefig("output/gallery/robustness.png", dpi=120)

# %%
# The corruptions, and the definitions of mPC and rPC: [robustness](../../docs/robustness.md).
