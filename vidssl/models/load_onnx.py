"""Networks that `vidssl export --to onnx` wrote, as encoders by the names `onnx:FILE`."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from vidssl.errors import CheckpointError
from vidssl.models.external import Encoder
from vidssl.models.two_streams import unit_parts


class OnnxNetwork(nn.Module):
    """A network in an ONNX file, which runs on the CPU; the file is its weights."""

    def __init__(self, file: str) -> None:
        from onnxruntime import InferenceSession

        super().__init__()
        if not Path(file).is_file():
            raise CheckpointError(f"there is no file {file}")
        self.session = InferenceSession(file, providers=["CPUExecutionProvider"])
        self.register_buffer("file", torch.from_numpy(np.fromfile(file, np.uint8)))

    def forward(self, x: Tensor) -> Tensor:
        """Encode clips."""
        (features,) = self.session.run(None, {self.session.get_inputs()[0].name: x.cpu().contiguous().numpy()})
        return torch.from_numpy(features).to(x.device)


def load_onnx(name: str, trust: bool) -> Encoder:
    """Load a file of `vidssl export --to onnx`, with the clips on which its network is tested."""
    network = OnnxNetwork(name)
    try:
        stated = {key: json.loads(text) for key, text in network.session.get_modelmeta().custom_metadata_map.items()}
        clips, test = stated["input"], stated["test"]
        frames, size = (int(length) for length in clips["shape"][2:4])
        short_side = int(test["short_side"])
        own_test = {"clip": stated["clip"], "clips": test["clips"], "crops": test["crops"]}
    except (KeyError, ValueError, TypeError):
        raise CheckpointError(f"{name} states no clips, as `vidssl export` does: use python:MODULE:FUNCTION") from None
    return Encoder(
        network=network,
        size=size,
        mean=tuple(clips["mean"]),
        std=tuple(clips["std"]),
        short_side=short_side,
        frames=frames,
        test=own_test,
        finish=partial(unit_parts, dims=[*stated["streams"].values()]) if "streams" in stated else None,
        training=tuple(stated.get("training", {}).get("lists", ())) or Encoder.training,
    )
