"""Read and write checkpoints and weights: files, names that stand for them, and the mean and std of their pixels."""

import json
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import torch
from torch import Tensor, nn

from vidssl.base.config import Tree, plain
from vidssl.base.errors import CheckpointError, ConfigError, UntrustedError, first_few, writable_cache
from vidssl.base.registry import did_you_mean
from vidssl.models.backbones import Backbone
from vidssl.models.checkpoint_files import LAST, newest_in, read_file, read_without_objects, write_safetensors
from vidssl.models.external import OWN, is_external
from vidssl.models.joined_features import SUMS, parts_of


class Normalization(NamedTuple):
    """The input of a network is (x / 255 - mean) / std; one value, or one per colour. `str()` has the settings."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __str__(self) -> str:
        mean, std = (json.dumps(list(dict.fromkeys(v)) if len(set(v)) == 1 else list(v)) for v in self)
        return f"'data.mean={mean}' 'data.std={std}'"

    def tensors(self) -> tuple[Tensor, Tensor]:
        """Return mean and std (3,) in double precision."""
        mean, std = (torch.tensor(values, dtype=torch.float64).expand(3) for values in self)
        return mean, std

    def is_close(self, other: "Normalization") -> bool:
        """Whether both are the same but for rounding."""
        return all(torch.allclose(a, b, atol=1e-6) for a, b in zip(self.tensors(), other.tensors(), strict=True))


def normalization_of(config: Mapping[str, Any]) -> Normalization | None:
    """Return the normalisation that the stored config of a run states; None if it states none."""
    data = config.get("data")
    values: list[Any] = [data.get(name) for name in ("mean", "std")] if isinstance(data, Mapping) else []
    for channels in values:  # a file may hold anything
        if not isinstance(channels, list | tuple) or len(channels) not in (1, 3):
            return None
        if not all(isinstance(x, float | int) and math.isfinite(x) for x in channels):
            return None
    return Normalization(tuple(values[0]), tuple(values[1])) if values else None


_OWN = {path.stem: path for path in (Path(__file__).parents[1] / "weights").glob("*.safetensors")}
EXPORTED = "model.safetensors"  # in a folder of `vidssl export`
# Of networks on the Hugging Face Hub, as `vidssl export --to folder` writes them.
_NAME = re.compile(r"(?P<prefix>hf-hub:)?(?P<repo>[\w-][\w.-]*/[\w-][\w.-]*)(@(?P<revision>[\w./-]+))?")
_FILE = re.compile(r"\.(pt|pth|pyth|ckpt|pkl|tar|bin|onnx|pt2|safetensors)$")
CHECKPOINT_FORMAT = "vidssl-checkpoint-2"  # raised when the content of checkpoints changes


def own_weights() -> dict[str, Path]:
    """Return the files of the networks that come with vidssl, by name."""
    return dict(_OWN)


def read_checkpoint(path: str | Path, trust: bool = False) -> dict[str, Any]:
    """Load a checkpoint of vidssl onto the CPU; arguments and errors are those of `read_anything`."""
    content = read_anything(path, trust)
    if not is_checkpoint(content):
        raise CheckpointError(f"{path} is not a vidssl checkpoint (format {CHECKPOINT_FORMAT}): use one that it wrote")
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
    stored = content.get("format") if isinstance(content, dict) else None
    if stored != CHECKPOINT_FORMAT and str(stored).startswith("vidssl-checkpoint-"):
        raise CheckpointError(f"{path} has format {stored}, not {CHECKPOINT_FORMAT}: use the version that wrote it")
    if is_checkpoint(content):
        # A pickle can refer to one part many times, so that a small file holds a config of gigabytes.
        plain({name: content.get(name) for name in ("config", "network", "data")}, f"{path}: its config")
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
    return isinstance(content, dict) and content.get("format") == CHECKPOINT_FORMAT and "method" in content


def backbone_weights(checkpoint: dict[str, Any]) -> dict[str, Tensor]:
    """Return the weights of a checkpoint's online backbone, the one that is evaluated."""
    weights = checkpoint["method"]
    return {key.removeprefix("backbone."): weights[key] for key in weights if key.startswith("backbone.")}


