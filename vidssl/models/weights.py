"""Load checkpoints of vidssl and of other projects into backbones and methods."""

import json
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeGuard

import torch
from pydantic import BeforeValidator, Field, PlainSerializer
from torch import Tensor, nn

from vidssl import distributed
from vidssl.config import Settings, Tree
from vidssl.errors import CheckpointError, ConfigError, UntrustedError, first_few
from vidssl.models.backbones import BACKBONES, Backbone, build_backbone
from vidssl.models.checkpoint_files import read_file, read_without_objects, write_safetensors
from vidssl.models.checkpoint_layouts import INFLATED, Network, find_networks, flatten
from vidssl.models.external import is_external
from vidssl.models.hub_download import download
from vidssl.models.inflate import check_inflatable, check_same_shape, inflate
from vidssl.models.library_weights import read_library_weights
from vidssl.models.match_backbone import Match, check_architecture, choose_match, compare, match_backbones, shapes_of
from vidssl.models.pixel_normalization import Normalization, fold_normalization, normalization_of
from vidssl.plugins import explaining, import_modules, modules_of, not_imported
from vidssl.registry import did_you_mean

_log = logging.getLogger(__name__)

_OWN = {path.stem: path for path in (Path(__file__).parents[1] / "weights").glob("*.safetensors")}
EXPORTED = "model.safetensors"  # in a folder of `vidssl export`
FORMAT = "vidssl-checkpoint-2"  # raised when the content of checkpoints changes


def own_weights() -> dict[str, Path]:
    """Return the files of the networks that come with vidssl, by name."""
    return dict(_OWN)


def read_checkpoint(path: str | Path, trust: bool = False) -> dict[str, Any]:
    """Load a checkpoint of vidssl onto the CPU; arguments and errors are those of `read_anything`."""
    content = read_anything(path, trust)
    if not is_checkpoint(content):
        raise CheckpointError(f"{path} is not a vidssl checkpoint (format {FORMAT}): use a file that vidssl wrote")
    return content


def read_anything(path: str | Path, trust: bool = False) -> Any:
    """Load any file written by torch.save or safetensors onto the CPU without running code from it.

    Objects other than tensors and plain data, such as the settings and callbacks in Lightning's checkpoints, are left
    out. In checkpoints of vidssl they may be state, and are an error. With `trust` objects of any class are loaded,
    such as the state of your own method. This can run any code: use it only for files whose author you trust.

    Raises:
        CheckpointError: The file is missing, damaged, of another kind, or of a vidssl with another format.
        UntrustedError: It holds objects that cannot be left out, and `trust` is False.
    """
    path = weights_file(path)
    try:
        content = read_file(path, trust)
    except UntrustedError:
        content = read_without_objects(path)
        if content is None or is_checkpoint(content):
            raise
    found = content.get("format") if isinstance(content, dict) else None
    if found != FORMAT and str(found).startswith("vidssl-checkpoint-"):
        raise CheckpointError(
            f"{path} has format {found}, this vidssl reads {FORMAT}: use the version that wrote it, or train again"
        )
    if is_checkpoint(content) and (wrong := _wrong_part(content)):
        raise CheckpointError(f"{path}: its {wrong} is not that of a checkpoint: the file is damaged, replace it")
    return content


def _wrong_part(content: dict[str, Any]) -> str | None:
    """Name a part of a checkpoint of vidssl that is not of its type; None if all are."""
    config = content.get("config")
    backbone: Any = config.get("backbone") if isinstance(config, dict) else None
    names, classes = content["method"], content.get("classes", [])
    right = {
        "step": isinstance(content.get("step"), int),
        "config": isinstance(backbone, dict) and isinstance(backbone.get("name"), str),
        "method": isinstance(names, dict) and all(isinstance(name, str) for name in names),
        "classes": isinstance(classes, list) and all(isinstance(name, str) for name in classes),
        "network": isinstance(content.get("network", {}), dict),
    }
    return next((part for part, is_right in right.items() if not is_right), None)


