"""What commands read: a list, or a folder, pattern or file of videos, which is listed on the spot by an index of it."""

import glob
import logging
import os
import posixpath
import re
import stat
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple

from vidssl.base.config import in_home
from vidssl.base.errors import DataError, first_few, how_many
from vidssl.base.output_folder import outputs_in
from vidssl.base.types import VideoRecord
from vidssl.data.allowed_paths import existing_path, is_file, is_folder, is_utf8
from vidssl.data.video_list import Records, VideoList, read_list
from vidssl.video.frame_folder import IMAGE_SUFFIXES, has_other_images, is_sequence, numbers_by_name
from vidssl.video.packed_frames import INDEX, read_index
from vidssl.video.reader import state_of_video
from vidssl.video.tar_members import list_members

_log = logging.getLogger(__name__)

VIDEO_SUFFIXES = frozenset(
    {".mp4", ".avi", ".mkv", ".webm", ".mov", ".mpg", ".mpeg", ".vob", ".m4v", ".wmv", ".flv", ".3gp", ".gif"}
    | {".ts", ".mts", ".m2ts", ".ogv"}
)
_KNOWN = VIDEO_SUFFIXES | IMAGE_SUFFIXES
# Videos and images too, which FFmpeg formats that are not read here, rare codecs, or other data have.
_OTHER_VIDEOS = frozenset(
    f".{name}"
    for name in (
        *("y4m", "mxf", "nut", "apng", "asf", "divx", "f4v", "ivf", "m2v", "m1v", "h264", "hevc", "264", "265", "obu"),
        *("av1", "vp9", "dv", "qt", "3g2", "mjpeg", "mjpg", "ogm", "ogg", "rm", "rmvb", "mpe", "mpv", "dav", "yuv"),
        *("wtv", "mod", "tod", "insv", "braw", "r3d", "avif", "heic", "tif", "tiff"),
    )
)


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
    path = Path(existing_path(Path(), str(in_home(path))))
    if path.suffix.lower() == ".csv":
        return read_list(path, root, allow_external)
    if root is not None and os.path.lexists(path):
        raise DataError(f"root=FOLDER is for the paths in a list, and {path} is not a list (*.csv): leave it out")
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        if isinstance(error, PermissionError) or os.path.islink(path):  # noqa: PTH114 - it may be too long
            raise DataError(f"cannot read {path}: {getattr(error, 'strerror', error)}") from None
        folder, names = _match(path)
    else:
        if stat.S_ISDIR(mode):
            folder, names = _find(path)
        else:
            folder, names = path.parent, _videos_in_tar(path) if path.suffix.lower() == ".tar" else [path.name]
    others = [name for name in names if not is_utf8(name)]
    if len(others) == len(names):
        raise DataError(f"{others[0]!r} is not UTF-8: rename it")
    if others:
        _log.warning("%s", left_out_line(path, NOT_UTF8, [*map(repr, others)]))
    return VideoList(path, Records(folder, [VideoRecord(name) for name in names if is_utf8(name)]), ())


def _several(paths: Iterable[str | Path]) -> VideoList:
    """List files and folders of frames, below the folder above all of them."""
    is_table = isinstance(paths, bytes | Mapping) or hasattr(paths, "columns")  # whose items are no paths
    values = [*paths] if isinstance(paths, Iterable) and not is_table else [paths]
    if wrong := [type(path).__name__ for path in values if not isinstance(path, str | Path)]:
        raise DataError(
            f"videos are named by text or Path, got {wrong[0]}: name a list (*.csv), a folder, a pattern or a file, or "
            "give a sequence of the paths of files, of a table its column of paths"
        )
    files = [Path(existing_path(Path(), str(in_home(path)))).absolute() for path in values]
    if not files:
        raise DataError("no file is named")
    if missing := [str(path) for path in files if state_of_video(str(path)) is None]:
        raise DataError(f"{len(missing)} of {len(files)} files do not exist: {first_few(missing)}")
    folder, names = _below_common_folder(files)
    if others := [name for name in names if not is_utf8(name)]:
        raise DataError(f"{others[0]!r} is not UTF-8: rename it")
    return VideoList(folder, Records(folder, map(VideoRecord, names)), ())


def _below_common_folder(paths: Sequence[Path]) -> tuple[Path, list[str]]:
    """Return the folder above all paths, and their names in it."""
    folder = Path(os.path.commonpath([path.parent for path in paths]))
    return folder, [path.relative_to(folder).as_posix() for path in paths]


