"""Releases of torch and cuDNN with slow or wrong 3D convolutions, as pytorch's threads name them."""

import logging

import pytest
import torch

from vidssl.engine import run_setup as training
from vidssl.jobs import doctor
from vidssl.models.convolution_check import conv3d_fault


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
    ],
)
def test_releases(half, torch_version, cudnn, tf32, expected):
    found = conv3d_fault(half, torch_version, cudnn, tf32)
    if expected is None:
        assert found is None
    else:
        assert expected in found and torch_version in found and "install torch 2.10" in found


def test_without_cudnn_there_is_no_fault(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: None)
    assert conv3d_fault(True) is None and conv3d_fault(False) is None


def test_doctor_and_the_start_of_a_run_name_it(monkeypatch, caplog):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setattr(doctor, "conv3d_fault", lambda half: f"slow in {'bfloat16' if half else 'float32'}")
    part = doctor.doctor()["3D convolutions on a GPU"]
    assert not part["works"] and part["detail"] == "slow in bfloat16; slow in float32"
    monkeypatch.setattr(training, "conv3d_fault", lambda half: "slow" if half else None)
    with caplog.at_level(logging.WARNING, "vidssl"):
        training.warn_of_conv3d(torch.device("cpu"), half=True)
        training.warn_of_conv3d(torch.device("cuda"), half=False)
        assert not caplog.messages
        training.warn_of_conv3d(torch.device("cuda"), half=True)
        assert caplog.messages == ["slow"]
