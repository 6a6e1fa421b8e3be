"""Folders of images: frames of a video, examples of a class, or optical flow? Their names and numbers decide."""

import posixpath
import re
from collections import Counter, defaultdict
from collections.abc import Iterable

from vidssl.data.file_index import FileIndex, quoted
from vidssl.errors import DataError
from vidssl.video.frame_folder import is_mixed, numbers_by_name

_FLOW = re.compile(r"(optical[_-]?)?flow([_-]?[xyuv])?", re.IGNORECASE)  # name of a folder of optical flow


def find_frame_folders(index: FileIndex) -> list[str]:
    """Find the folders whose images are the frames of a video: numbered, and without folders of images below."""
    parents = {path[:end] for path in index.image_folders for end, letter in enumerate(path) if letter == "/"}
    numbered = {path for path, folder in index.image_folders.items() if folder.is_video}
    found = sorted(numbered - parents)
    if not found:
        raise DataError(
            f"no videos in {index.root}, and its images ({quoted(sorted(index.image_folders))}) are not numbered like "
            "the frames of one video in each folder: keep only the RGB images (img_0001.jpg …), or use images=True "
            "of vidssl prepare folder"
        )
    flow = {path for path in found if _FLOW.fullmatch(posixpath.basename(path))}
    frames = numbered - flow
    videos = frames | {posixpath.dirname(path) for path in frames}
    beside = sorted(path for path in flow if posixpath.dirname(path) in videos)
    if beside:
        raise DataError(
            f"{index.root}: {len(beside)} folders ({quoted(beside)}) hold optical flow beside frames: keep only the "
            "folders of RGB images, or name these with labels=FILE of vidssl prepare folder"
        )
    return found


def check_not_frames(images: Iterable[tuple[str, str | None, str]]) -> None:
    """Raise DataError if images, (path, label, group) each, may be frames of videos, which must not be split."""
    names: dict[str, list[str]] = defaultdict(list)
    labels: dict[str, set[str | None]] = defaultdict(set)
    for path, label, _ in images:
        folder, name = posixpath.split(path)
        names[folder].append(name)
        labels[folder].add(label)
    folders_per_label = Counter(label for each in labels.values() for label in each)
    found = []
    for folder in sorted(names):
        prefixes = numbers_by_name(names[folder])
        is_class = labels[folder] == {posixpath.basename(folder)}  # <class>/0001.png
        # The examples of all classes, or <class>/images/<class>_1.JPEG.
        several = len(labels[folder]) > 1 or {name.rstrip("_-. ") for name in prefixes} == labels[folder]
        is_set = several and all(folders_per_label[label] == 1 for label in labels[folder])
        is_numbered = bool(prefixes) and not is_class and not is_set
        if folder and len(names[folder]) > 1 and (is_mixed(prefixes) or is_numbered):
            found.append(folder)
    if found:
        raise DataError(
            f"images of {len(found)} folders ({quoted(found)}) are numbered like the frames of a video, and frames of "
            "one video must not be in both train and test: leave out images=True to list each folder as a video, or "
            "group them: the group '.+/' keeps the images of a folder together, '.+' splits them, and test=0 tests none"
        )
