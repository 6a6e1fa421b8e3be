"""Which stream is the video, how its pictures lie, and files whose stream cannot be decoded or has an odd clock."""

import json
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import av
import av.filter
import numpy as np
import pytest
from av.bitstream import BitStreamFilterContext
from av.stream import Disposition

from vidssl.apps.check import check
from vidssl.apps.check.file_defects import check_video
from vidssl.base.errors import DecodeError, NoVideoError, TooLargeError
from vidssl.video.reader import MAX_PIXELS, open_video

COUNT = 20
SLOW = pytest.mark.long


def checked(path):
    return [name for name, _ in check_video(path, 1.0, MAX_PIXELS, lambda: None)[1]]


def copy_with_cover(path, source, kind="video"):
    """Copy the stream of a file and add a cover image."""
    with av.open(str(source)) as before, av.open(str(path), "w") as container:
        stream = container.add_stream_from_template(before.streams.get({kind: 0})[0])
        cover = container.add_stream("mjpeg", rate=1, options={"strict": "unofficial"})
        cover.height, cover.width, cover.pix_fmt = 48, 48, "yuvj420p"
        cover.disposition = Disposition.attached_pic
        image = av.VideoFrame.from_ndarray(np.full((48, 48, 3), 200, np.uint8), format="rgb24")
        for packet in (*cover.encode(image), *cover.encode()):
            container.mux(packet)
        for packet in before.demux({kind: 0}):
            if packet.size:
                packet.stream = stream
                container.mux(packet)
    return path


def with_cover(path, source, first):
    """Copy a video and add a cover image; `first`: its stream comes before that of the video."""
    copy_with_cover(path, source)
    if first:  # the streams of an MP4 are in the order of these boxes
        content = path.read_bytes()
        track, data = content.rindex(b"trak") - 4, content.rindex(b"udta") - 4
        path.write_bytes(content[:track] + content[data:] + content[track:data])
    with av.open(str(path)) as container:
        covers = [bool(stream.disposition & Disposition.attached_pic) for stream in container.streams]
        assert covers == [first, not first]
    return path


@pytest.mark.parametrize("first", [True, False])
def test_a_cover_image_is_not_the_video(tmp_path, write_video, numbered, number_of, first):
    path = with_cover(tmp_path / "cover.mp4", write_video(tmp_path / "a.mp4", numbered(COUNT), b_frames=2), first)
    with open_video(path) as opened:
        assert (opened.meta.num_frames, opened.meta.height, opened.meta.width) == (COUNT, 32, 64)
        for i in (0, 7, COUNT - 1):
            assert number_of(opened.frames([i])) == [i]
        assert len(list(opened.iter_frames())) == COUNT
    assert checked(path) == []


@pytest.mark.parametrize("backend", ["decord", pytest.param("torchcodec", marks=SLOW)])
def test_other_backends_pass_over_a_cover_image_or_refuse_it(
    tmp_path, write_video, numbered, number_of, pyavs_ffmpeg, backend
):
    pytest.importorskip(backend, reason=f"{backend} is not installed", exc_type=Exception)
    video = write_video(tmp_path / "a.mp4", numbered(COUNT), b_frames=2)
    paths = [with_cover(tmp_path / f"{first}.mp4", video, first) for first in (True, False)]
    if backend == "decord":
        refusals = [read_all(path, backend) for path in paths]
    else:  # which needs libraries that the environment of a process names
        command = [sys.executable, __file__, backend, *map(str, paths)]
        done = subprocess.run(command, env=pyavs_ffmpeg, capture_output=True, text=True, check=True)
        refusals = json.loads(done.stdout.splitlines()[-1])
    for path, refusal in zip(paths, refusals, strict=True):
        if refusal:
            assert path.name in refusal and "use data.backend=pyav" in refusal
        else:
            assert number_of(np.load(path.with_suffix(".npy"))) == list(range(COUNT))


def test_sound_with_a_cover_image_is_no_video(tmp_path, write_sound):
    path = copy_with_cover(tmp_path / "cover.mp4", write_sound(tmp_path / "a.mp4"), "audio")
    with pytest.raises(NoVideoError, match="the file has no video stream"):
        open_video(path)
    assert checked(path) == ["no video stream"]


ONE = 1 << 16
# (x, y) is shown at (ax + cy, bx + dy): (a, b, c, d), and FFmpeg's filters that do the same.
MATRICES = {
    "none": ((1, 0, 0, 1), []),
    "mirror": ((-1, 0, 0, 1), ["hflip"]),
    "upside down mirror": ((1, 0, 0, -1), ["vflip"]),
    "180": ((-1, 0, 0, -1), ["hflip", "vflip"]),
    "90": ((0, 1, -1, 0), ["transpose=clock"]),
    "270": ((0, -1, 1, 0), ["transpose=cclock"]),
    "90 and mirror": ((0, 1, 1, 0), ["transpose=cclock_flip"]),
    "270 and mirror": ((0, -1, -1, 0), ["transpose=clock_flip"]),
}


