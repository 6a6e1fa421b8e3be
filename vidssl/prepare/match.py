"""From the rows of anybody's list to vidssl's lists: find each file, count what is there, write all lists or none."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from vidssl.data.video_list import Row, check_beside, read_text, write_lists
from vidssl.errors import ConfigError, DataError
from vidssl.prepare.file_index import Found, Tree, check_name

SHOWN = 3  # names in a report or an error; the rest is counted


class Listed(NamedTuple):
    """One row of somebody's list."""

    place: str  # file:line
    name: str  # as it is listed, relative to the root
    label: int = -1  # -1: unknown
    start: float | None = None  # seconds
    end: float | None = None  # seconds
    frames: int | None = None  # that the folder of images must have; None: nobody says


@dataclass(frozen=True)
class Counts:
    """What became of the rows of one list; the report names what is not empty."""

    listed: int
    found: int
    twice: int  # rows that stood there before, and were dropped
    missing: tuple[str, ...]
    letters: tuple[tuple[str, str], ...]  # as listed, and the file: they differ in letter case
    suffixes: tuple[tuple[str, str], ...]  # as listed, and the file: they differ in the suffix
    images: int  # of the files found, folders of images
    uneven: tuple[str, ...]  # folders with more or fewer images than the list says
    empty: tuple[str, ...]  # classes without a file


@dataclass(frozen=True)
class Report:
    """What was listed and what was there; `str()` is what a script prints."""

    lists: Mapping[str, Counts]
    classes: tuple[str, ...]
    notes: tuple[str, ...]

    def __str__(self) -> str:
        lines = []
        for name, counts in self.lists.items():
            lines.append(
                f"{name}: {counts.listed} listed, {counts.found} found, {len(counts.missing)} missing, "
                f"{len(counts.letters)} in other letter case, {len(counts.suffixes)} with another suffix, "
                f"{counts.twice} listed twice"
            )
            details = {
                "missing": shown(counts.missing),
                "in other letter case": shown([f"{a!r} is {b!r}" for a, b in counts.letters], str),
                "with another suffix": shown([f"{a!r} is {b!r}" for a, b in counts.suffixes], str),
                "folders of images": counts.images and f"{counts.images}; give --fps, or data.fps later",
                "with another number of images": counts.uneven
                and f"{len(counts.uneven)}: {shown(counts.uneven, str)}",
                "classes without a file": counts.empty and f"{len(counts.empty)}: {shown(counts.empty)}",
            }
            lines += [f"  {title}: {text}" for title, text in details.items() if text]
        return "\n".join([*lines, *self.notes, *([f"{len(self.classes)} classes"] if self.classes else [])])


def find_path(tree: Tree, row: Listed) -> Found:
    """Look a row up by its path."""
    return tree.find(row.name)


def write_found(
    root: Path,
    out: Path,
    tree: Tree,
    lists: Mapping[str, Sequence[Listed]],
    classes: Sequence[str],
    *,
    max_missing: float,
    fps: float | None = None,
    find: Callable[[Tree, Listed], Found] = find_path,
    notes: Sequence[str] = (),
) -> Report:
    """Find the files of all lists and write the lists of those that are there.

    A row that stands twice is dropped and counted. `trainX` and `testX` must not share a file.

    Args:
        root: Folder of the videos.
        out: Where the lists go; made where it is missing.
        tree: What is in the root.
        lists: For each name the rows.
        classes: Name of class n.
        max_missing: Fraction of the files of a list that may be missing, in [0, 1].
        fps: Frames per second of folders of images; None: the lists do not say.
        find: How a row is looked up.
        notes: What else the report says.

    Raises:
        ConfigError: A share or frames per second that are none.
        DataError: Too many files are missing; rows contradict each other; a name fits several files, or a file
            several names; names that a list cannot hold; other lists in `out`.
    """
    if not 0 <= max_missing <= 1:
        raise ConfigError(f"share of missing files is {max_missing}, it must be in [0, 1]")
    if fps is not None and not 0 < fps < float("inf"):
        raise ConfigError(f"frames per second are {fps}, they must be above 0")
    if len({*classes}) != len(classes):
        twice = sorted({name for name in classes if classes.count(name) > 1})
        raise DataError(f"{shown(twice)}: a class stands twice in the list of classes; delete one")
    for name in classes:
        check_name(name)
    check_beside(out, root, classes)
    rows: dict[str, list[Row]] = {}
    counts: dict[str, Counts] = {}
    places: dict[str, dict[str, str]] = {}  # for each list: the files in it, and the rows that they are from
    for name, listed in lists.items():
        pairs, counts[name] = _find_all(name, listed, root, tree, classes, find, max_missing)
        rows[name] = [
            Row(path, row.label, row.start, row.end, fps if path in tree.images else None)
            for row, path in pairs
        ]
        places[name] = {path: row.place for row, path in pairs}
    _check_disjoint(places)
    for path in sorted({row.path for kept in rows.values() for row in kept}):
        check_name(path)
    write_lists(out, root, rows, classes)
    return Report(counts, tuple(classes), (*notes, *tree.notes))


