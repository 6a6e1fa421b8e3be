"""Copy the videos of a list once into a small format that decodes fast at any frame."""

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Annotated, ClassVar, Literal, NamedTuple

import av
from annotated_types import Ge

from vidssl.apps.shrink.encode_copies import encode_frames, encode_key_frames, sign, signature_of
from vidssl.base.atomic import write_json
from vidssl.base.config import config_differences
from vidssl.base.errors import ConfigError, DataError, DecodeError
from vidssl.base.output_folder import check_file_names, claim, only_run_in
from vidssl.base.progress import Report
from vidssl.base.progress import progress as bar
from vidssl.base.safe_parse import read_json
from vidssl.base.worker_pool import ItemGuard, Pool, ordered, usable_cpus
from vidssl.data.allowed_paths import existing_path, is_folder
from vidssl.data.list_identity import COPIES
from vidssl.data.video_list import VideoList
from vidssl.data.write_lists import copy_list, place_of_copy
from vidssl.jobs.job import Count, File, Positive, Videos, job, path_of, read_videos, reading
from vidssl.video.frame_folder import is_image
from vidssl.video.packed_frames import EncodedVideo, ShardWriter
from vidssl.video.reader import MAX_PIXELS, open_video, state_of_video

SHARD_SIZE = 512  # MB


class Copied(NamedTuple):
    """The result for a video."""

    is_new: bool  # not a copy of an earlier run
    before: int  # bytes of the original
    after: int  # bytes of the copy


class EncodedCopy(NamedTuple):
    """A video that is to be stored."""

    before: int  # bytes of the original
    changed: int  # its modification time, nanoseconds
    video: EncodedVideo


@dataclass(frozen=True)
class ShrinkSettings:
    """The format of the copies in a folder, written to its `shrink.json`: video files."""

    short_side: int = 128  # pixels
    quality: int = 18  # x264's CRF: 0 is lossless, 51 the worst
    fps: float | None = None  # of image folders if the list has no column fps

    qualities: ClassVar[tuple[int, int]] = (0, 51)


@dataclass(frozen=True)
class FrameSettings:
    """The format of the copies in a folder, written to its `shrink.json`: packed frames."""

    short_side: int = 128  # pixels
    quality: int = 90  # of JPEG or WebP: 100 is the best
    fps: float | None = None  # of image folders if the list has no column fps
    format: str = "jpeg"  # or "webp"

    qualities: ClassVar[tuple[int, int]] = (1, 100)


