"""Mistakes in plug-ins: each is one line that names the class and what is expected, not a traceback."""

import sys
from pathlib import Path

import pytest

from vidssl.base.errors import ConfigError
from vidssl.base.registry import _REGISTRIES
from vidssl.engine.run_config import load_run
from vidssl.engine.train import train

TOY = Path(__file__).parents[2] / "configs" / "toy" / "supervised.yaml"
HEAD = """
import numpy as np
import torch
from torch import nn
from vidssl.base.config import Settings
from vidssl.data.clip_samplers import SAMPLERS, Clip, ClipSettings, Sampler
from vidssl.evaluation.protocols import PROTOCOLS, EvaluationProtocol, Measured
from vidssl.methods.base import METHODS, Method
from vidssl.methods.in_batch import InBatchMethod
from vidssl.methods.momentum_method import MomentumMethod
from vidssl.models.backbones import BACKBONES, Backbone
from vidssl.models.heads import Head
from vidssl.transforms import RECIPES, Recipe, View
"""
KINDS = {
    **{"Method": "METHODS", "InBatchMethod": "METHODS", "MomentumMethod": "METHODS", "Backbone": "BACKBONES"},
    **{"Sampler": "SAMPLERS", "Recipe": "RECIPES", "EvaluationProtocol": "PROTOCOLS"},
}
CALLS = {  # what a plug-in of each kind implements
    "METHODS": "forward(self, batch)",
    "BACKBONES": "forward(self, x)",
    "SAMPLERS": "__call__(self, meta, generators)",
    "RECIPES": "__call__(self, frames, generator)",
    "PROTOCOLS": "__call__(self, gallery, query, exclude)",
}
EMPTY = "class Config(Settings):\n        pass\n"
CONFIGS = {
    "Sampler": "class Config(ClipSettings):\n        pass\n",
    "Recipe": "class Config(Settings):\n        size: int = 24\n",
    "InBatchMethod": "class Config(InBatchMethod.Config):\n        projector: Head = Head(layers=1, out=8)\n",
    "Backbone": EMPTY + "    def __init__(self, config):\n        super().__init__()\n"
    "        self.dim, self.conv = 4, nn.Conv3d(3, 4, 1)\n",
}
VIEWS = "data.views=[{name: weak, size: 24}, {name: weak, size: 24}]"
SETTINGS = {
    "METHODS": ["method={name: of_a_beginner}", VIEWS],
    "BACKBONES": ["backbone={name: of_a_beginner}", VIEWS],
    "SAMPLERS": ["data.sampler={name: of_a_beginner, frames: 4, seconds: 0.24}", VIEWS],
    "RECIPES": ["data.views=[{name: of_a_beginner}]"],
    "PROTOCOLS": [
        "evaluate={every: 1, gallery: motion/train.csv, query: motion/test.csv, protocols: [{name: of_a_beginner}]}"
    ],
}
LOSS = "a single number that depends on trained weights"

