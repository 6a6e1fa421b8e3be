"""Check the videos of a list before anything is trained on them, and write the list of those that are sound."""

import csv
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from vidssl.data.dataset import resolve_span
from vidssl.data.rows import row_key
from vidssl.data.video_list import copy_list, place_of_copy, read_list
from vidssl.errors import ConfigError, DataError, DecodeError
from vidssl.progress import progress
from vidssl.types import VideoMeta, VideoRecord
from vidssl.video.integrity import Fault, check_video
from vidssl.video.reader import MAX_PIXELS, open_video
from vidssl.workers import ItemGuard, ordered

# What can be found; a file of which no more is found than what is kept stays in the list.
KEPT = frozenset(("wrong case", "header mismatch", "timestamp gap"))
FINDINGS = (
    "missing",
    "wrong case",
    "duplicate",
    "empty",
    "not a video",
    "no video stream",
    "oversized",
    "truncated",
    "decode error",
    "several sizes",
    "hangs or crashes",
    "too short",
    "span out of range",
    "header mismatch",
    "timestamp gap",
)

_EXAMPLES = 3  # of each finding, in what is printed


@dataclass(frozen=True)
class Options:
    """What a check can be told."""

    root: Path | None = None
    allow_external: bool = False
    min_frames: int | None = None
    min_seconds: float | None = None
    max_pixels: int = MAX_PIXELS
    fps: float | None = None  # of folders of images whose list does not say
    timeout: float = 120.0  # seconds without a frame after which a decoder is said to hang
    workers: int = 1


@dataclass(frozen=True)
class Finding:
    """Something that is wrong with a row of the list."""

    path: str  # as the list writes it
    finding: str  # one of FINDINGS
    reason: str

    @property
    def kept(self) -> bool:
        """Whether a row stays in the list in spite of it."""
        return self.finding in KEPT


@dataclass(frozen=True)
class Checked:
    """What was found in a list, and where that is written; `str()` is the report that a tool prints."""

    rows: int
    kept: int
    files: int
    findings: tuple[Finding, ...]
    list: Path
    report: Path

    def __str__(self) -> str:
        lines = [f"{self.files} files in {self.rows} rows; {self.kept} rows kept"]
        counts = Counter(found.finding for found in self.findings)
        for name in FINDINGS:
            if counts[name]:
                lines.append(f"{counts[name]:>8} {name}{' (kept)' if name in KEPT else ''}")
                shown = [found for found in self.findings if found.finding == name][:_EXAMPLES]
                lines += [f"           {found.path}: {found.reason}" for found in shown]
        lines.append(f"clean list: {self.list}")
        lines.append(f"all findings: {self.report}")
        return "\n".join(lines)


