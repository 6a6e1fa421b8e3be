"""Decode the videos of a list, report defects, and write the list without broken videos."""

import errno
import os
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from unicodedata import normalize

from vidssl.apps.check.file_defects import Fault, check_video
from vidssl.base.errors import ConfigError, DataError, why_unreadable
from vidssl.base.output_folder import claim, only_run_in
from vidssl.base.progress import Report
from vidssl.base.progress import progress as bar
from vidssl.base.types import VideoMeta, VideoRecord
from vidssl.base.worker_pool import ItemGuard, Pool, ordered, usable_cpus
from vidssl.data.allowed_paths import is_folder
from vidssl.data.dataset import resolve_span
from vidssl.data.video_list import row_key
from vidssl.data.write_lists import copy_list, place_of_copy
from vidssl.jobs.job import Count, File, Positive, Videos, job, path_of, read_videos, reading
from vidssl.jobs.measurement_runner import write_csv
from vidssl.video.frame_folder import num_animated
from vidssl.video.open_container import DECODER_ERRORS
from vidssl.video.packet_index import deviation
from vidssl.video.reader import MAX_PIXELS, state_of_video

_COLUMNS = ("path", "finding", "reason", "kept", "deviation")  # of the report
# A row with only these stays in the list.
_OF_TIMES = ("timestamp gap", "timestamps out of order", "repeated timestamps")
_OF_NAMES = ("wrong case", "other Unicode form")
KEPT = frozenset((*_OF_NAMES, "header mismatch", *_OF_TIMES, "damaged packets", "animated image"))


@dataclass(frozen=True)
class Finding:
    """A defect of a row of the list."""

    path: str  # as in the list
    finding: str  # its name, as in docs/videos.md
    reason: str


@dataclass(frozen=True)
class Checked:
    """The result of a check; `str()` is the printed report."""

    rows: int
    kept: int
    files: int
    findings: tuple[Finding, ...]
    list: Path
    report: Path
    variable: dict[str, float]  # files with a variable frame rate: the largest deviation from a constant one, seconds

    @property
    def complete(self) -> bool:
        """Whether no row was left out."""
        return self.kept == self.rows

    def __str__(self) -> str:
        lines = [f"{self.files} files in {self.rows} rows; {self.kept} rows kept"]
        example = {finding.finding: finding for finding in reversed(self.findings)}
        for name, count in Counter(finding.finding for finding in self.findings).items():
            lines.append(f"{count:>8} {name}{' (kept)' if name in KEPT else ''}")
            lines.append(f"{'':>11}{example[name].path}: {example[name].reason}")
        if self.variable:
            name = max(self.variable, key=self.variable.__getitem__)
            lines.append(
                f"{len(self.variable)} files with a variable frame rate, by up to {self.variable[name]:.3f} s: {name}"
            )
        return "\n".join([*lines, f"clean list: {self.list}", f"all findings: {self.report}"])


@job
def check(
    videos: Videos,
    *,
    out: File,
    root: File | None = None,
    fps: Positive | None = None,
    max_pixels: Count | None = None,
    timeout: Positive = 120.0,
    workers: Count | None = None,
    allow_external: bool = False,
    min_frames: Count | None = None,
    min_seconds: Positive | None = None,
    pool: Pool = ordered,
    progress: Report = None,
) -> Checked:
    """Decode every video of a list and write a list without the broken ones.

    Files: the clean list under the name of the old one, with all columns, its `classes.txt` and `root.txt`, and
    `report.csv` (`path,finding,reason,kept,deviation`). It has a row for each finding, and one without a finding for
    each other file with a variable frame rate.

    Args:
        videos: The videos, as in `extract`.
        out: Output folder.
        root: Folder of the videos of a list (default: the one in root.txt).
        fps: Frame rate of image folders if the list has no column fps.
        max_pixels: Largest frame, width times height (default 4096 x 4096).
        timeout: Seconds without a new frame.
        workers: Processes (default: one per usable CPU).
        allow_external: Accept paths outside of the root.
        min_frames: Leave out videos with fewer frames.
        min_seconds: Leave out shorter videos.
        pool: Runs the workers, such as on other machines.
        progress: Called with (files done, all files, title); False: no progress; None: a bar.
    """
    out = Path(out)
    listed = read_videos(videos, reading(root, allow_external))
    copy, report = place_of_copy(listed, out, listed.root), out / "report.csv"
    if report == copy:
        raise DataError(f"{report} would be the clean list and the report: rename the list")
    claim(out, "report of a check", inputs={"list": path_of(videos)}, read=[listed.path])
    rows = list(zip(listed.names, listed.records, strict=True))
    for name, record in rows:
        timed = (min_seconds, record.start, record.end) != (None, None, None)
        if timed and (record.fps or fps) is None and is_folder(record.path):
            raise ConfigError(f"{name} is an image folder without a frame rate: give fps=RATE or a column fps")
    keys = [(name, record.fps or fps) for name, record in rows]
    files = list(dict.fromkeys(keys))
    pixels = max_pixels or MAX_PIXELS
    with only_run_in(out):  # before hours of decoding
        examined = pool(
            lambda number, guard: _examine(*files[number], number, guard, listed.root, allow_external, pixels),
            range(len(files)),
            workers or usable_cpus(),
            timeout=timeout,
            on_failure=lambda number, reason: None,  # becomes a finding of its file
        )
        states = dict(zip(files, bar(examined, title="check", unit="file", total=len(files)), strict=True))
        findings: dict[Finding, None] = {}  # in order, each once
        names: list[str | None] = []
        labels = {row_key(listed.root, replace(record, path=name)): record.label for name, record in rows}  # in use
        for key, (name, record) in zip(keys, rows, strict=True):
            right_name, meta, faults = states[key]
            row_faults = [*faults, *_row_faults(meta, record, min_frames, min_seconds)]
            if right_name != name:  # a corrected name may repeat another row
                row = row_key(listed.root, replace(record, path=right_name))
                if row in labels:
                    label = "" if labels[row] == record.label else f" with label {labels[row]}"
                    row_faults.append(("duplicate", f"the list has the same row for {right_name}{label}"))
                labels.setdefault(row, record.label)
            findings.update(dict.fromkeys(Finding(name, *fault) for fault in row_faults))
            names.append(right_name if all(kind in KEPT for kind, _ in row_faults) else None)
        deviations = {name: _deviation(meta) for (name, _), (_, meta, _) in states.items() if meta is not None}
        write_csv(report, _COLUMNS, _report_rows(findings, deviations))
        copy_list(listed, out, listed.root, names)
    kept = sum(name is not None for name in names)
    variable = {name: seconds for name, seconds in deviations.items() if seconds > 0}
    return Checked(len(names), kept, len(files), tuple(findings), copy, report, variable)


