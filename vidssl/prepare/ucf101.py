"""UCF101: class numbers start at 1, test lists have no labels, and some file names differ in case from their class."""

import re
from collections import Counter
from pathlib import Path

from typing_extensions import Unpack

from vidssl.errors import DataError
from vidssl.prepare.annotation_files import file_names, read_lines
from vidssl.prepare.file_index import preview
from vidssl.prepare.match import ListedVideo, MatchOptions, Report, write_matched_lists

_REMEDY = "it comes with the splits, in ucfTrainTestlist"


def prepare_ucf101(root: Path, out: Path, splits: Path, **options: Unpack[MatchOptions]) -> Report:
    """Write `train1.csv`, `test1.csv` and so on, `classes.txt` and `root.txt` for UCF101.

    `root` holds `<Class>/v_<Class>_gNN_cNN.avi`, `splits` holds `classInd.txt`, `trainlist0N.txt` and `testlist0N.txt`.
    The class of a video is the folder in its listed path, never its file name.

    Raises:
        DataError: The split files are incomplete, contradict each other, or do not fit the folder.
    """
    files = [re.fullmatch(r"(?:train|test)list(\d+)\.txt", name) for name in file_names(splits)]
    numbers = sorted({file[1] for file in files if file})
    if not numbers:
        raise DataError(f"{splits} has no trainlist01.txt: pass the folder ucfTrainTestlist")
    classes = _classes(splits / "classInd.txt")
    renamed: Counter[str] = Counter()
    lists = {
        f"{side}{int(number)}": _videos(splits / f"{side}list{number}.txt", classes, renamed)
        for number in numbers
        for side in ("train", "test")
    }
    notes = [f"class in different case: {name} ({count} rows)" for name, count in sorted(renamed.items())]
    return write_matched_lists(root, out, lists, classes, notes=notes, **options)


def _classes(path: Path) -> list[str]:
    classes: list[str] = []
    for place, line in read_lines(path, _REMEDY):
        number, *name = line.split(maxsplit=1)
        if number != str(len(classes) + 1) or not name:
            raise DataError(f"{place}: {line!r} is not '{len(classes) + 1} <Class>': classes count from 1")
        classes += name
    if not classes:
        raise DataError(f"{path} names no classes; {_REMEDY}")
    return classes


def _videos(path: Path, classes: list[str], renamed: Counter[str]) -> list[ListedVideo]:
    exact = {name: n for n, name in enumerate(classes)}
    any_case = {name.casefold(): n for name, n in exact.items()}
    videos = []
    for place, line in read_lines(path, _REMEDY):
        match = re.fullmatch(r"(([^/]+)/[^/]+?)(?:\s+(\d+))?", line)
        if match is None:
            raise DataError(f"{place}: {line!r} is not '<Class>/<file>' or '<Class>/<file> <number>'")
        name, folder, number = match.groups()
        label = exact.get(folder, any_case.get(folder.casefold()))
        if label is None:
            raise DataError(
                f"{place}: class {folder!r} is not among the {len(classes)} of classInd.txt ({preview(classes)}): "
                "do the files belong to one data set?"
            )
        if number is not None and int(number) != label + 1:
            raise DataError(f"{place}: {line!r}: classInd.txt has number {label + 1} for {folder}; correct one")
        if folder != classes[label]:
            renamed[f"{folder} is {classes[label]}"] += 1
        videos.append(ListedVideo(place, name, label))
    return videos
