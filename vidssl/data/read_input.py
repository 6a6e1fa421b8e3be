"""What commands read: a list, or a folder, glob or file of videos that is listed on the spot."""

import glob
import logging
import os
from collections.abc import Sequence
from pathlib import Path

from vidssl.data.allowed_paths import is_folder, is_utf8
from vidssl.data.column_store import Records
from vidssl.data.detect_frame_folders import find_frame_folders
from vidssl.data.file_index import VIDEO_SUFFIXES, index_files, left_out
from vidssl.data.video_list import VideoList, read_list
from vidssl.errors import DataError, first_few
from vidssl.types import VideoRecord
from vidssl.video.frame_folder import IMAGE_SUFFIXES, is_sequence, numbers_by_name
from vidssl.video.packed_frames import INDEX, read_index
from vidssl.video.reader import state_of_video
from vidssl.video.tar_members import list_members

_log = logging.getLogger(__name__)
_KNOWN = VIDEO_SUFFIXES | IMAGE_SUFFIXES


def read_input(
    path: str | Path | Sequence[str | Path], root: str | Path | None = None, allow_external: bool = False
) -> VideoList:
    """Read a list (`*.csv`, see `read_list`), or list the videos of a folder, pattern or tar, one file, or several.

    A folder is searched with the folders below: for videos, without them for folders of numbered frames, without those
    for images, each a video of one frame. A folder that holds numbered frames itself is one video; a folder of packed
    frames has those of its index. Of several files and folders of frames, in their order, each is one video. These rows
    have no labels: `vidssl prepare folder` writes lists with classes. `root` and `allow_external` are for lists.

    Raises:
        DataError: Nothing is found, or the list is invalid.
    """
    if not isinstance(path, str | Path):
        return _several(path)
    path = Path(path)
    if path.suffix.lower() == ".csv":
        return read_list(path, root, allow_external)
    if root is not None and os.path.lexists(path):
        raise DataError(f"root=FOLDER is for the paths in a list, and {path} is not a list (*.csv): leave it out")
    if is_folder(path):
        folder, names = _find(path)
    elif os.path.exists(path):  # noqa: PTH110 - Path.exists raises for a name that is too long
        folder, names = path.parent, _videos_in_tar(path) if path.suffix.lower() == ".tar" else [path.name]
    else:
        folder, names = _match(path)
    others = [name for name in names if not is_utf8(name)]
    if len(others) == len(names):
        raise DataError(f"{others[0]!r} is not UTF-8: rename it")
    if others:
        _log.warning("%s", left_out(str(path), others))
    return VideoList(path, Records(folder, [VideoRecord(name) for name in names if is_utf8(name)]), ())


def _several(paths: Sequence[str | Path]) -> VideoList:
    """List files and folders of frames, below the folder above all of them."""
    found = [Path(path).absolute() for path in paths]
    missing = [str(path) for path in found if state_of_video(str(path))[1] < 0]
    if missing or not found:
        raise DataError(
            f"{len(missing)} of {len(found)} files do not exist: {first_few(missing)}" if found else "no file is named"
        )
    folder = Path(os.path.commonpath([path.parent for path in found]))
    names = [path.relative_to(folder).as_posix() for path in found]
    if not all(map(is_utf8, names)):
        raise DataError(f"{next(n for n in names if not is_utf8(n))!r} is not UTF-8: rename it")
    rows = [VideoRecord(name) for name in names]
    return VideoList(folder, Records(folder, rows), ())


def _find(folder: Path) -> tuple[Path, Sequence[str]]:
    """Find the videos of a folder: the root of their names, and the names."""
    if (folder / INDEX).exists():
        packed = read_index(folder / INDEX)
        return folder, [os.fsdecode(packed.name(row)) for row in range(len(packed))]
    index = index_files(folder)
    index.warn_of_others()
    for note in index.on_names():
        _log.warning("%s", note)
    if index.videos:
        return folder, index.videos
    images = [path.name for path in folder.iterdir() if path.suffix.lower() in IMAGE_SUFFIXES]
    if images and is_sequence(numbers_by_name(images)):
        return folder.absolute().parent, [folder.absolute().name]
    if any(found.is_video for found in index.image_folders.values()):
        return folder, find_frame_folders(index)
    names = index_files(folder, suffixes=IMAGE_SUFFIXES).videos
    if not names:
        raise DataError(
            f"no videos and no images in {folder} ({index.num_files} other files); known extensions: "
            f"{' '.join(sorted(_KNOWN))}"
        )
    return folder, names


def _videos_in_tar(tar: Path) -> list[str]:
    names = [name for name in list_members(str(tar)) if Path(name).suffix.lower() in VIDEO_SUFFIXES]
    if not names:
        raise DataError(f"no videos in {tar}; known extensions: {' '.join(sorted(VIDEO_SUFFIXES))}")
    return [f"{tar.name}#{name}" for name in names]


def _match(pattern: Path) -> tuple[Path, Sequence[str]]:
    """Find the videos and images that match a pattern: the folder above all of them, and their names in it."""
    if not glob.has_magic(str(pattern)):
        raise DataError(f"{pattern} does not exist: give a list (*.csv), a folder, a file, or a quoted pattern")
    base = Path(pattern.anchor)
    matching = sorted(base.glob(str(pattern.relative_to(base))))
    found = [path.absolute() for path in matching if path.suffix.lower() in _KNOWN and path.is_file()]
    if not found:
        raise DataError(f"no video or image matches {pattern}: known extensions are {' '.join(sorted(_KNOWN))}")
    folder = Path(os.path.commonpath([path.parent for path in found]))
    return folder, [path.relative_to(folder).as_posix() for path in found]
