"""Paths in a list: which ones are allowed, and what they resolve to."""

import os
import re
from functools import cache
from pathlib import Path
from unicodedata import normalize

from vidssl.base.errors import DataError

# What FFmpeg would parse as a protocol instead of a file name.
_PROTOCOL = re.compile("(async|cache|concat|crypto|data|fd|file|ftp|https?|pipe|rtm?p|subfile(,[^/:]*)?|tcp|tls|udp):")
_ESCAPED = re.compile("[\ud800-\udfff]")  # Python reads the bytes of a name that are not UTF-8 as lone surrogates


def is_utf8(name: str) -> bool:
    """Whether the name of a file is UTF-8, as lists, tables and pages are. Other names are left out, or refused."""
    return name.isascii() or not _ESCAPED.search(name)


def is_folder(path: str | Path) -> bool:
    """Whether a path is a folder; False also where Path.is_dir raises, as for a name that is too long."""
    return os.path.isdir(path)  # noqa: PTH112


def is_file(path: str | Path) -> bool:
    """Whether a path is a file, likewise."""
    return os.path.isfile(path)  # noqa: PTH113


def full_path(root: Path, name: str) -> str:
    """Return the path of a file of a list, normalised as `root / name` is.

    `Path` objects intern all their parts: a million names would leave a table that every worker copies.
    """
    path = name if name[:1] == "/" else f"{root}/{name}"
    if "//" in path or "/." in path or path[:1] == "." or path[-1:] == "/":
        start = "/" if path[0] == "/" else ""
        path = start + "/".join(part for part in path.split("/") if part not in ("", "."))
    return path or "."


def existing_path(root: Path, name: str) -> str:
    """Return `full_path`, with letters such as é in the form that the file has: one letter, or e and an accent.

    macOS stores two, and copies of its files keep them, where lists have one.
    """
    path = full_path(root, name)
    if name.isascii() or os.path.lexists(path) or "\0" in path:
        return path
    existing = "" if name[:1] == "/" else full_path(root, ".")
    for part in filter(None, name.split("/")):
        forms = (f"{existing}/{form}" for form in (part, normalize("NFC", part), normalize("NFD", part)))
        existing = next(filter(os.path.lexists, forms), "")
        if not existing:
            return path
    return full_path(Path(), existing)


TAR_MARK = ".tar#"  # between the path of a tar and the name of a file in it


class RealPath:
    """Resolves links like `os.path.realpath`, but each folder only once."""

    def __init__(self) -> None:
        self._resolve_folder = cache(os.path.realpath)

    def __call__(self, path: str) -> str:
        """Return the path with all links resolved."""
        if TAR_MARK in path and not os.path.lexists(path):  # a member of a tar: the tar may be a link
            tar, _, member = path.partition(TAR_MARK)
            return f"{self(f'{tar}.tar')}#{member}"
        folder, name = os.path.split(path)
        if name in ("", ".", ".."):
            return os.path.realpath(path)
        file = f"{self._resolve_folder(folder).rstrip('/')}/{name}"
        return os.path.realpath(file) if os.path.islink(file) else file  # noqa: PTH114 - a Path for each row is slower


class PathRule:
    """Refuses names that are empty, URLs, or, unless `allow_external`, outside the root after following links."""

    def __init__(self, root: Path, allow_external: bool) -> None:
        if "\0" in str(root):
            raise DataError(f"the root {str(root)!r} has a NUL byte: write root.txt again")
        self._root = root
        self._real_path = None if allow_external else RealPath()
        self._inside = f"{os.path.realpath(root).rstrip('/')}/"
        self._itself = full_path(root, ".")

    def check(self, name: str, column: str) -> None:
        """Raise ValueError if a name breaks the rule."""
        bare = name.strip()
        if not bare or "\0" in name:
            raise ValueError(f"the {column} is empty or has a NUL byte")
        if not is_utf8(name):
            raise ValueError(f"{name!r} is not UTF-8: rename the file")
        if ":" in name and ("://" in name or _PROTOCOL.match(name)):
            raise ValueError(f"{name!r} is a URL: only local files are supported")
        path = existing_path(self._root, name)
        slashed = name.replace("\\", "/")
        if slashed != name and not os.path.lexists(path) and os.path.lexists(full_path(self._root, slashed)):
            raise ValueError(f"{name!r} has backslashes, as Windows writes paths, and the file is {slashed!r}: write /")
        if bare != name and not os.path.lexists(path) and os.path.lexists(full_path(self._root, bare)):
            raise ValueError(f"{name!r} has blanks around it, and the file is {bare!r}: remove them")
        inside = path if self._real_path is None else f"{self._real_path(path)}/"
        if inside in (self._inside, self._itself):
            raise ValueError(f"{name!r} is the root itself: name a file or folder in it")
        upwards = TAR_MARK in name and ".." in name.partition(TAR_MARK)[2].split("/")  # from a member of a tar
        if self._real_path is not None and (upwards or not inside.startswith(self._inside)):
            raise ValueError(f"{name!r} leaves the root {self._root}; move the file or allow external paths")
