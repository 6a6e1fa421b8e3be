"""ONNX and torch.export: read by their own runtimes, the graphs compute torch's features at any batch size."""

import json
import sys

import pytest
import torch

from vidssl.apps.export import OPSET, save_graph
from vidssl.base.errors import CheckpointError, ConfigError
from vidssl.models import build_backbone, load_backbone
from vidssl.models.layer_features import LayerFeatures

FRAMES, SIZE = 4, 48
DESCRIPTION = {"format": "vidssl-network-1", "input": {"mean": [0.45] * 3}, "num_features": 64}
NETWORKS = {
    "layer": lambda: LayerFeatures(build_backbone("resnet3d18", width=8), "layer3"),
    "grid": lambda: LayerFeatures(build_backbone("resnet3d18", width=8), "layer3", grid=2, frames=2),
}


def made(name):
    """A network whose batch norms all differ, in eval mode."""
    torch.manual_seed(3)
    network = NETWORKS[name]()
    for value in network.state_dict().values():
        if value.ndim == 1:
            value.copy_(torch.rand(value.shape) + 0.5)
    return network.eval()


@torch.no_grad()
def check(network, exported):
    """At two sizes of a batch, neither of which was the example."""
    for count in (1, 5):
        clips = torch.randn(count, 3, FRAMES, SIZE, SIZE, generator=torch.Generator().manual_seed(count))
        expected = network(clips)
        assert expected.shape == (count, network.dim)
        scale = max(1.0, expected.abs().max().item())
        torch.testing.assert_close(exported(clips) / scale, expected / scale, rtol=0, atol=1e-4)


def test_onnxruntime_computes_the_features(tmp_path):
    onnx, onnxruntime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    network, path = made("layer"), tmp_path / "new" / "x.onnx"
    assert save_graph(network, path, FRAMES, SIZE, DESCRIPTION) <= 1e-4
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (clips,), (features,) = session.get_inputs(), session.get_outputs()
    assert (clips.name, features.name) == ("clips", "features")
    assert clips.shape == ["batch", 3, FRAMES, SIZE, SIZE] and features.shape == ["batch", network.dim]
    check(network, lambda x: torch.from_numpy(session.run(None, {"clips": x.numpy()})[0]))
    properties = session.get_modelmeta().custom_metadata_map
    assert {key: json.loads(value) for key, value in properties.items()} == DESCRIPTION
    assert [(opset.domain, opset.version) for opset in onnx.load(path).opset_import] == [("", OPSET)]


def test_torch_export_computes_the_features(tmp_path):
    network, path = made("grid"), tmp_path / "x.pt2"
    assert save_graph(network, path, FRAMES, SIZE, DESCRIPTION) <= 1e-4
    extra = {"config.json": ""}
    check(network, torch.export.load(path, extra_files=extra).module())
    assert json.loads(extra["config.json"]) == DESCRIPTION
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
    [(Constant(), "x.onnx", "does not export this network"), (Noisy(), "x.pt2", "its features would differ by")],
    ids=["constant", "noisy"],
)
def test_a_network_that_cannot_be_exported_is_an_error_of_one_line(network, name, message, tmp_path):
    pytest.importorskip("onnxruntime")
    with pytest.raises(ConfigError, match=f"cannot write .*{message}") as caught:
        save_graph(network.eval(), tmp_path / name, FRAMES, SIZE, DESCRIPTION)
    assert "\n" not in str(caught.value) and not [*tmp_path.iterdir()]


def test_onnx_has_no_pooling_to_a_grid(tmp_path):
    pytest.importorskip("onnxruntime")
    with pytest.raises(ConfigError, match=r"does not export this network .*; write safetensors or pt2"):
        save_graph(made("grid"), tmp_path / "x.onnx", FRAMES, SIZE, DESCRIPTION)


def test_a_missing_package_is_named_with_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ConfigError, match=r"ONNX needs the package onnx\w*: pip install 'vidssl\[export\]'"):
        save_graph(made("layer"), tmp_path / "x.onnx", FRAMES, SIZE, {})