def is_checkpoint(content: Any) -> TypeGuard[dict[str, Any]]:
    """Whether the content of a file is a vidssl checkpoint."""
    return isinstance(content, dict) and content.get("format") == FORMAT and "method" in content


def backbone_weights(checkpoint: dict[str, Any]) -> dict[str, Tensor]:
    """Return the weights of a checkpoint's online backbone, the one that is evaluated."""
    weights = checkpoint["method"]
    return {key.removeprefix("backbone."): weights[key] for key in weights if key.startswith("backbone.")}


def weights_file(name: str | Path) -> Path:
    """Find the file of weights that a name stands for.

    It is a file; a folder of `vidssl export`, or of a run, whose last checkpoint is meant; a network that comes with
    vidssl, such as `vidssl-small`; or one on the Hugging Face Hub, `hf-hub:OWNER/NAME` or `OWNER/NAME`, which is
    downloaded. What exists on disk comes first. A path of nothing is returned as it is.

    Raises:
        CheckpointError: A folder holds no weights, a network cannot be downloaded, or there is none of that name.
        ConfigError: It is neither a path nor a name.
    """
    if not isinstance(name, str | os.PathLike):
        raise ConfigError(
            f"a checkpoint is a path or a name, got a {type(name).__name__}: write the weights of a module with "
            "torch.save(module.state_dict(), FILE), and name the file"
        )
    path = Path(name)
    if os.path.isdir(path):  # noqa: PTH112 - Path.is_dir raises for a name that is too long
        for file in (path / EXPORTED, path / "checkpoints" / "last.pt"):
            if file.exists():
                return file
        if str(name) not in _OWN:
            raise CheckpointError(f"{path} holds neither {EXPORTED} (vidssl export) nor checkpoints/last.pt (a run)")
    elif os.path.exists(path):  # noqa: PTH110 - likewise
        return path
    found = _OWN.get(str(name)) or download(str(name), EXPORTED)
    if found is None and not path.suffix and len(path.parts) == 1:  # a name, not the path of a file
        known = ", ".join(sorted(_OWN))
        raise CheckpointError(
            f"{name} is neither a file nor the name of a network{did_you_mean(str(name), _OWN)}; there are: {known}, "
            "and OWNER/NAME of the Hugging Face Hub"
        )
    return found or path


def save_checkpoint_backbone(
    checkpoint: str | Path, path: str | Path, *, half: bool = False, trust: bool = False, network: Tree | None = None
) -> None:
    """Write the online backbone of a checkpoint of vidssl, and its config, to a safetensors file.

    `load_backbone`, `init` and `--checkpoint` take the file like the checkpoint. `half` rounds the weights to float16.
    `network` is a description, plain data, that is written into the metadata.

    Raises:
        CheckpointError: The file is missing, damaged or not a checkpoint of vidssl, or a weight cannot be written.
    """
    write_backbone(read_checkpoint(checkpoint, trust), str(checkpoint), path, half=half, network=network)


def write_backbone(
    content: dict[str, Any], source: str, path: str | Path, *, half: bool = False, network: Tree | None = None
) -> None:
    """Write the backbone of the content of a checkpoint, as `save_checkpoint_backbone`; `source` is for errors."""
    weights: dict[str, Tensor] = {}
    check_finite(backbone_weights(content), source)
    for name, weight in backbone_weights(content).items():
        if not isinstance(weight, Tensor) or weight.layout != torch.strided:
            raise CheckpointError(f"{source}: {name} is not a dense tensor, and cannot be saved as safetensors")
        rounded = weight.half() if half and weight.is_floating_point() else weight
        if not torch.equal(rounded.isfinite(), weight.isfinite()):
            raise CheckpointError(f"{source}: {name} exceeds 65504, the largest float16: save it without half")
        weights[f"backbone.{name}"] = rounded.contiguous().clone()  # safetensors refuses memory that two tensors share
    if not weights:
        raise CheckpointError(f"{source} has no weights named backbone.*: nothing to save")
    kept = {name: content[name] for name in ("format", "config", "step")}
    described = {} if network is None else {"network": network}
    write_safetensors(Path(path), weights, {**kept, "backbone_only": True, **described})


