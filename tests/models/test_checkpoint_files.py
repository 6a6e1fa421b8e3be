"""Safetensors files: weights are read from them, and damaged files are one-line errors."""

import json
import struct

import pytest
import torch
import torchvision
from safetensors.torch import save, save_file

from vidssl.base.errors import CheckpointError
from vidssl.models import BACKBONES, load_backbone
from vidssl.models.read_and_write_weights import read_anything


def test_all_types_are_read(tmp_path):
    kinds = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool)
    tensors = {str(kind): torch.tensor([[0, 1], [3, 2]]).to(kind) for kind in kinds}
    tensors |= {"scalar": torch.tensor(3.0), "empty": torch.zeros(0, 4)}
    save_file(tensors, tmp_path / "x.safetensors", metadata={"format": "pt"})
    actual = read_anything(tmp_path / "x.safetensors")
    assert actual.keys() == tensors.keys()
    for name, expected in tensors.items():
        assert torch.equal(actual[name], expected) and actual[name].dtype == expected.dtype


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_a_backbone_is_loaded_whatever_the_suffix(suffix, tmp_path):
    state = torchvision.models.get_model("resnet18", weights=None).state_dict()
    save_file(state, tmp_path / f"model{suffix}")
    backbone = load_backbone(tmp_path / f"model{suffix}")
    assert type(backbone) is BACKBONES["resnet18"]
    own = backbone.state_dict()
    assert all(torch.equal(own[f"net.{k}"], v) for k, v in state.items() if not k.startswith("fc."))


def with_header(text, length=None):
    return struct.pack("<Q", len(text) if length is None else length) + text + bytes(8)


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
WHOLE = save({"weight": torch.ones(4)})
DAMAGED = {
    "past the end": with_header(json.dumps({"w": {**ENTRY, "data_offsets": [8, 16]}}).encode()),
    "too few bytes": with_header(json.dumps({"w": {**ENTRY, "data_offsets": [0, 4]}}).encode()),
    "negative shape": with_header(json.dumps({"w": {**ENTRY, "shape": [-2]}}).encode()),
    "huge shape": with_header(json.dumps({"w": {**ENTRY, "shape": [2**62, 4]}}).encode()),
    "unknown type": with_header(json.dumps({"w": {**ENTRY, "dtype": "F7"}}).encode()),
    "not an entry": with_header(b'{"w": 3}'),
    "not UTF-8": with_header(b'{"\xff": 1}'),
    "not JSON": with_header(b'{"a": 1'),
    "deep": with_header(b'{"w": ' + b"[" * 100000),
    "long header": with_header(json.dumps({"w": ENTRY}).encode(), 2**63),
    "cut in the header": WHOLE[:20],
    "cut in the data": WHOLE[:-1],
}


@pytest.mark.parametrize("how", DAMAGED)
def test_damaged_files_are_errors_of_one_line(how, tmp_path):
    (tmp_path / "x.safetensors").write_bytes(DAMAGED[how])
    with pytest.raises(CheckpointError, match=r"x.safetensors \(.*\): if it is damaged, replace it$") as caught:
        load_backbone(tmp_path / "x.safetensors")
    assert "\n" not in str(caught.value)
