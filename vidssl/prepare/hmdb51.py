"""HMDB51: one text for each class and split, in which 0 is unused, 1 is train and 2 is test."""

import re
from pathlib import Path

from vidssl.errors import DataError
from vidssl.prepare.file_index import scan
from vidssl.prepare.match import Listed, Report, lines_of, names_in, shown, write_found


def prepare_hmdb51(
    root: Path,
    out: Path,
    splits: Path,
    *,
    max_missing: float = 0.05,
    fps: float | None = None,
    follow_links: bool = False,
) -> Report:
    """Write `train1.csv`, `test1.csv` and so on, `classes.txt` and `root.txt` for HMDB51.

    Args:
        root: Folder with `<class>/<file>.avi`; other suffixes, or folders of images, are found too.
        out: Where the lists go.
        splits: Folder with `<class>_test_split{1,2,3}.txt`.
        max_missing: Fraction of the files of a list that may be missing.
        fps: Frames per second of folders of images.
        follow_links: Follow links to folders, and links that leave the root.

    Raises:
        DataError: The split files are not complete, contradict each other, or do not fit the folder.
    """
    texts = [
        match for name in names_in(splits) if (match := re.fullmatch(r"(.+)_test_split(\d+)\.txt", name))
    ]
    if not texts:
        raise DataError(
            f"{splits} holds no <class>_test_split1.txt: give the folder testTrainMulti_7030_splits"
        )
    classes = sorted({match[1] for match in texts})
    numbers = sorted({match[2] for match in texts})
    absent = {f"{name}_test_split{n}.txt" for name in classes for n in numbers} - {m[0] for m in texts}
    if absent:
        raise DataError(f"{splits} lacks {shown(sorted(absent))}: every class needs a file for each split")
    lists: dict[str, list[Listed]] = {f"{side}{n}": [] for n in numbers for side in ("train", "test")}
    notes = []
    for n in numbers:
        unused = 0
        for label, name in enumerate(classes):
            for place, line in lines_of(splits / f"{name}_test_split{n}.txt", "every class needs one"):
                file, *code = line.rsplit(maxsplit=1)
                if code not in (["0"], ["1"], ["2"]):
                    raise DataError(f"{place}: {line!r} is not '<file> <code>', 0 unused, 1 train, 2 test")
                if code == ["0"]:
                    unused += 1
                else:
                    side = "train" if code == ["1"] else "test"
                    lists[f"{side}{n}"].append(Listed(place, f"{name}/{file}", label))
        notes.append(f"split {n}: {unused} files are in neither list")
    tree = scan(root, follow_links=follow_links)
    return write_found(root, out, tree, lists, classes, max_missing=max_missing, fps=fps, notes=notes)
