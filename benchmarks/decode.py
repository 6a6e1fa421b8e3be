"""Time decoding against other readers and a decode-only reference.

    python benchmarks/decode.py --videos FOLDER [--file FILE …]

Two random windows of 2.56 s of one video, 8 frames each, at the native size: what one sample of a training with two
views needs. CPU milliseconds a clip, one thread, file opened each time. In each round all readers get the same two
windows. The reference decodes the span of the windows and skips what no frame refers to, but makes no image of it.

With `--backends pyav nvdec` vidssl's own decoders are compared instead, in wall time, as a GPU decodes beside the CPU.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from av.video.reformatter import VideoReformatter
from measure import finish, kinetics_like, one_thread, paired, ratio, table, with_ffmpeg_of_pyav

from vidssl.base.keyed_generators import generator
from vidssl.data.clip_samplers import Random
from vidssl.video import open_video
from vidssl.video.open_container import frame_packets, open_container
from vidssl.video.packet_index import Packets, read_packets

SAMPLER = Random(Random.Config(frames=8, seconds=2.56))
MAX_PIXELS = 1 << 26


class Windows:
    """A file and its random windows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with open_video(path) as video:
            self.meta = video.meta
        with open_container(path, MAX_PIXELS) as container:
            self.packets: Packets = read_packets(container, path, MAX_PIXELS)

    def __call__(self, number: int) -> list[np.ndarray]:
        """Two windows (8,) of frame numbers."""
        return [clip.indices for clip in SAMPLER(self.meta, [generator(number, view) for view in range(2)])]


def vidssl_reader(windows: Windows, number: int, backend: str = "pyav") -> object:
    """As `ClipDataset` does: the union of both windows in one pass."""
    with open_video(windows.path, backend) as video:
        return video.frames(np.unique(np.concatenate(windows(number))))


def vidssl_twice(windows: Windows, number: int) -> object:
    """One pass for each window."""
    with open_video(windows.path) as video:
        return [video.frames(window) for window in windows(number)]


def decoded(windows: Windows, wanted: np.ndarray, skip: bool) -> Iterator[Any]:
    """Decode from the key frame before the first wanted frame to the last one; give the wanted ones, no picture."""
    packets, asked = windows.packets, set(wanted.tolist())
    assert packets.frame_of is not None and packets.keys is not None  # of all files that are measured
    stamp, start = None, packets.keys[packets.frame_of[packets.keys] <= wanted.min()].max()
    with open_container(windows.path, MAX_PIXELS) as container:
        codec, feed = (container.streams.video[0].codec_context, enumerate(frame_packets(container, windows.path)))
        if start > 0 and packets.key_times is not None:
            stamp = int(packets.key_times[np.searchsorted(packets.keys, start)])
            container.seek(stamp, stream=container.streams.video[0])
            feed = enumerate(frame_packets(container, windows.path), int(start))
        for place, packet in feed:
            assert place != start or stamp in (None, packet.pts, packet.dts)  # the seek led where it should
            packet.pts = int(packets.frame_of[place])
            if skip:
                codec.skip_frame = "DEFAULT" if packet.pts in asked else "NONREF"
            yield from (frame for frame in codec.decode(packet) if frame.pts in asked)
            if place == packets.packet_of[wanted].max():
                break
        yield from (frame for frame in codec.decode(None) if frame.pts in asked)


def decode_only(windows: Windows, number: int) -> object:
    """Only decode, skipping."""
    union = np.unique(np.concatenate(windows(number)))
    count = sum(1 for _ in decoded(windows, union, skip=True))
    assert count == len(union)
    return count


def pyav_plain(windows: Windows, number: int) -> object:
    """What a careful person writes with PyAV: seek, decode, convert what is wanted; once for each window."""
    reformatter = VideoReformatter()
    return [
        [reformatter.reformat(frame, format="rgb24").to_ndarray() for frame in decoded(windows, window, skip=False)]
        for window in windows(number)
    ]


def torchcodec_reader(mode: str, windows: Windows, number: int) -> object:
    """One request for all 16 frames."""
    from torchcodec.decoders import VideoDecoder

    decoder = VideoDecoder(str(windows.path), num_ffmpeg_threads=1, seek_mode=mode, dimension_order="NHWC")
    return decoder.get_frames_at(np.concatenate(windows(number)).tolist()).data


