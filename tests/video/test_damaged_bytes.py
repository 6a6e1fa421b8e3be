"""Bytes flipped in a file: `check` names it if FFmpeg's decoder fails, and no frame is missing without a word."""

from contextlib import suppress
from pathlib import Path

import av
import numpy as np
import pytest

from vidssl.apps.check.file_defects import check_video
from vidssl.base.errors import DecodeError, VidsslError
from vidssl.base.keyed_generators import generator
from vidssl.video.reader import MAX_PIXELS, open_video

COUNT = 40
FILES = {  # name: codec, pixel format, options
    "h264.mp4": ("libx264", "yuv420p", {}),
    "h264.mkv": ("libx264", "yuv420p", {}),
    "h264.avi": ("libx264", "yuv420p", {}),
    "h264.ts": ("libx264", "yuv420p", {}),
    "hevc.mp4": ("libx265", "yuv420p", {"x265-params": "log-level=none"}),
    "vp8.webm": ("libvpx", "yuv420p", {"deadline": "good", "cpu-used": "4"}),
    "vp9.webm": ("libvpx-vp9", "yuv420p", {"deadline": "good", "cpu-used": "5"}),
    "mpeg4.avi": ("mpeg4", "yuv420p", {}),
    "mpeg2.mpg": ("mpeg2video", "yuv420p", {}),
    "mjpeg.mov": ("mjpeg", "yuv420p", {"strict": "unofficial"}),
    "ffv1.mkv": ("ffv1", "yuv420p", {"level": "3", "slicecrc": "1"}),
    "prores.mov": ("prores_ks", "yuv422p10le", {}),
    "png.mov": ("png", "rgb24", {}),
    "huffyuv.avi": ("huffyuv", "yuv422p", {}),
    "wmv2.wmv": ("wmv2", "yuv420p", {}),
    "flv1.flv": ("flv", "yuv420p", {}),
}
HARMLESS = {"header mismatch", "timestamp gap", "timestamps out of order", "damaged packets"}


@pytest.fixture
def write(write_video):
    """Write a video of moving waves with noise, of this codec, pixel format and options."""
    noise = generator(5).integers(-20, 20, size=(COUNT, 64, 96, 1))
    y, x = np.mgrid[:64, :96]
    waves = [128 + 60 * np.sin((x + 3 * n) / 7) + 40 * np.cos((y - n) / 5) for n in range(COUNT)]
    frames = np.clip(np.stack(waves)[..., None] + noise, 0, 255).astype(np.uint8).repeat(3, axis=3)

    def make(path, codec, pixels, options):
        return write_video(path, frames, codec=codec, options={"b": "800k", **options}, pixels=pixels)

    return make


def fails(path):
    """Whether FFmpeg, through PyAV alone, reports an error or a corrupt frame, as `ffmpeg -xerror` does."""
    try:
        with av.open(str(path)) as container:
            if container.streams.video[0].codec_context.name == "hevc":
                container.streams.video[0].codec_context.options = {"err_detect": "explode"}
            stream = container.streams.video[0]
            packets = list(container.demux(stream))
            frames = [
                frame for packet in packets for frame in stream.codec_context.decode(packet if packet.size else None)
            ]
            return any(part.is_corrupt for part in packets + frames)
    except av.FFmpegError:
        return True


@pytest.mark.parametrize("name", FILES)
def test_flipped_bytes_are_noticed(tmp_path, write, name):
    path = write(tmp_path / name, *FILES[name])
    whole = path.read_bytes()
    assert check_video(path, 1.0, MAX_PIXELS, lambda: None)[1] == [] and not fails(path)
    for place in (0.4, 0.55):
        for length in (1, 16, 64, 512, 4096):
            start = int(place * len(whole))
            content = bytearray(whole)
            content[start : start + length] = bytes(255 - byte for byte in content[start : start + length])
            path.write_bytes(content)
            meta, faults = check_video(path, 1.0, MAX_PIXELS, lambda: None)
            kept = all(fault in HARMLESS for fault, _ in faults)
            assert faults or not fails(path), (place, length)
            # FFmpeg cannot know of frames that are missing in a stream without an index.
            assert not kept or meta.num_frames == COUNT or path.suffix in (".ts", ".mpg", ".wmv", ".flv"), (
                place,
                length,
            )


def test_an_avi_does_not_become_shorter(tmp_path, write):
    """Its index lists the packets that FFmpeg passes over."""
    path = write(tmp_path / "a.avi", *FILES["huffyuv.avi"])
    content = bytearray(path.read_bytes())
    at = content.find(b"00dc", len(content) // 2)
    content[at : at + 8] = bytes(8)
    path.write_bytes(content)
    with pytest.raises(VidsslError, match=r"39 of the 40 packets in its index can be read; the file is damaged$"):
        open_video(path)


def test_a_matroska_file_does_not_become_shorter(tmp_path, write):
    path = write(tmp_path / "a.mkv", *FILES["ffv1.mkv"])
    content = bytearray(path.read_bytes())
    cluster = content.find(bytes.fromhex("1f43b675"))
    block = content.find(b"\xa3", cluster + 12)  # a SimpleBlock
    content[block] = 0
    path.write_bytes(content)
    (fault,) = check_video(Path(path), 1.0, MAX_PIXELS, lambda: None)[1]
    assert fault[0] == "decode error"


@pytest.mark.parametrize("name", ["cut_vop.mp4", "late_stream.flv", "hidden.tar#sub/b.mp4"])
def test_damage_that_once_was_a_traceback(name):
    path = Path(__file__).parents[1] / "faults" / "files" / name
    with suppress(DecodeError), open_video(path) as video:
        list(video.iter_frames())
    _, faults = check_video(path, 1.0, 10**7, lambda: None)
    assert [kind for kind, _ in faults] == ["decode error"]
