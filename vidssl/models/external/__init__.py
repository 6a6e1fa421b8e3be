"""Encoders of other libraries by name, `LIBRARY:NAME`; a library is imported, and weights read, when one is named."""

import csv
import pkgutil
import re
import sys
from collections.abc import Callable
from dataclasses import field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import BeforeValidator, TypeAdapter
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from vidssl.base.errors import CheckpointError, ConfigError, VidsslError, in_one_line, writable_cache
from vidssl.base.types import Count, Frames, Positive
from vidssl.models.backbones import Backbone, ModuleBackbone

# Package of a library, and the function of vidssl.models that loads its encoders: load(name, trust) -> Encoder.
LIBRARIES = {
    "torchvision": ("torchvision", "external.load_from_libraries:load_torchvision"),
    "timm": ("timm", "external.load_from_libraries:load_timm"),
    "transformers": ("transformers", "external.load_transformers:load"),
    "hub": ("torch", "external.load_from_libraries:load_hub"),
    "onnx": ("onnxruntime", "external.load_from_libraries:load_onnx"),
    "python": ("", "external.load_from_libraries:load_python"),
    "floor": ("", "floors:load_floor"),
}
OWN = {"vidssl-frames": "efficientnet_lite:load_frames"}  # what comes with vidssl, by name, in place of a library
# Settings that may follow a name: their types, and what they are in words.
_SETTINGS: dict[str, tuple[TypeAdapter[Any], str]] = {
    "frames": (TypeAdapter(Literal["mean", "concatenate", "differences"]), "mean, concatenate or differences"),
    "count": (TypeAdapter(Count), "1 or more"),
    "seconds": (TypeAdapter(Literal["whole"] | Positive), "above 0, or whole"),
}
_LAST_SETTING = re.compile(rf",({'|'.join(_SETTINGS)})=([^,]*)$")
# Of weights whose `LIBRARY NAME` begins like a pattern, the first of several. It holds only what the sources state.
_FACTS = Path(__file__).with_name("facts.csv")


def _channels(value: Any) -> Any:
    numbers = value if isinstance(value, tuple | list) else (value,)
    if len(numbers) not in (1, 3):
        raise ValueError("give one number, or three")
    return tuple(numbers)


@dataclass(frozen=True, config={"arbitrary_types_allowed": True})
class Encoder:
    """An encoder of another library, and the clips that it is used with there.

    The spatial part of the library's preprocessing is `crop`, the other part `mean` and `std`.
    """

    network: nn.Module  # normalised clips (B, 3, T, S, S) to features (B, D); if `images`, images (B, 3, S, S)
    size: Count  # S, pixels
    mean: Annotated[tuple[float, ...], BeforeValidator(_channels)] = (0.0,)  # of pixels in [0, 1]
    std: Annotated[tuple[Positive, ...], BeforeValidator(_channels)] = (1.0,)
    # Decoded frames (T, 3, H, W), uint8, to (T, 3, S, S); None: vidssl's, the central square of the short side.
    crop: Callable[[Frames], Frames] | None = None
    short_side: Count | None = None  # pixels; None: size
    any_shape: bool = False  # `crop` keeps the shape of the frames, so that videos go one at a time
    images: bool = False  # it encodes frames, not clips
    frames: Count = 8  # T
    seconds: Literal["whole"] | Positive = "whole"  # span of a clip
    test: dict[str, Any] = field(default_factory=dict)  # settings of `TestClips` that are not those of all libraries
    finish: Callable[[Tensor], Tensor] | None = None  # as of a backbone: applied to the means over clips, (N, D)
    licence: str = "not stated"  # of the weights
    # Sets.
    training: Annotated[tuple[str, ...], BeforeValidator(lambda x: (x,) if isinstance(x, str) else x)] = ("not stated",)
    source: str = "not stated"  # of what is stated
    features: str = "output"  # what of the network they are
    version: str = ""  # of the library
    code: str = ""  # hash of the code of the network, if that is the user's and may change