def decord_reader(windows: Windows, number: int) -> object:
    """One request for all 16 frames."""
    import decord

    reader = decord.VideoReader(str(windows.path), ctx=decord.cpu(0), num_threads=1)
    return reader.get_batch(np.concatenate(windows(number)).tolist()).asnumpy()


def opencv_reader(windows: Windows, number: int) -> object:
    """Seek to each window and read on."""
    capture, found = cv2.VideoCapture(str(windows.path), cv2.CAP_FFMPEG, [cv2.CAP_PROP_N_THREADS, 1]), []
    for window in windows(number):
        asked = set(window.tolist())
        capture.set(cv2.CAP_PROP_POS_FRAMES, int(window.min()))
        for place in range(int(window.min()), int(window.max()) + 1):
            capture.grab()
            if place in asked:
                found.append(cv2.cvtColor(capture.retrieve()[1], cv2.COLOR_BGR2RGB))
    capture.release()
    return found


def pytorchvideo_reader(windows: Windows, number: int) -> object:
    """Two `get_clip`, of which 8 frames each are kept."""
    from pytorchvideo.data.encoded_video import EncodedVideo

    video, fps, found = EncodedVideo.from_path(str(windows.path), decode_audio=False), windows.meta.fps, []
    for window in windows(number):
        clip = video.get_clip(float(window.min() / fps), float((window.max() + 1) / fps))["video"]
        found.append(clip[:, np.linspace(0, clip.shape[1] - 1, 8).astype(int)])
    return found


Reader = Callable[[Windows, int], object]
REFERENCE = "decode-only reference, skipping"
READERS: dict[str, Reader] = {
    REFERENCE: decode_only,
    "**vidssl**": vidssl_reader,
    "vidssl, two passes": vidssl_twice,
    "PyAV, two passes": pyav_plain,
    "torchcodec, exact": partial(torchcodec_reader, "exact"),
    "torchcodec, approximate": partial(torchcodec_reader, "approximate"),
    "decord": decord_reader,
    "OpenCV": opencv_reader,
    "pytorchvideo": pytorchvideo_reader,
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--videos", type=Path, required=True, help="folder of videos to make clips like Kinetics from")
    parser.add_argument("--file", type=Path, nargs="*", default=[], help="further files, measured as they are")
    parser.add_argument("--backends", nargs="+", help="only these decoders of vidssl: pyav, torchcodec, nvdec …")
    parser.add_argument("--clips", type=int, default=4, help="clips of each kind")
    parser.add_argument("--seconds", type=int, default=10, help="length of these clips")
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--json", type=Path, help="file for all figures")
    parsed = parser.parse_args()
    with_ffmpeg_of_pyav()
    one_thread()
    readers, base, clock = READERS, "**vidssl**", time.process_time
    if parsed.backends:
        readers = {name: partial(vidssl_reader, backend=name) for name in parsed.backends}
        base, clock = parsed.backends[0], time.perf_counter
    ours = base.strip("*")
    with tempfile.TemporaryDirectory() as folder:
        made = parsed.clips, parsed.seconds
        files = {f"GOP {gop}": kinetics_like(parsed.videos, Path(folder, str(gop)), gop, *made) for gop in (12, 250)}
        figures: dict[str, dict[str, Any]] = {}
        for title, paths in {**files, **{path.name: [path] for path in parsed.file}}.items():
            windows = [Windows(path) for path in paths]

            def read(reader: Reader, number: int, windows: list[Windows] = windows) -> object:
                return reader(windows[number % len(windows)], number)

            times = paired({name: partial(read, reader) for name, reader in readers.items()}, parsed.rounds, clock)
            for name in readers:
                figures.setdefault(name, {})[title] = {
                    "ms": float(np.median(times[name])) / 2,
                    f"to_{ours}": ratio(times, name, base),
                }
                if REFERENCE in readers:
                    figures[name][title]["to_reference"] = ratio(times, name, REFERENCE)
    titles = list(next(iter(figures.values())))
    rows = [
        [name, *(f"{cell['ms']:.1f} ({cell[f'to_{ours}']:.2f})" for cell in figures[name].values())] for name in figures
    ]
    print(table([f"ms per clip (times {ours})", *titles], rows))
    if REFERENCE in readers:
        rows = [["vidssl / reference", *(f"{cell['to_reference']:.2f}" for cell in figures[base].values())]]
        print("\n" + table(["", *titles], rows))
    finish({"rounds": parsed.rounds, "decode": figures}, parsed.json)


if __name__ == "__main__":
    main()
