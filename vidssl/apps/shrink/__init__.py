"""Copy the videos of a list once into a small format that decodes fast at any frame."""

import hashlib
import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Annotated, ClassVar, Literal, NamedTuple

import av
from annotated_types import Ge

from vidssl.apps.shrink.encode_copies import encode_key_frames, has_time_of, original_of, time_of_copy
from vidssl.apps.shrink.pack_frames import EncodedVideo, ShardWriter, encode_frames
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
from vidssl.video.reader import MAX_PIXELS, Video, open_video, state_of_video

__all__ = ["FrameSettings", "ShrinkSettings", "Shrunk", "shrink"]

SHARD_SIZE = 512  # MB


@dataclass(frozen=True)
class ShrinkSettings:
    """The format of the copies in a folder, written to its `shrink.json`: video files."""

    short_side: int = 128  # pixels
    quality: int = 18  # x264's CRF: 0 is lossless, 51 the worst
    fps: float | None = None  # of image folders if the list has no column fps

    qualities: ClassVar[tuple[int, int]] = (0, 51)


@dataclass(frozen=True)
class FrameSettings(ShrinkSettings):
    """The format of the copies in a folder, written to its `shrink.json`: packed frames."""

    quality: int = 90  # of JPEG or WebP: 100 is the best
    format: str = "jpeg"  # or "webp"

    qualities: ClassVar[tuple[int, int]] = (1, 100)


class Original(NamedTuple):
    """A file that is to be copied."""

    name: str  # in the list, and of the copy
    size: int  # bytes
    changed: int  # modification time, nanoseconds

    def state(self) -> int:
        """A number (63 bits) that is another one if the size or the modification time is."""
        digest = hashlib.sha256(f"{self.size} {self.changed}".encode()).digest()
        return int.from_bytes(digest[:8], "little") >> 1


class KeyFrameVideos:
    """Copies that are H.264 in MP4 with key frames only and without sound, whatever their suffix.

    FFmpeg detects the format by content. An image folder becomes a video file of the folder's name. A copy gets its
    name and its original's modification time when it is complete: workers write them one by one.
    """

    def __init__(self, out: Path, settings: ShrinkSettings) -> None:
        self._out, self._settings = out, settings

    def open(self) -> None:
        """Do nothing: the copies are their own index."""

    def close(self) -> None:
        """Do nothing, likewise."""

    def size_of(self, original: Original) -> int | None:
        """Return the bytes of a copy that is there; None: there is none of this original."""
        target = self._out / original.name
        current = target.exists() and _original_of_copy(target) == (original.size, original.changed)
        return target.stat().st_size if current else None

    def encode(self, original: Original, video: Video, max_pixels: int, alive: Callable[[], None]) -> int:
        """Make a copy; return its bytes."""
        target = self._out / original.name
        part = _partial(target)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            if part.is_symlink():  # nothing is written through it
                part.unlink()
            state = original.size, original.changed
            encode_key_frames(video, part, state, self._settings.short_side, self._settings.quality, max_pixels, alive)
            with open_video(part) as copy:
                count, expected = copy.meta.num_frames, video.meta.num_frames
            if count != expected:
                raise DecodeError(f"its copy has {count} of {expected} frames")
            os.utime(part, ns=2 * (time_of_copy(original.changed),))
            os.replace(part, target)
            return target.stat().st_size
        except (OSError, av.FFmpegError) as error:
            raise DataError(f"cannot write {target}: {error.strerror or error}") from None
        finally:
            self.clean(original.name)

    def store(self, original: Original, size: int) -> int:
        """Return the bytes of the copy, which the worker has stored."""
        return size

    def check(self, root: Path, names: Iterable[str]) -> None:
        """Raise a DataError if a file under the name of a copy is not one: call it before the work.

        Those that have the time of the original are opened by workers only.
        """
        check_file_names(self._out, names)
        for name in names:
            source, target = Path(existing_path(root, name)), self._out / name
            try:
                if not os.path.lexists(target):
                    continue
                if source.exists() and target.samefile(source):
                    raise DataError(f"{target} is the original: choose another folder for the copies")
                _, changed = state_of_video(str(source)) or (0, 0)
                if not (target.is_file() and has_time_of(target, changed)):
                    _original_of_copy(target)
            except OSError as error:
                raise DataError(f"cannot read {target}: {error.strerror}; choose another folder") from None

    def clean(self, name: str) -> None:
        """Delete what an attempt to copy has left."""
        with suppress(OSError):  # a complete copy has another name
            _partial(self._out / name).unlink()


def _partial(target: Path) -> Path:
    """The path that is written first, short and the same in each run: the next one overwrites what was left."""
    return target.parent / f".{hashlib.sha256(target.name.encode()).hexdigest()[:16]}.part"


def _original_of_copy(target: Path) -> tuple[int, int]:
    """Size and modification time of the original of a copy; a DataError for another file, which is not replaced."""
    original = original_of(target) if target.is_file() else None
    if original is None:
        raise DataError(f"{target} is not a copy by vidssl, or was changed: choose another folder, or move it away")
    return original


