"""The command `export`: write a trained backbone for another project."""

import argparse
import shlex

from vidssl.commands.arguments import print_results
from vidssl.config import build
from vidssl.engine.config_schema import bind_run
from vidssl.models.backbones import BACKBONES, Backbone
from vidssl.models.export import save_detectron2
from vidssl.models.weights import backbone_weights, load_state, read_checkpoint


def run(parsed: argparse.Namespace) -> None:
    """Write the backbone, and print the settings that belong to it."""
    content = read_checkpoint(parsed.checkpoint, parsed.trust_checkpoint)
    run = bind_run(content["config"], f"config of {parsed.checkpoint}")
    backbone: Backbone = build(BACKBONES, run.backbone)
    load_state(backbone, backbone_weights(content), parsed.checkpoint)
    settings = save_detectron2(backbone, parsed.out, run.data.mean, run.data.std)
    lines = (f"{name} {shlex.quote(str(value))}" for name, value in settings.items())
    print_results(parsed, settings, f"{parsed.out}: {run.backbone.name} for {parsed.to}, with these settings:", *lines)
