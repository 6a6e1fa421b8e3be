"""The command `shrink`: copy the videos of a list once into a small format that decodes fast at any frame."""

import argparse
import hashlib
import json
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from vidssl.atomic import state_of, write_json
from vidssl.commands.arguments import add_file_options, at_least, parse, print_results
from vidssl.errors import ConfigError, DataError, DecodeError
from vidssl.progress import progress
from vidssl.workers import ItemGuard, ordered

if TYPE_CHECKING:
    from vidssl.data.video_list import VideoList


@dataclass(frozen=True)
class ShrinkSettings:
    """The format of the copies in a folder, written to its `shrink.json`."""

    short_side: int = 128  # pixels
    quality: int = 18  # x264's CRF: 0 is lossless, 51 the worst
    fps: float | None = None  # of image folders if the list has no column fps


@dataclass(frozen=True)
class ShrinkOptions:
    """How the originals are read."""

    root: Path | None = None
    max_pixels: int | None = None  # width times height; None: as for training
    timeout: float = 120.0  # seconds without a new frame
    workers: int = 1


@dataclass(frozen=True)
class Shrunk:
    """The result of a run; `str()` is the printed report."""

    list: Path
    made: int  # copies
    kept: int  # copies of an earlier run
    left_out: dict[str, str]  # files that cannot be decoded, and why
    before: int  # bytes of the originals of all copies
    after: int
    seconds: float

    def __str__(self) -> str:
        failed = "".join(f"left out: {name}: {reason}\n" for name, reason in self.left_out.items())
        total = self.made + self.kept + len(self.left_out)
        return (
            f"{failed}{total} files: {self.made} copied, {self.kept} were there, {len(self.left_out)} left out\n"
            f"{self.before / 1e6:.1f} MB -> {self.after / 1e6:.1f} MB in {self.seconds:.0f} s\nlist: {self.list}"
        )


def shrink(arguments: Sequence[str] | None = None, prog: str | None = None) -> None:
    """Copy the videos of a list into a small format that decodes fast; exit with 1 if some cannot be decoded."""
    parser = argparse.ArgumentParser(prog=prog, description=shrink.__doc__)
    add_file_options(parser)
    parser.add_argument(
        "--short-side", type=at_least(2), default=128, help="pixels; smaller videos keep theirs (default 128)"
    )
    parser.add_argument(
        "--quality", type=int, choices=range(52), metavar="CRF", default=18, help="from 0, lossless, to 51 (default 18)"
    )
    parsed = parse(parser, arguments)
    settings = ShrinkSettings(parsed.short_side, parsed.quality, parsed.fps)
    options = ShrinkOptions(parsed.root, parsed.max_pixels, parsed.timeout, parsed.workers)
    shrunk = shrink_list(parsed.input, parsed.out, settings, options)
    print_results(parsed, shrunk, shrunk)
    if shrunk.left_out:
        sys.exit(1)


def shrink_list(videos: Path, out: Path, settings: ShrinkSettings, options: ShrinkOptions) -> Shrunk:
    """Copy every file of a list into a folder, under the name that it has in its root.

    A copy is H.264 in MP4 with key frames only and without sound, whatever its suffix: FFmpeg detects the format by
    content. It has the frames of the original, upright, in the same order, at the same times and at the same frame
    rate, so spans in lists stay valid. Every list of these videos works with the folder as its root; the list itself
    is written there too, without the videos that cannot be decoded.

    An image folder becomes a video file of the folder's name. Each copy is written to a temporary file, and gets its
    name and its original's modification time when it is complete: an interrupted run resumes, and a changed original
    is copied again.

    Raises:
        DataError: The list cannot be read or names a file outside of its root, or the copies cannot be written.
        ConfigError: The folder holds copies of other settings, or an image folder has no frame rate.
    """
    from vidssl.data.video_list import copy_list, place_of_copy, read_list
    from vidssl.engine.resume import only_run_in
    from vidssl.video.reader import MAX_PIXELS

    started = time.monotonic()
    listed = read_list(videos, options.root)
    if out.resolve() == listed.root.resolve():
        raise DataError(f"{out} is the folder of the originals: choose another folder for the copies")
    place_of_copy(listed, out, out)
    tasks = _tasks(listed, settings)
    pixels = options.max_pixels or MAX_PIXELS
    with only_run_in(out):  # two runs would write to the same files
        _check_settings(out, settings)
        made = kept = before = after = 0
        left_out: dict[str, str] = {}
        copies = ordered(
            lambda task, guard: _copy(task, guard, listed.root, out, settings, pixels),
            tasks,
            options.workers,
            timeout=options.timeout,
            on_failure=lambda number, reason: None,  # becomes the reason why its file is left out
        )
        bar = progress(copies, title="shrink", unit="file", total=len(tasks))
        for task, copy in zip(tasks, bar, strict=True):
            if copy.failure is not None:
                left_out[task.name] = copy.failure
                continue
            made, kept = made + copy.new, kept + (not copy.new)
            before, after = before + copy.before, after + copy.after
        names = [None if _normal(name) in left_out else name for name in listed.names]
        path = copy_list(listed, out, out, names)
    return Shrunk(path, made, kept, left_out, before, after, time.monotonic() - started)


