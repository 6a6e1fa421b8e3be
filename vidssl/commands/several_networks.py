"""Several networks in one command: `--checkpoint A B` compares them."""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath

from vidssl.engine.config_schema import fill_split
from vidssl.errors import ConfigError
from vidssl.models.weights import is_checkpoint, read_anything
from vidssl.output_folder import check_names


def each_network(parsed: argparse.Namespace) -> Iterator[tuple[str, argparse.Namespace]]:
    """Yield the name of each network and the arguments for it alone, with its `checkpoint` and folder `out`.

    Of several networks, those with a config of their own ignore `--cfg` and its settings.
    """
    splits = getattr(parsed, "splits", None)
    for name, checkpoint, out in name_networks(parsed.checkpoint, parsed.out):
        one = argparse.Namespace(**{**vars(parsed), "checkpoint": checkpoint, "out": out})
        file = fill_split(checkpoint, splits[0]) if splits else checkpoint
        if len(parsed.checkpoint) > 1 and has_config(file, parsed.trust_checkpoint):
            one.cfg, one.overrides = None, []
        yield name, one


def has_config(checkpoint: str, trust: bool) -> bool:
    """Whether a checkpoint, or the folder of a run, brings its own config."""
    if Path(checkpoint).is_dir():
        return True
    return checkpoint != "random" and is_checkpoint(read_anything(checkpoint, trust))


def name_networks(checkpoints: Sequence[str], out: Path) -> list[tuple[str, str, Path]]:
    """Names, checkpoints and folders: the names are the ends of the paths that differ, `a/checkpoints/last.pt` is a."""
    ignored = ("checkpoints", "last", "..", "/", "split{split}")
    parts = [
        [part for part in PurePath(path).with_suffix("").parts if part not in ignored] or [path] for path in checkpoints
    ]
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["-".join(part[-depth:]) for part in parts]
        if len({*names}) == len(names):
            if len(names) > 1:
                check_names(out, [f"{name}/results.json" for name in names])
            folders = [out / name if len(names) > 1 else out for name in names]
            return list(zip(names, checkpoints, folders, strict=True))
    raise ConfigError(f"--checkpoint names a network twice: {', '.join(checkpoints)}")
