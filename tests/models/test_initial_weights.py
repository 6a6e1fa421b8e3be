"""What is said of weights that are loaded, and do not see what they were trained on."""

import subprocess
import sys

import pytest
import torch

import vidssl
from vidssl.base.errors import ConfigError
from vidssl.models import InitialWeights, build_backbone, load_initial
from vidssl.models.match_checkpoints import log_match
from vidssl.models.read_and_write_weights import CHECKPOINT_FORMAT, Normalization

SMALL = {"name": "resnet3d18", "width": 4}
OF_DIFFERENCES = {**SMALL, "frame_differences": True}
STREAMS = {"name": "two_streams", "streams": {"rgb": SMALL, "differences": OF_DIFFERENCES}}
SWAPPED = {"name": "two_streams", "streams": {"rgb": OF_DIFFERENCES, "differences": SMALL}}
OURS = Normalization((0.45,), (0.225,))


def of_stream(name):
    return {f"method.backbone.encoders.{name}.": ""}


@pytest.mark.parametrize(
    ("trained", "here", "keys", "right"),
    [
        (SMALL, SMALL, {}, True),
        (OF_DIFFERENCES, OF_DIFFERENCES, {}, True),
        (STREAMS, STREAMS, {}, True),
        (STREAMS, SMALL, of_stream("rgb"), True),
        (STREAMS, OF_DIFFERENCES, of_stream("differences"), True),
        (SMALL, STREAMS, {"method.backbone.": "encoders.rgb."}, True),
        (SMALL, OF_DIFFERENCES, {}, False),
        (OF_DIFFERENCES, SMALL, {}, False),
        (STREAMS, SWAPPED, {}, False),
        (STREAMS, SMALL, of_stream("differences"), False),
        (STREAMS, OF_DIFFERENCES, of_stream("rgb"), False),
        (OF_DIFFERENCES, STREAMS, {"method.backbone.": "encoders.rgb."}, False),
    ],
)
@pytest.mark.parametrize("saved", ["checkpoint", "safetensors"])
def test_differences_in_frames_warn(trained, here, keys, right, saved, tmp_path, caplog):
    state = {f"backbone.{name}": weight for name, weight in build_backbone(**trained).state_dict().items()}
    file = tmp_path / "last.pt"
    torch.save({"format": CHECKPOINT_FORMAT, "step": 1, "method": state, "config": {"backbone": trained}}, file)
    if saved == "safetensors":
        vidssl.save_backbone(file, tmp_path / "net.safetensors")
        file = tmp_path / "net.safetensors"
    load_initial(build_backbone(**here), InitialWeights(file=str(file), keys=keys, partial=True))
    assert [record.levelname for record in caplog.records] == ([] if right else ["WARNING"])
    if not right:
        assert "differences of frames" in caplog.text and "set its frame_differences=" in caplog.text


@pytest.mark.parametrize(
    ("name", "normalization", "warned"),
    [
        ("r3d_18", OURS, "'data.mean=[0.43216, 0.394666, 0.37645]' 'data.std=[0.22803, 0.22145, 0.216989]'"),
        ("resnet18", OURS, "'data.mean=[0.485, 0.456, 0.406]' 'data.std=[0.229, 0.224, 0.225]'"),
        ("r3d_18", Normalization((0.5,), (0.5,)), None),
        ("resnet3d18", OURS, None),
    ],
)
def test_a_file_that_looks_like_torchvisions_may_have_its_mean_and_std(name, normalization, warned, tmp_path, caplog):
    torch.save(build_backbone(name).state_dict(), tmp_path / "net.pth")
    match = load_initial(build_backbone(name), InitialWeights(file=str(tmp_path / "net.pth")), False, name)
    caplog.set_level("INFO")
    log_match(match, name, normalization)
    assert [record.levelname for record in caplog.records] == ["INFO", *(["WARNING"] if warned else [])]
    assert caplog.records[0].message == str(match) and (warned is None or caplog.messages[1].endswith(f"set {warned}"))


def test_a_measured_file_states_how_its_weights_matched(tmp_path, digits, caplog):
    torch.save(build_backbone("r3d_18").state_dict(), tmp_path / "r3d.pth")
    caplog.set_level("INFO")
    settings = ["backbone={name: r3d_18}"]
    options = {"cfg": "toy/sce", "settings": settings, "workers": 0, "clips": 1, "progress": False}
    vidssl.extract(tmp_path / "r3d.pth", digits / "motion/test.csv", **options)
    assert "r3d.pth: all 120 weights of the backbone, named as in torchvision" in caplog.text
    assert "whose r3d_18 has another mean and std" in caplog.text


def test_two_streams_are_not_streams_of_others():
    with pytest.raises(ConfigError, match=r"inner is two_streams: name its streams here, beside the others$"):
        build_backbone("two_streams", streams={"inner": {"name": "two_streams"}, "rgb": SMALL})


def test_what_a_run_does_not_need_is_not_imported():
    """Of torch's compiler; the call that asks for algorithms that are set already would import it."""
    code = (
        "import sys, torch\nfrom vidssl.engine.run_setup import set_determinism\nbefore = 'torch._inductor' in "
        "sys.modules\nset_determinism(False, torch.device('cpu'))\nassert before or 'torch._inductor' not in "
        "sys.modules\nset_determinism(True, torch.device('cpu'))\nassert torch.are_deterministic_algorithms_enabled()\n"
        "set_determinism(False, torch.device('cpu'))\nassert not torch.are_deterministic_algorithms_enabled()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