def check(videos: Path, out: Path, options: Options) -> Checked:
    """Check every file of a list once, by decoding it to its end, and write what was found.

    Files: the clean list under the name of the old one, with all columns, its `classes.txt` and `root.txt`,
    and `report.csv` (`path,finding,reason,kept`).

    Args:
        videos: The list.
        out: Folder for the files; not that of the list.
        options: Limits.

    Raises:
        DataError: The list cannot be read, or the files cannot be written.
        ConfigError: `min_seconds` is asked of a folder of images and nobody says its frames per second.
    """
    listed = read_list(videos, options.root, options.allow_external)
    copy, report = place_of_copy(listed, out, listed.root), out / "report.csv"
    if report == copy or (report.exists() and not copy.exists()):
        raise DataError(f"{report} is about another list: choose another folder to write to")
    for name, record in zip(listed.names, listed.records, strict=True):
        if (record.fps or options.fps) is None and _timed(record, options) and Path(record.path).is_dir():
            raise ConfigError(
                f"{name} is a folder of images, which says no seconds: give --fps or a column fps"
            )
    keys = [(name, r.fps or options.fps) for name, r in zip(listed.names, listed.records, strict=True)]
    tasks = [_Task(number, *key) for number, key in enumerate(dict.fromkeys(keys))]
    states = dict(zip(dict.fromkeys(keys), _examine_all(tasks, listed.root, options), strict=True))

    findings: dict[Finding, None] = {}  # in order, each once
    names: list[str | None] = []
    labels = {
        row_key(listed.root, record): record.label for record in listed.records
    }  # of rows that are taken
    for key, record in zip(keys, listed.records, strict=True):
        state = states[key]
        found = [*state.found, *_of_row(state.meta, record, options)]
        if state.name != key[0]:  # no list may hold a row twice
            row = row_key(listed.root, replace(record, path=state.name))
            if row in labels:
                other = "" if labels[row] == record.label else f" with label {labels[row]}"
                found.append(("duplicate", f"the list has the same row for {state.name}{other}"))
            labels.setdefault(row, record.label)
        findings.update(dict.fromkeys(Finding(key[0], *words) for words in found))
        names.append(state.name if all(kind in KEPT for kind, _ in found) else None)
    copy_list(listed, out, listed.root, names)
    try:
        with open(report, "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["path", "finding", "reason", "kept"])
            writer.writerows([f.path, f.finding, f.reason, "yes" if f.kept else "no"] for f in findings)
    except OSError as error:
        raise DataError(f"cannot write {report}: {error.strerror}") from None
    kept = sum(name is not None for name in names)
    return Checked(len(names), kept, len(tasks), tuple(findings), copy, report)


class _Task(NamedTuple):
    number: int
    name: str  # as the list writes it
    fps: float | None


class _State(NamedTuple):
    """What is known of a file."""

    name: str  # the one that it should have in the list
    meta: VideoMeta | None = None  # None: it cannot be opened
    found: tuple[Fault, ...] = ()


def _timed(record: VideoRecord, options: Options) -> bool:
    return options.min_seconds is not None or record.start is not None or record.end is not None


def _of_row(meta: VideoMeta | None, record: VideoRecord, options: Options) -> list[Fault]:
    """Hold the part of a video that a row means against the limits."""
    if meta is None:
        return []
    try:
        part = resolve_span(meta, record)[1]
    except DataError as error:
        return [("span out of range", str(error).removeprefix(f"{record.path}: "))]
    frames, seconds = part.num_frames, part.duration
    if options.min_frames is not None and frames < options.min_frames:
        return [("too short", f"{frames} frames, at least {options.min_frames} are asked for")]
    if options.min_seconds is not None and seconds < options.min_seconds:
        return [("too short", f"{seconds:.2f} s, at least {options.min_seconds:g} s are asked for")]
    return []


# One file ---------------------------------------------------------------------------------------------------


def _examine_all(tasks: Sequence[_Task], root: Path, options: Options) -> Iterator[_State]:
    states = ordered(
        lambda task, guard: _examine(task, guard, root, options),
        tasks,
        options.workers,
        timeout=options.timeout,
        on_failure=lambda number, reason: None,  # it comes back as the finding of its file
    )
    return iter(progress(states, title="check", unit="file", total=len(tasks)))


def _examine(task: _Task, guard: ItemGuard, root: Path, options: Options) -> _State:
    number, name, fps = task
    if number in guard.failed:
        return _State(name, None, (("hangs or crashes", guard.failed[number]),))
    guard.at(number)
    found: list[Fault] = []
    meta = None
    try:
        if not (root / name).exists():
            others = _in_other_letters(root, name, options.allow_external)
            if len(others) != 1:
                reason = f"there are {' and '.join(others)}" if others else _why_missing(root / name)
                return _State(name, None, (("missing", reason),))
            name = others[0]
            found.append(("wrong case", f"the file is called {name}"))
        # Where no seconds are in play, any rate will do for a folder of images.
        meta, faults = check_video(root / name, fps or 1.0, options.max_pixels, lambda: guard.at(number))
        found += faults
    except Exception as error:  # decoders raise what they like; one file must not end the check of all
        found.append(("decode error", f"{type(error).__name__}: {error}"))
    return _State(name, meta, tuple((kind, reason.replace("\n", " ")) for kind, reason in found))


def _why_missing(path: Path) -> str:
    try:
        open_video(path).close()
    except DecodeError as error:
        return str(error).removeprefix(f"{path}: ")
    raise AssertionError(f"{path} has just appeared")


def _in_other_letters(root: Path, name: str, allow_external: bool) -> list[str]:
    """Names of files that differ from a name in upper and lower case only, in any part of it."""
    found = ["/" if name.startswith("/") else ""]
    for part in PurePosixPath(name.lstrip("/")).parts:
        found = [
            f"{place}{'/' if place not in ('', '/') else ''}{entry}"
            for place in found
            for entry in ([part] if part == ".." else _entries(root / place).get(part.casefold(), ()))
        ]
    inside = root.resolve()
    return [
        each
        for each in found
        if (root / each).exists() and (allow_external or (root / each).resolve().is_relative_to(inside))
    ]


@lru_cache(maxsize=64)
def _entries(folder: Path) -> dict[str, list[str]]:
    """What is in a folder, by its names in lower case."""
    named: dict[str, list[str]] = {}
    with suppress(OSError):
        for entry in sorted(folder.iterdir()):
            named.setdefault(entry.name.casefold(), []).append(entry.name)
    return named
