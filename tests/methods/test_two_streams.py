"""Two streams: each network is trained by its own loss alone, as if the other were not there."""

import copy
import json
import re

import pytest
import torch
from torch.nn.functional import normalize

from vidssl.base.errors import ConfigError
from vidssl.base.types import Batch
from vidssl.engine.periodic_evaluation import check_layer
from vidssl.engine.run_config import load_run
from vidssl.engine.training_step import accumulate
from vidssl.methods import METHODS
from vidssl.models.backbones import build_backbone

TOY = "configs/toy/two_streams.yaml"
NAMES = ("rgb", "differences")
HEAD = {"layers": 2, "hidden": 12, "out": 6, "norm": "none"}
INNER = {
    "frame_invariance": {"projector": HEAD, "queue": 16, "momentum": 0.9, "key_views": [0, 1]},
    "simclr": {"projector": HEAD},
    "byol": {"projector": HEAD, "predictor": HEAD},
    "supervised": {"classes": 3},
}


def backbone(**more):
    streams = {name: {"name": "resnet3d18", "width": 4, "frame_differences": name != "rgb"} for name in NAMES}
    torch.manual_seed(3)
    return build_backbone("two_streams", streams=streams, **more)


def built(name, network, **settings):
    kind = METHODS["two_streams"]
    method = kind(kind.Config(method={"name": name, **INNER[name]}, **settings), network)
    method.allocate(24)
    return method.train()


def batch(seed, size=8):
    source = torch.Generator().manual_seed(seed)
    views = tuple(torch.randn(size, 3, 3, 16, 16, generator=source) for _ in range(2))
    return Batch(views, torch.arange(size) % 3, torch.randperm(24, generator=source)[:size])


