"""Index of the videos and of the folders of images below a folder: scanned once, then looked up by name."""

import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

from vidssl.errors import DataError
from vidssl.video.frame_folder import IMAGE_SUFFIXES, is_mixed, is_sequence, numbers_by_name

VIDEO_SUFFIXES = frozenset(
    {".mp4", ".avi", ".mkv", ".webm", ".mov", ".mpg", ".mpeg", ".vob", ".m4v", ".wmv", ".flv", ".3gp", ".gif"}
    | {".ts", ".mts", ".m2ts", ".ogv"}
)


class FileMatch(NamedTuple):
    """The paths that match a name: none, one, or several if the name is ambiguous."""

    paths: Sequence[str]
    kind: Literal["exact", "extension", "case"]  # what differs from the name


class ImageFolder(NamedTuple):
    """A folder that holds images itself, not only in folders below."""

    num_images: int
    is_video: bool  # the images are numbered as the frames of one video
    mixed_prefixes: Sequence[str]  # with the same numbers, such as img_ and flow_x_; else empty


@dataclass
class FileIndex:
    """Videos and folders of images below `root`. All paths are relative to it, with forward slashes."""

    root: Path
    videos: list[str] = field(default_factory=list)
    image_folders: dict[str, ImageFolder] = field(default_factory=dict)
    num_files: int = 0  # of any kind, hidden ones too
    outside: list[str] = field(default_factory=list)  # followed links that leave the root
    repeated: list[str] = field(default_factory=list)  # links to folders that are in the index already

    def find(self, name: str, any_case: bool = True) -> FileMatch:
        """Find a path: exact, else with another extension, else (if `any_case`) in different case.

        A folder of images matches like a file without extension: `a/x` for `a/x.avi`.
        """
        stem = _stem(name)
        paths = self._by_stem.get(stem, [])
        if name in paths:
            return FileMatch([name], "exact")
        if paths or not any_case:
            return FileMatch(paths, "extension")
        paths = self._by_folded_stem.get(stem.casefold(), [])
        same_extension = [path for path in paths if path.casefold() == name.casefold()]
        return FileMatch(same_extension or paths, "case")

    def find_anywhere(self, name: str, preferred: Collection[str]) -> FileMatch:
        """Find a file name in all folders; of several matches, keep those in a folder with a `preferred` name."""
        paths = self._by_name.get(_stem(name), [])
        exact = [path for path in paths if path.rpartition("/")[2] == name]
        paths = exact or paths
        inside = [path for path in paths if path.rpartition("/")[0].rpartition("/")[2] in preferred]
        return FileMatch(inside or paths, "exact" if exact else "extension")

    @property
    def notes(self) -> list[str]:
        """Notes on followed links, for the report."""
        notes = []
        if self.repeated:
            skipped = f"skipped {len(self.repeated)} links to folders that are already listed"
            notes.append(f"{skipped}: {preview(self.repeated)}")
        if self.outside:
            notes.append(
                f"{len(self.outside)} links leave the folder: read these lists with --allow-external, in a config "
                "data.allow_external=true"
            )
        return notes

    @cached_property
    def _by_stem(self) -> dict[str, list[str]]:
        return self._group(_stem)

    @cached_property
    def _by_folded_stem(self) -> dict[str, list[str]]:
        return self._group(lambda path: _stem(path).casefold())

    @cached_property
    def _by_name(self) -> dict[str, list[str]]:
        return self._group(lambda path: _stem(path).rpartition("/")[2])

    def _group(self, key: Callable[[str], str]) -> dict[str, list[str]]:
        groups: dict[str, list[str]] = {}
        for path in sorted([*self.videos, *self.image_folders]):
            groups.setdefault(key(path), []).append(path)
        return groups


