"""Which files a list names: results of one set of files must not pass for those of another."""

import hashlib
import json
import os
import stat
from array import array
from pathlib import Path

from vidssl.config import Tree
from vidssl.data.video_list import VideoList
from vidssl.errors import DataError

COPIES = "shrink.json"  # in a folder of shrunk copies: the settings that they were made with
_MISSING, _FOLDER = -1, -2  # used in place of a size


def identify(videos: VideoList) -> Tree:
    """Describe the files of a list by what can be learned without opening them.

    Each file is looked at once, however many rows name it: its size, or of a folder of images the number of files and
    the sizes of the first and the last. Links are followed. Modification times are ignored: the same files, copied
    again to the same root, are the same data.

    Returns:
        Plain data. `root`, resolved; `files`, how many the list names, masks included; `missing`, how many of them do
        not exist; `bytes`, the sum of the sizes; `sizes`, a hash of all of them in the order of the list; `fps`, lowest
        and highest value of that column, None without one; `copies`, the settings of shrunk copies, None of originals,
        a list of both where there are files of several kinds.

    Raises:
        DataError: The settings of shrunk copies cannot be read.
    """
    # Paths are texts here: there may be a million.
    here = os.path.realpath("")
    resolved, kind_of, folders = _Resolved(), _Kinds(), set[str]()
    sizes, seen, rates = array("q"), set[str](), set[float]()
    total = missing = 0
    for record in videos.records:
        if record.fps is not None:
            rates.add(record.fps)
        for path in (record.path, record.mask):
            if path is None or path in seen:
                continue
            seen.add(path)
            path = path if path.startswith("/") else f"{here}/{path}"
            try:
                status = os.lstat(path)
                if stat.S_ISLNK(status.st_mode):
                    status = os.stat(path)
                    while stat.S_ISLNK(os.lstat(path).st_mode):  # `stat` succeeded, so the links form no loop
                        path = str(Path(path).parent / Path(path).readlink())
                if stat.S_ISDIR(status.st_mode):
                    count, measured = _look_into(path)
                    sizes.extend((_FOLDER, count))
                else:
                    measured = (status.st_size,)
            except OSError:
                sizes.append(_MISSING)
                missing += 1
                continue
            sizes.extend(measured)
            total += sum(measured)
            folders.add(resolved[path.rpartition("/")[0]])
    found = [json.loads(kind) for kind in sorted({kind_of[folder] for folder in folders})]
    return {
        "root": os.path.realpath(videos.root),
        "files": len(seen),
        "missing": missing,
        "bytes": total,
        "sizes": hashlib.sha256(sizes.tobytes()).hexdigest()[:16],
        "fps": [min(rates), max(rates)] if rates else None,
        "copies": found if len(found) > 1 else found[0] if found else None,
    }


def check_copies(gallery: Path, there: Tree, query: Path, asked: Tree) -> None:
    """Raise an error unless two lists hold the same kind of files: originals, or copies of the same settings.

    Args:
        gallery: The list or the index that is searched, for the message.
        there: Its files, as `identify` describes them.
        query: The list or the video that is compared with it.
        asked: Its files.

    Raises:
        DataError: They are of several kinds, also where both lists mix the same ones: copies would be compared with
            originals.
    """
    if any(files["missing"] == files["files"] for files in (there, asked)):
        return  # reading them names the missing files
    if there["copies"] != asked["copies"] or isinstance(there["copies"], list):
        raise DataError(
            f"{gallery} contains {_shown(there)}, {query} contains {_shown(asked)}: their features differ; compare "
            "originals with originals, or copies with copies of the same settings (--root names the folder; "
            "tools/shrink_videos.py LIST --out FOLDER makes copies, also for a list of a single video)"
        )


def _shown(files: Tree) -> str:
    copies = files["copies"]
    if copies is None:
        return "original videos"
    if isinstance(copies, list):
        return "originals and shrunk copies together, or copies of several settings"
    settings = ", ".join(f"{name} {value}" for name, value in copies.items() if value is not None)
    return f"shrunk copies ({settings})"


class _Resolved(dict[str, str]):
    """Absolute folders without links in them; `realpath` would look at all of them again for every file."""

    def __missing__(self, folder: str) -> str:
        """Resolve a folder, by way of the one above it; the empty one is `/`."""
        above, _, name = folder.rpartition("/")
        real = f"{self[above]}/{name}" if folder else ""
        if name in (".", "..") or (folder and stat.S_ISLNK(os.lstat(real).st_mode)):
            real = os.path.realpath(real)
        self[folder] = real
        return real


class _Kinds(dict[str, str]):
    """For each resolved folder the settings of the copies that it holds, as JSON; `null`: it holds originals."""

    def __missing__(self, folder: str) -> str:
        """Look into a folder for the first time, and into those above it."""
        file = f"{folder}/{COPIES}"
        try:
            with open(file, encoding="utf-8") as text:
                kind = json.dumps(dict(json.load(text)), sort_keys=True)
        except FileNotFoundError:
            kind = self[folder.rpartition("/")[0]] if folder else "null"
        except OSError as error:
            raise DataError(f"cannot read {file}: {error.strerror}; let this user read it") from None
        except (ValueError, TypeError) as error:
            raise DataError(
                f"{file} does not hold the settings of shrunk copies ({error}): shrink the videos again into another "
                "folder, or delete the file if they are originals"
            ) from None
        self[folder] = kind
        return kind


def _look_into(folder: str) -> tuple[int, tuple[int, ...]]:
    """Count the files of a folder of images, and measure the first and the last by name."""
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if not entry.name.startswith(".")]
    ends = (min(names), max(names)) if names else ()
    return len(names), tuple(os.stat(f"{folder}/{name}").st_size for name in ends)