class InitialWeights(Settings):
    """Initial weights of a backbone."""

    # Checkpoint of vidssl or of another project, or weights by name: torchvision:NAME[@WEIGHTS], timm:NAME[.TAG].
    file: str = Field(min_length=1)
    partial: bool = False  # load only the weights that fit
    keys: dict[str, str] = Field(default={})  # prefixes of names in the file, and their replacements
    inflate: bool = False  # the weights are those of a 2D ResNet, the backbone is a 3D one
    fold: bool = False  # into the first convolution: the mean and std of the weights, where those of the run differ


def _from_file(value: Any) -> Any:
    return {"file": value} if isinstance(value, str) else value


def _to_file(initial: InitialWeights) -> Any:
    return initial.model_dump() if initial != InitialWeights(file=initial.file) else initial.file


Initial = Annotated[InitialWeights, BeforeValidator(_from_file), PlainSerializer(_to_file)]


def load_backbone(
    path: str | Path,
    arch: str | None = None,
    *,
    partial: bool = False,
    keys: Mapping[str, str] | None = None,
    trust: bool = False,
    imports: Sequence[str] = (),
) -> Backbone:
    """Load the trained backbone of a checkpoint of vidssl or of another project, on the CPU and in eval mode.

    Its `run_config` is the config of the run that trained it, if vidssl did: `vidssl.extract` takes the clips from it.

    Args:
        path: A file, a folder of `vidssl export` or of a run, or the name of a network: see `weights_file`.
        arch: Name of the backbone; default: from the checkpoint's config, else from names and shapes of the weights.
        partial: Load only the weights that fit, and initialise the others; other projects' files need `arch` then.
        keys: Prefixes of names in the file, and their replacements; the longest counts, `""` removes one.
        trust: As `read_anything`; also import the modules that the config of the checkpoint names.
        imports: Modules with your own backbones, which are imported first.

    Raises:
        ConfigError: There is no backbone of that name.
        CheckpointError: The file is not a valid checkpoint, or its weights do not fit the backbone.
    """
    import_modules(imports, "imports")
    if arch is not None:
        BACKBONES[arch]  # raises a ConfigError with the nearest name
    content = read_anything(path, trust)
    initial = InitialWeights(file=str(path), partial=partial, keys=dict(keys or {}))
    if is_checkpoint(content):
        settings = content["config"]["backbone"]
        if arch not in (None, settings["name"]):
            raise CheckpointError(f"{path} holds a {settings['name']}, not a {arch}: leave out arch")
    else:
        weights = flatten(content)
        matches = match_backbones(weights, initial.keys, initial.file, arch)
        settings = choose_match(matches, weights, initial.file, partial and arch is not None).backbone
    named = modules_of(content["config"], str(path)) if is_checkpoint(content) else []
    if trust:
        import_modules(named, f"config of {path}: imports")
    with explaining(not_imported(named)):
        backbone = build_backbone(**settings)
    if is_checkpoint(content) and not (partial or keys):
        load_state(backbone, backbone_weights(content), initial.file)
    else:
        _fill(backbone, content, initial)
    if is_checkpoint(content):
        backbone.run_config = content["config"]
    return backbone.eval()


