"""Lists of SlowFast, pytorchvideo and mmaction2: path and label on a line, with a separator that paths may hold too."""

import csv
import posixpath
from pathlib import Path

from vidssl.errors import ConfigError, DataError
from vidssl.prepare.file_index import Tree, scan
from vidssl.prepare.match import Listed, Report, classes_of, lines_of, write_found

# What the fields of a line are, by their number.
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
    max_missing: float = 0.05,
    fps: float | None = None,
    follow_links: bool = False,
) -> Report:
    """Write `NAME.csv`, `classes.txt` where classes are given, and `root.txt` for a list of another project.

    A line that could be read in two ways is an error; a path in double quotes is one field.

    Args:
        videos: The list.
        form: "slowfast" (pytorchvideo's too), "mmaction2" or "mmaction2_rawframes".
        root: Folder that the paths are relative to; absolute paths must lie in it.
        out: Where the list goes.
        name: Name of the list that is written.
        separator: The character between fields; several blanks are one.
        classes: Names of the classes, one a line.
        max_missing: Fraction of the files that may be missing.
        fps: Frames per second of folders of images.
        follow_links: Follow links to folders, and links that leave the root.

    Raises:
        ConfigError: No such form, a name or separator that is none.
        DataError: `file:line`, the line and the rule for a line that is not of this form; or the list does not fit
            the folder.
    """
    if form not in FORMS:
        raise ConfigError(f"no form {form!r}; there are: {', '.join(FORMS)}")
    if len(separator) != 1 or separator in '"\r\n':
        raise ConfigError(f"separator {separator!r} is not one character")
    if not name or "/" in name or name.startswith("."):
        raise ConfigError(f"{name!r} is no name of a list: give one such as train")
    names = classes_of(classes) if classes is not None else []
    tree = scan(root, follow_links=follow_links)
    rows = []
    for place, line in lines_of(videos, "give the list of another project"):
        row = _row(place, line, form, separator, root, tree)
        if names and row.label >= len(names):
            raise DataError(
                f"{place}: label {row.label} is out of range; {classes} has {len(names)} classes, from 0"
            )
        rows.append(row)
    return write_found(root, out, tree, {name: rows}, names, max_missing=max_missing, fps=fps)


def _row(place: str, line: str, form: str, separator: str, root: Path, tree: Tree) -> Listed:
    rules = FORMS[form]
    rule = " or ".join(repr(separator.join(fields)) for fields in rules.values())
    wrong = (
        f"{place}: {line!r} is not {rule}; for paths with {separator!r} in them choose another --separator"
    )
    try:
        fields = next(csv.reader([line], delimiter=separator, skipinitialspace=True, strict=True))
    except csv.Error as error:
        raise DataError(f"{place}: {line!r}: {error}; is a quote left open?") from None
    if len(fields) not in rules:
        raise DataError(wrong)
    found = dict(zip(rules[len(fields)], (field.strip() for field in fields), strict=True))
    numbers = [found[column] for column in ("frames", "label") if column in found]
    if not found["path"] or not all(text.isascii() and text.isdigit() and len(text) < 10 for text in numbers):
        raise DataError(wrong)
    path = _inside(place, found["path"], root)
    for count in range(len(numbers)):  # fewer fields may have been meant, and more of the line be the path
        longer = line.rsplit(separator, count)[0].strip()
        if '"' not in line and tree.find(_inside(place, longer, root), any_case=False).paths:
            raise DataError(
                f"{place}: {line!r} is ambiguous: {longer!r} is there too, and may be the path; put paths with "
                f"{separator!r} in double quotes, or choose another --separator"
            )
    frames = int(found["frames"]) if form == "mmaction2_rawframes" else None
    return Listed(place, path, int(found.get("label", -1)), frames=frames)


def _inside(place: str, path: str, root: Path) -> str:
    """The path as it is called in the root."""
    if path.startswith("/"):
        for folder in (root.absolute(), root.resolve()):
            if Path(path).is_relative_to(folder):
                path = Path(path).relative_to(folder).as_posix()
                break
    path = posixpath.normpath(path)
    if path.startswith("/") or path.split("/")[0] == "..":
        raise DataError(f"{place}: {path!r} leaves {root}; give the folder that holds all videos as --root")
    return path
