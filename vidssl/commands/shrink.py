"""The command `shrink`: copy the videos of a list once into a small format that decodes fast at any frame."""

import argparse
import sys
import time
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from vidssl.atomic import write_json
from vidssl.commands.arguments import print_results
from vidssl.commands.copy_formats import SHARD_SIZE, FrameSettings, KeyFrameVideos, PackedFrames, ShrinkSettings
from vidssl.config import differences
from vidssl.data.fingerprint import COPIES
from vidssl.data.path_rules import is_folder
from vidssl.data.read_input import read_input
from vidssl.data.video_list import VideoList
from vidssl.data.write_lists import copy_list, place_of_copy
from vidssl.errors import ConfigError, DataError
from vidssl.output_folder import MARK, claim, json_with, only_run_in
from vidssl.progress import progress
from vidssl.read_files import read_json
from vidssl.video.frame_folder import is_image
from vidssl.video.reader import MAX_PIXELS
from vidssl.worker_pool import ItemGuard, Pool, ordered

__all__ = ["FrameSettings", "ShrinkSettings", "Shrunk", "run", "shrink_list"]


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
        larger = (
            "the copies are larger than the originals, which are small or strongly compressed: they decode faster at "
            "any frame; a smaller --short-side or another --quality saves space\n"
        )
        return (
            f"{failed}{total} files: {self.made} copied, {self.kept} were there, {len(self.left_out)} left out\n"
            f"{self.before / 1e6:.1f} MB -> {self.after / 1e6:.1f} MB in {self.seconds:.0f} s\n"
            f"{larger if self.after > self.before else ''}list: {self.list}"
        )


def run(parsed: argparse.Namespace, pool: Pool = ordered) -> None:
    """Copy the videos, and exit with 1 if some cannot be decoded."""
    if parsed.to == "frames":
        quality, kind, size = (
            90 if parsed.quality is None else parsed.quality,
            parsed.format or "jpeg",
            parsed.shard_size or SHARD_SIZE,
        )
        settings: ShrinkSettings | FrameSettings = FrameSettings(parsed.short_side, quality, parsed.fps, kind)
    else:
        given = ("format", parsed.format), ("shard-size", parsed.shard_size)
        if names := [f"--{name}" for name, value in given if value is not None]:
            raise ConfigError(f"{' and '.join(names)} are for --to frames: leave them out, or add it")
        size, quality = SHARD_SIZE, 18 if parsed.quality is None else parsed.quality
        settings = ShrinkSettings(parsed.short_side, quality, parsed.fps)
    low, high = settings.qualities
    if not low <= settings.quality <= high:
        raise ConfigError(f"--quality {settings.quality} is not from {low} to {high}, the range of --to {parsed.to}")
    options = {name: getattr(parsed, name) for name in ("root", "max_pixels", "timeout", "workers")}
    shrunk = shrink_list(parsed.input, parsed.out, settings, shard_size=size, pool=pool, **options)
    print_results(parsed, shrunk, shrunk)
    if shrunk.left_out:
        sys.exit(1)


def shrink_list(
    videos: Path,
    out: Path,
    settings: ShrinkSettings | FrameSettings,
    *,
    root: Path | None = None,
    max_pixels: int | None = None,
    timeout: float = 120.0,
    workers: int = 1,
    shard_size: int = SHARD_SIZE,
    pool: Pool = ordered,
) -> Shrunk:
    """Copy every file of a list into a folder, under the name that it has in its root; write the list there too.

    The settings choose the format: `KeyFrameVideos` or `PackedFrames` describe it. A copy has the frames of the
    original, upright, in the same order and at the same times, so spans in lists stay valid. An interrupted run
    resumes, and a changed original is copied again. `shard_size` is in MB. `pool` runs the workers.
    """
    started = time.monotonic()
    listed = read_input(videos, root)
    if out.resolve() == listed.root.resolve():
        raise DataError(f"{out} is the folder of the originals: choose another folder for the copies")
    _check_settings(out, settings)
    rates = _frame_rates(listed, settings)
    names, pixels = list(rates), max_pixels or MAX_PIXELS
    copies: KeyFrameVideos | PackedFrames
    if isinstance(settings, FrameSettings):
        copies = PackedFrames(listed.root, out, settings, pixels, shard_size)
    else:
        copies = KeyFrameVideos(listed.root, out, settings, pixels)
    older = json_with(COPIES, "short_side", "quality")  # copies of a version without marks and signatures
    copies.check(names, older(out) and not (out / MARK).exists())
    result = Shrunk(place_of_copy(listed, out, out))
    claim(out, "copies", [COPIES, *copies.files], inputs={"root": listed.root}, read=[videos], before=older)
    with only_run_in(out):  # two runs would write to the same files
        copies.open()
        if not (out / COPIES).exists():
            write_json(out / COPIES, asdict(settings))

        def copy(number: int, guard: ItemGuard) -> Any:
            name = names[number]
            try:
                if number in guard.failed:
                    return guard.failed[number]
                alive = partial(guard.at, number)
                alive()
                return copies.copy(name, rates[name], alive)
            finally:
                copies.clean(name)

        # A failed item becomes the reason why its file is left out.
        made = pool(copy, range(len(names)), workers, timeout=timeout, on_failure=lambda number, reason: None)
        with copies:
            for name, copied in zip(names, progress(made, title="shrink", unit="file", total=len(names)), strict=True):
                if isinstance(copied, str):
                    result.left_out[name] = copied
                    continue
                is_new, before, after = copies.store(name, copied)
                result.made, result.kept = result.made + is_new, result.kept + (not is_new)
                result.before, result.after = result.before + before, result.after + after
        copy_list(listed, out, out, [None if _normal(name) in result.left_out else name for name in listed.names])
    result.seconds = time.monotonic() - started
    return result


def _frame_rates(listed: VideoList, settings: ShrinkSettings | FrameSettings) -> dict[str, float | None]:
    """The files of a list, and the frame rates of those that are image folders."""
    rates: dict[str, float | None] = {}
    for written, record in zip(listed.names, listed.records, strict=True):
        path, name, rate = PurePosixPath(written), _normal(written), None
        # Below another root such a name is the same file, or a file beside the copies.
        if path.is_absolute() or ".." in path.parts:
            raise DataError(f"{name!r} in {listed.path} is outside of the root {listed.root}: move the file there")
        if is_folder(record.path):
            rate = record.fps or settings.fps
            if rate is None:
                raise ConfigError(f"{name} is an image folder without a frame rate: give --fps or a column fps")
            if rates.setdefault(name, rate) != rate:
                raise ConfigError(f"{name} has {rates[name]} and {rate} fps in {listed.path}: a copy has one rate")
        elif is_image(Path(record.path)) and isinstance(settings, ShrinkSettings):
            raise DataError(
                f"{name!r} in {listed.path} is an image, and only videos are shrunk: remove the row, or use "
                "--to frames, which takes images too"
            )
        rates[name] = rate
    return rates


def _normal(name: str) -> str:
    """A name without `./` and the like: two spellings are one file."""
    return str(PurePosixPath(name))


def _check_settings(out: Path, settings: ShrinkSettings | FrameSettings) -> None:
    """Compare the `shrink.json` that is there with the settings."""
    file, wanted = out / COPIES, asdict(settings)
    if not file.exists():
        return
    try:
        there = read_json(file)
    except ValueError as error:
        raise DataError(f"{file} is damaged: {error}; choose another folder") from None
    if other := [f"{name} is {a}, not {b}" for name, a, b in differences(there, wanted)]:
        raise ConfigError(f"{out} holds copies of other settings ({'; '.join(other)}): choose another folder")