def load_initial(
    backbone: Backbone,
    settings: InitialWeights,
    trust: bool = False,
    name: str | None = None,
    normalization: Normalization | None = None,
) -> Match:
    """Load the weights of a file of any project into a backbone; `str()` of the result is one line for the log.

    `name` is that of the backbone, for errors, and `normalization` the mean and std of the run's pixels. If the weights
    were trained with others, that is a warning with the settings to use, or they are folded into the first convolution.

    Raises:
        CheckpointError: The file is not a valid checkpoint, or its weights do not fit the backbone.
        ConfigError: It is a name without trained weights, or mean and std cannot be folded.
    """
    trained: Normalization | None
    architecture = None
    if is_external(settings.file):
        architecture, content, trained = read_library_weights(settings.file, trust)
    else:
        content = read_anything(settings.file, trust)
        trained = normalization_of(content["config"]) if is_checkpoint(content) else None
    match = _fill(backbone, content, settings, name or type(backbone).__name__, architecture)
    if settings.fold and (trained is None or normalization is None):
        raise ConfigError(f"init.fold: {settings.file} states no mean and std: set data.mean and data.std to its own")
    if trained is not None and normalization is not None and not trained.is_close(normalization):
        if settings.fold:
            fold_normalization(backbone, trained, normalization)
        elif distributed.is_main():
            _log.warning("%s was trained with another mean and std: set %s, or init.fold=true", settings.file, trained)
    return match


def _fill(
    backbone: Backbone,
    content: Any,
    settings: InitialWeights,
    name: str = "the backbone",
    architecture: str | None = None,
) -> Match:
    """Load the content of a file; `architecture` is that of weights by name."""
    source, own, trained = settings.file, shapes_of(backbone), ""
    whole = is_checkpoint(content) and not settings.keys
    weights = flatten(content["method"] if whole else content)
    online = {name.removeprefix("backbone."): name for name in weights if name.startswith("backbone.")}
    if whole:
        trained = f", 'backbone={json.dumps(content['config']['backbone'])}'"
    if settings.inflate:
        check_inflatable(backbone, name, source)
        networks = find_networks([*online.values()] if whole else weights, settings.keys, source, own, INFLATED)
        if not networks:
            raise CheckpointError(f"{source} holds no 2D ResNet with torchvision's names: leave out init.inflate")
        for network in networks:
            if not settings.partial:
                check_same_shape(network, weights, own, source)
            weights = inflate(network, weights, own)
    elif whole:
        networks = [Network("vidssl", "backbone.", online)]
    else:
        networks = find_networks(weights, settings.keys, source, own)
    matches = [compare(network, weights, own, source, {"name": "the backbone"}) for network in networks]
    if architecture is not None and not settings.partial:
        check_architecture(architecture, name, matches, source)
    match = choose_match(matches, weights, source, settings.partial, trained)
    check_finite(match.weights, source)
    backbone.load_state_dict(match.weights, strict=False)
    return match


def check_finite(weights: Mapping[str, Any], source: str) -> None:
    """Raise a CheckpointError if weights of a file are NaN or infinite: so would be its features."""
    wrong = [
        name
        for name, weight in weights.items()
        if isinstance(weight, Tensor)
        and weight.layout == torch.strided
        and weight.is_floating_point()
        and not weight.float().isfinite().all()
    ]
    if wrong:
        raise CheckpointError(
            f"{source}: {len(wrong)} of {len(weights)} weights are NaN or infinite ({first_few(wrong)}): its training "
            "failed, or the file is damaged; use an earlier checkpoint"
        )


def load_state(module: nn.Module, state: Mapping[str, Any], source: str) -> None:
    """Load a `state_dict()` from the file `source` into a backbone or a method.

    Raises:
        CheckpointError: Names or shapes differ, or a module refuses its extra state.
    """
    check_finite(state, source)
    try:
        module.load_state_dict(state)
    except (RuntimeError, ValueError, LookupError) as error:  # the latter two: of a module's own extra state
        part = "backbone" if isinstance(module, Backbone) else "method"
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise CheckpointError(
            f"{source} does not fit the {part} ({reason}): build the {part} with the config that it was trained with"
        ) from None