def _find(folder: Path) -> tuple[Path, Sequence[str]]:
    """Find the videos of a folder: the root of their names, and the names."""
    if os.path.lexists(folder / INDEX):
        packed = read_index(folder / INDEX)
        return folder, [os.fsdecode(packed.name(row)) for row in range(len(packed))]
    index = index_files(folder)
    index.warn_of_others()
    for note in index.on_names():
        _log.warning("%s", note)
    if index.videos:
        _warn_of_folders(folder, [path for path, images in index.image_folders.items() if images.is_video])
        return folder, index.videos
    folders = index.image_folders
    if index.top.is_mixed or any(images.is_video or images.is_mixed for images in folders.values()):
        frames = frame_folders(index)
        _warn_of_folders(folder, [*folders.keys() - frames] + ["."] * (index.top.num_images > 0))
        return folder, frames
    if index.top.is_video:
        _warn_of_folders(folder, [*folders])
        return folder.absolute().parent, [folder.absolute().name]
    names = index_files(folder, suffixes=IMAGE_SUFFIXES).videos
    if not names:
        others, known = f"{index.num_files} other files", " ".join(sorted(_KNOWN))
        raise DataError(f"no videos and no images in {folder} ({others}); known extensions: {known}")
    return folder, names


def _warn_of_folders(folder: Path, names: Sequence[str]) -> None:
    if names:
        text = "%s: images in %s are not listed, as there are videos: %s"
        _log.warning(text, folder, how_many(len(names), "folder"), quoted(sorted(names)))


def _videos_in_tar(tar: Path) -> list[str]:
    names = [name for name in list_members(str(tar)) if Path(name).suffix.lower() in VIDEO_SUFFIXES]
    if not names:
        raise DataError(f"no videos in {tar}; known extensions: {' '.join(sorted(VIDEO_SUFFIXES))}")
    return [f"{tar.name}#{name}" for name in names]


def _match(pattern: Path) -> tuple[Path, Sequence[str]]:
    """Find the videos and images that match a pattern: the folder above all of them, and their names in it."""
    file, at, _ = str(pattern).rpartition("@")
    if at and state_of_video(file) is not None:
        raise DataError(
            f"{pattern}: a span is FILE@START-END, in seconds, of a query alone; else give a CSV file path,start,end"
        )
    if not glob.has_magic(str(pattern)):
        raise DataError(f"{pattern} does not exist: give a list (*.csv), a folder, a file, or a quoted pattern")
    base, parts = Path(pattern.anchor), pattern.relative_to(pattern.anchor).parts
    while len(parts) > 1 and is_folder(base / parts[0]):  # as it is, also with brackets in its name
        base, parts = base / parts[0], parts[1:]
    if any("**" in part and part != "**" for part in parts):
        raise DataError(f"{pattern}: ** stands for folders, and is no part of a name: write **/*.mp4 for *.mp4 in all")
    candidates = [path for path in sorted(base.glob("/".join(parts))) if path.suffix.lower() in _KNOWN]
    above = {folder for parent in {path.parent for path in candidates} for folder in (parent, *parent.parents)}
    outputs = {folder / name for folder in above if folder.is_relative_to(base) for name in outputs_in(folder, base)}
    written = [str(path) for path in candidates if outputs and not outputs.isdisjoint((path, *path.parents))]
    written = written if len(written) < len(candidates) else []  # the pattern names copies alone
    unread = [str(path) for path in candidates if not is_file(path) and not is_folder(path)]
    matches = [path.absolute() for path in candidates if is_file(path) and str(path) not in {*written}]
    for reason, paths in ((WRITTEN, written), (UNREAD, unread)):
        if paths:
            _log.warning("%s", left_out_line(pattern, reason, paths))
    if not matches:
        hint = "; a [ that is in a name is written [[]" * ("[" in "".join(parts))
        raise DataError(f"no video or image matches {pattern}: known extensions are {' '.join(sorted(_KNOWN))}{hint}")
    return _below_common_folder(matches)


# The index: scanned once, then looked up by name ---------------------------------------------------------------


class FileMatch(NamedTuple):
    """The paths that match a name: none, one, or several if the name is ambiguous."""

    paths: Sequence[str]
    kind: Literal["exact", "extension", "case"]  # what differs from the name


class ImageFolder(NamedTuple):
    """A folder that holds images itself, not only in folders below."""

    num_images: int = 0
    is_video: bool = False  # the images are numbered as the frames of one video
    is_mixed: bool = False  # they are frames and others: flow, masks, thumbs


