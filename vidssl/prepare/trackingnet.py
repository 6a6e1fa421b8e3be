"""TrackingNet: sequences of frames without classes, in chunks, with one box for each frame."""

import re
from pathlib import Path

from vidssl.errors import ConfigError, DataError
from vidssl.prepare.file_index import Found, Tree, scan
from vidssl.prepare.match import Listed, Report, lines_of, names_in, shown, write_found


def prepare_trackingnet(
    root: Path,
    out: Path,
    *,
    chunks: str | None = None,
    fps: float = 30.0,
    max_missing: float = 0.05,
    follow_links: bool = False,
) -> Report:
    """Write `train.csv`, `test.csv` and `root.txt` for TrackingNet: one row a sequence, no labels.

    A sequence is listed where it has boxes or frames. Training sequences have a line of boxes for each frame,
    those of the test set one line.

    Args:
        root: Folder with `TRAIN_<n>/frames/<sequence>/<frame>.jpg` and `TRAIN_<n>/anno/<sequence>.txt`, and `TEST`.
        out: Where the lists go.
        chunks: Numbers of the training chunks, such as "0-3" or "0,2"; None: all that are there.
        fps: Frames per second; the frames do not say, and most of their videos have about 30.
        max_missing: Fraction of the sequences with boxes whose frames may be missing.
        follow_links: Follow links to folders, and links that leave the root.

    Raises:
        ConfigError: Chunks that are no numbers.
        DataError: Chunks that are not there, or too many sequences without frames.
    """
    try:
        there = sorted(int(m[1]) for path in root.iterdir() if (m := re.fullmatch(r"TRAIN_(\d+)", path.name)))
    except OSError as error:
        raise DataError(f"cannot read folder {root}: {error.strerror}") from None
    wanted = there if chunks is None else _numbers(chunks)
    absent = [f"TRAIN_{n}" for n in wanted if n not in there]
    if absent or not wanted:
        raise DataError(
            f"{root} holds no {shown(absent or ['TRAIN_0'])}: it needs TRAIN_<n>/frames and TRAIN_<n>/anno"
        )
    folders = {"train": [f"TRAIN_{n}" for n in wanted], "test": ["TEST"] if (root / "TEST").is_dir() else []}
    tree = scan(root, [name for side in folders.values() for name in side], follow_links=follow_links)
    without: list[str] = []  # sequences that have frames and no boxes
    odd: list[str] = []  # files of boxes that are wrong in themselves
    lists = {
        side: [row for name in names for row in _rows(root, name, tree, without, odd)]
        for side, names in folders.items()
        if names
    }
    notes = [f"read: {' '.join(name for side in folders.values() for name in side)}"]
    notes += [f"sequences without boxes: {len(without)}: {shown(without)}"] if without else []
    notes += [f"files of boxes that are damaged: {len(odd)}: {shown(odd, str)}"] if odd else []
    return write_found(root, out, tree, lists, (), max_missing=max_missing, fps=fps, find=_find, notes=notes)


def _find(tree: Tree, row: Listed) -> Found:
    return tree.find(row.name, any_case=False)  # names are those of videos, in which case counts


def _rows(root: Path, chunk: str, tree: Tree, without: list[str], odd: list[str]) -> list[Listed]:
    boxes = root / chunk / "anno"
    named = (
        {name.removesuffix(".txt") for name in names_in(boxes) if name.endswith(".txt")}
        if boxes.is_dir()
        else set()
    )
    start = f"{chunk}/frames/"
    shot = {path.removeprefix(start) for path in tree.images if path.startswith(start)}
    without += [f"{start}{name}" for name in sorted(shot - named)]
    rows = []
    for name in sorted(named | shot):
        place, lines = f"{boxes / name}.txt", None
        if name in named:
            texts = [line for _, line in lines_of(boxes / f"{name}.txt", "delete it, or load it again")]
            wrong = [n for n, text in enumerate(texts, 1) if not _is_box(text)]
            if wrong:
                odd.append(f"{place}:{wrong[0]} is not xmin,ymin,w,h")
            elif chunk == "TEST" and len(texts) != 1:
                odd.append(f"{place} has {len(texts)} lines, the test set has 1")
            lines = None if chunk == "TEST" else len(texts)
        rows.append(Listed(place, start + name, frames=lines))
    return rows


def _is_box(text: str) -> bool:
    try:
        return len([float(number) for number in text.split(",")]) == 4
    except ValueError:
        return False


def _numbers(chunks: str) -> list[int]:
    numbers: set[int] = set()
    for part in chunks.split(","):
        match = re.fullmatch(r"(\d{1,3})(?:-(\d{1,3}))?", part.strip())
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise ConfigError(f"chunks {chunks!r} are not numbers such as 0-3 or 0,2")
        numbers.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return sorted(numbers)