def filtered(image, filters):
    graph = av.filter.Graph()
    node = graph.add_buffer(width=image.shape[1], height=image.shape[0], format="rgb24", time_base=Fraction(1, 25))
    for text in filters:
        name, _, options = text.partition("=")
        before, node = node, graph.add(name, options or None)
        before.link_to(node)
    last = graph.add("buffersink")
    node.link_to(last)
    graph.configure()
    graph.push(av.VideoFrame.from_ndarray(image, format="rgb24"))
    return graph.pull().to_ndarray(format="rgb24")


@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize("suffix", ["mp4", "mkv"])
def test_pictures_are_turned_and_mirrored_as_ffmpeg_does(tmp_path, write_video, numbered, remux, name, suffix):
    (a, b, c, d), filters = MATRICES[name]
    frames = numbered(5)
    frames[:, :8, :30] = 160  # no symmetry
    plain = write_video(tmp_path / "plain.mp4", frames)
    matrix = [a * ONE, b * ONE, 0, c * ONE, d * ONE, 0, 0, 0, 1 << 30]
    path = remux(plain, tmp_path / f"a.{suffix}", prepare=lambda stream: stream.set_display_matrix(matrix))
    with open_video(plain) as video:
        stored = video.frames([3])[0].transpose(1, 2, 0)
    with open_video(path) as video:
        shown = video.frames([3])[0].transpose(1, 2, 0)
        one_pass = list(video.iter_frames())[3]
    expected = filtered(np.ascontiguousarray(stored), filters)
    assert np.array_equal(shown, expected) and np.array_equal(one_pass, expected)
    pytest.importorskip("decord", exc_type=Exception)  # it agrees, or refuses the file
    mirrored = a * d - b * c < 0
    try:
        with open_video(path, "decord") as video:
            by_decord = video.frames([3])[0].transpose(1, 2, 0)
    except DecodeError as error:
        assert ("mirrors" if mirrored else "turns") + " the picture" in str(error)
        assert mirrored or (filters and suffix == "mkv")
    else:
        assert not mirrored and np.abs(by_decord.astype(int) - shown).mean() < 3


@pytest.mark.parametrize("suffix", ["ts", "flv"])
def test_a_stream_without_headers_cannot_be_decoded(tmp_path, write_video, numbered, remux, suffix):
    """As of a broadcast that was cut within a group of pictures: it is not too large, and a limit is no remedy."""
    source = write_video(tmp_path / f"a.{suffix}", numbered(30), gop=100)
    path = tmp_path / f"cut.{suffix}"
    if suffix == "flv":  # the tag with the headers becomes one of another kind
        path.write_bytes(source.read_bytes().replace(b"\x17\0\0\0\0", b"\x17\2\0\0\0", 1))
    else:
        remux(source, path, lambda packets: [packet for packet in packets if not packet.is_keyframe])
    with pytest.raises(DecodeError, match="cannot decode: no frame header can be read") as raised:
        open_video(path)
    assert not isinstance(raised.value, TooLargeError)
    (tmp_path / "list.csv").write_text(f"path,label\n{path.name},0\n")
    (finding,) = check(tmp_path / "list.csv", out=tmp_path / "out").findings
    assert finding.finding == "decode error" and "limit" not in finding.reason


@pytest.mark.parametrize("suffix", ["ts", "mpg", "avi", "mkv", "flv", "mp4"])
def test_a_large_frame_is_named_with_its_size(tmp_path, write_video, numbered, suffix):
    codec = "mpeg2video" if suffix == "mpg" else "libx264"
    path = write_video(tmp_path / f"a.{suffix}", numbered(12), codec=codec)
    with pytest.raises(TooLargeError, match="64x32 is more than 2047 pixels"):
        open_video(path, max_pixels=2047)


@pytest.mark.parametrize("codec", ["libx264", "mpeg4"])
def test_an_avi_whose_clock_is_finer_than_its_frames(tmp_path, write_video, numbered, number_of, codec):
    """As of `ffmpeg -i a.mp4 -c copy a.avi`: 600 ticks a second, and a frame at every 24th."""
    source = write_video(tmp_path / "a.mp4", numbered(COUNT), codec=codec)
    path = tmp_path / "a.avi"
    with av.open(str(source)) as before, av.open(str(path), "w") as container:
        old = before.streams.video[0]
        new = container.add_stream_from_template(old)
        new.time_base = Fraction(1, 600)
        unpack = BitStreamFilterContext("h264_mp4toannexb" if codec == "libx264" else "null", old)
        for whole in before.demux(old):
            for packet in unpack.filter(whole) if whole.size else ():
                packet.stream = new
                container.mux(packet)
    with av.open(str(path)) as container:
        assert container.streams.video[0].average_rate > 100  # what the header says
    with open_video(path) as video:
        assert (video.meta.num_frames, video.meta.fps) == (COUNT, 25)
        assert number_of(video.frames([COUNT - 1])) == [COUNT - 1]
    assert checked(path) == []


def read_all(path, backend):
    """Store all frames beside a video, or give the reason for which the backend refuses it."""
    try:
        with open_video(path, backend) as opened:
            np.save(path.with_suffix(".npy"), opened.frames(range(COUNT)))
    except DecodeError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    print(json.dumps([read_all(Path(path), sys.argv[1]) for path in sys.argv[2:]]))
