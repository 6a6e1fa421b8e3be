"""The command `check`: decode the videos of a list, report defects, and write the list without broken videos."""

import argparse
import csv
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from vidssl.commands.arguments import above_zero, add_file_options, at_least, parse, print_results
from vidssl.errors import ConfigError, DataError, DecodeError
from vidssl.progress import progress
from vidssl.workers import ItemGuard, ordered

if TYPE_CHECKING:
    from vidssl.types import VideoMeta, VideoRecord
    from vidssl.video.integrity import Fault

KEPT = frozenset(("wrong case", "header mismatch", "timestamp gap"))  # a row with only these stays in the list
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
_EXAMPLES = 3  # of each finding, in the printed report


@dataclass(frozen=True)
class CheckOptions:
    """Limits of a check, and how the videos are read."""

    root: Path | None = None
    allow_external: bool = False
    min_frames: int | None = None
    min_seconds: float | None = None
    max_pixels: int | None = None  # width times height; None: as for training
    fps: float | None = None  # of image folders if the list has no column fps
    timeout: float = 120.0  # seconds without a new frame
    workers: int = 1


@dataclass(frozen=True)
class Finding:
    """A defect of a row of the list."""

    path: str  # as in the list
    finding: str  # one of FINDINGS
    reason: str

    @property
    def kept(self) -> bool:
        """Whether the row stays in the list."""
        return self.finding in KEPT


@dataclass(frozen=True)
class Checked:
    """The result of a check; `str()` is the printed report."""

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
                examples = [found for found in self.findings if found.finding == name][:_EXAMPLES]
                lines += [f"           {found.path}: {found.reason}" for found in examples]
        return "\n".join([*lines, f"clean list: {self.list}", f"all findings: {self.report}"])


def check(arguments: Sequence[str] | None = None, prog: str | None = None) -> None:
    """Decode every video of a list and write the list without broken videos; exit with 1 if rows were left out."""
    parser = argparse.ArgumentParser(prog=prog, description=check.__doc__)
    option = parser.add_argument
    add_file_options(parser)
    option("--allow-external", action="store_true", help="accept paths outside of the root")
    option("--min-frames", type=at_least(1), help="leave out videos with fewer frames")
    option("--min-seconds", type=above_zero, help="leave out shorter videos")
    parsed = parse(parser, arguments)
    options = CheckOptions(**{name: getattr(parsed, name) for name in CheckOptions.__dataclass_fields__})
    checked = check_list(parsed.input, parsed.out, options)
    print_results(parsed, checked, checked)
    if checked.kept < checked.rows:
        sys.exit(1)


def check_list(videos: Path, out: Path, options: CheckOptions) -> Checked:
    """Decode every file of a list once, and write the defects and the list without broken videos.

    Files: the clean list under the name of the old one, with all columns, its `classes.txt` and `root.txt`,
    and `report.csv` (`path,finding,reason,kept`).

    Raises:
        DataError: The list cannot be read, the files cannot be written, or `out` is the list's own folder.
        ConfigError: An image folder has no frame rate, and `min_seconds` or a span needs it.
    """
    from vidssl.data.video_list import copy_list, place_of_copy, read_list, row_key

    listed = read_list(videos, options.root, options.allow_external)
    copy, report = place_of_copy(listed, out, listed.root), out / "report.csv"
    if report == copy or (report.exists() and not copy.exists()):
        raise DataError(f"{report} belongs to another list: choose another folder for the output")
    rows = list(zip(listed.names, listed.records, strict=True))
    for name, record in rows:
        timed = (options.min_seconds, record.start, record.end) != (None, None, None)
        if timed and (record.fps or options.fps) is None and Path(record.path).is_dir():
            raise ConfigError(f"{name} is an image folder without a frame rate: give --fps or a column fps")
    keys = [(name, record.fps or options.fps) for name, record in rows]
    files = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    examined = ordered(
        lambda task, guard: _examine(task[1], *task[0], guard, listed.root, options),
        list(files.items()),
        options.workers,
        timeout=options.timeout,
        on_failure=lambda number, reason: None,  # becomes a finding of its file
    )
    states = dict(zip(files, progress(examined, title="check", unit="file", total=len(files)), strict=True))

    findings: dict[Finding, None] = {}  # in order, each once
    names: list[str | None] = []
    labels = {row_key(listed.root, record): record.label for _, record in rows}  # by the rows in use
    for key, (name, record) in zip(keys, rows, strict=True):
        state = states[key]
        found = [*state.found, *_row_faults(state.meta, record, options)]
        if state.name != name:  # a corrected name may repeat another row
            row = row_key(listed.root, replace(record, path=state.name))
            if row in labels:
                other = "" if labels[row] == record.label else f" with label {labels[row]}"
                found.append(("duplicate", f"the list has the same row for {state.name}{other}"))
            labels.setdefault(row, record.label)
        findings.update(dict.fromkeys(Finding(name, *words) for words in found))
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
    return Checked(len(names), kept, len(files), tuple(findings), copy, report)


