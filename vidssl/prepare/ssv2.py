"""Something-Something v2: JSON lists; the templates without brackets are the names of the classes."""

from pathlib import Path

from typing_extensions import Unpack

from vidssl.errors import DataError
from vidssl.prepare.annotation_files import read_json
from vidssl.prepare.match import ListedVideo, MatchOptions, write_matched_lists


def prepare_ssv2(root: Path, out: Path, train: Path, test: Path, labels: Path, **options: Unpack[MatchOptions]) -> str:
    """Something-Something v2: train.csv, test.csv.

    `root` holds `<id>.webm`. `train` and `test` are the official training and validation lists, JSON lists of
    `{id, template, …}`; `labels` is the JSON object from the name of a class to its number, from 0.

    Args:
        root: Folder of the videos.
        out: Folder for what is written.
        train: Official training list, JSON.
        test: Official validation list, JSON.
        labels: JSON of class names and numbers.
        options: See `MatchOptions`.
    """
    numbers = read_json(labels)
    if not isinstance(numbers, dict) or sorted(map(str, numbers.values())) != sorted(map(str, range(len(numbers)))):
        raise DataError(f"{labels} is not an object from the name of each class to its number, from 0")
    numbers = {name: int(number) for name, number in numbers.items()}
    classes = sorted(numbers, key=numbers.__getitem__)
    lists = {side: _videos(path, numbers, labels) for side, path in (("train", train), ("test", test))}
    return write_matched_lists(root, out, lists, classes, [train, test, labels], **options)


def _videos(path: Path, numbers: dict[str, int], labels: Path) -> list[ListedVideo]:
    items = read_json(path)
    if not isinstance(items, list):
        raise DataError(f"{path} is not a list of videos: pass the official training and validation lists")
    videos = []
    for count, item in enumerate(items, 1):
        place = f"{path}: item {count}"
        if not isinstance(item, dict) or not item.get("id") or not isinstance(item.get("template"), str):
            raise DataError(
                f"{place}: {str(item)[:60]!r} has no id or no template; the official test list has no labels: use the "
                "validation list"
            )
        name = item["template"].replace("[", "").replace("]", "")
        if name not in numbers:
            raise DataError(f"{place}: class {name!r} is not among the {len(numbers)} of {labels}")
        videos.append(ListedVideo(place, f"{item['id']}.webm", numbers[name]))
    return videos
