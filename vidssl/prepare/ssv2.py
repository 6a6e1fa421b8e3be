"""Something-Something v2: JSON lists whose templates, without brackets, are the names of the classes."""

import json
from pathlib import Path
from typing import Any

from vidssl.data.video_list import read_text
from vidssl.errors import DataError
from vidssl.prepare.file_index import scan
from vidssl.prepare.match import Listed, Report, shown, write_found


def prepare_ssv2(
    root: Path,
    out: Path,
    train: Path,
    test: Path,
    labels: Path,
    *,
    max_missing: float = 0.05,
    fps: float | None = None,
    follow_links: bool = False,
) -> Report:
    """Write `train.csv`, `test.csv`, `classes.txt` and `root.txt` for Something-Something v2.

    Args:
        root: Folder with `<id>.webm`; other suffixes, or folders of images, are found too.
        out: Where the lists go.
        train: JSON list of `{id, template, …}`.
        test: The same of the videos to test on: the validation list, since the test list has no labels.
        labels: JSON object from the name of a class to its number, from 0.
        max_missing: Fraction of the files of a list that may be missing.
        fps: Frames per second of folders of images.
        follow_links: Follow links to folders, and links that leave the root.

    Raises:
        DataError: The lists are not what they should be, contradict each other, or do not fit the folder.
    """
    numbers = _numbers(labels)
    classes = sorted(numbers, key=numbers.__getitem__)
    lists = {side: _rows(path, numbers, labels) for side, path in (("train", train), ("test", test))}
    tree = scan(root, follow_links=follow_links)
    return write_found(root, out, tree, lists, classes, max_missing=max_missing, fps=fps)


def _numbers(path: Path) -> dict[str, int]:
    content = _json(path)
    if not isinstance(content, dict) or not content:
        raise DataError(f"{path} is not an object from the name of each class to its number")
    if sorted(map(str, content.values())) != sorted(map(str, range(len(content)))):
        raise DataError(f"{path}: the numbers of the {len(content)} classes are not 0 to {len(content) - 1}")
    return {name: int(number) for name, number in content.items()}


def _rows(path: Path, numbers: dict[str, int], labels: Path) -> list[Listed]:
    content = _json(path)
    if not isinstance(content, list):
        raise DataError(
            f"{path} is not a list of videos: give train and test the official train and validation lists"
        )
    rows = []
    for count, item in enumerate(content, 1):
        place = f"{path}: item {count}"
        if not isinstance(item, dict) or not isinstance(item.get("id"), str | int) or str(item["id"]) == "":
            raise DataError(f"{place}: {str(item)[:60]!r} has no id")
        if not isinstance(item.get("template"), str):
            raise DataError(
                f"{place}: video {item['id']} has no template, so no class; the official test list has no labels: "
                "test on the validation list"
            )
        name = item["template"].replace("[", "").replace("]", "")
        if name not in numbers:
            raise DataError(
                f"{place}: class {name!r} is not among the {len(numbers)} of {labels} ({shown(list(numbers))}): "
                "are the files of one data set?"
            )
        rows.append(Listed(place, f"{item['id']}.webm", numbers[name]))
    return rows


def _json(path: Path) -> Any:
    try:
        return json.loads(read_text(path, "give an official JSON file"))
    except (json.JSONDecodeError, RecursionError) as error:
        raise DataError(f"{path} is not JSON: {error}") from None
