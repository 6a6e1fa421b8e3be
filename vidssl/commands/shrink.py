"""Copy the videos of a list once into a form made for training: small, and quick to decode at any frame."""

import hashlib
import itertools
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import av
import cv2
import numpy as np

from vidssl.atomic import state_of
from vidssl.config import differences
from vidssl.data.fingerprint import COPIES
from vidssl.data.video_list import VideoList, copy_list, place_of_copy, read_list
from vidssl.engine.resume import only_run_in
from vidssl.errors import ConfigError, DataError, DecodeError
from vidssl.progress import progress
from vidssl.video.container import open_container, video_packets
from vidssl.video.decode import Image
from vidssl.video.frame_folder import is_image
from vidssl.video.reader import MAX_PIXELS, Video, open_video
from vidssl.workers import ItemGuard, ordered


@dataclass(frozen=True)
class Settings:
    """What decides how a copy looks; a folder of copies has one of it, in `shrink.json`."""

    short_side: int = 128  # pixels, of what is larger
    quality: int = 18  # x264's CRF: 0 is lossless, 51 the worst
    fps: float | None = None  # of folders of images whose list does not say


@dataclass(frozen=True)
class Options:
    """What else a tool can be told."""

    root: Path | None = None
    max_pixels: int = MAX_PIXELS
    timeout: float = 120.0  # seconds without a frame after which a decoder is said to hang
    workers: int = 1


@dataclass(frozen=True)
class Shrunk:
    """What was copied; `str()` is the report that a tool prints."""

    list: Path
    made: int  # copies
    kept: int  # copies that were there already
    left_out: dict[str, str]  # names of files that cannot be decoded, and why
    before: int  # bytes, of all that there is a copy of
    after: int
    seconds: float

    def __str__(self) -> str:
        lines = [f"left out: {name}: {reason}" for name, reason in self.left_out.items()]
        total = self.made + self.kept + len(self.left_out)
        lines.append(
            f"{total} files: {self.made} copied, {self.kept} were there, {len(self.left_out)} left out"
        )
        lines.append(f"{self.before / 1e6:.1f} MB -> {self.after / 1e6:.1f} MB in {self.seconds:.0f} s")
        lines.append(f"list: {self.list}")
        return "\n".join(lines)


def shrink(videos: Path, out: Path, settings: Settings, options: Options) -> Shrunk:
    """Copy every file of a list into a folder, under the name that it has in its root.

    A copy is H.264 in MP4 with key frames only and without sound, whatever its name ends in: FFmpeg goes by the
    content. It has the frames of the original, upright, in the same order and at the same times, and the
    same number of them in a second: spans in lists mean what they meant. So every list of these videos works with
    the folder as its root; the list itself is written there too, without what cannot be decoded.

    A folder of images becomes a video file of the folder's name. Each copy is written aside and gets its name and
    its original's time of change when it is complete: a run that was stopped goes on where it was, and a
    changed original is copied anew.

    Args:
        videos: The list.
        out: Folder for the copies.
        settings: How they look.
        options: Limits.

    Raises:
        DataError: The list cannot be read or names what lies outside of its root, or nothing can be written.
        ConfigError: The folder holds copies of other settings, or nobody says the frames per second of a
            folder of images.
    """
    started = time.monotonic()
    listed = read_list(videos, options.root)
    if out.resolve() == listed.root.resolve():
        raise DataError(f"{out} is where the videos are: choose another folder for the copies")
    place_of_copy(listed, out, out)
    tasks = _tasks(listed, settings)
    with only_run_in(out):  # two runs would write to the same files
        _agree(out, settings)
        made = kept = before = after = 0
        left_out: dict[str, str] = {}
        copies = ordered(
            lambda task, guard: _copy(task, guard, listed.root, out, settings, options.max_pixels),
            tasks,
            options.workers,
            timeout=options.timeout,
            on_failure=lambda number, reason: None,  # it comes back as the reason why its file is left out
        )
        bar = progress(copies, title="shrink", unit="file", total=len(tasks))
        for task, copy in zip(tasks, bar, strict=True):
            if copy.failure is not None:
                left_out[task.name] = copy.failure
                continue
            made, kept = made + copy.new, kept + (not copy.new)
            before, after = before + copy.before, after + copy.after
        names = [None if _plain(name) in left_out else name for name in listed.names]
        path = copy_list(listed, out, out, names)
    return Shrunk(path, made, kept, left_out, before, after, time.monotonic() - started)


class _Task(NamedTuple):
    number: int
    name: str
    fps: float | None  # of a folder of images


class _Copy(NamedTuple):
    """What came of a file."""

    new: bool = False  # False: the copy was there
    before: int = 0  # bytes
    after: int = 0
    failure: str | None = None  # there is no copy, and why


def _tasks(listed: VideoList, settings: Settings) -> list[_Task]:
    """One task for each file."""
    rates: dict[str, float | None] = {}
    for written, record in zip(listed.names, listed.records, strict=True):
        path, name, rate = PurePosixPath(written), _plain(written), None
        # Such a name means the same file whatever the root is, or one beside the copies.
        if path.is_absolute() or ".." in path.parts:
            raise DataError(
                f"{name!r} in {listed.path} is not below the root {listed.root}: move the file there"
            )
        if is_image(Path(record.path)) and not Path(record.path).is_dir():
            raise DataError(
                f"{name!r} in {listed.path} is an image: only videos are shrunk; take it off the list"
            )
        if Path(record.path).is_dir():
            rate = record.fps or settings.fps
            if rate is None:
                raise ConfigError(f"{name} is a folder of images: give --fps or a column fps")
            if rates.setdefault(name, rate) != rate:
                raise ConfigError(f"{name} has {rates[name]} and {rate} fps in {listed.path}: a copy has one")
        rates[name] = rate
    return [_Task(number, name, rate) for number, (name, rate) in enumerate(rates.items())]


