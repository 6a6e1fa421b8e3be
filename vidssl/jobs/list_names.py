"""What configs can name: backbones, methods, samplers, recipes, protocols, configs, weights; and their schema."""

import json
from typing import Any

from vidssl.base.config import installed_configs
from vidssl.data.clip_samplers import SAMPLERS
from vidssl.engine.run_config import run_schema as schema_of_runs
from vidssl.evaluation.protocols import PROTOCOLS
from vidssl.methods import METHODS
from vidssl.models.backbones import BACKBONES
from vidssl.models.external import OWN
from vidssl.models.joined_features import SUMS
from vidssl.models.read_and_write_weights import own_weights
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


class Schema(dict[str, Any]):
    """A JSON schema; its text is JSON too."""

    def __str__(self) -> str:
        return json.dumps(self, indent=2)


def schema() -> Schema:
    """Print the JSON schema of config files, for editors that complete YAML."""
    return Schema(schema_of_runs().model_json_schema())
