"""What a folder holds: its videos and its folders of images, found in one walk and looked up by name."""

import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple

from vidssl.data.frame_folder import IMAGE_SUFFIXES
from vidssl.errors import DataError

VIDEO_SUFFIXES = frozenset(
    (".mp4", ".avi", ".mkv", ".webm", ".mov", ".mpg", ".mpeg", ".m4v", ".wmv", ".flv", ".3gp", ".gif", ".ts")
)


class Found(NamedTuple):
    """What fits a name: nothing, one path, or several where the name is not enough."""

    paths: Sequence[str]
    way: Literal["exact", "suffix", "letters"]  # what had to be overlooked: nothing, the suffix, the case


@dataclass(frozen=True)
class Tree:
    """Videos and folders of images below a folder; paths are relative to it, with forward slashes."""

    videos: tuple[str, ...]  # sorted
    images: dict[str, int]  # each folder that holds images itself, and how many
    ignored: int  # files that are no videos, or hidden

    def find(self, name: str, any_case: bool = True) -> Found:
        """Look a path up: as it is, else with another suffix, else with other letter case where that is allowed.

        A folder of images is what it would be called as a file: `a/x` for `a/x.avi`.
        """
        if name in self._paths:
            return Found((name,), "exact")
        stem = _stem(name)
        if stem in self._by_stem or not any_case:
            return Found(self._by_stem.get(stem, ()), "suffix")
        paths = self._by_folded_stem.get(stem.casefold(), ())
        same = [path for path in paths if path.casefold() == name.casefold()]
        return Found(same or paths, "letters")

    def find_anywhere(self, name: str, folders: Collection[str]) -> Found:
        """Look a file's name up in all folders, case and all; of several, those that lie in one of `folders`."""
        paths = self._by_name.get(_stem(name), ())
        exact = [path for path in paths if path.rpartition("/")[2] == name]
        paths = exact or paths
        inside = [path for path in paths if path.rpartition("/")[0].rpartition("/")[2] in folders]
        return Found(inside or paths, "exact" if exact else "suffix")

    @cached_property
    def _paths(self) -> frozenset[str]:
        return frozenset((*self.videos, *self.images))

    @cached_property
    def _by_stem(self) -> dict[str, list[str]]:
        return _grouped((_stem(path), path) for path in sorted(self._paths))

    @cached_property
    def _by_folded_stem(self) -> dict[str, list[str]]:
        return _grouped((_stem(path).casefold(), path) for path in sorted(self._paths))

    @cached_property
    def _by_name(self) -> dict[str, list[str]]:
        return _grouped((_stem(path).rpartition("/")[2], path) for path in sorted(self._paths))


def scan(
    root: Path, folders: Collection[str] | None = None, suffixes: Collection[str] = VIDEO_SUFFIXES
) -> Tree:
    """Walk a folder once. Hidden folders are left out, folders that are links are not followed.

    Args:
        root: The folder.
        folders: Of those at the top only these are looked into; None: all.
        suffixes: What a file is called that counts as a video, such as those of images that are one each.

    Raises:
        DataError: It is no folder, one below it cannot be read, or a link leaves it.
    """
    if not root.is_dir():
        raise DataError(f"{root} is not a folder")
    inside = root.resolve()
    videos: list[str] = []
    images: dict[str, int] = {}
    ignored = 0
    waiting = [""]  # empty, or relative and with a slash at the end
    while waiting:
        folder = waiting.pop()
        numbered = 0
        try:
            with os.scandir(root / folder) as entries:
                for entry in entries:
                    # Not Path: a set of frames has millions of names.
                    is_link, name = entry.is_symlink(), entry.name
                    if is_link:
                        _check_link(Path(entry.path), root, inside)
                    if entry.is_dir():
                        wanted = folder or folders is None or name in folders
                        if wanted and not is_link and not name.startswith("."):
                            waiting.append(f"{folder}{name}/")
                        continue
                    suffix = _suffix(name)
                    if name.startswith(".") or (is_link and not entry.is_file()):
                        ignored += 1
                    elif suffix in suffixes:
                        videos.append(folder + name)
                    else:
                        ignored += 1
                        numbered += suffix in IMAGE_SUFFIXES
        except OSError as error:
            raise DataError(f"cannot read folder {root / folder}: {error.strerror}") from None
        if numbered and folder:
            images[folder.rstrip("/")] = numbered
    return Tree(tuple(sorted(videos)), images, ignored)


def check_name(text: str) -> None:
    """Refuse what a list, a text file of one row a line, cannot hold.

    Raises:
        DataError: The name holds a line break or is not UTF-8.
    """
    if len(text.splitlines()) != 1 or text.splitlines()[0] != text:
        raise DataError(f"{text!r} holds a line break: rename it")
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise DataError(f"{text!r} is not a name in UTF-8: rename it")


def _check_link(path: Path, root: Path, inside: Path) -> None:
    try:
        leaves = not path.resolve().is_relative_to(inside)
    except (OSError, RuntimeError) as error:  # a loop of links
        raise DataError(f"{path} is a link that cannot be followed: {error}") from None
    if leaves:
        raise DataError(
            f"{path} is a link that leaves {root}: copy the file into the folder or remove the link"
        )


def _suffix(name: str) -> str:
    _, dot, end = name.rpartition(".")
    return dot + end.lower()


def _stem(path: str) -> str:
    """The path without the suffix of a video; with what else stands behind a dot."""
    suffix = _suffix(path)
    return path[: -len(suffix)] if suffix in VIDEO_SUFFIXES else path


def _grouped(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = defaultdict(list)
    for key, path in pairs:
        groups[key].append(path)
    return dict(groups)
