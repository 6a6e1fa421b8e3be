"""Lists of SlowFast, pytorchvideo and mmaction2: path and label on a line, with a separator that paths may hold too."""

import csv
import posixpath
from pathlib import Path

from typing_extensions import Unpack

from vidssl.errors import ConfigError, DataError
from vidssl.prepare.annotation_files import read_classes, read_lines
from vidssl.prepare.file_index import FileIndex, index_files
from vidssl.prepare.match import ListedVideo, MatchOptions, write_matched_lists

# The fields of a line, by their number.
FORMS: dict[str, dict[int, tuple[str, ...]]] = {
    "slowfast": {1: ("path",), 2: ("path", "label"), 3: ("path", "frames", "label")},
    "mmaction2": {2: ("path", "label")},
    "mmaction2_rawframes": {3: ("path", "frames", "label")},
}


def prepare_list(
    videos: Path,
    form: str,
    root: Path,
    out: Path,
    *,
    name: str = "train",
    separator: str = " ",
    classes: Path | None = None,
    **options: Unpack[MatchOptions],
) -> str:
    """Write `NAME.csv`, `root.txt` and, if there are classes, `classes.txt` for a list of another project.

    `videos` is the list, in the form "slowfast" (pytorchvideo's too), "mmaction2" or "mmaction2_rawframes". Its paths
    are relative to `root`, or absolute and inside it; a path in double quotes is one field. `classes` is a file of
    class names, one a line.
    """
    if form not in FORMS:
        raise ConfigError(f"unknown form {form!r}; there are: {', '.join(FORMS)}")
    if len(separator) != 1 or separator in '"\r\n':
        raise ConfigError(f"separator {separator!r} is not one character")
    names = read_classes(classes) if classes is not None else []
    index = index_files(root, follow_links=options.get("follow_links", False))
    listed = []
    for place, line in read_lines(videos, "pass the list of another project"):
        video = _parse(place, line, form, separator, index)
        if names and video.label >= len(names):
            raise DataError(f"{place}: label {video.label} is out of range; {classes} has {len(names)} classes, from 0")
        listed.append(video)
    return write_matched_lists(root, out, {name: listed}, names, index=index, **options)


def _parse(place: str, line: str, form: str, separator: str, index: FileIndex) -> ListedVideo:
    remedy = f"put paths that contain {separator!r} in double quotes, or choose another separator"
    try:
        fields = next(csv.reader([line], delimiter=separator, skipinitialspace=True, strict=True))
        values = dict(zip(FORMS[form][len(fields)], map(str.strip, fields), strict=True))
        numbers = {column: int(values[column]) for column in ("frames", "label") if column in values}
        if not values["path"] or min(numbers.values(), default=0) < 0:
            raise ValueError
    except (csv.Error, KeyError, ValueError):
        expected = " or ".join(repr(separator.join(fields)) for fields in FORMS[form].values())
        raise DataError(f"{place}: {line!r} is not {expected}; {remedy}") from None
    for count in range(len(numbers)):  # a number may belong to the path: "x/f 12" is a path, or a path and a label
        longer = line.rsplit(separator, count)[0].strip()
        if '"' not in line and index.find(_relative(place, longer, index.root), any_case=False).paths:
            raise DataError(f"{place}: {line!r} is ambiguous: the path may also be {longer!r}, which exists; {remedy}")
    path = _relative(place, values["path"], index.root)
    num_frames = numbers["frames"] if form == "mmaction2_rawframes" else None
    return ListedVideo(place, path, numbers.get("label", -1), num_frames=num_frames)


def _relative(place: str, path: str, root: Path) -> str:
    path = posixpath.normpath(path)
    for folder in (root.absolute(), root.resolve()):
        path = path.removeprefix(f"{folder}/")
    if path.startswith("/") or path.split("/")[0] == "..":
        raise DataError(f"{place}: {path!r} leaves {root}; pass the folder of all videos: root=FOLDER")
    return path
