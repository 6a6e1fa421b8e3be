"""Folders of images: frames of a video, examples of a class, or optical flow? Their names and numbers decide."""

import posixpath
import re
from collections import Counter, defaultdict
from collections.abc import Iterable

from vidssl.errors import DataError
from vidssl.prepare.file_index import FileIndex, preview
from vidssl.video.frame_folder import is_mixed, numbers_by_name

_FLOW = re.compile(r"(optical[_-]?)?flow([_-]?[xyuv])?", re.IGNORECASE)  # name of a folder of optical flow


def find_frame_folders(index: FileIndex) -> list[str]:
    """Find the folders whose images are the frames of a video: numbered, and without folders of images below.

    Raises:
        DataError: There are none, or some are optical flow of others.
    """
    root = index.root
    parents = {path[:end] for path in index.image_folders for end, letter in enumerate(path) if letter == "/"}
    numbered = {path for path, folder in index.image_folders.items() if folder.is_video}
    found = sorted(numbered - parents)
    mixed = sorted(path for path, folder in index.image_folders.items() if folder.mixed_prefixes)
    if not found and mixed:
        prefixes = index.image_folders[mixed[0]].mixed_prefixes
        raise DataError(
            f"{root}: {len(mixed)} folders ({preview(mixed)}) hold images of several kinds ({preview(prefixes)}); a "
            "folder is one video only if its images are of one kind: keep only the RGB images in each folder, and move "
            "others, such as optical flow, elsewhere"
        )
    if not found:
        raise DataError(
            f"no videos in {root}, and its images ({preview(sorted(index.image_folders))}) are not numbered like the "
            "frames of a video: use --images to list each image as an example"
        )
    flow = {path for path in found if _FLOW.fullmatch(posixpath.basename(path))}
    frames = numbered - flow
    videos = frames | {posixpath.dirname(path) for path in frames}
    beside = sorted(path for path in flow if posixpath.dirname(path) in videos)
    if beside:
        raise DataError(
            f"{root}: {len(beside)} folders ({preview(beside)}) hold optical flow beside frames, and each folder would "
            "be a video: keep only the folders of RGB images, or name these with --labels"
        )
    return found


def folders_of_possible_frames(images: Iterable[tuple[str, str | None, str]]) -> list[str]:
    """Find the folders whose images may be the frames of videos, from (path, label, group) of each image."""
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
    return found


def check_not_frames(images: Iterable[tuple[str, str | None, str]]) -> None:
    """Raise DataError if images may be frames of videos, which must not be split at random."""
    found = folders_of_possible_frames(images)
    if found:
        raise DataError(
            f"images of {len(found)} folders ({preview(found)}) are numbered like the frames of a video, and frames of "
            "one video must not be in both train and test: remove --images to list each folder as a video, or group "
            "them: --group '.+/' keeps the images of a folder together, --group '.+' splits them, --test 0 tests none"
        )
