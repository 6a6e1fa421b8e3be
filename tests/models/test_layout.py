"""The maps of a 3D ResNet stay channels last from the first to the last convolution."""

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from vidssl.data.to_device import normalised
from vidssl.models import build_backbone

BATCH = 5  # no other dimension of the network has this size
CONVERSIONS = ("aten::copy_", "aten::clone", "aten::contiguous", "aten::_to_copy")


def _conversions_of_maps(network, clips):
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as actual:
        network(clips).sum().backward()
    shapes = [(event.name, event.input_shapes[0]) for event in actual.events() if event.name in CONVERSIONS]
    assert shapes  # the profiler sees copies: those of weights
    return [(name, shape) for name, shape in shapes if len(shape) >= 4 and shape[0] in (BATCH, BATCH * 4)]


@pytest.fixture(autouse=True)
def two_threads():
    """With one thread torch computes small convolutions without oneDNN, by kernels that need other layouts."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("name", ["resnet3d18", "resnet3d50"])
def test_no_map_changes_its_layout_forward_or_backward(name):
    network = build_backbone(name, width=8).train()
    for p in network.parameters():
        if p.ndim == 5:
            p.data = p.data.contiguous(memory_format=torch.channels_last_3d)
    frames = torch.randint(256, (BATCH, 4, 32, 32, 3), dtype=torch.uint8).permute(0, 1, 4, 2, 3)  # as from the loader
    clips = normalised(frames, (0.45,), (0.225,))
    assert clips.is_contiguous(memory_format=torch.channels_last_3d)
    assert _conversions_of_maps(network, clips) == []
    # The same clips in another layout are converted: the test can fail.
    assert _conversions_of_maps(network, clips.contiguous())
