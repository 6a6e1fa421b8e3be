"""The command `shrink`: copy the videos of a list once into a small format that decodes fast at any frame."""

import argparse
import hashlib
import json
import os
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath

import av

from vidssl.atomic import state_of, write_json
from vidssl.commands.arguments import print_results
from vidssl.config import differences
from vidssl.data.fingerprint import COPIES
from vidssl.data.video_list import VideoList
from vidssl.data.write_lists import copy_list, place_of_copy
from vidssl.engine.resume import only_run_in
from vidssl.errors import ConfigError, DataError, DecodeError
from vidssl.prepare.inputs import read_input
from vidssl.progress import progress
from vidssl.video.encode_key_frames import encode_key_frames
from vidssl.video.frame_folder import is_image
from vidssl.video.reader import MAX_PIXELS, open_video
from vidssl.worker_pool import ItemGuard, ordered


@dataclass(frozen=True)
class ShrinkSettings:
    """The format of the copies in a folder, written to its `shrink.json`."""

    short_side: int = 128  # pixels
    quality: int = 18  # x264's CRF: 0 is lossless, 51 the worst
    fps: float | None = None  # of image folders if the list has no column fps


@dataclass
class Shrunk:
    """The result of a run; `str()` is the printed report."""

    list: Path
    made: int = 0  # copies
    kept: int = 0  # copies of an earlier run
    left_out: dict[str, str] = field(default_factory=dict)  # files that cannot be decoded, and why
    before: int = 0  # bytes of the originals of all copies
    after: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        failed = "".join(f"left out: {name}: {reason}\n" for name, reason in self.left_out.items())
        total = self.made + self.kept + len(self.left_out)
        return (
            f"{failed}{total} files: {self.made} copied, {self.kept} were there, {len(self.left_out)} left out\n"
            f"{self.before / 1e6:.1f} MB -> {self.after / 1e6:.1f} MB in {self.seconds:.0f} s\nlist: {self.list}"
        )


def run(parsed: argparse.Namespace) -> None:
    """Copy the videos, and exit with 1 if some cannot be decoded."""
    settings = ShrinkSettings(parsed.short_side, parsed.quality, parsed.fps)
    names = ("root", "max_pixels", "timeout", "workers")
    shrunk = shrink_list(parsed.input, parsed.out, settings, **{name: getattr(parsed, name) for name in names})
    print_results(parsed, shrunk, shrunk)
    if shrunk.left_out:
        sys.exit(1)


def shrink_list(
    videos: Path,
    out: Path,
    settings: ShrinkSettings,
    *,
    root: Path | None = None,
    max_pixels: int | None = None,
    timeout: float = 120.0,
    workers: int = 1,
) -> Shrunk:
    """Copy every file of a list into a folder, under the name that it has in its root; write the list there too.

    A copy is H.264 in MP4 with key frames only and without sound, whatever its suffix: FFmpeg detects the format by
    content. It has the frames of the original, upright, in the same order and at the same times, so spans in lists stay
    valid. An image folder becomes a video file of the folder's name. A copy gets its name and its original's
    modification time when it is complete: an interrupted run resumes, and a changed original is copied again.
    """
    started = time.monotonic()
    listed = read_input(videos, root)
    if out.resolve() == listed.root.resolve():
        raise DataError(f"{out} is the folder of the originals: choose another folder for the copies")
    result = Shrunk(place_of_copy(listed, out, out))
    rates = _frame_rates(listed, settings)
    names = list(rates)

    def copy(number: int, guard: ItemGuard) -> tuple[bool, int, int] | str:
        name = names[number]
        try:
            if number in guard.failed:
                return guard.failed[number]
            alive = partial(guard.at, number)
            alive()
            return _copy(listed.root / name, out / name, rates[name], settings, max_pixels or MAX_PIXELS, alive)
        finally:
            with suppress(OSError):  # a complete copy has another name
                _partial(out / name).unlink()

    with only_run_in(out):  # two runs would write to the same files
        _check_settings(out, settings)
        # A failed item becomes the reason why its file is left out.
        copies = ordered(copy, range(len(names)), workers, timeout=timeout, on_failure=lambda number, reason: None)
        for name, copied in zip(names, progress(copies, title="shrink", unit="file", total=len(names)), strict=True):
            if isinstance(copied, str):
                result.left_out[name] = copied
                continue
            is_new, before, after = copied
            result.made, result.kept = result.made + is_new, result.kept + (not is_new)
            result.before, result.after = result.before + before, result.after + after
        copy_list(listed, out, out, [None if _normal(name) in result.left_out else name for name in listed.names])
    result.seconds = time.monotonic() - started
    return result


def _frame_rates(listed: VideoList, settings: ShrinkSettings) -> dict[str, float | None]:
    """The files of a list, and the frame rates of those that are image folders."""
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
    return rates


def _normal(name: str) -> str:
    """A name without `./` and the like: two spellings are one file."""
    return str(PurePosixPath(name))


def _check_settings(out: Path, settings: ShrinkSettings) -> None:
    """Write `shrink.json`, or compare the one that is there with the settings."""
    file, wanted = out / COPIES, asdict(settings)
    if not file.exists():
        write_json(file, wanted)
    try:
        there = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{file} is damaged: {error}; choose another folder") from None
    if other := [f"{name} is {a}, not {b}" for name, a, b in differences(there, wanted)]:
        raise ConfigError(f"{out} holds copies of other settings ({'; '.join(other)}): choose another folder")


def _partial(target: Path) -> Path:
    """The path that is written first, short and the same in each run: the next one overwrites what was left."""
    return target.parent / f".{hashlib.sha256(target.name.encode()).hexdigest()[:16]}.part"


def _copy(
    source: Path, target: Path, fps: float | None, settings: ShrinkSettings, max_pixels: int, alive: partial[None]
) -> tuple[bool, int, int] | str:
    """Return whether the copy is new, and the bytes of both files; or why there is no copy."""
    part = _partial(target)
    try:
        if target.exists() and source.exists() and target.samefile(source):
            raise DataError(f"{target} is a link to the original: choose another folder for the copies")
        size, changed = state_of(source)
        if changed >= 0 and target.exists() and int(target.stat().st_mtime) == changed // 10**9:
            return False, size, target.stat().st_size
        target.parent.mkdir(parents=True, exist_ok=True)
        with open_video(source, max_pixels=max_pixels, fps=fps) as video:
            encode_key_frames(video, part, settings.short_side, settings.quality, max_pixels, alive)
        with open_video(part) as copy:
            count, wanted = copy.meta.num_frames, video.meta.num_frames
        if count != wanted:
            raise DecodeError(f"its copy has {count} of {wanted} frames")
        with open(part, "rb+") as file:
            os.fsync(file.fileno())
        os.utime(part, ns=(changed, changed))
        os.replace(part, target)
        return True, size, target.stat().st_size
    except DecodeError as error:
        return str(error).removeprefix(f"{source}: ")
    except (OSError, av.FFmpegError) as error:
        raise DataError(f"cannot write {target}: {error.strerror or error}") from None