class Called(nn.Module):
    """Features (B, D) by `call(network, x)` of clips (B, 3, T, S, S) or images (B, 3, S, S), as a module.

    Of outputs of transformers these are the pooled ones, else those of the class token, which is the first, if the
    network has one that its classifier reads, else the mean of tokens (B, N, D) or maps (B, D, H, W).
    """

    features = "output"  # what those of the last call are

    def __init__(
        self, network: Any, call: Callable[[Any, Tensor], Any] = nn.Module.__call__, class_token: bool = False
    ) -> None:
        super().__init__()
        self.network, self.call, self.class_token = network, call, class_token

    def forward(self, x: Tensor) -> Any:
        """Encode clips or images."""
        output = self.call(self.network, x)
        pooled, features = getattr(output, "pooler_output", None), getattr(output, "last_hidden_state", output)
        if isinstance(features, tuple | list):
            features = features[0]
        if pooled is not None:
            self.features, features = "pooled output", pooled
        elif features is not output and features.ndim == 4:
            self.features, features = "mean of maps", features.mean(dim=(2, 3))
        elif isinstance(features, Tensor) and features.ndim == 3:
            self.features = "class token" if self.class_token else "mean of tokens"
            features = features[:, 0] if self.class_token else features.mean(dim=1)
        return features


def is_external(name: object) -> bool:
    """Whether a name is that of an encoder of another library, `LIBRARY:NAME`, or `vidssl-frames`."""
    plain, colon, _ = name.partition(":") if isinstance(name, str) else ("", "", "")
    return (plain in LIBRARIES and colon != "") or plain.partition(",")[0] in OWN


def load_external(name: str, trust: bool = False) -> tuple[Encoder, Backbone]:
    """Load an encoder by its name, which may end with settings: `timm:NAME,frames=differences,count=9,seconds=2`.

    `frames` says how the features of the frames of an image encoder are joined (mean), `count` is the number of frames
    of a clip, `seconds` its span or whole.

    Raises:
        CheckpointError: The library is not installed, has no such encoder, or its weights cannot be loaded.
        ConfigError: A setting is wrong, or the network does not make features (B, D) of clips.
        UntrustedError: The encoder is code of others, and `trust` is False.
    """
    plain, settings = name, dict[str, Any]()
    while match := _LAST_SETTING.search(plain):
        setting, text = match.groups()
        if setting in settings:
            raise ConfigError(f"{name} has {setting} twice: leave one out")
        kind, limits = _SETTINGS[setting]
        try:
            settings[setting] = kind.validate_python(text)
        except ValueError:
            raise ConfigError(f"{setting}={text} of {name}: {setting} is {limits}") from None
        plain = plain[: match.start()]
    encoder = load_library_encoder(plain, trust)
    frames, seconds = settings.get("count", encoder.frames), settings.get("seconds", encoder.seconds)
    joined, network = settings.get("frames"), encoder.network.eval()
    if joined is not None and not encoder.images:
        raise ConfigError(f"{plain} encodes clips: frames={joined} is for encoders of images")
    if joined == "differences" and frames < 2:
        raise ConfigError("frames=differences needs two frames or more: count=8")
    if encoder.images:
        network = Called(network, partial(_of_frames, joined=joined or "mean"))
    if settings:
        encoder = replace(encoder, frames=frames, seconds=seconds, test={})
    try:
        backbone = ModuleBackbone(network, frames, encoder.size, encoder.finish)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from error.__cause__
    features = encoder.network.features if isinstance(encoder.network, Called) else encoder.features
    return replace(encoder, features=features), backbone