def _report_rows(findings: Collection[Finding], deviations: Mapping[str, float]) -> list[tuple[str, ...]]:
    """The rows of the report: of all findings, then of the other files with a variable frame rate."""
    seconds = {name: f"{deviation:.3f}" for name, deviation in deviations.items()}
    rows: list[tuple[str, ...]] = []
    for row in findings:
        kept = "yes" if row.finding in KEPT else "no"
        rows.append((row.path, row.finding, row.reason, kept, seconds.get(row.path, "")))
    named = {finding.path for finding in findings}
    varying = [name for name, deviation in deviations.items() if deviation > 0 and name not in named]
    return rows + [(name, "", "", "yes", seconds[name]) for name in varying]


def _deviation(meta: VideoMeta) -> float:
    """The largest distance of a frame's time from its place at the average rate, in seconds; 0 if that is constant."""
    return 0.0 if meta.times is None else deviation(meta.times, meta.fps)


def _row_faults(
    meta: VideoMeta | None, record: VideoRecord, min_frames: int | None, min_seconds: float | None
) -> list[Fault]:
    """Compare the row's span of a video with the limits."""
    if meta is None:
        return []
    try:
        part = resolve_span(meta, record)[1]
    except DataError as error:
        return [("span out of range", str(error).removeprefix(f"{record.path}: "))]
    if min_frames is not None and part.num_frames < min_frames:
        return [("too short", f"{part.num_frames} frames, the minimum is {min_frames}")]
    if min_seconds is not None and part.duration < min_seconds:
        return [("too short", f"{part.duration:.2f} s, the minimum is {min_seconds:g} s")]
    return []


def _examine(
    name: str, fps: float | None, number: int, guard: ItemGuard, root: Path, allow_external: bool, max_pixels: int
) -> tuple[str, VideoMeta | None, list[Fault]]:
    """Return the right name of a file, its metadata if it can be opened, and its faults."""
    if number in guard.failed:
        return name, None, [("hangs or crashes", guard.failed[number].replace("\n", " "))]
    guard.at(number)
    faults: list[Fault] = []
    meta = None
    try:
        if state_of_video(str(root / name)) is None:
            variants = _variants(root, name, allow_external)
            if len(variants) != 1:
                reason = f"there are {' and '.join(variants)}" if variants else why_unreadable(root / name)
                return name, None, [("missing", reason)]
            if normalize("NFC", variants[0]) == normalize("NFC", name):
                faults.append(("other Unicode form", f"the list has {name!a}, the file is {variants[0]!a}"))
            else:
                faults.append(("wrong case", f"the file is called {variants[0]}"))
            name = variants[0]
        # Without limits in seconds any frame rate will do for an image folder.
        meta, defects = check_video(root / name, fps or 1.0, max_pixels, lambda: guard.at(number))
        faults += defects
        if (count := num_animated(root / name)) > 1 and (root / name).is_file():
            faults.append(("animated image", f"of its {count} frames only the first is read"))
    except DECODER_ERRORS as error:  # one file must not end the whole check
        faults.append(("decode error", f"{type(error).__name__}: {error}"))
    denied = os.strerror(errno.EACCES)  # a file that may not be read is not a broken one
    lines = [(kind, reason.replace("\n", " ")) for kind, reason in faults]
    return name, meta, [("no permission", denied) if denied in reason else (kind, reason) for kind, reason in lines]


def _variants(root: Path, name: str, allow_external: bool) -> list[str]:
    """Names of files that differ from a name in upper and lower case or the form of letters only, in any part of it."""
    variants = [Path()]
    for part in Path(name).parts:
        variants = [
            folder / entry
            for folder in variants
            for entry in ([part] if part in ("/", "..") else _entries(root / folder).get(_folded(part), ()))
        ]
    # Not Path.resolve, which raises for a loop of links.
    paths = {str(variant): Path(os.path.realpath(root / variant)) for variant in variants}
    inside = os.path.realpath(root)
    existing = {variant: path for variant, path in paths.items() if os.path.exists(path)}  # noqa: PTH110 - likewise
    return [variant for variant, path in existing.items() if allow_external or path.is_relative_to(inside)]


@lru_cache(maxsize=64)
def _entries(folder: Path) -> dict[str, list[str]]:
    """The entries of a folder, by their names in lower case and one form of letters."""
    named: dict[str, list[str]] = {}
    with suppress(OSError):
        for entry in sorted(folder.iterdir()):
            named.setdefault(_folded(entry.name), []).append(entry.name)
    return named


def _folded(name: str) -> str:
    return normalize("NFC", name.casefold())
