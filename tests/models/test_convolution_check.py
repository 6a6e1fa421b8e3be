"""Convolutions in bfloat16 on this CPU against float32, and releases with slow or wrong ones on GPUs."""

from contextlib import suppress

import pytest
import torch
from torch import nn

from vidssl.base.errors import ConfigError
from vidssl.jobs import doctor
from vidssl.models import build_backbone
from vidssl.models import convolution_check as bfloat16_check
from vidssl.models.convolution_check import check_bfloat16, conv3d_fault

CPU = torch.device("cpu")


def faulty(part):
    """Make `functional_call` compute a part of each convolution with a stride greater than its kernel wrongly."""
    right = bfloat16_check.functional_call

    class Fault(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1.1 if part == "output" else x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 1.1 if part == "gradient" else gradient

    def call(layer, weights, inputs):
        output = right(layer, weights, inputs)
        wrong = output.dtype == torch.bfloat16 and layer.stride[-1] > layer.kernel_size[-1]
        return Fault.apply(output) if wrong else output

    return call


@pytest.fixture
def network():
    torch.manual_seed(0)
    return build_backbone("resnet3d18", width=4)


def checked(network, frames=4, side=64, gradients=True):
    """Run a forward pass in bfloat16 that is checked."""
    check_bfloat16(network, CPU)
    with torch.set_grad_enabled(gradients), torch.autocast("cpu", torch.bfloat16):
        network(torch.zeros(2, 3, frames, side, side))


@pytest.mark.parametrize("part", ["output", "gradient"])
def test_a_wrong_convolution_is_refused(part, network, monkeypatch):
    checked(network)
    monkeypatch.setattr(bfloat16_check, "functional_call", faulty(part))
    with pytest.raises(ConfigError, match=r"3 of the network's .* kernel 1x1x1, stride 1x2x2, .*use precision float32"):
        checked(network)
    if part == "output":
        with pytest.raises(ConfigError, match="the output of"):
            checked(network, gradients=False)
    else:  # features do not depend on gradients
        checked(network, gradients=False)
    network(torch.zeros(1, 3, 4, 64, 64))  # the next pass is not checked, nor are those on GPUs or in float32
    check_bfloat16(network, torch.device("cuda"))
    network(torch.zeros(1, 3, 4, 64, 64))
    check_bfloat16(network, CPU)
    network(torch.zeros(1, 3, 4, 64, 64))


def test_the_check_leaves_no_trace(network):
    network.train()
    rng = torch.get_rng_state()
    with suppress(ConfigError):  # whether this machine is right is not asked here
        checked(network)
    assert network.training and all(p.grad is None for p in network.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in network.modules())
    assert torch.equal(rng, torch.get_rng_state())


def test_a_number_that_is_not_finite_is_wrong(monkeypatch):
    layer, size = nn.Conv3d(4, 4, 1, 1, bias=False), (1, 4, 1, 2, 2)
    assert bfloat16_check._wrong([(layer, size, True)]) == {}
    right = bfloat16_check.functional_call
    monkeypatch.setattr(bfloat16_check, "functional_call", lambda *a: right(*a) * float("nan"))
    assert [*bfloat16_check._wrong([(layer, size, True)]).values()] == [float("inf")]


def test_doctor_names_what_is_wrong(monkeypatch):
    name = "convolutions in bfloat16 on the CPU"
    monkeypatch.setattr(doctor, "wrong_shapes", list)
    assert doctor.doctor()[name]["works"] and "12 agree" in doctor.doctor()[name]["detail"]
    monkeypatch.setattr(doctor, "wrong_shapes", lambda: ["one", "two"])
    part = doctor.doctor()[name]
    assert not part["works"] and "2 of 12 are wrong: one; two" in part["detail"]


@pytest.mark.parametrize(
    ("half", "torch_version", "cudnn", "tf32", "expected"),
    [
        (True, "2.9.0+cu128", 91002, True, "slow"),
        (True, "2.9.0", 91600, True, "slow"),  # checked when it was built, not when it runs
        (True, "2.9.1+cu128", 91002, True, "slow"),
        (True, "2.9.1", 91400, True, "slow"),
        (True, "2.9.1", 91500, True, None),
        (True, "2.10.0", 91400, True, "slow"),
        (True, "2.10.0", 91501, True, None),
        (True, "2.8.0+cu128", 91002, True, "wrong"),
        (True, "2.8.0", 90701, True, None),
        (True, "2.9.0", 90701, True, None),
        (False, "2.8.0", 91002, True, "wrong"),
        (False, "2.9.0", 91500, True, "wrong"),
        (False, "2.9.1", 91002, True, None),  # 2.9.1 does not use TF32 there
        (False, "2.8.0", 91001, True, None),
        (False, "2.8.0", 91002, False, None),
        (False, "2.11.0.dev20251110+cu130", 91501, True, None),
        (True, "2.9.0", None, True, None),  # no cuDNN
        (False, "2.9.0", None, True, None),
    ],
)
def test_releases(half, torch_version, cudnn, tf32, expected, monkeypatch):
    monkeypatch.setattr(torch, "__version__", torch_version)
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: cudnn)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", tf32)
    found = conv3d_fault(half)
    assert (found is None) == (expected is None)
    assert found is None or (expected in found and torch_version in found and "install torch 2.10" in found)


def test_doctor_names_a_fault_of_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setattr(doctor, "conv3d_fault", lambda half: f"slow in {'bfloat16' if half else 'float32'}")
    part = doctor.doctor()["3D convolutions on a GPU"]
    assert not part["works"] and part["detail"] == "slow in bfloat16; slow in float32"
