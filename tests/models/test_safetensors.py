"""Safetensors files: the numbers come back, and no header reads what is not there."""

import json
import struct

import numpy as np
import pytest
import torch
import torchvision

from vidssl.errors import CheckpointError
from vidssl.models import BACKBONES, load_backbone
from vidssl.models.safetensors import read_safetensors


def write(path, tensors, **more):
    """Write the format with struct and numpy."""
    header, data = dict(more), b""
    for name, (kind, array) in tensors.items():
        content = array.tobytes()
        header[name] = {
            "dtype": kind,
            "shape": array.shape,
            "data_offsets": [len(data), len(data) + len(content)],
        }
        data += content
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


ARRAYS = {
    "F64": np.array([1.5, -2e300]),
    "F32": np.arange(6, dtype="<f4").reshape(1, 2, 3) / 7,
    "F16": np.array([[0.5], [65504]], dtype="<f2"),
    "I64": np.array([-(2**62), 5], dtype="<i8"),
    "I32": np.array([-5], dtype="<i4"),
    "I16": np.array([-5, 300], dtype="<i2"),
    "I8": np.array([-128], dtype="i1"),
    "U8": np.array([255, 0, 1], dtype="u1"),
    "BOOL": np.array([True, False]),
}


def test_numbers_come_back(tmp_path):
    tensors = {f"layer.{kind}": (kind, array) for kind, array in ARRAYS.items()}
    tensors |= {"scalar": ("F32", np.float32(3)), "empty": ("F32", np.zeros((0, 4), "<f4"))}
    found = read_safetensors(write(tmp_path / "x.safetensors", tensors, __metadata__={"format": "pt"}))
    assert list(found) == list(tensors)
    for name, (_, array) in tensors.items():
        assert np.array_equal(found[name].numpy(), array) and found[name].numpy().dtype == array.dtype
        assert tuple(found[name].shape) == array.shape


def test_bfloat16(tmp_path):
    values = torch.tensor([1.0, -3.5, 1e30]).bfloat16()
    path = write(tmp_path / "x.safetensors", {"w": ("BF16", values.view(torch.int16).numpy())})
    assert torch.equal(read_safetensors(path)["w"], values)


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_a_backbone_from_one(suffix, tmp_path):
    network = torchvision.models.get_model("resnet18", weights=None)
    state = network.state_dict()
    kinds = {torch.float32: "F32", torch.int64: "I64"}
    path = write(tmp_path / f"model{suffix}", {k: (kinds[v.dtype], v.numpy()) for k, v in state.items()})
    backbone = load_backbone(path)
    assert type(backbone) is BACKBONES["resnet18"]
    own = backbone.state_dict()
    assert all(torch.equal(own[f"net.{k}"], v) for k, v in state.items() if not k.startswith("fc."))


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
BAD = {
    "past the end": {"data_offsets": [8, 16]},
    "backwards": {"data_offsets": [8, 0]},
    "negative": {"data_offsets": [-8, 0]},
    "too few bytes": {"data_offsets": [0, 4]},
    "negative shape": {"shape": [-2]},
    "two negatives": {"shape": [-1, -2]},
    "huge": {"shape": [2**62, 4]},
    "no type": {"dtype": "F7"},
    "type of no kind": {"dtype": ["F32"]},
    "no shape": {"shape": None},
    "words": {"shape": ["x"]},
    "three places": {"data_offsets": [0, 8, 9]},
}


@pytest.mark.parametrize("how", BAD)
def test_headers_that_lie(how, tmp_path):
    text = json.dumps({"w": {**ENTRY, **BAD[how]}}).encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(8))
    with pytest.raises(
        CheckpointError, match=r"x.safetensors is a damaged safetensors file \(.*\): take"
    ) as caught:
        load_backbone(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("cut", [9, 20, 60, -1])
def test_cut_files(cut, tmp_path):
    path = write(tmp_path / "x.safetensors", {"weight": ("F32", np.ones(4, "<f4"))})
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(CheckpointError, match=r"x\.safetensors is "):
        load_backbone(path)


@pytest.mark.parametrize(
    "text", [b'{"w": 3}', b'{"w": [1]}', b'{"w": ' + b"[" * 100000, b'{"\xff": 1}', b'{"a": 1']
)
def test_headers_that_are_none(text, tmp_path):
    path = tmp_path / "x.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text)
    with pytest.raises(CheckpointError, match="is a damaged safetensors file"):
        load_backbone(path)


def test_a_length_past_the_end(tmp_path):
    path = tmp_path / "x.safetensors"
    path.write_bytes(struct.pack("<Q", 2**63) + json.dumps({"w": ENTRY}).encode() + bytes(8))
    with pytest.raises(CheckpointError, match="is a damaged safetensors file"):
        load_backbone(path)