def weights_file(name: str | Path) -> Path:
    """Find the file of weights that a name stands for.

    It is a file; a folder of `vidssl export`, or of a run, whose newest checkpoint is meant, as by its `last.pt`, even
    if that is no link to it; a network that comes with
    vidssl, such as `vidssl-small`; or one on the Hugging Face Hub, `hf-hub:OWNER/NAME` or `OWNER/NAME`, which is
    downloaded. What exists on disk comes first. A path of nothing is returned as it is.

    Raises:
        CheckpointError: A folder holds no weights, a network cannot be downloaded, or there is none of that name.
        ConfigError: It is neither a path nor a name.
    """
    if not isinstance(name, str | os.PathLike):
        raise ConfigError(f"a checkpoint is a path or name, not {type(name).__name__}: write its state_dict to a file")
    path = Path(name)
    if os.path.isdir(path):  # noqa: PTH112 - Path.is_dir raises for a name that is too long
        if (path / EXPORTED).exists():
            return path / EXPORTED
        if newest := newest_in(path / "checkpoints"):
            return newest
        if str(name) not in _OWN:
            raise CheckpointError(f"{path} holds neither {EXPORTED} (vidssl export) nor checkpoints/step-N.pt (a run)")
    elif path.name == LAST and (newest := newest_in(path.parent)):
        return newest
    elif os.path.exists(path):  # noqa: PTH110 - likewise
        return path
    if is_external(str(name)) or parts_of(str(name)):
        raise CheckpointError(
            f"{name} is not one backbone of vidssl: vidssl.load_encoder loads it, vidssl.extract takes it"
        )
    file = _OWN.get(str(name)) or _download(str(name))
    if file is None and not path.suffix and len(path.parts) == 1:  # a name, not the path of a file
        known = ", ".join(sorted((*_OWN, *SUMS, *OWN)))
        networks = f"{did_you_mean(str(name), _OWN)}; there are: {known}, and OWNER/NAME of the Hugging Face Hub"
        raise CheckpointError(f"{name} is neither a file nor the name of a network{networks}")
    return file or path


def _download(name: str) -> Path | None:
    """Download the weights of `hf-hub:OWNER/NAME[@REVISION]` into the hub's cache; None if `name` is not of this form.

    Without the prefix a name that can be a mistyped path is not of this form: OWNER is a folder, or NAME has a suffix
    of weights.

    Raises:
        CheckpointError: huggingface_hub is not installed, or the file cannot be downloaded.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    repo, revision = match["repo"], match["revision"]
    if not match["prefix"] and (Path(repo).parent.exists() or _FILE.search(name)):
        return None
    folders = (path.name for path in Path().iterdir() if path.is_dir())
    if not match["prefix"] and (near := did_you_mean(repo.partition("/")[0], folders)):
        raise CheckpointError(f"there is no file {name}{near}: correct it, or write hf-hub:{repo} for one of the Hub")
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise CheckpointError(f"no file {name}; for the Hugging Face Hub: pip install huggingface_hub") from None
    try:
        # Nothing but these files: what else is there, such as code, is never loaded.
        folder = snapshot_download(repo, revision=revision, allow_patterns=[EXPORTED, "config.json"])
    except Exception as error:  # of several libraries
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise CheckpointError(
            f"there is no file {name}, and {repo} cannot be downloaded from the Hugging Face Hub ({reason}): correct "
            f"the path, or log in with `hf auth login` if the network is private{writable_cache(error)}"
        ) from None
    path = Path(folder) / EXPORTED
    if not path.is_file():
        raise CheckpointError(f"{repo} on the Hugging Face Hub has no {EXPORTED}: vidssl export --to folder writes it")
    return path


def write_backbone(
    content: dict[str, Any], source: str, path: str | Path, *, half: bool = False, network: Tree | None = None
) -> None:
    """Write the online backbone of a checkpoint of this `content`, and its config, to a safetensors file.

    `load_backbone`, `init` and `--checkpoint` take the file like the checkpoint. `half` rounds the weights to float16.
    `network` is a description, plain data, that is written into the metadata; `source` is for errors.

    Raises:
        CheckpointError: It has no weights, or one that cannot be written.
    """
    weights: dict[str, Tensor] = {}
    check_finite_weights(backbone_weights(content), source)
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


def check_finite_weights(weights: Mapping[str, Any], source: str) -> None:
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
        counts = f"{len(wrong)} of {len(weights)} weights are NaN or infinite ({first_few(wrong)})"
        raise CheckpointError(f"{source}: {counts}: its training failed, or it is damaged; use an earlier checkpoint")


def load_state(module: nn.Module, state: Mapping[str, Any], source: str) -> None:
    """Load a `state_dict()` from the file `source` into a backbone or a method.

    Raises:
        CheckpointError: Names or shapes differ, or a module refuses its extra state.
    """
    check_finite_weights(state, source)
    try:
        module.load_state_dict(state)
    except (RuntimeError, ValueError, LookupError) as error:  # the latter two: of a module's own extra state
        part = "backbone" if isinstance(module, Backbone) else "method"
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise CheckpointError(f"{source} does not fit the {part} ({reason}): use the config of its run") from None
