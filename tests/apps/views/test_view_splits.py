"""Splits of clips into views, against skimage, scipy and autograd; two encoders."""

import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter1d
from skimage import color

from vidssl.apps.views.cmc import SPACES, Channels, Frequency, Learned, Split, blur_images, first_and_others
from vidssl.apps.views.invertible_colors import ColorFlow
from vidssl.base.errors import ConfigError
from vidssl.models import build_backbone

SMALL = {"name": "resnet3d18", "width": 4}


def clips(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def scaled(name, values):
    """Put the channels of skimage into about [-1, 1], by the ranges that docs/views.md gives."""
    low, high = {
        "rgb": ((0, 0, 0), (1, 1, 1)),
        "hsv": ((0, 0, 0), (1, 1, 1)),
        "yuv": ((0, -0.436, -0.615), (1, 0.436, 0.615)),
        "ydbdr": ((0, -1.333, -1.333), (1, 1.333, 1.333)),
        "lab": ((0, -128, -128), (100, 128, 128)),
    }[name]
    low, high = np.array(low), np.array(high)
    return 2 * (values - low) / (high - low) - 1


@pytest.mark.parametrize("name", SPACES)
def test_colour_spaces_are_those_of_skimage(name):
    x = clips(2, 3, 2, 5, 6)
    edges = torch.tensor([[0, 0, 0], [1, 1, 1], [1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 0, 1], [0.5, 0.5, 0.5]])
    x[0, :, 0, 0] = edges[:6].T
    x[1, :, 1, 4, :] = edges[1:].T
    image = x.permute(0, 2, 3, 4, 1).double().numpy()
    convert = getattr(color, f"rgb2{name}", lambda image: image)
    expected = scaled(name, convert(image)).transpose(0, 4, 1, 2, 3)
    np.testing.assert_allclose(SPACES[name](x).numpy(), expected, atol=2e-3 if name == "lab" else 1e-5)


@pytest.mark.parametrize(("sigma", "shape"), [(0.4, (7, 9)), (1.0, (7, 9)), (3.0, (7, 9)), (2.0, (1, 2))])
def test_low_and_high_frequencies_are_those_of_scipy(sigma, shape):
    x = clips(2, 3, 2, *shape)
    expected = x.double().numpy()
    for axis, side in ((3, shape[0]), (4, shape[1])):
        radius = int(np.ceil(4 * sigma))
        expected = gaussian_filter1d(expected, sigma, axis=axis, mode="mirror", radius=radius) if side > 1 else expected
    low, high = Split(Frequency(name="frequency", sigma=sigma))(x)
    np.testing.assert_allclose(low.numpy(), expected, atol=2e-6)
    np.testing.assert_allclose(high.numpy(), x.numpy() - expected, atol=2e-6)
    np.testing.assert_allclose(blur_images(torch.ones(1, 1, 1, *shape), sigma).numpy(), 1, atol=1e-6)


def test_a_view_of_some_channels_is_a_network_of_fewer_channels():
    torch.manual_seed(0)
    x = clips(2, 3, 2, 8, 8)
    wide = torch.nn.Conv3d(3, 5, 3, padding=1)
    for view, channels in zip(first_and_others(x), ([0], [1, 2]), strict=True):
        narrow = torch.nn.Conv3d(len(channels), 5, 3, padding=1)
        narrow.load_state_dict({"weight": wide.weight[:, channels], "bias": wide.bias})
        torch.testing.assert_close(wide(view), narrow(x[:, channels]))


def test_colour_spaces_need_pixels_between_0_and_1():
    split = Split(Channels(name="channels"))
    first, others = split(clips(1, 3, 1, 4, 4))
    assert first[:, 1:].abs().sum() == 0 and others[:, 0].abs().sum() == 0 and first[:, 0].abs().sum() > 0
    with pytest.raises(ConfigError, match=r"pixels in \[0, 1\], got .* set data.mean=\[0.0\] and data.std=\[1.0\]"):
        split(2 * clips(1, 3, 1, 4, 4) - 1)


def flow(preserving, blocks=4):
    torch.manual_seed(1)
    actual = ColorFlow(ColorFlow.Config(blocks=blocks, hidden=8, volume_preserving=preserving))
    assert torch.equal(actual.transform(x := clips(1, 3, 1, 2, 2)), x)  # starts as the identity
    for p in actual.parameters():
        torch.nn.init.normal_(p, std=0.5)
    return actual.double()


@pytest.mark.parametrize("preserving", [True, False])
def test_a_flow_is_inverted_exactly(preserving):
    """By the equations of docs/views.md, solved for X1 and X2."""
    x, network = clips(2, 3, 2, 5, 4).double() * 4 - 2, flow(preserving)
    y = network.transform(x)
    assert (y - x).abs().mean() > 0.1
    for block in reversed(network.blocks):
        first, others = block.order[:1], block.order[1:]
        single, pair, y = y[:, first], y[:, others], y.clone()
        if preserving:
            y[:, others] = pair = pair - block.g(single)
            y[:, first] = single - block.f(pair)
        else:
            y[:, first] = (single - block.g(pair)) * (-block.f(pair).tanh()).exp()
    torch.testing.assert_close(y, x, rtol=0, atol=1e-10)


@pytest.mark.parametrize("preserving", [True, False])
def test_the_volume_of_colours_is_preserved_or_scaled(preserving):
    network, x = flow(preserving), clips(1, 3, 1, 1, 1).double()
    jacobian = torch.autograd.functional.jacobian(lambda pixel: network.transform(pixel).flatten(), x)
    determinant = torch.linalg.det(jacobian.reshape(3, 3))
    assert determinant > 0 and (abs(determinant - 1) < 1e-12) == preserving


def test_the_single_channel_alternates():
    network = flow(True, blocks=5)
    assert [block.order[0] for block in network.blocks] == [0, 1, 2, 0, 1]
    one = flow(False, blocks=2).blocks[1]
    x = clips(1, 3, 1, 2, 2).double()
    changed = one(x) != x
    assert changed[:, 1].all() and not changed[:, [0, 2]].any()


def test_two_encoders_see_a_view_each():
    torch.manual_seed(0)
    network = build_backbone("two_encoders", encoder=SMALL, split={"name": "frequency", "sigma": 2.0}).eval()
    x, other = clips(2, 3, 2, 16, 16), clips(2, 3, 2, 16, 16, seed=1)
    low, high = blur_images(x, 2.0), x - blur_images(x, 2.0)
    first, second = network.encoders
    with torch.no_grad():
        torch.testing.assert_close(network(x), torch.cat([first(low), second(high)], dim=1))
        torch.testing.assert_close(
            network(x, other), torch.cat([first(low), second(other - blur_images(other, 2.0))], dim=1)
        )
        whole = build_backbone("two_encoders", encoder=SMALL).eval()
        torch.testing.assert_close(whole(x, other), torch.cat([whole.encoders[0](x), whole.encoders[1](other)], dim=1))
        maps = network.features(x, ("layer2", "layer1"))
        of_views = zip(
            first.features(low, ("layer2", "layer1")), second.features(high, ("layer2", "layer1")), strict=True
        )
        for actual, pair in zip(maps, of_views, strict=True):
            torch.testing.assert_close(actual, torch.cat(pair, dim=1))
    assert network.dim == network(x).shape[1] == 2 * first.dim
    assert not torch.equal(first.net.blocks[0].conv.weight, second.net.blocks[0].conv.weight)


def test_a_learned_split_is_not_trained():
    settings = Learned(name="learned", flow=ColorFlow.Config(blocks=2))
    split = Split(settings)
    assert not any(p.requires_grad for p in split.parameters()) and len([*split.parameters()]) == 16