@dataclass
class FileIndex:
    """Videos and folders of images below `root`. All paths are relative to it, with forward slashes."""

    root: Path
    videos: list[str] = field(default_factory=list)
    image_folders: dict[str, ImageFolder] = field(default_factory=dict)  # below the root
    top: ImageFolder = field(default_factory=ImageFolder)  # the root itself
    num_files: int = 0  # of any kind, hidden ones too
    others: Counter[str] = field(default_factory=Counter)  # extensions of the files that are neither, not hidden
    outside: list[str] = field(default_factory=list)  # followed links that leave the root
    left_out: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))  # by reason, quoted

    def find(self, name: str, any_case: bool = True) -> FileMatch:
        """Find a path: exact, else with another extension, else (if `any_case`) in different case.

        A folder of images matches like a file without extension: `a/x` for `a/x.avi`.
        """
        stem = without_extension(name)
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
        paths = self._by_name.get(without_extension(name), [])
        exact = [path for path in paths if path.rpartition("/")[2] == name]
        paths = exact or paths
        inside = [path for path in paths if path.rpartition("/")[0].rpartition("/")[2] in preferred]
        return FileMatch(inside or paths, "exact" if exact else "extension")

    @property
    def notes(self) -> list[str]:
        """Notes on followed links and what was left out, for the report."""
        remedy = "read these lists with allow_external=True, in a config data.allow_external=true"
        links = [f"{len(self.outside)} links leave the folder: {remedy}"] if self.outside else []
        return links + self.on_names()

    def on_names(self) -> list[str]:
        """Notes on what was left out, if there is something."""
        return [left_out_line(self.root, reason, sorted(names)) for reason, names in sorted(self.left_out.items())]

    def warn_of_others(self) -> None:
        """Log the number of files that are videos or images by their extensions, and that are not listed."""
        videos = Counter({suffix: count for suffix, count in self.others.items() if suffix in _OTHER_VIDEOS})
        if videos:
            text = "%s: %s are not listed, other extensions are: %s; convert them, for example with ffmpeg"
            _log.warning(text, self.root, describe_suffixes(videos), " ".join(sorted(VIDEO_SUFFIXES | IMAGE_SUFFIXES)))

    @cached_property
    def _by_stem(self) -> dict[str, list[str]]:
        return self._group(without_extension)

    @cached_property
    def _by_folded_stem(self) -> dict[str, list[str]]:
        return self._group(lambda path: without_extension(path).casefold())

    @cached_property
    def _by_name(self) -> dict[str, list[str]]:
        return self._group(lambda path: without_extension(path).rpartition("/")[2])

    def _group(self, key: Callable[[str], str]) -> dict[str, list[str]]:
        groups = defaultdict[str, list[str]](list)
        for path in sorted([*self.videos, *self.image_folders]):
            groups[key(path)].append(path)
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
        written = outputs_in(root / folder, root)
        if follow_links:
            real = os.path.realpath(root / folder)
            if real in visited:
                continue
            visited.add(real)
        try:
            images = []
            with os.scandir(root / folder) as entries:
                for entry in entries:  # no Path for each: a data set of frames has millions of files
                    is_folder, obstacle = _kind(entry)
                    index.num_files += not is_folder
                    if entry.name.startswith(".") or (is_folder and not folder and not wanted(entry.name)):
                        continue
                    suffix, is_link = _suffix(entry.name), entry.is_symlink()
                    is_known = is_folder or suffix in suffixes or suffix in IMAGE_SUFFIXES
                    if entry.name in written:
                        if is_known:
                            index.left_out[WRITTEN].append(repr(folder + entry.name))
                        continue
                    if not is_utf8(entry.name):
                        if is_folder or suffix in suffixes:
                            index.left_out[NOT_UTF8].append(repr(folder + entry.name))
                        continue
                    if obstacle:
                        index.left_out[UNREAD].append(f"{folder + entry.name!r}: {obstacle}")
                        continue
                    if is_link and is_known and not f"{os.path.realpath(entry.path)}/".startswith(real_root):
                        if not follow_links:
                            index.left_out[OUTSIDE].append(repr(folder + entry.name))
                            continue
                        index.outside.append(folder + entry.name)
                    if is_folder:
                        if follow_links or not is_link:
                            (links if is_link else pending).append(f"{folder}{entry.name}/")
                    elif suffix in suffixes:
                        index.videos.append(folder + entry.name)
                    elif suffix in IMAGE_SUFFIXES:
                        images.append(entry.name)
                    else:
                        index.others[suffix if "." in suffix else "no extension"] += 1
        except OSError as error:
            if not folder:
                raise DataError(f"cannot read folder {root}: {error.strerror}") from None
            index.left_out[UNREAD].append(f"{folder.rstrip('/')!r}: {error.strerror}")
            continue
        if _suffix(folder.rstrip("/")) in suffixes and not [*(root / folder).iterdir()]:
            index.left_out[UNREAD].append(f"{folder.rstrip('/')!r}: an empty folder")
        if images:
            is_video = is_sequence(numbers_by_name(images))
            image_folder = ImageFolder(len(images), is_video, not is_video and has_other_images(images))
            if folder:
                index.image_folders[folder.rstrip("/")] = image_folder
            else:
                index.top = image_folder
    index.videos.sort()
    return index


