"""Index of the videos and of the folders of images below a folder: scanned once, then looked up by name."""

import logging
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple

from vidssl.data.allowed_paths import is_utf8
from vidssl.errors import DataError, first_few
from vidssl.video.frame_folder import IMAGE_SUFFIXES, is_sequence, numbers_by_name

_log = logging.getLogger(__name__)

VIDEO_SUFFIXES = frozenset(
    {".mp4", ".avi", ".mkv", ".webm", ".mov", ".mpg", ".mpeg", ".vob", ".m4v", ".wmv", ".flv", ".3gp", ".gif"}
    | {".ts", ".mts", ".m2ts", ".ogv"}
)
# Videos and images too, which FFmpeg formats that are not read here, rare codecs, or other data have.
_OTHER_VIDEOS = frozenset(
    f".{name}"
    for name in (
        *("y4m", "mxf", "nut", "apng", "asf", "divx", "f4v", "ivf", "m2v", "m1v", "h264", "hevc", "264", "265", "obu"),
        *("av1", "vp9", "dv", "qt", "3g2", "mjpeg", "mjpg", "ogm", "ogg", "rm", "rmvb", "mpe", "mpv", "dav", "yuv"),
        *("wtv", "mod", "tod", "insv", "braw", "r3d", "avif", "heic", "tif", "tiff"),
    )
)


class FileMatch(NamedTuple):
    """The paths that match a name: none, one, or several if the name is ambiguous."""

    paths: Sequence[str]
    kind: Literal["exact", "extension", "case"]  # what differs from the name


class ImageFolder(NamedTuple):
    """A folder that holds images itself, not only in folders below."""

    num_images: int
    is_video: bool  # the images are numbered as the frames of one video


@dataclass
class FileIndex:
    """Videos and folders of images below `root`. All paths are relative to it, with forward slashes."""

    root: Path
    videos: list[str] = field(default_factory=list)
    image_folders: dict[str, ImageFolder] = field(default_factory=dict)
    num_files: int = 0  # of any kind, hidden ones too
    others: Counter[str] = field(default_factory=Counter)  # extensions of the files that are neither, not hidden
    outside: list[str] = field(default_factory=list)  # followed links that leave the root
    unlisted: list[str] = field(default_factory=list)  # names of videos and folders that are not UTF-8

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
        """Notes on followed links and names that were left out, for the report."""
        return [*self._on_links(), *self.on_names()]

    def on_names(self) -> list[str]:
        """A note on the names that were left out, if there are some."""
        if not self.unlisted:
            return []
        return [left_out(str(self.root), self.unlisted)]

    def _on_links(self) -> list[str]:
        remedy = "read these lists with allow_external=True, in a config data.allow_external=true"
        return [f"{len(self.outside)} links leave the folder: {remedy}"] if self.outside else []

    def warn_of_others(self) -> None:
        """Log the number of files that are videos or images by their extensions, and that are not listed."""
        found = Counter({suffix: count for suffix, count in self.others.items() if suffix in _OTHER_VIDEOS})
        if found:
            text = "%s: %s are not listed, other extensions are: %s; convert them, for example with ffmpeg"
            _log.warning(text, self.root, describe(found), " ".join(sorted(VIDEO_SUFFIXES | IMAGE_SUFFIXES)))

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
    """
    if not root.is_dir():
        raise DataError(f"{root} is not a folder")
    index, real_root = FileIndex(root), f"{os.path.realpath(root).rstrip('/')}/"
    pending, links = [""], list[str]()  # relative to the root, with a slash at the end
    visited: set[str] = set()  # resolved; only links can lead to a folder again
    while pending or links:
        # Links come last: a folder inside the root is listed under its own path, not under that of a link to it.
        links.sort(reverse=True)
        folder = (pending or links).pop()
        if follow_links:
            real = os.path.realpath(root / folder)
            if real in visited:
                continue
            visited.add(real)
        try:
            images = []
            with os.scandir(root / folder) as entries:
                for entry in entries:  # no Path for each: a data set of frames has millions of files
                    is_folder, is_link, is_hidden = entry.is_dir(), entry.is_symlink(), entry.name.startswith(".")
                    index.num_files += not is_folder
                    is_unwanted = is_folder and not folder and not wanted(entry.name)
                    if is_hidden or is_unwanted:
                        continue
                    if not is_utf8(entry.name):
                        if is_folder or _suffix(entry.name) in suffixes:
                            index.unlisted.append(folder + entry.name)
                        continue
                    if is_link and not f"{os.path.realpath(entry.path)}/".startswith(real_root):
                        if not follow_links:
                            remedy = "list it with vidssl prepare … --follow-links"
                            raise DataError(f"{entry.path} is a link that leaves {root}: {remedy}")
                        index.outside.append(folder + entry.name)
                    suffix = _suffix(entry.name)
                    if is_folder and not is_link:
                        pending.append(f"{folder}{entry.name}/")
                    elif is_folder and follow_links:
                        links.append(f"{folder}{entry.name}/")
                    elif suffix in suffixes and entry.is_file():
                        index.videos.append(folder + entry.name)
                    elif suffix in IMAGE_SUFFIXES and entry.is_file():
                        images.append(entry.name)
                    elif not is_folder:
                        index.others[suffix if "." in suffix else "no extension"] += 1
        except OSError as error:
            raise DataError(f"cannot read folder {root / folder}: {error.strerror}") from None
        if images and folder:
            is_video = is_sequence(numbers_by_name(images))
            index.image_folders[folder.rstrip("/")] = ImageFolder(len(images), is_video)
    index.videos.sort()
    return index


def describe(suffixes: Counter[str]) -> str:
    """The number of files of each extension, from the most frequent on: `2 .y4m, 1 .mxf`."""
    counts = sorted(suffixes.items(), key=lambda item: (-item[1], item[0]))
    return first_few((f"{count} {suffix}" for suffix, count in counts), 6)


def left_out(place: str, names: Sequence[str]) -> str:
    """The line on names that are not UTF-8."""
    return f"{place}: left out, as their names are not UTF-8: {len(names)} ({quoted(names)}); rename them"


def quoted(names: Iterable[str]) -> str:
    """The first names in quotes, and how many more there are."""
    return first_few(map(repr, names))


def _suffix(name: str) -> str:
    _, dot, end = name.rpartition(".")
    return dot + end.lower()


def _stem(path: str) -> str:
    """The path without the extension of a video; any other text after a dot belongs to the name."""
    suffix = _suffix(path)
    return path[: -len(suffix)] if suffix in VIDEO_SUFFIXES else path
