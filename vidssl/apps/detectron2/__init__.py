"""Export to detectron2: the weights of a 2D ResNet under detectron2's names, and the settings that belong to them."""

import io
import pickle
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vidssl.base.atomic import write_whole
from vidssl.base.config import build
from vidssl.base.errors import ConfigError
from vidssl.base.output_folder import check_file, writing_file
from vidssl.base.registry import load_app
from vidssl.engine.run_config import bind_stored, run_kind
from vidssl.jobs.measurement_runner import JobResults
from vidssl.models.backbones import BACKBONES, Backbone
from vidssl.models.read_and_write_weights import backbone_weights, load_state, read_checkpoint, weights_file
from vidssl.models.resnet2d import RESNETS_2D, ResNet2D

# Regular expressions and replacements, all applied in order.
_DETECTRON2 = (
    (r"^net\.(?=conv1|bn1)", "stem."),
    (r"^net\.layer(\d)\.", lambda match: f"res{int(match[1]) + 1}."),
    (r"bn(\d)\.", r"conv\1.norm."),
    (r"downsample\.0\.", "shortcut."),
    (r"downsample\.1\.", "shortcut.norm."),
)


def export(checkpoint: str, out: Path, trust: bool = False) -> JobResults:
    """Write a 2D ResNet for detectron2; return the settings that belong to the file."""
    inputs = [weights_file(checkpoint)]
    check_file(out, inputs)
    content = read_checkpoint(checkpoint, trust)
    config, source = content["config"], f"config of {checkpoint}"
    kind = run_kind(config, source)
    run = (bind_stored if kind == "method" else load_app("run", kind).bind_stored)(config, source, trust)
    backbone: Backbone = build(BACKBONES, run.backbone)
    load_state(backbone, backbone_weights(content), checkpoint)
    with writing_file(out, inputs):
        settings = save_detectron2(backbone, out, run.data.mean, run.data.std)
    lines = (f"{key} {shlex.quote(str(value))}" for key, value in settings.items())
    text = "\n".join([f"{out}: {run.backbone.name} for detectron2, with these settings:", *lines])
    results = JobResults(settings)
    results.text = text
    return results


def detectron2_name(name: str) -> str:
    """Return detectron2's name of a weight of a 2D ResNet: `net.layer1.0.bn2.bias` is `res2.0.conv2.norm.bias`."""
    for pattern, replacement in _DETECTRON2:
        name = re.sub(pattern, replacement, name)
    return name


def save_detectron2(backbone: Backbone, path: Path, mean: Sequence[float], std: Sequence[float]) -> dict[str, Any]:
    """Write a 2D ResNet to a .pkl file that detectron2's MODEL.WEIGHTS takes; return the settings that belong to it.

    `mean` and `std` are those of RGB pixels in [0, 1], one for each channel or one for all.

    Raises:
        ConfigError: detectron2 does not have this network, or takes the file for one of another format.
    """
    if path.suffix != ".pkl":
        raise ConfigError(f"cannot write {path}: detectron2 reads this format from .pkl only; name the file *.pkl")
    if not isinstance(backbone, ResNet2D) or backbone.net.conv1.kernel_size != (7, 7):
        stem = " with stem: cifar" if isinstance(backbone, ResNet2D) else ""
        fitting = ", ".join(RESNETS_2D)
        remedy = f"use a run whose backbone is one of {fitting}, with stem: imagenet"
        raise ConfigError(f"detectron2 has no {type(backbone).__name__}{stem}: {remedy}")
    state = backbone.state_dict()
    weights = {detectron2_name(name): weight.detach().cpu().numpy() for name, weight in state.items()}
    file = io.BytesIO()
    _Pickler(file, protocol=4).dump({"model": weights, "__author__": "vidssl", "matching_heuristics": True})
    write_whole(path, file.getvalue())
    net, first = backbone.net, backbone.net.layer1[0]
    convs = sum(re.fullmatch(r"net\.layer.*\.conv\d\.weight", name) is not None for name in state)
    return {
        "MODEL.WEIGHTS": str(path),
        "MODEL.PIXEL_MEAN": _pixels(mean),
        "MODEL.PIXEL_STD": _pixels(std),
        "INPUT.FORMAT": "RGB",
        "MODEL.RESNETS.DEPTH": convs + 2,  # the first convolution and the classifier count too
        "MODEL.RESNETS.NUM_GROUPS": first.conv2.groups,
        "MODEL.RESNETS.WIDTH_PER_GROUP": first.conv2.out_channels // first.conv2.groups,
        "MODEL.RESNETS.RES2_OUT_CHANNELS": net.layer2[0].conv1.in_channels,
        "MODEL.RESNETS.STRIDE_IN_1X1": False,  # torchvision's stride is in the 3x3 convolution
    }


def _pixels(values: Sequence[float]) -> list[float]:
    """Scale one value, or one for each channel, to pixels from 0 to 255."""
    return [round(255 * value, 4) for value in (values if len(values) == 3 else [*values] * 3)]


class _Pickler(pickle.Pickler):
    """Pickles arrays by public names only: numpy 2 itself writes names of private modules, which numpy 1 lacks."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, np.ndarray):
            array: NDArray[Any] = obj
            return np.ndarray, (array.shape, array.dtype.str, bytearray(array.tobytes()))
        return NotImplemented