def trained(method, steps=3):
    optimizer = torch.optim.SGD(method.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for number in range(steps):
        scalars = method(batch(number))
        scalars["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
        method.after_step((number + 1) / steps)
        losses.append({key: value.detach() for key, value in scalars.items()})
    return losses


@pytest.mark.parametrize("name", ["frame_invariance", "supervised"])
def test_each_stream_is_trained_as_if_it_were_alone(name):
    both = built(name, backbone())
    alone = {stream: copy.deepcopy(method) for stream, method in both.streams.items()}
    actual = trained(both)
    for stream, method in alone.items():
        expected = trained(method)
        state, needed = both.streams[stream].state_dict(), method.state_dict()
        assert state.keys() == needed.keys()
        for key, value in needed.items():
            if isinstance(value, torch.Tensor):
                assert torch.equal(state[key], value), (stream, key)
        for ours, own in zip(actual, expected, strict=True):
            assert {key.partition(".")[2]: v for key, v in ours.items() if key.startswith(stream)} == own
    for ours in actual:
        assert ours["loss"] == ours["rgb.loss"] + ours["differences.loss"]


@pytest.mark.parametrize(("name", "stream"), [("byol", "rgb"), ("simclr", "differences")])
def test_a_loss_moves_the_weights_of_its_own_stream_only(name, stream):
    method = built(name, backbone())
    method(batch(0))[f"{stream}.loss"].backward()
    moved = {key for key, p in method.named_parameters() if p.grad is not None and p.grad.any()}
    assert moved
    assert all(f".{stream}." in key for key in moved)
    assert any(key.startswith(f"backbone.encoders.{stream}.") for key in moved)


def test_streams_compare_all_clips_of_a_step_over_micro_batches():
    whole = built("simclr", backbone().double()).double()
    parts, clips = copy.deepcopy(whole), batch(1)
    clips = Batch(tuple(view.double() for view in clips.views), clips.label, clips.index)
    for module in (*whole.modules(), *parts.modules()):  # batch norms see micro-batches
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            module.eval()
    halves = [
        Batch(tuple(view[rows] for view in clips.views), clips.label[rows], clips.index[rows])
        for rows in (slice(4), slice(4, 8))
    ]
    expected, _ = accumulate(whole, whole, [clips], 1, half=False)
    scalars, index = accumulate(parts, parts, halves, 2, half=False)
    assert torch.equal(index, clips.index)
    assert scalars.keys() == expected.keys() and {"loss", "rgb.loss", "differences.loss"} < scalars.keys()
    for key, value in expected.items():
        torch.testing.assert_close(scalars[key], value, msg=key)
    for p, q in zip(whole.parameters(), parts.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)


def test_a_classifier_averages_the_probabilities_of_both_streams():
    method = built("supervised", backbone()).eval()
    clips = batch(2).views[0]
    features = method.backbone(clips)
    expected = sum(method.streams[name].head(method.backbone.encoders[name](clips)).softmax(dim=1) for name in NAMES)
    torch.testing.assert_close(method.classify(features), expected / 2)
    torch.testing.assert_close(method.logits(features).softmax(dim=1), expected / 2)
    kind, config = METHODS["two_streams"].innermost(
        METHODS["two_streams"].Config(method={"name": "supervised", "classes": 3})
    )
    assert kind is METHODS["supervised"] and config.classes == 3


def test_features_are_those_of_both_networks_and_finished_as_unit_vectors():
    network = backbone().eval()
    clips = batch(3).views[0]
    rgb, differences = (network.encoders[name](clips) for name in NAMES)
    assert network.dim == 64 and torch.equal(network(clips), torch.cat([rgb, differences], dim=1))
    expected = torch.cat([normalize(rgb, dim=1), normalize(differences, dim=1)], dim=1)
    torch.testing.assert_close(network.finish(network(clips)), expected)
    assert network.finish(torch.rand(2, 5, 64)).shape == (2, 5, 64)


def test_layers_are_named_by_stream():
    network = backbone().eval()
    clips = batch(3).views[0]
    assert network.feature_layers[::5] == ("rgb.stem", "differences.stem") and network.last_maps == "rgb.layer4"
    order = ["differences.layer4", "rgb.layer2", "rgb.layer4"]
    features = network.features(clips, order)
    for layer, maps in zip(order, features, strict=True):
        stream, _, own = layer.partition(".")
        encoder = network.encoders[stream]
        assert torch.equal(maps, encoder.features(clips, [own])[0])
        assert network.layer_module(layer) is encoder.layer_module(own)
    assert network.layer_module("encoders.rgb.net") is network.encoders["rgb"].net
    with pytest.raises(ConfigError, match=r"TwoStreams has no layer 'layer4' with feature maps: it has rgb.stem, rgb"):
        network.features(clips, ["layer4"])


def test_tracks_are_made_by_the_stream_that_is_named():
    network = backbone()
    assert built("supervised", network).target_backbone is network.encoders["rgb"]
    named = built("frame_invariance", network, tracks="differences")
    assert named.target_backbone is named.streams["differences"].target[0]
    with pytest.raises(ConfigError, match=r"method.tracks: no stream 'flow'; there are: rgb, differences"):
        _ = built("supervised", network, tracks="flow").target_backbone  # no tracks, no mistake


def test_the_probe_of_a_layer_is_that_of_all_streams():
    method = {"name": "supervised", "classes": 3, "freeze": True, "layer": "layer3"}
    run = load_run(TOY, [f"method={json.dumps({'name': 'two_streams', 'method': method})}"])
    with pytest.raises(ConfigError, match=r"set method=\{name: supervised, layer: rgb.layer3, …\}, or leave layer out"):
        check_layer(run, backbone())


def test_mistakes_name_their_place():
    with pytest.raises(
        ConfigError, match=r"two_streams needs a network for each stream: set backbone.name=two_streams"
    ):
        built("supervised", build_backbone("resnet3d18", width=4))
    kind = METHODS["two_streams"]
    with pytest.raises(ConfigError) as caught:
        wrong = ["method.method.queu=3", "method.method.momentum=a", "backbone.streams.rgb.widht=1"]
        load_run(TOY, [*wrong, "backbone.streams.differences.name=resnet3d19", "steps=-1"])
    said = str(caught.value).removeprefix(f"{TOY}: 5 mistakes: ")
    assert [text.split(": ")[0] for text in re.split("; (?!there are)", said)] == [
        "steps",
        "backbone.streams.rgb.widht",
        "backbone.streams.differences.name",
        "method.method.momentum",
        "method.method.queu",
    ]
    with pytest.raises(ConfigError, match=r"yaml: method.method.name: no 'scee' \(did you mean 'sce'\?\)"):
        load_run(TOY, ["method={name: two_streams, method: {name: scee}}"])
    with pytest.raises(ConfigError, match=r"'a.b' cannot be the name of a stream: use a word such as rgb"):
        build_backbone("two_streams", streams={"a.b": {"name": "resnet3d18"}, "c": {"name": "resnet3d18"}})
    with pytest.raises(ConfigError, match=r"streams: .*at least 2"):
        build_backbone("two_streams", streams={"rgb": {"name": "resnet3d18"}})
    with pytest.raises(ConfigError, match="'keys' cannot be the name of a stream"):  # of a method of nn.ModuleDict
        build_backbone("two_streams", streams={"keys": {"name": "resnet3d18"}, "c": {"name": "resnet3d18"}})
    with pytest.raises(ConfigError, match="needs a 'name'"):
        build_backbone("two_streams", streams={"a": {"width": 4}, "b": {}})
    with pytest.raises(ConfigError, match="method: needs a 'name'"):
        kind.Config(method={"queue": 4})
    inner = kind.Config(method={"name": "supervised", "classes": 3}).method
    assert inner["dropout"] == 0.0  # defaults are stored with the run
