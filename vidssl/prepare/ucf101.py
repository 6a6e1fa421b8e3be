"""UCF101: class numbers from 1, test lists without labels, and file names in other letter case than their class."""

import re
from collections import Counter
from pathlib import Path

from vidssl.errors import DataError
from vidssl.prepare.file_index import scan
from vidssl.prepare.match import Listed, Report, lines_of, names_in, shown, write_found

_REMEDY = "it comes with the splits, in ucfTrainTestlist"


def prepare_ucf101(
    root: Path,
    out: Path,
    splits: Path,
    *,
    max_missing: float = 0.05,
    fps: float | None = None,
    follow_links: bool = False,
) -> Report:
    """Write `train1.csv`, `test1.csv` and so on, `classes.txt` and `root.txt` for UCF101.

    A video's class is the folder in its listed path, never its file name.

    Args:
        root: Folder with `<Class>/v_<Class>_gNN_cNN.avi`; other suffixes, or folders of images, are found too.
        out: Where the lists go.
        splits: Folder with `classInd.txt`, `trainlist0N.txt` and `testlist0N.txt`.
        max_missing: Fraction of the files of a list that may be missing.
        fps: Frames per second of folders of images.
        follow_links: Follow links to folders, and links that leave the root.

    Raises:
        DataError: The split files are not complete, contradict each other, or do not fit the folder.
    """
    texts = names_in(splits)
    numbers = sorted(
        {found[1] for name in texts if (found := re.fullmatch(r"(?:train|test)list(\d+)\.txt", name))}
    )
    if not numbers:
        raise DataError(f"{splits} holds no trainlist01.txt: give the folder ucfTrainTestlist")
    classes = _classes(splits / "classInd.txt")
    renamed: Counter[str] = Counter()
    lists = {
        f"{side}{int(number)}": _rows(splits / f"{side}list{number}.txt", classes, renamed)
        for number in numbers
        for side in ("train", "test")
    }
    notes = [f"class in other letter case: {name} ({count} rows)" for name, count in sorted(renamed.items())]
    tree = scan(root, follow_links=follow_links)
    return write_found(root, out, tree, lists, classes, max_missing=max_missing, fps=fps, notes=notes)


def _classes(path: Path) -> list[str]:
    classes: list[str] = []
    for place, line in lines_of(path, _REMEDY):
        number, *name = line.split(maxsplit=1)
        if number != str(len(classes) + 1) or not name:
            raise DataError(
                f"{place}: {line!r} is not '{len(classes) + 1} <Class>': classes count from 1, in order"
            )
        classes += name
    if not classes:
        raise DataError(f"{path} names no classes; {_REMEDY}")
    return classes


def _rows(path: Path, classes: list[str], renamed: Counter[str]) -> list[Listed]:
    exact = {name: n for n, name in enumerate(classes)}
    folded = {name.casefold(): n for n, name in enumerate(classes)}
    rows = []
    for place, line in lines_of(path, _REMEDY):
        match = re.fullmatch(r"(([^/]+)/[^/]+?)(?:\s+(\d+))?", line)
        if match is None:
            raise DataError(
                f"{place}: {line!r} is not '<Class>/<file>', with or without the number of the class"
            )
        name, folder, number = match.groups()
        label = exact.get(folder, folded.get(folder.casefold()))
        if label is None:
            raise DataError(
                f"{place}: class {folder!r} is not among the {len(classes)} of classInd.txt ({shown(classes)}): "
                "are the files of one data set?"
            )
        if number is not None and int(number) != label + 1:
            raise DataError(
                f"{place}: {line!r}: classInd.txt gives {folder} the number {label + 1}; one is wrong"
            )
        if folder != classes[label]:
            renamed[f"{folder} is {classes[label]}"] += 1
        rows.append(Listed(place, name, label))
    return rows