def lines_of(path: Path, remedy: str) -> Iterator[tuple[str, str]]:
    """Give the lines of a text that are not blank, without blanks at their ends, each with its `file:line`.

    Raises:
        DataError: The file cannot be read, or is not UTF-8.
    """
    for number, line in enumerate(read_text(path, remedy).split("\n"), 1):
        if line.strip():
            yield f"{path}:{number}", line.strip()


def classes_of(path: Path) -> list[str]:
    """Read the names of classes, one a line; line n names class n.

    Raises:
        DataError: The file cannot be read, is empty, or a line between others is.
    """
    names = [line.strip() for line in read_text(path, "name the file of the classes").rstrip().split("\n")]
    if "" in names:
        raise DataError(f"{path}:{names.index('') + 1}: the line is empty; line n names class n, from 0")
    return names


def names_in(folder: Path) -> list[str]:
    """Names of the files in a folder, sorted.

    Raises:
        DataError: It is no folder, or cannot be read.
    """
    try:
        return sorted(path.name for path in folder.iterdir() if path.is_file())
    except OSError as error:
        raise DataError(f"cannot read folder {folder}: {error.strerror}") from None


def shown(names: Sequence[str], form: Callable[[str], str] = repr) -> str:
    """The first names, and how many more there are."""
    first = ", ".join(form(name) for name in names[:SHOWN])
    return f"{first} and {len(names) - SHOWN} more" if len(names) > SHOWN else first


def _find_all(
    name: str,
    listed: Sequence[Listed],
    root: Path,
    tree: Tree,
    classes: Sequence[str],
    find: Callable[[Tree, Listed], Found],
    max_missing: float,
) -> tuple[list[tuple[Listed, str]], Counts]:
    """The rows of a list whose files are there, with the files, and the counts."""
    if not listed:
        raise DataError(f"{name}: no rows are listed, there is nothing to write")
    once = _without_repeats(listed)
    matches = [(row, find(tree, row)) for row in once]
    _check_ambiguous(matches)
    found = [(row, match.paths[0], match.way) for row, match in matches if match.paths]
    missing = tuple(row.name for row, match in matches if not match.paths)
    if len(missing) > max_missing * len(once) or not found:
        raise DataError(
            f"{name}: {len(missing)} of {len(once)} listed files are not in {root}, a share of "
            f"{len(missing) / len(once):.3g}, the limit is {max_missing:g} (--max-missing): {shown(missing)}; "
            "is it the right folder, and the right list?"
        )
    pairs = [(row, path) for row, path, _ in found]
    _check_shared(pairs)
    labels = {row.label for row, _ in pairs}
    return pairs, Counts(
        listed=len(listed),
        found=len(pairs),
        twice=len(listed) - len(once),
        missing=missing,
        letters=tuple((row.name, path) for row, path, way in found if way == "letters"),
        suffixes=tuple((row.name, path) for row, path, way in found if way == "suffix"),
        images=sum(path in tree.images for _, path in pairs),
        uneven=tuple(_uneven(pairs, tree)),
        empty=tuple(text for n, text in enumerate(classes) if n not in labels),
    )


def _without_repeats(listed: Sequence[Listed]) -> list[Listed]:
    first: dict[tuple[str, float | None, float | None], Listed] = {}
    for row in listed:
        other = first.setdefault((row.name, row.start, row.end), row)
        if other.label != row.label:
            raise DataError(
                f"{row.place}: {row.name!r} has label {row.label}, and label {other.label} at {other.place}; delete one"
            )
    return list(first.values())


def _check_ambiguous(matches: Sequence[tuple[Listed, Found]]) -> None:
    several = [(row, match) for row, match in matches if len(match.paths) > 1]
    if several:
        row, match = several[0]
        raise DataError(
            f"{row.place}: {row.name!r} could be each of {shown(match.paths)} ({len(several)} such rows): "
            "keep one of them in the folder"
        )


def _check_shared(pairs: Sequence[tuple[Listed, str]]) -> None:
    """Refuse a file that two rows have been found to mean, unless they mean different times of it."""
    taken: dict[tuple[str, float | None, float | None], Listed] = {}
    for row, path in pairs:
        other = taken.setdefault((path, row.start, row.end), row)
        if other is not row:
            raise DataError(
                f"{row.place}: {row.name!r} and {other.name!r} ({other.place}) both fit the one file {path!r}: "
                "give the files the names that are listed"
            )


def _check_disjoint(places: Mapping[str, Mapping[str, str]]) -> None:
    for name, train in places.items():
        test = places.get(name.replace("train", "test", 1), {}) if name.startswith("train") else {}
        for path in train:
            if path in test:
                raise DataError(
                    f"{test[path]}: {path!r} is tested on, and trained on at {train[path]}: delete one of the rows"
                )


def _uneven(pairs: Sequence[tuple[Listed, str]], tree: Tree) -> Iterator[str]:
    for row, path in pairs:
        count = tree.images.get(path)
        if None not in (row.frames, count) and row.frames != count:
            yield f"{path!r} has {count}, {row.frames} are listed"