def original_state(size: int, changed: int) -> int:
    """A number (63 bits) that is another one if the size or the modification time of an original is."""
    digest = hashlib.sha256(f"{size} {changed}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


class KeyFrameVideos:
    """Copies that are H.264 in MP4 with key frames only and without sound, whatever their suffix.

    FFmpeg detects the format by content. An image folder becomes a video file of the folder's name. A copy gets its
    name, its signature and its original's modification time when it is complete.
    """

    def __init__(self, root: Path, out: Path, settings: ShrinkSettings, max_pixels: int) -> None:
        self._root, self._out, self._settings, self._max_pixels = root, out, settings, max_pixels

    def open(self) -> None:
        """Do nothing: the copies are their own index."""

    def __enter__(self) -> "KeyFrameVideos":
        return self

    def __exit__(self, *_: object) -> None:
        pass  # copies are complete one by one

    def copy(self, name: str, fps: float | None, alive: Callable[[], None]) -> Copied | str:
        """Make a copy, unless it is there; called in a worker. Returns the reason if the file cannot be decoded."""
        source, target = Path(existing_path(self._root, name)), self._out / name
        part = _partial(target)
        try:
            size, changed = state_of_video(str(source)) or (0, 0)  # if it is missing, opening it says so
            signature = signature_of(target) if target.exists() else None
            if signature is not None and (signature.size, signature.changed) == (size, changed):
                return Copied(False, size, target.stat().st_size)
            target.parent.mkdir(parents=True, exist_ok=True)
            if part.is_symlink():  # nothing is written through it
                part.unlink()
            with open_video(source, max_pixels=self._max_pixels, fps=fps) as video:
                short_side, quality = self._settings.short_side, self._settings.quality
                encode_key_frames(video, part, short_side, quality, self._max_pixels, alive)
            with open_video(part) as copy:
                count, expected = copy.meta.num_frames, video.meta.num_frames
            if count != expected:
                raise DecodeError(f"its copy has {count} of {expected} frames")
            sign(part, size, changed)
            os.utime(part, ns=(changed, changed))
            os.replace(part, target)
            return Copied(True, size, target.stat().st_size)
        except DecodeError as error:
            return str(error).removeprefix(f"{source}: ")
        except (OSError, av.FFmpegError) as error:
            raise DataError(f"cannot write {target}: {error.strerror or error}") from None

    def check(self, names: Iterable[str]) -> None:
        """Raise a DataError if a file under the name of a copy is not one: call it before the work."""
        check_file_names(self._out, names)
        for name in names:
            source, target = Path(existing_path(self._root, name)), self._out / name
            try:
                if not os.path.lexists(target):
                    continue
                if source.exists() and target.samefile(source):
                    raise DataError(f"{target} is the original: choose another folder for the copies")
                if not target.is_file() or signature_of(target) is None:
                    raise DataError(
                        f"{target} is there already and is no copy that vidssl made, or was changed since: choose "
                        "another folder for the copies, or move it away"
                    )
            except OSError as error:
                raise DataError(f"cannot read {target}: {error.strerror}; choose another folder") from None

    def clean(self, name: str) -> None:
        """Delete what an attempt to copy has left."""
        with suppress(OSError):  # a complete copy has another name
            _partial(self._out / name).unlink()

    def store(self, name: str, copied: Copied) -> Copied:
        """Return the sizes: the worker has stored the copy."""
        return copied


def _partial(target: Path) -> Path:
    """The path that is written first, short and the same in each run: the next one overwrites what was left."""
    return target.parent / f".{hashlib.sha256(target.name.encode()).hexdigest()[:16]}.part"


class PackedFormat:
    """Copies whose frames are images in tar files with an index.

    Workers encode whole videos in memory, and the main process writes them in the order of the list: the shards do not
    depend on the number of workers. A changed original is added again; the frames of before stay in their shard, where
    the index no longer refers to them.
    """

    def __init__(self, root: Path, out: Path, settings: FrameSettings, max_pixels: int, shard_size: int) -> None:
        self._root, self._settings, self._max_pixels = root, settings, max_pixels
        self._out, self._shard_bytes = out, shard_size * 10**6

    def open(self) -> None:
        """Read the index of what is packed already, with the folder locked."""
        self._writer = ShardWriter(self._out, self._settings.format, self._shard_bytes)

    def __enter__(self) -> "PackedFormat":
        self._writer.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._writer.__exit__(*error)

    def copy(self, name: str, fps: float | None, alive: Callable[[], None]) -> Copied | EncodedCopy | str:
        """Encode a video, unless it is packed already; called in a worker. Returns the reason if that is impossible."""
        source = Path(existing_path(self._root, name))
        size, changed = state_of_video(str(source)) or (0, 0)
        row = self._writer.index.find(name)
        if row is not None and self._writer.index.state(row)[1] == original_state(size, changed):
            return Copied(False, size, self._writer.index.state(row)[0])
        try:
            with open_video(source, max_pixels=self._max_pixels, fps=fps) as video:
                settings = self._settings
                encoded = encode_frames(video, settings.short_side, settings.format, settings.quality, alive)
        except DecodeError as error:
            return str(error).removeprefix(f"{source}: ")
        return EncodedCopy(size, changed, encoded)

    def check(self, names: Iterable[str]) -> None:
        """Do nothing: `claim` has checked the files of the folder."""

    def clean(self, name: str) -> None:
        """Do nothing: workers write no files."""

    def store(self, name: str, copied: Copied | EncodedCopy) -> Copied:
        """Write an encoded video to a shard, and return the sizes."""
        if isinstance(copied, Copied):
            return copied
        self._writer.add(name, original_state(copied.before, copied.changed), copied.video)
        return Copied(True, copied.before, len(copied.video.content))


__all__ = ["FrameSettings", "ShrinkSettings", "Shrunk", "shrink", "shrink_list"]


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

    @property
    def complete(self) -> bool:
        """Whether no file was left out."""
        return not self.left_out

    def __str__(self) -> str:
        failed = "".join(f"left out: {name}: {reason}\n" for name, reason in self.left_out.items())
        total = self.made + self.kept + len(self.left_out)
        larger = (
            "the copies are larger than the originals, which are small or strongly compressed: they decode faster at "
            "any frame; a smaller short side or another quality saves space\n"
        )
        return (
            f"{failed}{total} files: {self.made} copied, {self.kept} were there, {len(self.left_out)} left out\n"
            f"{self.before / 1e6:.1f} MB -> {self.after / 1e6:.1f} MB in {self.seconds:.0f} s\n"
            f"{larger if self.after > self.before else ''}list: {self.list}"
        )


@job
def shrink(
    videos: Videos,
    *,
    out: File,
    root: File | None = None,
    fps: Positive | None = None,
    max_pixels: Count | None = None,
    timeout: Positive = 120.0,
    workers: Count | None = None,
    to: Literal["video", "frames"] = "video",
    short_side: Annotated[int, Ge(2)] = 128,
    quality: int | None = None,
    format: Literal["jpeg", "webp"] | None = None,
    shard_size: Count | None = None,
    pool: Pool = ordered,
    progress: Report = None,
) -> Shrunk:
    """Copy videos into a small format that decodes fast.

    A copy has the frames of the original, upright, in the same order and at the same times, and its name in the root;
    the list is written there too. An interrupted job resumes, and a changed original is copied again.

    Args:
        videos: The videos, as in `extract`.
        out: Output folder.
        root: Folder of the videos of a list (default: the one in root.txt).
        fps: Frame rate of image folders if the list has no column fps.
        max_pixels: Largest frame, width times height (default 4096 x 4096).
        timeout: Seconds without a new frame.
        workers: Processes (default: one per usable CPU).
        to: Video is a file for each, H.264; frames are images in tar files with an index, twice as fast.
        short_side: Pixels; smaller videos keep theirs.
        quality: Of video x264's CRF, from 0, lossless, to 51 (default 18); of frames from 1 to 100, the best (default
            90).
        format: Of frames (default jpeg): webp is smaller and slower to read.
        shard_size: Of a tar file of frames, MB (default 512).
        pool: Runs the workers, such as on other machines.
        progress: As of `check`.
    """
    if to == "frames":
        default: ShrinkSettings | FrameSettings = FrameSettings(short_side, 90, fps, format or "jpeg")
    else:
        of_frames = [] if format is None else [f'format="{format}"']
        of_frames += [] if shard_size is None else [f"shard_size={shard_size}"]
        if of_frames:
            raise ConfigError(f'{" and ".join(of_frames)} are for to="frames": leave them out, or add it')
        default = ShrinkSettings(short_side, 18, fps)
    settings = default if quality is None else replace(default, quality=quality)
    low, high = settings.qualities
    if not low <= settings.quality <= high:
        raise ConfigError(f'quality={quality} is not from {low} to {high}, the range of to="{to}"')
    return shrink_list(
        videos,
        Path(out),
        settings,
        root=root,
        max_pixels=max_pixels,
        timeout=timeout,
        workers=workers or usable_cpus(),
        shard_size=shard_size or SHARD_SIZE,
        pool=pool,
    )


def shrink_list(
    videos: Videos,
    out: Path,
    settings: ShrinkSettings | FrameSettings,
    *,
    root: File | None = None,
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
    listed = read_videos(videos, reading(root))
    if out.resolve() == listed.root.resolve():
        raise DataError(f"{out} is the folder of the originals: choose another folder for the copies")
    _check_settings(out, settings)
    rates = _frame_rates(listed, settings)
    pixels = max_pixels or MAX_PIXELS
    copies: KeyFrameVideos | PackedFormat
    if isinstance(settings, FrameSettings):
        copies = PackedFormat(listed.root, out, settings, pixels, shard_size)
    else:
        copies = KeyFrameVideos(listed.root, out, settings, pixels)
    copies.check(rates)
    result = Shrunk(place_of_copy(listed, out, out))
    claim(out, "copies", inputs={"root": listed.root}, read=[path_of(videos)])
    with only_run_in(out):  # two runs would write to the same files
        copies.open()
        if not (out / COPIES).exists():
            write_json(out / COPIES, asdict(settings))

        # A failed item becomes the reason why its file is left out.
        copy = partial(_copy, copies, [*rates.items()])
        results = pool(copy, range(len(rates)), workers, timeout=timeout, on_failure=lambda number, reason: None)
        with copies:
            for name, copied in zip(rates, bar(results, title="shrink", unit="file", total=len(rates)), strict=True):
                if isinstance(copied, str):
                    result.left_out[name] = copied
                    continue
                is_new, before, after = copies.store(name, copied)
                result.made, result.kept = result.made + is_new, result.kept + (not is_new)
                result.before, result.after = result.before + before, result.after + after
        copy_list(listed, out, out, [None if _normal(name) in result.left_out else name for name in listed.names])
    result.seconds = time.monotonic() - started
    return result


def _copy(
    copies: KeyFrameVideos | PackedFormat, files: Sequence[tuple[str, float | None]], number: int, guard: ItemGuard
) -> Copied | EncodedCopy | str:
    """Make the copy of a file, of which name and frame rate are in `files`."""
    name, fps = files[number]
    try:
        if number in guard.failed:
            return guard.failed[number]
        alive = partial(guard.at, number)
        alive()
        return copies.copy(name, fps, alive)
    finally:
        copies.clean(name)


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
                raise ConfigError(f"{name} is an image folder without a frame rate: give fps=RATE or a column fps")
            if rates.setdefault(name, rate) != rate:
                raise ConfigError(f"{name} has {rates[name]} and {rate} fps in {listed.path}: a copy has one rate")
        elif is_image(Path(record.path)) and isinstance(settings, ShrinkSettings):
            raise DataError(
                f"{name!r} in {listed.path} is an image, and only videos are shrunk: remove the row, or use "
                'to="frames", which takes images too'
            )
        rates[name] = rate
    return rates


def _normal(name: str) -> str:
    """A name without `./` and the like: two spellings are one file."""
    return str(PurePosixPath(name))


def _check_settings(out: Path, settings: ShrinkSettings | FrameSettings) -> None:
    """Compare the `shrink.json` that is there with the settings."""
    file = out / COPIES
    if not file.exists():
        return
    try:
        there = read_json(file)
    except ValueError as error:
        raise DataError(f"{file} is damaged: {error}; choose another folder") from None
    if differences := [f"{name} is {a}, not {b}" for name, a, b in config_differences(there, asdict(settings))]:
        raise ConfigError(f"{out} holds copies of other settings ({'; '.join(differences)}): choose another folder")
