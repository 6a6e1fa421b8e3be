"""UCF101: class numbers start at 1, test lists have no labels, and some file names differ in case from their class."""

import re
from pathlib import Path

from typing_extensions import Unpack

from vidssl.errors import DataError
from vidssl.prepare.annotation_files import file_names, read_lines
from vidssl.prepare.match import ListedVideo, MatchOptions, of_classes, write_matched_lists

_REMEDY = "it comes with the splits, in ucfTrainTestlist"


def prepare_ucf101(
    root: Path,
    out: Path,
    splits: Path,
    *,
    classes: Path | None = None,
    split_folders: bool = False,
    **options: Unpack[MatchOptions],
) -> str:
    """UCF101: train1.csv, test1.csv and so on.

    `root` holds `<Class>/v_<Class>_gNN_cNN.avi`, `splits` holds `classInd.txt`, `trainlist0N.txt` and `testlist0N.txt`.
    The class of a video is the folder in its listed path, never its file name.

    Args:
        root: Folder of the videos.
        out: Folder for what is written.
        splits: Folder ucfTrainTestlist.
        classes: File of classes to keep, one a line.
        split_folders: Write split1/train.csv, split1/test.csv and so on, as the configs of several splits read them.
        options: See `MatchOptions`.
    """
    files = [re.fullmatch(r"(?:train|test)list(\d+)\.txt", name) for name in file_names(splits)]
    numbers = sorted({file[1] for file in files if file})
    if not numbers:
        raise DataError(f"{splits} has no trainlist01.txt: pass the folder ucfTrainTestlist")
    names = _classes(splits / "classInd.txt")
    lists = {
        f"{side}{int(number)}": _videos(splits / f"{side}list{number}.txt", names)
        for number in numbers
        for side in ("train", "test")
    }
    if classes is not None:
        lists, names = of_classes(lists, names, classes)
    inputs = [splits] if classes is None else [splits, classes]
    return write_matched_lists(root, out, lists, names, inputs, split_folders=split_folders, **options)


def _classes(path: Path) -> list[str]:
    classes: list[str] = []
    for place, line in read_lines(path, _REMEDY):
        number, *name = line.split(maxsplit=1)
        if number != str(len(classes) + 1) or not name:
            raise DataError(f"{place}: {line!r} is not '{len(classes) + 1} <Class>': classes count from 1")
        classes += name
    return classes


def _videos(path: Path, classes: list[str]) -> list[ListedVideo]:
    labels = {name.casefold(): n for n, name in enumerate(classes)}
    videos = []
    for place, line in read_lines(path, _REMEDY):
        match = re.fullmatch(r"(([^/]+)/[^/]+?)(?:\s+(\d+))?", line)
        if match is None:
            raise DataError(f"{place}: {line!r} is not '<Class>/<file>' or '<Class>/<file> <number>'")
        name, folder, number = match.groups()
        label = labels.get(folder.casefold())
        if label is None:
            raise DataError(f"{place}: class {folder!r} is not among the {len(classes)} of classInd.txt")
        if number is not None and number.lstrip("0") != str(label + 1):
            raise DataError(f"{place}: {line!r}: classInd.txt has number {label + 1} for {folder}; correct one")
        videos.append(ListedVideo(place, name, label))
    return videos
