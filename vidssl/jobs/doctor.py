"""What there is: the optional parts that work on this machine, and what configs can name; also their schema."""

import json
from typing import Any

import av
import cv2
import torch

from vidssl.base.config import installed_configs
from vidssl.base.errors import ConfigError, VidsslError
from vidssl.base.registry import APPS, load_app
from vidssl.data.clip_samplers import SAMPLERS
from vidssl.engine.run_config import bfloat16_is_emulated
from vidssl.engine.run_config import run_schema as schema_of_runs
from vidssl.evaluation.protocols import PROTOCOLS
from vidssl.methods import METHODS
from vidssl.models.backbones import BACKBONES
from vidssl.models.convolution_check import SHAPES, conv3d_fault, cudnn_version, processor, wrong_shapes
from vidssl.models.external import OWN
from vidssl.models.joined_features import SUMS
from vidssl.models.read_and_write_weights import own_weights
from vidssl.tracking.proposals import selective_search
from vidssl.transforms import RECIPES
from vidssl.video.other_decoders import backend_version


class Parts(dict[str, dict[str, Any]]):
    """What works, by name: whether it does, and its version, or what to install; the text is a table."""

    def __str__(self) -> str:
        width = max(map(len, self))
        rows = (
            f"{'yes' if part['works'] else 'no ':<3}  {name:<{width}}  {part['detail']}" for name, part in self.items()
        )
        return "\n".join(rows)


def doctor() -> Parts:
    """Report which optional parts work on this machine, and how to install the others."""
    parts = Parts()
    of_apps = {name: load_app("part", name).version for name in APPS["part"]}
    for name, version in {**_VERSIONS, **of_apps}.items():
        try:
            parts[name] = {"works": True, "detail": version()}
        except VidsslError as error:
            parts[name] = {"works": False, "detail": str(error)}
    return parts


def _gpu() -> str:
    if not torch.cuda.is_available():
        raise ConfigError(f"torch {torch.__version__} finds no CUDA device: training runs on the CPU")
    return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}, torch {torch.__version__}"


def _conv3d() -> str:
    if not torch.cuda.is_available():
        raise ConfigError("no CUDA device")
    if faults := [fault for half in (True, False) if (fault := conv3d_fault(half))]:
        raise ConfigError("; ".join(faults))
    return f"torch {torch.__version__}, cuDNN {cudnn_version()}"


def _bfloat16() -> str:
    capability = torch.backends.cpu.get_cpu_capability()
    if bfloat16_is_emulated(torch.device("cpu")):
        raise ConfigError(f"{capability}: emulated, about 20 times as slow as float32; train with precision=float32")
    return capability


def _bfloat16_convolutions() -> str:
    if wrong := wrong_shapes():
        remedy = "a run whose network has such ones is refused: train it with precision=float32"
        raise ConfigError(f"{processor()}: {len(wrong)} of {len(SHAPES)} are wrong: {'; '.join(wrong)}; {remedy}")
    return f"{processor()}: {len(SHAPES)} agree with float32"


def _selective_search() -> str:
    selective_search()
    return f"opencv {cv2.__version__} with ximgproc"


_VERSIONS = {
    "training on a GPU": _gpu,
    "3D convolutions on a GPU": _conv3d,
    "bfloat16 on the CPU": _bfloat16,
    "convolutions in bfloat16 on the CPU": _bfloat16_convolutions,
    "decoding with pyav": lambda: f"av {av.__version__}, libavcodec {av.library_versions['libavcodec'][0]}",
    "decoding with decord": lambda: f"decord {backend_version('decord')}",
    "decoding with torchcodec": lambda: f"torchcodec {backend_version('torchcodec')}",
    "decoding with nvdec": lambda: f"torchcodec {backend_version('nvdec')}",
    "selective search": _selective_search,
}


def list_backbones() -> list[str]:
    """List the names that `build_backbone` takes, and `backbone.name` of configs."""
    return sorted(BACKBONES)


def list_methods() -> list[str]:
    """List the names that `method.name` of configs takes."""
    return sorted(METHODS)


def list_samplers() -> list[str]:
    """List the names that `data.sampler.name` of configs takes."""
    return sorted(SAMPLERS)


def list_recipes() -> list[str]:
    """List the names of augmentations that `data.views` of configs takes."""
    return sorted(RECIPES)


def list_protocols() -> list[str]:
    """List the names that `protocol` of `test` takes."""
    return sorted(PROTOCOLS)


def list_configs() -> list[str]:
    """List the configs that are installed, as `pretrain/small_cpu`; the last part is enough where it is unique."""
    return sorted(installed_configs())


def list_weights() -> list[str]:
    """List the networks that come with vidssl, for `model`; `load_backbone` takes those that vidssl trained."""
    return sorted([*own_weights(), *OWN, *SUMS])


class Schema(dict[str, Any]):
    """A JSON schema; its text is JSON too."""

    def __str__(self) -> str:
        return json.dumps(self, indent=2)


def schema() -> Schema:
    """Print the JSON schema of config files, for editors that complete YAML."""
    return Schema(schema_of_runs().model_json_schema())