class PackedCopies:
    """Copies whose frames are images in tar files with an index.

    Workers encode whole videos in memory, and the main process writes them in the order of the list: the shards do not
    depend on the number of workers.
    """

    def __init__(self, out: Path, settings: FrameSettings, shard_size: int) -> None:
        self._out, self._settings, self._shard_bytes = out, settings, shard_size * 10**6

    def open(self) -> None:
        """Read the index of what is packed already, with the folder locked."""
        self._writer = ShardWriter(self._out, self._settings.format, self._shard_bytes)

    def close(self) -> None:
        """Complete the shard that is being written, and the index."""
        self._writer.close()

    def size_of(self, original: Original) -> int | None:
        """Return the bytes of a copy that is there; None: there is none of this original."""
        video = self._writer.videos.get(os.fsencode(original.name))
        return int(video.sizes.sum()) if video is not None and video.changed == original.state() else None

    def encode(self, original: Original, video: Video, max_pixels: int, alive: Callable[[], None]) -> EncodedVideo:
        """Encode a video, in a worker."""
        return encode_frames(video, self._settings.short_side, self._settings.format, self._settings.quality, alive)

    def store(self, original: Original, video: EncodedVideo) -> int:
        """Write an encoded video to a shard, and return its bytes."""
        self._writer.add(original.name, original.state(), video)
        return len(video.content)

    def check(self, root: Path, names: Iterable[str]) -> None:
        """Do nothing: `claim` checks the files of the folder."""

    def clean(self, name: str) -> None:
        """Do nothing: workers write no files."""


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
    settings = _settings(to, short_side, quality, format, fps, shard_size)
    started, out = time.monotonic(), Path(out)
    listed = read_videos(videos, reading(root))
    if out.resolve() == listed.root.resolve():
        raise DataError(f"{out} is the folder of the originals: choose another folder for the copies")
    _check_settings(out, settings)
    files = [*_frame_rates(listed, settings).items()]
    copies: KeyFrameVideos | PackedCopies = KeyFrameVideos(out, settings)
    if isinstance(settings, FrameSettings):
        copies = PackedCopies(out, settings, shard_size or SHARD_SIZE)
    copies.check(listed.root, [name for name, _ in files])
    result = Shrunk(place_of_copy(listed, out, out))
    claim(out, "copies", inputs={"root": listed.root}, read=[path_of(videos)])
    with only_run_in(out):  # two runs would write to the same files
        copies.open()
        if not (out / COPIES).exists():
            write_json(out / COPIES, asdict(settings))
        work = partial(_copy, copies, listed.root, files, max_pixels or MAX_PIXELS)
        # A failed item becomes the reason why its file is left out.
        results = pool(
            work, range(len(files)), workers or usable_cpus(), timeout=timeout, on_failure=lambda number, reason: None
        )
        try:
            for original, is_new, content in bar(results, title="shrink", unit="file", total=len(files)):
                if isinstance(content, str):
                    result.left_out[original.name] = content
                    continue
                if is_new:
                    result.made += 1
                    result.after += copies.store(original, content)
                else:
                    result.kept += 1
                    result.after += content
                result.before += original.size
        finally:
            copies.close()
        copy_list(listed, out, out, [None if _normal(name) in result.left_out else name for name in listed.names])
    result.seconds = time.monotonic() - started
    return result


def _settings(
    to: str, short_side: int, quality: int | None, kind: str | None, fps: float | None, shard_size: int | None
) -> ShrinkSettings:
    """The format of the copies; a ConfigError for options of the other one."""
    if to == "frames":
        settings: ShrinkSettings = FrameSettings(short_side, fps=fps, format=kind or "jpeg")
    else:
        of_frames = [] if kind is None else [f'format="{kind}"']
        of_frames += [] if shard_size is None else [f"shard_size={shard_size}"]
        if of_frames:
            raise ConfigError(f'{" and ".join(of_frames)} are for to="frames": leave them out, or add it')
        settings = ShrinkSettings(short_side, fps=fps)
    if quality is not None:
        settings = replace(settings, quality=quality)
    low, high = settings.qualities
    if not low <= settings.quality <= high:
        raise ConfigError(f'quality={quality} is not from {low} to {high}, the range of to="{to}"')
    return settings


def _copy(
    copies: KeyFrameVideos | PackedCopies,
    root: Path,
    files: list[tuple[str, float | None]],
    max_pixels: int,
    number: int,
    guard: ItemGuard,
) -> tuple[Original, bool, int | EncodedVideo | str]:
    """Make the copy of a file in a worker, unless it is there: whether it is new, and its bytes.

    These are all frames of packed ones; or the reason why the file cannot be decoded.
    """
    name, fps = files[number]
    path = Path(existing_path(root, name))
    original = Original(name, *(state_of_video(str(path)) or (0, 0)))  # if it is missing, opening it says so
    if number in guard.failed:
        copies.clean(name)
        return original, False, guard.failed[number]
    guard.at(number)
    try:
        size = copies.size_of(original)
        if size is not None:
            return original, False, size
        with open_video(path, max_pixels=max_pixels, fps=fps) as video:
            return original, True, copies.encode(original, video, max_pixels, partial(guard.at, number))
    except DecodeError as error:
        return original, False, str(error).removeprefix(f"{path}: ")


def _frame_rates(listed: VideoList, settings: ShrinkSettings) -> dict[str, float | None]:
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
        elif is_image(Path(record.path)) and not isinstance(settings, FrameSettings):
            raise DataError(f'{name!r} in {listed.path} is an image: remove the row, or use to="frames"')
        rates[name] = rate
    return rates


def _normal(name: str) -> str:
    """A name without `./` and the like: two spellings are one file."""
    return str(PurePosixPath(name))


def _check_settings(out: Path, settings: ShrinkSettings) -> None:
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