# The class that a plug-in derives from, what its function returns (or, after "class", all that it has), and the error.
CASES = [
    ("Method", "self.backbone(batch.views[0]).mean()", "Own returns Tensor, not a dictionary of tensors"),
    ("Method", "{'x': self.backbone(batch.views[0]).mean()}", "Own returns ['x'], and no 'loss'"),
    ("Method", "{'loss': 0.5}", "Own returns dict, not a dictionary of tensors"),
    ("Method", "{'loss': self.backbone(batch.views[0])[:, 0]}", f"Own returns a 'loss' (8,), not {LOSS}"),
    ("Method", "{'loss': torch.tensor(1.0)}", f"Own returns a 'loss' (), not {LOSS}"),
    ("Method", None, "method Own has no forward(batch): see docs/extend.md"),
    ("InBatchMethod", None, "method Own has no objective(embedding, group): see docs/extend.md"),
    ("InBatchMethod", f"class {EMPTY}", "Own.Config has no `projector`: derive it from InBatchMethod.Config"),
    ("MomentumMethod", None, "method Own has no pair_loss(query, key): see docs/extend.md"),
    (
        "Method",
        "class def __init__(self, config, backbone):\n        super().__init__(backbone)\n",
        "Own.__init__ must call super().__init__(config, backbone)",
    ),
    (
        "Method",
        "class def __init__(self, backbone):\n        pass\n",
        "method Own: too many positional arguments; its __init__ takes (self, config, backbone)",
    ),
    (
        "Method",
        "class def __init__(self, config, backbone, more):\n        pass\n",
        "method Own: missing a required argument: 'more'; its __init__ takes (self, config, backbone)",
    ),
    (
        "Method",
        "class class Config(Settings):\n        weight = 5e-3\n",
        "a Config in 'of_a_beginner' is wrong: A non-annotated attribute was detected: `weight = 0.005`.",
    ),
    (
        "Method",
        "class class Config:\n        weight: float = 5e-3\n",
        "Own has no class Config(vidssl.base.config.Settings), its settings",
    ),
    ("Recipe", "class pass", "Own has no class Config(vidssl.base.config.Settings), its settings"),
    ("Backbone", "self.conv(x)", "backbone Own makes (8, 4, 4, 24, 24) of clips (8, 3, 4, 24, 24), not (B, self.dim)"),
    ("Backbone", "x.mean(dim=(2, 3, 4))", "backbone Own makes (8, 3) of clips (8, 3, 4, 24, 24), not (B, self.dim)"),
    ("Backbone", "[x]", "backbone Own makes list of clips (8, 3, 4, 24, 24), not (B, self.dim)"),
    ("Backbone", None, "backbone Own has no forward(x): see docs/extend.md"),
    (
        "Backbone",
        f"class {EMPTY}    def __init__(self, config):\n        super().__init__()\n",
        "backbone Own does not set self.dim, the length of its features",
    ),
    ("Backbone", f"class {EMPTY}", "backbone Own: too many positional arguments; its __init__ takes (self, config)"),
    ("Sampler", "[[0, 1, 2, 3]]", "sampler Own returns [[0, 1, 2, 3]], not a list of Clip: make them with config.clip"),
    ("Sampler", "self.config.clip(meta, 0, 4)", "sampler Own returns Clip(indices=array([0, 1, 2, 3])"),
    (
        "Sampler",
        "[Clip(np.arange(30, 34), 0, 23)] * 2",
        "sampler Own returns frames [30 31 32 33] of a video of 24, from 0 on",
    ),
    (
        "Sampler",
        "[self.config.clip(meta, 20, 6)] * 2",
        "the sampler begins a clip of 6 frames at frame 20 of a video of 24 frames (0.96 s): the last start is 18;",
    ),
    ("Sampler", "[]", "0 clips and 2 recipes: use one recipe, or one for each clip"),
    ("Sampler", None, "sampler Own has no __call__(meta, generators): see docs/extend.md"),
    ("Recipe", "frames", "recipe Own must return a list of View, got ndarray"),
    ("Recipe", "[View(frames / 255, None)]", "recipe Own makes float64 (4, 3, 48, 48), not uint8"),
    (
        "Recipe",
        "[View(frames.transpose(0, 2, 3, 1), None)]",
        "recipe Own makes uint8 (4, 48, 48, 3), not uint8 (T, 3, size, size)",
    ),
    ("Recipe", None, "recipe Own has no __call__(frames, generator): see docs/extend.md"),
    ("EvaluationProtocol", "{'x': 1.0}", "protocol Own returns dict, not `Measured`: see docs/extend.md"),
    (
        "EvaluationProtocol",
        "Measured({'x': torch.tensor(1.0)})",
        "protocol Own returns numbers that are no float: {'x': tensor(1.)}",
    ),
    (
        "EvaluationProtocol",
        "Measured({'x': 1.0}, gallery.label)",
        "protocol Own returns predicted (40,), not one class of each query (16,)",
    ),
    ("EvaluationProtocol", None, "protocol Own has no __call__(gallery, query, exclude)"),
]


@pytest.mark.parametrize(("base", "code", "expected"), CASES)
def test_a_mistake_in_a_plug_in_is_one_line(base, code, expected, digits, tmp_path, monkeypatch):
    registry = KINDS[base]
    if code is not None and code.startswith("class "):
        body = code.removeprefix("class ")
    else:
        body = CONFIGS.get(base, "pass\n")
        body += "" if code is None else f"    def {CALLS[registry]}:\n        return {code}\n"
    source = f'{HEAD}\n@{registry}.register("of_a_beginner")\nclass Own({base}):\n    {body}\n'
    (tmp_path / "of_a_beginner.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.chdir(digits)
    where = ["imports=[of_a_beginner]", "data.moving_digits=null", "data.train=motion/train.csv", "device=cpu"]
    where += ["steps=1", "data.workers=0", f"output={tmp_path}/run"]
    try:
        with pytest.raises(ConfigError) as caught:
            train(load_run(TOY, [*where, *SETTINGS[registry]]))
    finally:
        sys.modules.pop("of_a_beginner", None)
        for each in _REGISTRIES:
            each._entries.pop("of_a_beginner", None)
    assert expected in str(caught.value) and "\n" not in str(caught.value)
