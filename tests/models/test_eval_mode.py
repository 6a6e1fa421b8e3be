"""What encodes with a network leaves the mode of each of its modules: parts that are frozen stay in eval mode."""

import numpy as np
import pytest
import torch
from torch import nn

import vidssl
from vidssl.data.clip_samplers import ClipSettings
from vidssl.evaluation.features import BothDirections, TestClips, extract_features
from vidssl.jobs.grad_cam import similarity_cam
from vidssl.models import build_backbone
from vidssl.models.backbones import ModuleBackbone
from vidssl.models.eval_mode import eval_mode
from vidssl.models.layer_features import LayerFeatures
from vidssl.tracking import Tracker, TrackerSettings

CLIPS = torch.zeros(2, 3, 4, 32, 32)


def track(network, tmp_path):
    frames, boxes = np.zeros((2, 3, 32, 32), np.uint8), [np.array([[0, 0, 31, 31]], np.float32)] * 2
    Tracker(network, TrackerSettings(), torch.device("cpu"), [0.5], [0.25]).features(frames, boxes, (32, 32))


def encode(network, videos):
    test = TestClips(clip=ClipSettings(frames=4, seconds=0.5), size=32, workers=0)
    extract_features(network, vidssl.read_input(videos), test, torch.device("cpu"))


WAYS = {
    "layer": lambda network, _: LayerFeatures(network, "layer3"),
    "grad_cam": lambda network, _: similarity_cam(network, CLIPS, CLIPS, "layer3"),
    "module": lambda network, _: ModuleBackbone(network, 4, 32),
    "tracks": track,
    "features": encode,
    "reversed": lambda network, _: BothDirections(network),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("training", [True, False])
def test_every_module_keeps_its_mode(way, training, tmp_path, write_video, numbered):
    write_video(tmp_path / "a.mp4", numbered(20))
    network = build_backbone("resnet3d18", width=4)
    network.train(training)
    for module in [m for m in network.modules() if isinstance(m, nn.BatchNorm3d)][::2]:
        module.train(not training)
    before = [module.training for module in network.modules()]
    state = {name: value.clone() for name, value in network.state_dict().items()}
    WAYS[way](network, tmp_path)
    assert [module.training for module in network.modules()] == before
    for name, value in network.state_dict().items():
        assert torch.equal(value, state[name]), name


def test_modes_come_back_after_an_error():
    network = nn.Sequential(nn.BatchNorm1d(2), nn.BatchNorm1d(2).eval())
    with pytest.raises(KeyError), eval_mode(network):
        assert not any(module.training for module in network.modules())
        raise KeyError
    assert [module.training for module in network.modules()] == [True, True, False]