def index_files(
    root: Path,
    wanted: Callable[[str], bool] = lambda _: True,
    suffixes: Collection[str] = VIDEO_SUFFIXES,
    follow_links: bool = False,
) -> FileIndex:
    """Scan a folder once. Hidden files and folders are skipped.

    Args:
        root: The folder.
        wanted: Whether a top-level folder is scanned, from its name.
        suffixes: File extensions that count as videos.
        follow_links: Scan folders behind symbolic links, each once, and accept links that leave the root.

    Raises:
        DataError: `root` is not a folder, a folder cannot be read, or a link leaves the root without `follow_links`.
    """
    if not root.is_dir():
        raise DataError(f"{root} is not a folder")
    real_root = root.resolve()
    index = FileIndex(root)
    links: list[str] = []
    pending = [""]  # relative to the root, with a slash at the end
    visited: set[tuple[int, int]] = set()  # device and inode
    while pending or links:
        # Links come last: a folder inside the root is listed under its own path, not under that of a link to it.
        is_link = not pending
        links.sort(reverse=True)
        folder = (pending or links).pop()
        images = []
        try:
            if follow_links:
                status = os.stat(root / folder)
                if (status.st_dev, status.st_ino) in visited:  # this also ends loops of links
                    index.repeated.append(folder.rstrip("/"))
                    continue
                visited.add((status.st_dev, status.st_ino))
            if is_link and _leaves(root / folder, real_root):
                index.outside.append(folder.rstrip("/"))
            with os.scandir(root / folder) as entries:
                for entry in entries:  # no Path for each: a data set of frames has millions of files
                    leaves = entry.is_symlink() and _leaves(Path(entry.path), real_root)
                    if leaves and not follow_links:
                        raise DataError(
                            f"{entry.path} is a link that leaves {root}: follow it with --follow-links, or remove it"
                        )
                    is_folder, suffix = entry.is_dir(), _suffix(entry.name)
                    index.num_files += not is_folder
                    if entry.name.startswith("."):
                        continue
                    if is_folder:
                        if (folder or wanted(entry.name)) and (follow_links or not entry.is_symlink()):
                            (links if entry.is_symlink() else pending).append(f"{folder}{entry.name}/")
                    elif suffix in suffixes and entry.is_file():
                        index.videos.append(folder + entry.name)
                        if leaves:
                            index.outside.append(folder + entry.name)
                    elif suffix in IMAGE_SUFFIXES and entry.is_file():
                        images.append(entry.name)
        except OSError as error:
            raise DataError(f"cannot read folder {root / folder}: {error.strerror}") from None
        if images and folder:
            index.image_folders[folder.rstrip("/")] = _image_folder(images)
    for paths in (index.videos, index.outside, index.repeated):
        paths.sort()
    return index


def _image_folder(images: Sequence[str]) -> ImageFolder:
    prefixes = numbers_by_name(images)
    is_video = is_sequence(prefixes)
    return ImageFolder(len(images), is_video, sorted(prefixes) if not is_video and is_mixed(prefixes) else [])


def _leaves(path: Path, root: Path) -> bool:
    try:
        return not path.resolve().is_relative_to(root)
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links
        raise DataError(f"{path} is a link that cannot be followed: {error}") from None


def check_name(text: str) -> None:
    """Check that a list can hold a name.

    Raises:
        DataError: The name holds a line break or is not UTF-8.
    """
    if text.splitlines() != [text]:
        raise DataError(f"{text!r} holds a line break: rename it")
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise DataError(f"{text!r} is not a name in UTF-8: rename it")


def preview(names: Sequence[Any], form: Callable[[Any], str] = repr, limit: int = 3) -> str:
    """The first names, and how many more there are."""
    first = ", ".join(map(form, names[:limit]))
    return f"{first} and {len(names) - limit} more" if len(names) > limit else first


def _suffix(name: str) -> str:
    _, dot, end = name.rpartition(".")
    return dot + end.lower()


def _stem(path: str) -> str:
    """The path without the extension of a video; any other text after a dot belongs to the name."""
    suffix = _suffix(path)
    return path[: -len(suffix)] if suffix in VIDEO_SUFFIXES else path
