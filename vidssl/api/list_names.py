"""What there is, by name: backbones, methods, samplers, recipes, protocols, configs and weights."""

from vidssl.config import installed_configs
from vidssl.data.clip_samplers import SAMPLERS
from vidssl.evaluation.protocols import PROTOCOLS
from vidssl.methods import METHODS
from vidssl.models.backbones import BACKBONES
from vidssl.models.external import OWN
from vidssl.models.joined import SUMS
from vidssl.models.weights import own_weights
from vidssl.transforms import RECIPES


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
