"""Checkpoints of other projects: find the networks in a file and translate their weight names.

Two tables hold what is known: `LAYOUTS` (naming schemes) and `BRANCHES` (which of two networks in a file to load).
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

from vidssl.errors import CheckpointError


class Layout(NamedTuple):
    """How a project names the weights of a network."""

    name: str
    # Regular expression of one weight of the network; the text before it is the network's prefix in the file.
    sign: str
    # Regular expressions and replacements, all applied in order; the results are names below `net.`.
    renames: tuple[tuple[str, str], ...] = ()


_SLOWFAST = (
    (r"^s1\.pathway0_stem\.conv\.", "blocks.0.conv."),
    (r"^s1\.pathway0_stem\.bn\.", "blocks.0.norm."),
    (r"^s2\.", "blocks.1."),
    (r"^s3\.", "blocks.2."),
    (r"^s4\.", "blocks.3."),
    (r"^s5\.", "blocks.4."),
    (r"\.pathway0_res(\d+)\.", r".res_blocks.\1."),
    (r"\.branch1\.", ".branch1_conv."),
    (r"\.branch1_bn\.", ".branch1_norm."),
    (r"\.branch2\.([abc])\.", r".branch2.conv_\1."),
    (r"\.branch2\.([abc])_bn\.", r".branch2.norm_\1."),
)
_HEAD = ((r"^blocks\.5\.", "head."),)
_BASIC = (
    (r"\.branch2\.conv_a\.", ".branch2.0."),
    (r"\.branch2\.norm_a\.", ".branch2.1."),
    (r"\.branch2\.conv_b\.", ".branch2.3."),
    (r"\.branch2\.norm_b\.", ".branch2.4."),
)

# Where the signs of several layouts match at one prefix, the first layout counts.
LAYOUTS = (
    Layout("SlowFast", r"s2\.pathway0_res0\.branch2\.c\.weight", _SLOWFAST),
    Layout("SlowFast, basic blocks", r"s2\.pathway0_res0\.branch2\.b\.weight", _SLOWFAST + _BASIC),
    Layout("pytorchvideo", r"blocks\.1\.res_blocks\.0\.branch2\.conv_c\.weight", _HEAD),
    Layout("eztorch, basic blocks", r"blocks\.1\.res_blocks\.0\.branch2\.conv_b\.weight", _HEAD + _BASIC),
    Layout("torchvision", r"layer1\.0\.conv1\.weight"),  # ResNets, also of timm and MoCo
    Layout("torchvision", r"layer1\.0\.conv1\.0\.(0\.)?weight"),  # r3d_18, mc3_18, r2plus1d_18
    Layout("torchvision", r"features\.0\.0\.0\.weight"),  # s3d
    Layout("torchvision", r"conv_proj\.weight"),  # mvit
    Layout("torchvision", r"patch_embed\.proj\.weight"),  # swin3d
)

# (loaded, ignored): of two networks whose prefixes differ in this component only.
BRANCHES = (
    ("backbone", "backbone_hist"),  # SlowFast: the online network, not its moving average
    ("encoder_q", "encoder_k"),  # MoCo: online
    ("trunk", "momentum_trunk"),  # eztorch: online
    ("target_encoder", "encoder"),  # V-JEPA evaluates the moving average
    ("ema_encoder", "encoder"),  # V-JEPA 2.1: moving average
)

_MAX_DEPTH = 8  # of nested dictionaries
_MAX_NAMES = 3  # of each kind in a message


@dataclass(frozen=True)
class FoundNetwork:
    """The weights of one network in a file, under the names that a backbone of vidssl gives them."""

    source: str  # path of the file
    layout: str  # name of the layout
    prefix: str  # text before the network's names in the file, "model_state."
    weights: dict[str, Tensor] = field(repr=False)
    names: dict[str, str] = field(repr=False)  # names in a backbone to names in the file
    others: tuple[str, ...] = field(repr=False)  # names in the file of all other weights


def first_names(names: Iterable[str]) -> str:
    """Format the first few names in brackets; an empty string where there are none."""
    names = list(names)
    if len(names) > _MAX_NAMES:
        names = [*names[:_MAX_NAMES], "…"]
    return f" ({'; '.join(names)})" if names else ""


def flatten(content: Any, prefix: str = "", depth: int = 0) -> dict[str, Tensor]:
    """Collect the tensors of nested dictionaries, their keys joined by dots; skip everything else."""
    found: dict[str, Tensor] = {}
    if isinstance(content, Mapping) and depth < _MAX_DEPTH:
        for key, value in content.items():
            if isinstance(key, str) and isinstance(value, Tensor):
                found[prefix + key] = value
            elif isinstance(key, str):
                found |= flatten(value, f"{prefix}{key}.", depth + 1)
    return found


def rename_prefixes(names: Iterable[str], keys: Mapping[str, str], source: str) -> dict[str, str]:
    """Replace the longest prefix in `keys` of each name; return new names to names in the file.

    Raises:
        CheckpointError: A prefix is never used, or two weights would get one name.
    """
    renamed: dict[str, str] = {}
    unused = set(keys)
    for old in names:
        prefix = max((prefix for prefix in keys if old.startswith(prefix)), key=len, default="")
        unused.discard(prefix)
        new = keys.get(prefix, "") + old[len(prefix) :]
        if new in renamed:
            raise CheckpointError(
                f"{source}: keys would rename both {renamed[new]} and {old} to '{new}': use longer prefixes"
            )
        renamed[new] = old
    for prefix in keys:
        if prefix in unused:
            raise CheckpointError(
                f"{source}: no weight uses the prefix '{prefix}' of keys; names in the file:{first_names(names)}"
            )
    return renamed


def find_networks(
    weights: Mapping[str, Tensor], keys: Mapping[str, str], source: str, own_names: Iterable[str]
) -> list[FoundNetwork]:
    """Find the networks in the weights of a file, after renaming with `rename_prefixes`.

    The layout of the wanted backbone itself (`own_names`) is searched too, with and without `net.`. If `keys` rename
    the sign of any network, only such networks are returned.
    """
    names = rename_prefixes(weights, keys, source)
    first = next(iter(own_names), "")
    top = "net." if first.startswith("net.") else ""
    own = Layout("vidssl", re.escape(first.removeprefix(top)))
    found: dict[str, tuple[Layout, str]] = {}  # prefix to layout and name of the sign
    for layout in (*LAYOUTS, own) if top else (own,):
        for name in names:
            if match := re.fullmatch(rf"((?:.*\.)?){layout.sign}", name):
                found.setdefault(match[1], (layout, name))
    for prefix, (layout, _) in list(found.items()):
        # A part of a network may contain the first name of the whole.
        if layout is own and any(prefix != outer and prefix.startswith(outer) for outer in found):
            del found[prefix]
    for loaded, ignored in BRANCHES:
        for prefix in list(found):
            twin = ".".join(loaded if part == ignored else part for part in prefix.split("."))
            if twin != prefix and twin in found:
                del found[prefix]
    chosen = {prefix: layout for prefix, (layout, sign) in found.items() if names[sign] != sign}
    chosen = chosen or {prefix: layout for prefix, (layout, _) in found.items()}
    networks = []
    for prefix, layout in chosen.items():
        inside = {name.removeprefix(prefix): old for name, old in names.items() if name.startswith(prefix)}
        inside = {top + _apply(layout.renames, name): old for name, old in inside.items()}
        others = tuple(old for name, old in names.items() if not name.startswith(prefix))
        renamed = {new: weights[old] for new, old in inside.items()}
        networks.append(FoundNetwork(source, layout.name, prefix, renamed, inside, others))
    return networks


def _apply(renames: tuple[tuple[str, str], ...], name: str) -> str:
    for pattern, replacement in renames:
        name = re.sub(pattern, replacement, name)
    return name
