"""The ConvNet with an LSTM against a loop over frames with the gates written out."""

import pytest
import torch
from torch.nn import functional

from vidssl.models import build_backbone


def by_loop(network, clip):
    """Features of a clip (3, T, H, W) in eval mode."""
    state = network.state_dict()
    h, c = torch.zeros(2, network.dim)
    for frame in clip.transpose(0, 1):
        x = frame[None]
        for layer in range(len(network.convnet) // 3):
            weight, norm = state[f"convnet.{3 * layer}.weight"], f"convnet.{3 * layer + 1}."
            x = functional.conv2d(x, weight, stride=2, padding=weight.shape[-1] // 2)
            shift, scale, mean, var = (
                state[norm + name].view(-1, 1, 1) for name in ("bias", "weight", "running_mean", "running_var")
            )
            x = ((x - mean) / (var + 1e-5).sqrt() * scale + shift).clamp(min=0)
        pooled = x[0].flatten(1).mean(dim=1)
        gates = state["lstm.weight_ih_l0"] @ pooled + state["lstm.bias_ih_l0"]
        gates = gates + state["lstm.weight_hh_l0"] @ h + state["lstm.bias_hh_l0"]
        i, f, g, o = gates.chunk(4)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
    return h


@pytest.mark.parametrize(("settings", "frames"), [({}, 5), ({}, 1), ({"filters": (4, 6), "kernel": 5, "hidden": 7}, 3)])
def test_features_against_a_loop(settings, frames):
    torch.manual_seed(0)
    network = build_backbone("convnet_lstm", **settings)
    network(torch.randn(8, 3, 2, 32, 32))  # moves the statistics of the batch norms
    network.eval()
    clips = torch.randn(3, 3, frames, 32, 32)
    with torch.no_grad():
        actual = network(clips)
        expected = torch.stack([by_loop(network, clip) for clip in clips])
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_sizes_of_the_supplement():
    """Four convolutions of 8, 16, 32 and 64 filters, and an LSTM of 64 units."""
    network = build_backbone("convnet_lstm")
    convolutions = [m for m in network.modules() if isinstance(m, torch.nn.Conv2d)]
    assert [m.out_channels for m in convolutions] == [8, 16, 32, 64]
    assert (network.lstm.num_layers, network.lstm.input_size, network.lstm.hidden_size, network.dim) == (1, 64, 64, 64)
