"""Weights to start from, by their name in another library: `torchvision:NAME[@WEIGHTS]`, `timm:NAME[.TAG]`."""

from typing import NamedTuple

from torch import Tensor

from vidssl.errors import CheckpointError, ConfigError
from vidssl.models.external import load_encoder
from vidssl.models.pixel_normalization import Normalization
from vidssl.models.resnet2d import NETWORKS

_LIBRARIES = ("torchvision", "timm")


class LibraryWeights(NamedTuple):
    """Trained weights of a library, without the classifier."""

    architecture: str  # a backbone of vidssl has the same name, if there is one
    weights: dict[str, Tensor]  # by their names in the library
    normalization: Normalization  # of the pixels that they were trained on


def read_library_weights(name: str, trust: bool = False) -> LibraryWeights:
    """Read the weights of a name for `init`; the library downloads them into its own cache.

    Raises:
        CheckpointError: The library is not installed, has no such network or weights, or cannot download them.
        ConfigError: It is a name of no weights, or one with settings of clips.
    """
    library, _, inner = name.partition(":")
    network, _, tag = inner.partition("@")
    if library not in _LIBRARIES:
        raise ConfigError(f"init={name}: init takes names of torchvision: and timm:, or a file")
    if tag == "none":
        raise ConfigError(f"init={name} has no trained weights: leave init out to start untrained")
    if "," in name:
        raise ConfigError(f"init={name}: settings of clips are for tests: leave out ,{name.partition(',')[2]}")
    architecture = network.partition(".")[0]
    # Others of timm have the same weights and another computation: resnetaa50, resnetblur50.
    if library == "timm" and architecture not in NETWORKS:
        raise CheckpointError(f"{name} is a {architecture}: of timm, init takes {', '.join(NETWORKS)}")
    encoder = load_encoder(name, trust)
    return LibraryWeights(architecture, encoder.network.state_dict(), Normalization(encoder.mean, encoder.std))
