"""Paths in a list: which ones are allowed, and what they resolve to."""

import errno
import os
import re
from pathlib import Path

from vidssl.errors import DataError

# What FFmpeg would parse as a protocol instead of a file name.
_PROTOCOL = re.compile(
    "async|cache|concat|crypto|data|fd|file|ftp|https?|pipe|rtmp|rtp|subfile(,.*)?|tcp|tls|udp", re.DOTALL
)


def full_path(root: Path, name: str) -> str:
    """Return the path of a file of a list, normalised as `root / name` is.

    `Path` objects intern all their parts: a million names would leave a table that every worker copies.
    """
    if "//" in name or "/." in name or name[:1] == "." or name[-1:] == "/":
        start = "/" if name[0] == "/" else ""
        name = start + "/".join(part for part in name.split("/") if part not in ("", "."))
    folder = str(root)
    if not name:
        return folder
    return name if name[0] == "/" or folder == "." else f"{folder.rstrip('/')}/{name}"


class PathRule:
    """Refuses names that are empty, URLs, or, unless `allow_external`, outside the root after following links."""

    def __init__(self, root: Path, allow_external: bool) -> None:
        self._root = root
        self._real_path = None if allow_external else RealPath()
        self._inside = f"{os.path.realpath(root).rstrip('/')}/"

    def check(self, name: str, column: str, place: str) -> None:
        """Check a name.

        Raises:
            DataError: `place` and the rule that the name breaks.
        """
        if not name.strip():
            raise DataError(f"{place}: the {column} is empty")
        scheme, colon, _ = name.split("/", 1)[0].partition(":")
        if "://" in name or (colon and _PROTOCOL.fullmatch(scheme)):
            raise DataError(f"{place}: {name!r} is a URL: only local files are supported")
        if self._real_path is None:
            return
        real = self._real_path(full_path(self._root, name))
        if real is None:
            raise DataError(f"{place}: {name[:60]!r} cannot be resolved: its links form a loop")
        if not f"{real}/".startswith(self._inside):
            raise DataError(f"{place}: {name!r} leaves the root {self._root}; move the file or allow external paths")


class RealPath:
    """Resolves links like `os.path.realpath`, but each folder only once."""

    def __init__(self) -> None:
        self._folders: dict[str, str | None] = {}

    def __call__(self, path: str) -> str | None:
        """Return the path with all links resolved; None if they form a loop."""
        folder, name = os.path.split(path)
        if name in ("", ".", ".."):
            return _resolve(path)
        if folder not in self._folders:
            self._folders[folder] = _resolve(folder)
        real = self._folders[folder]
        if real is None:
            return None
        file = f"{real.rstrip('/')}/{name}"
        return _resolve(file) if os.path.islink(file) else file  # noqa: PTH114 - a Path for each row is slower


def _resolve(path: str) -> str | None:
    real = os.path.realpath(path)
    try:
        os.stat(real)
    except OSError as error:  # the file may be missing, or its name too long
        return None if error.errno == errno.ELOOP else real
    return real