def _kind(entry: "os.DirEntry[str]") -> tuple[bool, str]:
    """Whether an entry is a folder, and what it is if it is neither a folder nor a file."""
    try:
        if entry.is_dir():
            return True, ""
        if entry.is_file():
            return False, ""
    except OSError as error:  # a loop of links, or one to where nobody may look
        return False, str(error.strerror)
    return False, "a pipe, socket or device" if os.path.exists(entry.path) else "a link to nothing"  # noqa: PTH110


def describe_suffixes(suffixes: Counter[str]) -> str:
    """The number of files of each extension, from the most frequent on: `2 .y4m, 1 .mxf`."""
    counts = sorted(suffixes.items(), key=lambda item: (-item[1], item[0]))
    return first_few((f"{count} {suffix}" for suffix, count in counts), 6)


NOT_UTF8, UNREAD, WRITTEN = "as their names are not UTF-8", "as they cannot be read", "as vidssl wrote them"
OUTSIDE = "as they are links that leave the folder"
_REMEDIES = {NOT_UTF8: "; rename them", OUTSIDE: "; vidssl prepare … --follow-links lists them"}


def left_out_line(place: Path, reason: str, names: Sequence[str]) -> str:
    """The line on what is not listed."""
    return f"{place}: left out, {reason}: {len(names)} ({first_few(names)}){_REMEDIES.get(reason, '')}"


def quoted(names: Iterable[str]) -> str:
    """The first names in quotes, and how many more there are."""
    return first_few(map(repr, names))


def _suffix(name: str) -> str:
    _, dot, end = name.rpartition(".")
    return dot + end.lower()


def without_extension(path: str) -> str:
    """The path without the extension of a video; any other text after a dot belongs to the name."""
    suffix = _suffix(path)
    return path[: -len(suffix)] if suffix in VIDEO_SUFFIXES else path


# Folders of images: frames of a video, examples of a class, or optical flow? Their names and numbers decide. ----

_FLOW = re.compile(r"(optical[_-]?)?flow([_-]?[xyuv])?", re.IGNORECASE)  # name of a folder of optical flow


def frame_folders(index: FileIndex) -> list[str]:
    """Find the folders whose images are the frames of a video: numbered, and without such folders below."""
    folders = {".": index.top, **index.image_folders}
    mixed = sorted(path for path, folder in folders.items() if folder.is_mixed)
    numbered = {path for path, folder in index.image_folders.items() if folder.is_video}
    parents = {path[:end] for path in numbered for end, letter in enumerate(path) if letter == "/"} | {"."}
    innermost = sorted(numbered - parents)
    if mixed or not innermost:
        names = mixed or sorted(index.image_folders)
        raise DataError(
            f"{index.root}: the images of {len(names)} folders ({quoted(names)}) are not numbered like the frames of "
            "one video: keep only the RGB images (img_0001.jpg …) in each folder, without flow, masks and thumbs; if "
            "each image is an example, use images=True of vidssl prepare folder, or a quoted pattern ('*.jpg')"
        )
    flow = {path for path in innermost if _FLOW.fullmatch(posixpath.basename(path))}
    frames = numbered - flow
    videos = frames | {posixpath.dirname(path) for path in frames}
    beside = sorted(path for path in flow if posixpath.dirname(path) in videos)
    if beside:
        raise DataError(
            f"{index.root}: {len(beside)} folders ({quoted(beside)}) hold optical flow beside frames: keep only the "
            "folders of RGB images, or name these with labels=FILE of vidssl prepare folder"
        )
    if above := sorted(path for path in parents & folders.keys() if folders[path].is_video and folders[path][0] > 1):
        raise DataError(
            f"{index.root}: {quoted(above)} holds numbered images, and so do folders in it: move either away, or name "
            "the folders that are videos with labels=FILE of vidssl prepare folder"
        )
    return innermost