def load_library_encoder(name: str, trust: bool = False) -> Encoder:
    """Load an encoder by its name without settings; errors are those of `load_external`."""
    library, _, inner = name.partition(":")
    if name not in OWN and not inner:
        raise CheckpointError(f"{library}: is a library without a name: {library}:NAME; docs/encoders.md has some")
    package, function = ("", OWN[name]) if name in OWN else LIBRARIES[library]
    try:
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(0)  # weights that are drawn are the same each time
            encoder: Encoder = pkgutil.resolve_name(f"vidssl.models.{function}")(inner, trust)
    except VidsslError:
        raise
    except Exception as error:  # of the library: no such name, no network, damaged files
        if not isinstance(error, ImportError):
            raise CheckpointError(f"{name} cannot be loaded: {in_one_line(error)}{writable_cache(error)}") from None
        reason = " ".join(str(error).split())[:300]
        # Of another package than the library's own, the name to install may differ from the one to import.
        remedy = f"pip install {package}" if error.name == package else "install it, or add its folder to PYTHONPATH"
        raise CheckpointError(f"{name} needs a package that is not installed ({reason}): {remedy}") from None
    return replace(encoder, version=f"{package} {sys.modules[package].__version__}") if package else encoder


def _of_frames(network: nn.Module, x: Tensor, joined: str) -> Tensor:
    """Encode clips (B, 3, T, S, S) by a network of images."""
    features: Tensor = network(x.transpose(1, 2).flatten(0, 1)).unflatten(0, (x.shape[0], -1))  # (B, T, D)
    if joined == "differences":
        features = features.diff(dim=1)
    return features.mean(dim=1) if joined == "mean" else features.flatten(1)


def seconds_of(frames: int, stride: float) -> float:
    """Return the span of a clip whose frames are `stride` frames apart in videos of 30 per second."""
    return ((frames - 1) * stride + 1) / 30


def facts_of(weights: str | None, licence: str | None = None, source: str | None = None) -> dict[str, Any]:
    """Return fields of `Encoder` for `LIBRARY NAME`, None if it is untrained; what the library states comes first."""
    if weights is None:
        return {"training": ("none",), "licence": "none needed"}
    with _FACTS.open(encoding="utf-8", newline="") as file:
        row = next(row for row in csv.DictReader(file) if re.match(row["pattern"], weights))
    training = tuple(row["training"].split("; "))
    return {"licence": licence or row["licence"], "training": training, "source": source or row["source"]}


def preprocessed_by(prepare: Callable[[Tensor], Tensor], network: nn.Module, **fields: Any) -> Encoder:
    """Return an encoder with its library's preprocessing of uint8 frames (T, 3, H, W).

    `prepare` makes normalised frames (T, 3, S, S) or a clip (3, T, S, S). S, the order, mean and standard deviation are
    those of two frames, black and white; `fields` are the others of `Encoder`.
    """
    black, white = (prepare(torch.full((2, 3, 48, 64), value, dtype=torch.uint8)).double() for value in (0, 255))
    channels, (height, width) = black.shape.index(3), black.shape[2:]
    low, high = (x.movedim(channels, 0)[:, 0, height // 2, width // 2] for x in (black, white))  # not of a border
    # Rounded: the numbers that the library states, whatever float32 makes of them.
    mean, std = (tuple(float(f"{x:.6g}") for x in xs.tolist()) for xs in (low / (low - high), 1 / (high - low)))
    crop = partial(_pixels, prepare=prepare, channels=channels, mean=mean, std=std)
    return Encoder(network, min(height, width), mean, std, crop, **fields)


def _pixels(frames: Frames, prepare: Callable[[Tensor], Tensor], channels: int, mean: Any, std: Any) -> Frames:
    """Take the normalisation back, which the device does. This is exact: libraries resize bytes to bytes."""
    views = prepare(torch.from_numpy(frames.copy())).movedim(channels, 1)
    mean, std = (torch.tensor(x).view(3, 1, 1) for x in (mean, std))
    pixels: Frames = (255 * (views * std + mean)).round().clamp(0, 255).to(torch.uint8).contiguous().numpy()
    return pixels
