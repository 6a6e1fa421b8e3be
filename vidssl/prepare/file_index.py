"""What a folder holds: its videos and its folders of images, found in one walk and looked up by name."""

import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple

from vidssl.errors import DataError
from vidssl.video.frame_folder import IMAGE_SUFFIXES, is_mixed, is_sequence, numbers_by_name

VIDEO_SUFFIXES = frozenset(
    {".mp4", ".avi", ".mkv", ".webm", ".mov", ".mpg", ".mpeg", ".vob", ".m4v", ".wmv", ".flv", ".3gp", ".gif"}
    | {".ts", ".mts", ".m2ts", ".ogv"}
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
    sequences: frozenset[str] = frozenset()  # of these folders, those whose images are numbered as frames are
    outside: tuple[str, ...] = ()  # links that were followed out of the folder
    repeated: tuple[str, ...] = ()  # links to folders that are listed already
    mixed: Mapping[str, Sequence[str]] = field(
        default_factory=dict
    )  # folders of images that hold the same numbers
    # under several names, and these names

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

    @property
    def notes(self) -> list[str]:
        """Notes on followed links, for the report."""
        notes = []
        if self.repeated:
            first = ", ".join(map(repr, self.repeated[:3])) + (", ..." if len(self.repeated) > 3 else "")
            notes.append(
                f"{len(self.repeated)} links to folders that are listed already are left out: {first}"
            )
        if self.outside:
            notes.append(
                f"{len(self.outside)} links leave the folder: read these lists with --allow-external, in a config "
                "data.allow_external=true"
            )
        return notes

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
    root: Path,
    folders: Collection[str] | None = None,
    suffixes: Collection[str] = VIDEO_SUFFIXES,
    follow_links: bool = False,
) -> Tree:
    """Walk a folder once. Hidden folders are left out.

    Args:
        root: The folder.
        folders: Of those at the top only these are looked into; None: all.
        suffixes: What a file is called that counts as a video, such as those of images that are one each.
        follow_links: Walk into folders that are links, each folder once, and accept links that leave the root.

    Raises:
        DataError: It is no folder, one below it cannot be read, or a link leaves it and is not to be followed.
    """
    if not root.is_dir():
        raise DataError(f"{root} is not a folder")
    inside = root.resolve()
    videos: list[str] = []
    images: dict[str, int] = {}
    sequences: set[str] = set()
    mixed: dict[str, Sequence[str]] = {}
    outside: list[str] = []
    repeated: list[str] = []
    ignored = 0
    waiting = [""]  # empty, or relative and with a slash at the end
    links: list[str] = []  # folders that are links: they wait until the others are done, which count first
    known: set[tuple[int, int]] = (
        set()
    )  # device and inode of the folders that were walked, where links are followed
    while waiting or links:
        links.sort(reverse=True)
        is_linked = not waiting
        folder = waiting.pop() if waiting else links.pop()
        pictures: list[str] = []
        try:
            if follow_links:
                status = os.stat(root / folder)
                if (status.st_dev, status.st_ino) in known:  # also what ends a loop of links
                    repeated.append(folder.rstrip("/"))
                    continue
                known.add((status.st_dev, status.st_ino))
            if is_linked and _leaves(root / folder, inside):
                outside.append(folder.rstrip("/"))
            with os.scandir(root / folder) as entries:
                for entry in entries:
                    # Not Path: a set of frames has millions of names.
                    is_link, name = entry.is_symlink(), entry.name
                    leaves = is_link and _leaves(Path(entry.path), inside)
                    if leaves and not follow_links:
                        raise DataError(
                            f"{entry.path} is a link that leaves {root}: follow it with --follow-links, or remove it"
                        )
                    if entry.is_dir():
                        wanted = folder or folders is None or name in folders
                        if wanted and not name.startswith(".") and (follow_links or not is_link):
                            (links if is_link else waiting).append(f"{folder}{name}/")
                        continue
                    suffix = _suffix(name)
                    if name.startswith(".") or (is_link and not entry.is_file()):
                        ignored += 1
                    elif suffix in suffixes:
                        videos.append(folder + name)
                        if leaves:
                            outside.append(folder + name)
                    else:
                        ignored += 1
                        if suffix in IMAGE_SUFFIXES:
                            pictures.append(name)
        except OSError as error:
            raise DataError(f"cannot read folder {root / folder}: {error.strerror}") from None
        if pictures and folder:
            images[folder.rstrip("/")] = len(pictures)
            numbers = numbers_by_name(pictures)
            if is_sequence(numbers):
                sequences.add(folder.rstrip("/"))
            elif is_mixed(numbers):
                mixed[folder.rstrip("/")] = sorted(numbers)
    return Tree(
        tuple(sorted(videos)),
        images,
        ignored,
        frozenset(sequences),
        tuple(sorted(outside)),
        tuple(sorted(repeated)),
        mixed,
    )


def check_name(text: str) -> None:
    """Refuse what a list, a text file of one row a line, cannot hold.

    Raises:
        DataError: The name holds a line break or is not UTF-8.
    """
    if len(text.splitlines()) != 1 or text.splitlines()[0] != text:
        raise DataError(f"{text!r} holds a line break: rename it")
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise DataError(f"{text!r} is not a name in UTF-8: rename it")


def _leaves(path: Path, inside: Path) -> bool:
    try:
        return not path.resolve().is_relative_to(inside)
    except (OSError, RuntimeError) as error:  # a loop of links
        raise DataError(f"{path} is a link that cannot be followed: {error}") from None


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