def _plain(name: str) -> str:
    """A name without `./` and the like: two spellings are one file."""
    return str(PurePosixPath(name))


def _agree(out: Path, settings: Settings) -> None:
    """Write the settings down, or hold them against those of the copies that are there."""
    file, asked = out / COPIES, asdict(settings)
    try:
        if not file.exists():
            file.with_suffix(".part").write_text(json.dumps(asked, indent=2) + "\n", encoding="utf-8")
            os.replace(file.with_suffix(".part"), file)
        there = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"cannot write {file}: {error.strerror}") from None
    except ValueError as error:
        raise DataError(f"{file} is not what was written: {error}; choose another folder") from None
    other = [f"{name} {a} there, {b} asked for" for name, a, b in differences(there, asked)]
    if other:
        raise ConfigError(f"{out} holds copies of other settings ({'; '.join(other)}): choose another folder")


# One file ---------------------------------------------------------------------------------------------------


def _copy(task: _Task, guard: ItemGuard, root: Path, out: Path, settings: Settings, max_pixels: int) -> _Copy:
    source, target = root / task.name, out / task.name
    # Always the same name, so that the next run finds what a killed one left; and short, whatever the target's is.
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
                ticks, base = _ticks(video, max_pixels)
                _write(_frames(video), ticks, base, part, settings, lambda: guard.at(task.number))
            with open_video(part) as copy:
                if copy.meta.num_frames != video.meta.num_frames:
                    raise DecodeError(
                        f"{copy.meta.num_frames} of {video.meta.num_frames} frames are in its copy"
                    )
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


def _ticks(video: Video, max_pixels: int) -> tuple[list[int], Fraction]:
    """When each frame is shown, from 0, and when the last one ends; in what part of a second.

    The file's own time stamps, if they agree with its frames per second, by which vidssl finds a second
    in it: the copy must have the same number of them. Else regular ones.
    """
    count, rate = video.meta.num_frames, Fraction(video.meta.fps).limit_denominator(100_000)
    regular = list(range(count + 1)), 1 / rate
    path = Path(video.path)
    if path.is_dir():
        return regular
    with open_container(path, max_pixels) as container:
        base = container.streams.video[0].time_base
        shown = (packet for packet in video_packets(container, path) if not packet.is_discard)
        stamps = sorted({packet.pts for packet in shown if packet.pts is not None})
    finer = max(1, round(90_000 * base))  # the end of the last frame need not be a multiple of the base
    base /= finer
    ticks = [finer * (stamp - stamps[0]) for stamp in stamps]
    end = round(count / rate / base)
    return ([*ticks, end], base) if len(ticks) == count and end > ticks[-1] else regular


def _frames(video: Video) -> Iterator[Image]:
    try:
        yield from video.iter_frames()
    except DataError:
        raise
    except Exception as error:  # decoders raise what they like; one file must not end the run
        raise DecodeError(f"{type(error).__name__}: {error}") from None


def _write(
    images: Iterator[Image],
    ticks: list[int],
    base: Fraction,
    path: Path,
    settings: Settings,
    alive: Callable[[], None],
) -> None:
    """Encode a video.

    Raises:
        DecodeError: What the images raise, or they have several sizes.
    """
    cv2.setNumThreads(0)  # there are processes enough
    with av.open(f"file:{path}", "w", format="mp4") as container:
        codec = (stream := container.add_stream("libx264", rate=25)).codec_context  # the rate is overruled
        codec.time_base, codec.thread_count, codec.pix_fmt = base, 1, "yuv420p"
        codec.gop_size, codec.max_b_frames = 1, 0  # key frames only: a wanted frame costs one frame
        codec.options = {"crf": str(settings.quality), "preset": "veryfast", "tune": "fastdecode"}
        spans = itertools.pairwise(ticks)
        height = width = 0
        for number, image in enumerate(images):
            alive()
            if number == 0:
                height, width, _ = image.shape
                codec.height, codec.width = _size(height, width, settings.short_side)
            if image.shape[:2] != (height, width):
                other = f"{image.shape[1]}x{image.shape[0]}"
                raise DecodeError(f"its frames have several sizes: {width}x{height} and {other}")
            if number == len(ticks) - 1:
                raise DecodeError(f"more frames come out of it than the {number} of its packets")
            frame = av.VideoFrame.from_ndarray(resized(image, settings.short_side), format="rgb24")
            frame.pts, frame.time_base = ticks[number], base
            _mux(stream.encode(frame), spans, container)
        _mux(stream.encode(), spans, container)


def _mux(packets: list[Any], spans: Iterator[tuple[int, int]], container: Any) -> None:
    for packet in packets:  # in order, as there are key frames only
        start, end = next(spans)
        packet.duration = end - start  # FFmpeg knows that of the last frame from nowhere else
        container.mux(packet)


def resized(image: Image, short_side: int) -> Image:
    """Shrink an image to what a copy holds; where it is small already, only cut off an odd row and column."""
    height, width = _size(image.shape[0], image.shape[1], short_side)
    if height <= image.shape[0] < height + 2 and width <= image.shape[1] < width + 2:
        return np.ascontiguousarray(image[:height, :width])
    # Averages all pixels: of all methods it came closest to a single step from the original to a training crop.
    return np.asarray(cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA), np.uint8)


def _size(height: int, width: int, short_side: int) -> tuple[int, int]:
    """Even sides, not larger than those of the original, but of at least 2 pixels."""
    scale = min(1.0, short_side / min(height, width))
    sides = (min(2 * round(side * scale / 2), side // 2 * 2) for side in (height, width))
    height, width = (max(2, side) for side in sides)
    return height, width
