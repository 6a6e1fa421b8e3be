"""Backbones by name, heads, and weights from checkpoints."""

from vidssl.models.backbones import BACKBONES, build_backbone
from vidssl.models.heads import Head, mlp
from vidssl.models.match_checkpoints import Initial, InitialWeights, load_backbone, load_initial

__all__ = ["BACKBONES", "Head", "Initial", "InitialWeights", "build_backbone", "load_backbone", "load_initial", "mlp"]
