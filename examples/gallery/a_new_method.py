"""# A new method

Barlow Twins (Zbontar et al., 2021) in 20 lines: a loss, its settings and a name. The loop, the data, the log,
checkpoints and evaluation are those of every method.
"""

# %%
# **The method.** `InBatchMethod` computes the embeddings of all clips of a step, over processes and
# micro-batches; what is left to write is `objective`. Eq. (1) of the paper: the cross-correlation of two views
# over the batch shall be the identity.
import json

import matplotlib.pyplot as plt
from torch import Tensor

from vidssl.cli import run
from vidssl.methods import METHODS
from vidssl.methods.in_batch import InBatchMethod


def cross_correlation(first: Tensor, second: Tensor) -> Tensor:
    """Correlate the dimensions of two views, rows (N, d) each: (d, d), Eq. (2)."""
    first, second = ((z - z.mean(dim=0)) / (z.std(dim=0, correction=0) + 1e-5) for z in (first, second))
    return first.T @ second / len(first)


@METHODS.register("barlow_twins")
class BarlowTwins(InBatchMethod):
    """Make the two views of a video equal, and the dimensions of the embedding uncorrelated."""

    class Config(InBatchMethod.Config):
        """Settings; `off_diagonal` is the lambda of Eq. (1)."""

        off_diagonal: float = 0.02

    def objective(self, embedding: Tensor, group: Tensor) -> dict[str, Tensor]:
        """Eq. (1)."""
        c = cross_correlation(embedding[:, 0], embedding[:, 1])
        on = (1 - c.diagonal()).square().sum()
        off = c.square().sum() - c.diagonal().square().sum()
        return {"loss": on + self.config.off_diagonal * off, "invariance": on, "redundancy": off}


# %%
# **Train it** on pairs of frames of the same video, which are far apart: the config and the views of frame
# invariance. Settings after the config override it. If the method is in a module of its own, the config loads
# that with `imports: [my_module]`.
out, digits = "output/gallery/barlow_twins", "output/gallery/digits"
run("prepare", ["moving-digits", "--out", digits, "--train", "240", "--test", "80", "--quiet"])
method = "method={name: barlow_twins, projector: {layers: 2, hidden: 256, out: 128, norm: hidden}}"
settings = [method, f"data.train={digits}/colour/train.csv", "backbone.width=16", "steps=120", "log_every=5"]
run("train", ["--cfg", "frame_invariance_small", *settings, f"output={out}/run", "--quiet"])

# %%
# **Test it** like any other: kNN for the colour of the digit, before and after the training.
test = [f"{digits}/colour/test.csv", "--train-list", f"{digits}/colour/train.csv", "--protocol", "knn"]
for name, checkpoint in {"untrained": "random", "trained": f"{out}/run/checkpoints/last.pt"}.items():
    network = ["--checkpoint", checkpoint, *(("--cfg", f"{out}/run/config.yaml") if name == "untrained" else ())]
    run("test", [*test, *network, "--out", f"{out}/{name}", "--quiet"])
knn = {name: json.load(open(f"{out}/{name}/results.json"))["knn"] for name in ("untrained", "trained")}

# %%
# **The log** has every scalar that `objective` returns.
lines = [json.loads(line) for line in open(f"{out}/run/metrics.jsonl")]
figure, panels = plt.subplots(1, 3, figsize=(9, 2.6), layout="constrained", width_ratios=(2, 2, 1))
for panel, key in zip(panels, ("loss", "invariance"), strict=False):
    panel.plot([line["step"] for line in lines], [line[key] for line in lines], color="#2a5bc7")
    panel.set(title=key, xlabel="step", ylim=(0, None))
panels[2].bar_label(
    panels[2].bar(knn.keys(), [100 * accuracy for accuracy in knn.values()], color=["#b9bdc3", "#2a5bc7"]), fmt="%.0f"
)
panels[2].set(title="kNN, percent", ylim=(0, 100))
figure.savefig("output/gallery/a_new_method.png", dpi=120)

# %%
# All hooks of a method: [extend](../../docs/extend.md).
