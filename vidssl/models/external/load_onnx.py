"""Networks in ONNX files that vidssl exported: `onnx:FILE`. They run on the CPU by onnxruntime."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from torch import Tensor, nn

from vidssl.errors import CheckpointError
from vidssl.models.external import Encoder
from vidssl.models.external.facts import Facts


def load(name: str, trust: bool = False) -> Encoder:
    """Load a file; see `vidssl.models.external`."""
    if not Path(name).is_file():
        raise CheckpointError(f"there is no file {name}")
    session = onnxruntime.InferenceSession(name, providers=["CPUExecutionProvider"])
    stated = session.get_modelmeta().custom_metadata_map
    try:
        clips, clip, test = (json.loads(stated[key]) for key in ("input", "clip", "test"))
        frames, size, short_side = int(clips["shape"][2]), int(clips["shape"][3]), int(test["short_side"])
    except (KeyError, ValueError, IndexError, TypeError):
        raise CheckpointError(
            f"{name} does not state how its clips are made, as files of `vidssl export --to onnx` do: write a function "
            "that loads it, and use python:MODULE:FUNCTION"
        ) from None
    return Encoder(
        network=_Session(session),
        size=size,
        short_side=short_side,
        mean=tuple(clips["mean"]),
        std=tuple(clips["std"]),
        frames=frames,
        seconds=clip.get("seconds") or frames * clip.get("sampling_rate", 1) / (clip.get("target_fps") or 30),
        version=f"onnxruntime {onnxruntime.__version__}",
        facts=Facts(training=tuple(json.loads(stated.get("training", "{}")).get("lists", ())) or Facts().training),
    )


class _Session(nn.Module):
    def __init__(self, session: Any) -> None:
        super().__init__()
        self.session = session

    def forward(self, x: Tensor) -> Tensor:
        """Encode clips."""
        feed = {self.session.get_inputs()[0].name: np.ascontiguousarray(x.cpu().numpy())}
        return torch.from_numpy(self.session.run(None, feed)[0]).to(x.device)
