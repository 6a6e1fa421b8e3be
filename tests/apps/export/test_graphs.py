"""Graphs of networks: that of torch.export computes torch's features at any batch size; what cannot be exported."""

import json
import sys

import pytest
import torch

from vidssl.apps.export import save_graph
from vidssl.base.errors import CheckpointError, ConfigError
from vidssl.models import build_backbone, load_backbone
from vidssl.models.layer_features import LayerFeatures

FRAMES, SIZE = 4, 48
DESCRIPTION = {"format": "vidssl-network-1", "input": {"mean": [0.45] * 3}, "num_features": 64}


@torch.no_grad()
def test_torch_export_computes_the_features(tmp_path):
    """Those of a layer, at two sizes of a batch, neither of which was the example; the batch norms all differ."""
    torch.manual_seed(3)
    network = LayerFeatures(build_backbone("resnet3d18", width=8), "layer3", grid=2, frames=2).eval()
    for value in network.state_dict().values():
        if value.ndim == 1:
            value.copy_(torch.rand(value.shape) + 0.5)
    path, extra = tmp_path / "new/x.pt2", {"config.json": ""}
    assert save_graph(network, path, FRAMES, SIZE, DESCRIPTION) <= 1e-4
    exported = torch.export.load(path, extra_files=extra).module()
    assert json.loads(extra["config.json"]) == DESCRIPTION
    for count in (1, 5):
        clips = torch.randn(count, 3, FRAMES, SIZE, SIZE, generator=torch.Generator().manual_seed(count))
        expected = network(clips)
        scale = max(1.0, expected.abs().max().item())
        torch.testing.assert_close(exported(clips) / scale, expected / scale, rtol=0, atol=1e-4)
    with pytest.raises(CheckpointError, match=r"as a pickle or a program of torch.export \(\.pt2\), write"):
        load_backbone(path)


class Constant(torch.nn.Module):
    """A module that exporters cannot follow: its output depends on the values of the input."""

    dim = 3

    def forward(self, x):
        return x.mean(dim=(2, 3, 4)) * (1 if x.sum().item() > 0 else 2)


class Noisy(torch.nn.Module):
    dim = 3

    def forward(self, x):
        return x.mean(dim=(2, 3, 4)) + torch.rand_like(x[:, :, 0, 0, 0])


@pytest.mark.parametrize(
    ("network", "name", "message"),
    [
        (Constant(), "x.onnx", r"does not export this network .*; write safetensors or pt2"),
        (Noisy(), "x.pt2", "its features would differ by"),
    ],
    ids=["constant", "noisy"],
)
def test_a_network_that_cannot_be_exported_is_an_error_of_one_line(network, name, message, tmp_path):
    pytest.importorskip("onnxruntime")
    with pytest.raises(ConfigError, match=f"cannot write .*{message}") as caught:
        save_graph(network.eval(), tmp_path / name, FRAMES, SIZE, DESCRIPTION)
    assert "\n" not in str(caught.value) and not [*tmp_path.iterdir()]


def test_a_missing_package_is_named_with_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ConfigError, match=r"ONNX needs the package onnx\w*: pip install 'vidssl\[export\]'"):
        save_graph(Noisy(), tmp_path / "x.onnx", FRAMES, SIZE, {})
