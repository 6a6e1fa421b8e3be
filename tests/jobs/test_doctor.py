"""What works here is said, and what does not comes with what to do about it."""

import sys

import cv2
import pytest

from vidssl import cli
from vidssl.jobs.doctor import doctor


def test_what_works_is_named(capsys):
    parts = doctor()
    assert parts["decoding with pyav"]["works"]
    assert cv2.__version__ in parts["selective search"]["detail"]
    cli.run("doctor", [])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(parts) and all(line[:3] in ("yes", "no ") for line in lines)


MISSING = {  # a module, what needs it, and what to do
    "cv2.ximgproc.segmentation": ("selective search", "--force-reinstall opencv-contrib-python-headless"),
    "umap": ("maps of features by UMAP", "'vidssl[map]'"),
    "pycocotools": ("object detection", "'vidssl[detection]'"),
    "onnxruntime": ("export to ONNX", "'vidssl[export]'"),
    "decord": ("decoding with decord", "decord"),
    "torchcodec.decoders": ("decoding with torchcodec", "torchcodec"),
}


def test_31_what_is_missing_says_what_to_do_and_all_else_works(monkeypatch):
    before, names = doctor(), {name for name, _ in MISSING.values()}
    for module in MISSING:
        monkeypatch.setitem(sys.modules, module, None)  # an import of it fails
    after = doctor()
    for name, remedy in MISSING.values():
        detail = after[name]["detail"]
        assert not after[name]["works"] and f"pip install {remedy}" in detail and "\n" not in detail
    assert {name: after[name] for name in {*after} - names} == {name: before[name] for name in {*before} - names}


@pytest.mark.parametrize(("capability", "works"), [("AVX2", False), ("AVX512", True)])
def test_emulated_bfloat16_is_named(monkeypatch, capability, works):
    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: capability)
    part = doctor()["bfloat16 on the CPU"]
    assert part["works"] == works and ("precision=float32" in part["detail"]) != works
