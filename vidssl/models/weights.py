"""Weights from files: read a checkpoint safely, take the backbone out of it."""

import pickle
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vidssl.errors import CheckpointError
from vidssl.models.backbones import Backbone, build_backbone

FORMAT = "vidssl-checkpoint-1"


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """Load a checkpoint onto the CPU; nothing in it can run code.

    Raises:
        CheckpointError: The file is missing, damaged, not made by vidssl, or holds more than plain data.
    """
    path = Path(path)
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise CheckpointError(f"cannot read checkpoint {path}: {error.strerror}") from None
    except pickle.UnpicklingError:
        raise CheckpointError(
            f"checkpoint {path} is damaged, or holds more than tensors and plain data"
        ) from None
    except (RuntimeError, EOFError, ValueError, zipfile.BadZipFile) as error:
        raise CheckpointError(f"checkpoint {path} is damaged: {' '.join(str(error).split())[:120]}") from None
    if not isinstance(checkpoint, dict) or checkpoint.get("format") != FORMAT:
        raise CheckpointError(f"{path} is no checkpoint of vidssl (format {FORMAT})")
    return checkpoint


def backbone_weights(checkpoint: dict[str, Any]) -> dict[str, Tensor]:
    """Pick the weights of the backbone that is evaluated: the online one."""
    weights = checkpoint["method"]
    return {key.removeprefix("backbone."): weights[key] for key in weights if key.startswith("backbone.")}


def load_backbone(path: str | Path) -> Backbone:
    """Make the trained backbone of a checkpoint, on the CPU and in eval mode.

    Raises:
        CheckpointError: The file is no sound checkpoint, or its weights do not fit its own config.
    """
    checkpoint = read_checkpoint(path)
    backbone = build_backbone(**checkpoint["config"]["backbone"])
    load_weights(backbone, backbone_weights(checkpoint), str(path))
    return backbone.eval()


def load_weights(backbone: Backbone, weights: dict[str, Tensor], source: str) -> None:
    """Put weights into a backbone; all of them or none.

    Raises:
        CheckpointError: Names or shapes differ; the message tells how many and which.
    """
    own = backbone.state_dict()
    missing = [key for key in own if key not in weights]
    surplus = [key for key in weights if key not in own]
    other = [key for key in own if key in weights and own[key].shape != weights[key].shape]
    if missing or surplus or other:
        first = (missing + surplus + other)[0]
        raise CheckpointError(
            f"{source} does not fit the backbone: {len(missing)} weights missing, {len(surplus)} unknown, "
            f"{len(other)} of another shape; first {first}; choose the backbone that the checkpoint was trained with"
        )
    backbone.load_state_dict(weights)
