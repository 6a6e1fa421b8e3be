"""Fingerprint of the files of a list, so that results of one set of files are not used for another."""

import hashlib
import json
import os
import stat
from array import array
from pathlib import Path

from vidssl.base.config import Tree
from vidssl.base.errors import DataError
from vidssl.base.safe_parse import read_json
from vidssl.data.allowed_paths import RealPath
from vidssl.data.video_list import VideoList
from vidssl.video.frame_folder import IMAGE_SUFFIXES, frame_number
from vidssl.video.reader import state_in_archive

COPIES = "shrink.json"  # file with the settings of shrunk copies, in their folder
_MISSING, _FOLDER = -1, -2  # instead of a size
_IMAGES = tuple(IMAGE_SUFFIXES)


def identify(videos: VideoList) -> Tree:
    """Describe the files of a list, masks included, as plain data, without opening them.

    Each file is inspected once, however many rows name it. Links are followed. Modification times count for images and
    folders of images, whose size often stays the same when their content changes: `changed` is a hash of them. Those of
    videos are ignored: the same files copied again to the same root are the same data. docs/result_files.md lists the
    keys.

    Raises:
        DataError: The settings of shrunk copies cannot be read.
    """
    # Strings instead of Path objects: there may be a million.
    real_path, folders, seen, rates = RealPath(), set[str](), set[str](), set[float]()
    sizes, times, total, missing = array("q"), array("Q"), 0, 0  # times modulo 2**64: some are before 1970
    for record in videos.records:
        if record.fps is not None:
            rates.add(record.fps)
        for path in (record.path, record.mask):
            if path is None or path in seen:
                continue
            seen.add(path)
            try:
                measured, changed = state_of_file(path)
            except (OSError, ValueError):  # ValueError: a name that no file can have
                sizes.append(_MISSING)
                missing += 1
                continue
            sizes.extend(measured)
            if measured[0] == _FOLDER or path.lower().endswith(_IMAGES):
                times.append(changed % 2**64)
            total += sum(measured[2:] if measured[0] == _FOLDER else measured)
            folders.add(real_path(path).rpartition("/")[0])
    known: dict[str, str] = {}
    roots = [os.path.realpath(root) for root in videos.records.roots]
    kinds = [json.loads(kind) for kind in sorted({_settings_of_copies(folder, known) for folder in folders})]
    return {
        "root": roots if len(roots) > 1 else roots[0],
        "files": len(seen),
        "missing": missing,
        "bytes": total,
        "sizes": hashlib.sha256(sizes.tobytes()).hexdigest()[:16],
        "changed": hashlib.sha256(times.tobytes()).hexdigest()[:16] if times else None,
        "fps": [min(rates), max(rates)] if rates else None,
        "copies": kinds if len(kinds) > 1 else kinds[0] if kinds else None,
    }


def state_of_file(path: str) -> tuple[tuple[int, ...], int]:
    """Sizes of a file or folder, and what changes with its content even if these do not.

    Of a file, its size and its modification time in nanoseconds. Of a folder, `_FOLDER`, the number of files and the
    sizes of the first and the last by name; and a hash of all names, sizes and modification times.
    """
    try:
        status = os.stat(path)
    except FileNotFoundError:
        inside = state_in_archive(path)
        if inside is None:
            raise
        return inside[:1], inside[1]
    if not stat.S_ISDIR(status.st_mode):
        return (status.st_size,), status.st_mtime_ns
    with os.scandir(path) as entries:
        images = sorted((entry.name, entry.stat()) for entry in entries if frame_number(entry.name))  # as `FrameFolder`
    files = "\n".join(f"{status.st_size} {status.st_mtime_ns} {name}" for name, status in images)
    digest = hashlib.sha256(os.fsencode(files)).digest()
    ends = (images[0], images[-1]) if images else ()
    return (_FOLDER, len(images), *(status.st_size for _, status in ends)), int.from_bytes(digest[:8], "little")


def _settings_of_copies(folder: str, known: dict[str, str]) -> str:
    """Settings of the copies in a resolved folder as JSON, else those of its parent; `null` for originals."""
    if folder not in known:
        file = f"{folder}/{COPIES}"
        try:
            known[folder] = json.dumps(dict(read_json(Path(file))), sort_keys=True)
        except FileNotFoundError:
            known[folder] = _settings_of_copies(folder.rpartition("/")[0], known) if folder else "null"
        except (OSError, ValueError, TypeError) as error:
            remedy = "shrink the videos again into another folder, or move the file away if they are originals"
            raise DataError(f"cannot read the settings of shrunk copies in {file} ({error}): {remedy}") from None
    return known[folder]


def check_copies(gallery: Path, gallery_files: Tree, query: Path, query_files: Tree) -> None:
    """Check that two lists have the same kind of files, from `identify`: originals, or copies of the same settings.

    Raises:
        DataError: They are of several kinds, also if each list mixes them: copies would be compared with originals.
    """
    if any(files["missing"] == files["files"] for files in (gallery_files, query_files)):
        return  # the error that names the missing files comes later, when they are read
    if gallery_files["copies"] != query_files["copies"] or isinstance(gallery_files["copies"], list):
        kinds = f"{gallery} contains {_kind(gallery_files)}, {query} contains {_kind(query_files)}"
        raise DataError(f"{kinds}: compare originals, or copies of the same settings (root=FOLDER, vidssl shrink)")


def _kind(files: Tree) -> str:
    kinds = []
    for copies in files["copies"] if isinstance(files["copies"], list) else [files["copies"]]:
        settings = ", ".join(f"{name} {value}" for name, value in (copies or {}).items() if value is not None)
        kinds.append(f"shrunk copies ({settings})" if copies else "original videos")
    return " and ".join(kinds)