class _FileState(NamedTuple):
    name: str  # the correct one
    meta: "VideoMeta | None" = None  # None: cannot be opened
    found: "tuple[Fault, ...]" = ()


def _row_faults(meta: "VideoMeta | None", record: "VideoRecord", options: CheckOptions) -> "list[Fault]":
    """Compare the row's span of a video with the limits."""
    from vidssl.data.dataset import resolve_span

    if meta is None:
        return []
    try:
        part = resolve_span(meta, record)[1]
    except DataError as error:
        return [("span out of range", str(error).removeprefix(f"{record.path}: "))]
    frames, seconds = part.num_frames, part.duration
    if options.min_frames is not None and frames < options.min_frames:
        return [("too short", f"{frames} frames, the minimum is {options.min_frames}")]
    if options.min_seconds is not None and seconds < options.min_seconds:
        return [("too short", f"{seconds:.2f} s, the minimum is {options.min_seconds:g} s")]
    return []


# One file ---------------------------------------------------------------------------------------------------


def _examine(
    number: int, name: str, fps: float | None, guard: ItemGuard, root: Path, options: CheckOptions
) -> _FileState:
    from vidssl.video.integrity import check_video
    from vidssl.video.reader import MAX_PIXELS

    if number in guard.failed:
        return _FileState(name, None, (("hangs or crashes", guard.failed[number]),))
    guard.at(number)
    found: list[Fault] = []
    meta = None
    try:
        if not (root / name).exists():
            others = _case_variants(root, name, options.allow_external)
            if len(others) != 1:
                reason = f"there are {' and '.join(others)}" if others else _missing_reason(root / name)
                return _FileState(name, None, (("missing", reason),))
            name = others[0]
            found.append(("wrong case", f"the file is called {name}"))
        # Without limits in seconds any frame rate will do for an image folder.
        pixels = options.max_pixels or MAX_PIXELS
        meta, faults = check_video(root / name, fps or 1.0, pixels, lambda: guard.at(number))
        found += faults
    except Exception as error:  # decoders raise anything; one file must not end the whole check
        found.append(("decode error", f"{type(error).__name__}: {error}"))
    return _FileState(name, meta, tuple((kind, reason.replace("\n", " ")) for kind, reason in found))


def _missing_reason(path: Path) -> str:
    """The error of opening a file, which names a similar file if there is one."""
    from vidssl.video.reader import open_video

    try:
        open_video(path).close()
    except DecodeError as error:
        return str(error).removeprefix(f"{path}: ")
    return "it was missing a moment ago"


def _case_variants(root: Path, name: str, allow_external: bool) -> list[str]:
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
    """The entries of a folder, by their names in lower case."""
    named: dict[str, list[str]] = {}
    with suppress(OSError):
        for entry in sorted(folder.iterdir()):
            named.setdefault(entry.name.casefold(), []).append(entry.name)
    return named
