"""What works here is said, and what does not comes with what to do about it."""

import sys

import cv2
import pytest

from vidssl.commands import doctor


def by_name():
    return {part.name: part for part in doctor.examine()}


def test_what_works_is_named():
    parts = by_name()
    assert parts["decoding with pyav"].works
    assert cv2.__version__ in parts["selective search"].detail
    text = doctor.describe(doctor.examine())
    assert len(text.splitlines()) == len(parts) and all(line[:3] in ("yes", "no ") for line in text.splitlines())


@pytest.mark.parametrize(
    ("module", "name", "remedy"),
    [
        (
            "cv2.ximgproc.segmentation",
            "selective search",
            "pip install --force-reinstall opencv-contrib-python-headless",
        ),
        ("decord", "decoding with decord", "pip install decord"),
        ("torchcodec.decoders", "decoding with torchcodec", "pip install torchcodec"),
    ],
)
def test_31_what_is_missing_says_what_to_do_and_all_else_works(monkeypatch, module, name, remedy):
    before = by_name()
    monkeypatch.setitem(sys.modules, module, None)  # an import of it fails
    after = by_name()
    assert not after[name].works and remedy in after[name].detail and "\n" not in after[name].detail
    assert {other: part for other, part in after.items() if other != name} == {
        other: part for other, part in before.items() if other != name
    }