class _FileToCopy(NamedTuple):
    number: int
    name: str
    fps: float | None  # of an image folder


class _Copy(NamedTuple):
    new: bool = False  # False: an earlier run made it
    before: int = 0  # bytes
    after: int = 0
    failure: str | None = None  # why there is no copy


def _tasks(listed: "VideoList", settings: ShrinkSettings) -> list[_FileToCopy]:
    """One task per file."""
    from vidssl.video.frame_folder import is_image

    rates: dict[str, float | None] = {}
    for written, record in zip(listed.names, listed.records, strict=True):
        path, name, rate = PurePosixPath(written), _normal(written), None
        # Below another root such a name is the same file, or a file beside the copies.
        if path.is_absolute() or ".." in path.parts:
            raise DataError(f"{name!r} in {listed.path} is outside of the root {listed.root}: move the file there")
        if Path(record.path).is_dir():
            rate = record.fps or settings.fps
            if rate is None:
                raise ConfigError(f"{name} is an image folder without a frame rate: give --fps or a column fps")
            if rates.setdefault(name, rate) != rate:
                raise ConfigError(f"{name} has {rates[name]} and {rate} fps in {listed.path}: a copy has one rate")
        elif is_image(Path(record.path)):
            raise DataError(f"{name!r} in {listed.path} is an image, and only videos are shrunk: remove the row")
        rates[name] = rate
    return [_FileToCopy(number, name, rate) for number, (name, rate) in enumerate(rates.items())]


def _normal(name: str) -> str:
    """A name without `./` and the like: two spellings are one file."""
    return str(PurePosixPath(name))


def _check_settings(out: Path, settings: ShrinkSettings) -> None:
    """Write `shrink.json`, or compare the one that is there with the settings."""
    from vidssl.config import differences
    from vidssl.data.fingerprint import COPIES

    file, wanted = out / COPIES, asdict(settings)
    if not file.exists():
        write_json(file, wanted)
    try:
        there = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"cannot read {file}: {error.strerror}") from None
    except ValueError as error:
        raise DataError(f"{file} is damaged: {error}; choose another folder") from None
    if other := [f"{name} is {a}, not {b}" for name, a, b in differences(there, wanted)]:
        raise ConfigError(f"{out} holds copies of other settings ({'; '.join(other)}): choose another folder")


# One file ---------------------------------------------------------------------------------------------------


def _copy(
    task: _FileToCopy, guard: ItemGuard, root: Path, out: Path, settings: ShrinkSettings, max_pixels: int
) -> _Copy:
    import av

    from vidssl.video.encode import encode_key_frames
    from vidssl.video.reader import open_video

    source, target = root / task.name, out / task.name
    # Not vidssl.atomic's temporary name: this one is the same in each run, so that the next run overwrites what a
    # killed worker left, and it is short however long the target's is.
    part = target.parent / f".{hashlib.sha256(target.name.encode()).hexdigest()[:16]}.part"
    try:
        part.unlink(missing_ok=True)
        if task.number in guard.failed:
            return _Copy(failure=guard.failed[task.number])
        guard.at(task.number)
        if target.exists() and source.exists() and target.samefile(source):
            raise DataError(f"{target} is a link to the original: choose another folder for the copies")
        size, changed = state_of(source)
        if changed >= 0 and target.exists() and int(target.stat().st_mtime) == changed // 10**9:
            return _Copy(False, size, target.stat().st_size)
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open_video(source, max_pixels=max_pixels, fps=task.fps) as video:
                alive = partial(guard.at, task.number)
                encode_key_frames(video, part, settings.short_side, settings.quality, max_pixels, alive)
            with open_video(part) as copy:
                count, wanted = copy.meta.num_frames, video.meta.num_frames
            if count != wanted:
                raise DecodeError(f"its copy has {count} of {wanted} frames")
        except DecodeError as error:
            part.unlink(missing_ok=True)
            return _Copy(failure=str(error).removeprefix(f"{source}: "))
        with open(part, "rb+") as file:
            os.fsync(file.fileno())
        os.utime(part, ns=(changed, changed))
        os.replace(part, target)
        return _Copy(True, size, target.stat().st_size)
    except (OSError, av.FFmpegError) as error:
        with suppress(OSError):
            part.unlink()
        raise DataError(f"cannot write {target}: {error.strerror or error}") from None
