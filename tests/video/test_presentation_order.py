"""Frame i is the i-th frame that is shown: each frame from a freshly opened file equals one pass of the decoder.

Tools that copy a stream into another container invent times of presentation where the old one stores none: an AVI or a
raw stream with B-frames gets those of decoding. Players show such files right, as they show what the decoder returns.
"""

from collections import Counter
from pathlib import Path

import av
import numpy as np
import pytest

from vidssl.apps.check import KEPT, check
from vidssl.apps.check.file_defects import check_video
from vidssl.base.errors import FramesOutOfOrderError
from vidssl.base.keyed_generators import generator
from vidssl.video import packet_index as index
from vidssl.video.reader import MAX_PIXELS, open_video

COUNT = 26
FILES = Path(__file__).with_name("files")
X264 = "scenecut=0:b-adapt=0:keyint=12:"
CODECS = {  # name: codec, consecutive B-frames, options, suffixes
    "h264": ("libx264", 0, {"x264-params": X264 + "bframes=0"}, "mp4 mov mkv avi flv ts"),
    "h264_b": ("libx264", 2, {"x264-params": X264 + "bframes=2:b-pyramid=none"}, "mp4 mov mkv avi flv ts asf"),
    "h264_pyramid": ("libx264", 7, {"x264-params": X264 + "bframes=7:b-pyramid=normal"}, "mp4 mkv flv"),
    "h264_open": ("libx264", 3, {"x264-params": X264 + "bframes=3:open-gop=1"}, "mp4 mkv"),
    "h264_slices": ("libx264", 2, {"x264-params": X264 + "bframes=2:slices=2:aud=1"}, "mp4 mkv"),
    "h264_interlaced": ("libx264", 2, {"x264-params": X264 + "bframes=2:interlaced=1"}, "mp4 mkv"),
    "hevc": ("libx265", 0, {"x265-params": "log-level=none:bframes=0:keyint=12"}, "mp4 mkv ts"),
    "hevc_b": ("libx265", 3, {"x265-params": "log-level=none:bframes=3:b-adapt=0:keyint=12"}, "mp4 mov mkv ts"),
    "mpeg4": ("mpeg4", 0, {}, "mp4 mkv avi"),
    "mpeg4_b": ("mpeg4", 2, {"b_strategy": "0"}, "mp4 mov mkv avi"),
    "mpeg2": ("mpeg2video", 0, {}, "mp4 mkv"),
    "mpeg2_b": ("mpeg2video", 2, {"b_strategy": "0"}, "mp4 mov mkv mpg ts"),
    "mpeg1_b": ("mpeg1video", 2, {"b_strategy": "0"}, "mkv mpg mp4"),
    "vp8": ("libvpx", 0, {"auto-alt-ref": "1", "lag-in-frames": "8", "deadline": "realtime"}, "webm"),
    "vp9": ("libvpx-vp9", 0, {"lag-in-frames": "8", "deadline": "realtime", "cpu-used": "8"}, "webm mp4"),
    "mjpeg": ("mjpeg", 0, {"strict": "unofficial"}, "mov avi mkv"),
    "wmv2": ("wmv2", 0, {}, "wmv avi"),
    "flv1": ("flv", 0, {}, "flv"),
    "hevc_open": ("libx265", 3, {"x265-params": "log-level=none:bframes=3:b-adapt=0:keyint=6:open-gop=1"}, "mp4 mkv"),
    "mpeg4_late": ("msmpeg4v3", 0, {}, "avi"),
    "mpeg2_fields": ("mpeg2video", 2, {"flags": "+ildct+ilme"}, "ts mpg"),
    "ffv1": ("ffv1", 0, {}, "mkv avi"),
}
# How a stream is copied: the pts of a packet from its pts, dts, number, and the length of a frame.
COPIES = {
    "regular": lambda pts, dts, number, tick: pts,
    "pts_is_dts": lambda pts, dts, number, tick: dts,
    "pts_is_dts_later": lambda pts, dts, number, tick: dts + 8 * tick,
    "pts_counted": lambda pts, dts, number, tick: (number + 8) * tick,
    # Two files that were joined, of which one was copied.
    "pts_is_dts_from_the_second_gop": lambda pts, dts, number, tick: pts if number < 12 else dts + 8 * tick,
}
INVENTED = ("mp4", "mov", "mkv", "flv")  # containers that keep what a tool invents
TABLE = [
    (codec, suffix, copy)
    for codec, (_, b_frames, _, suffixes) in CODECS.items()
    for suffix in suffixes.split()
    for copy in COPIES
    if copy == "regular"
    or ((b_frames or codec in ("h264", "vp9")) and suffix in INVENTED and (suffix != "mov" or copy == "pts_is_dts"))
]


@pytest.fixture(scope="module")
def encoded(tmp_path_factory, write_video, numbered):
    """Give an MP4 of a codec, written once."""
    folder = tmp_path_factory.mktemp("encoded")

    def make(codec):
        path = folder / f"{codec}.mp4"
        return path if path.exists() else write(path, codec, write_video, numbered)

    return make


def write(path, codec, write_video, numbered):
    name, b_frames, options, _ = CODECS[codec]
    return write_video(path, numbered(COUNT), codec=name, b_frames=b_frames, options=options or None)


def retimed(copy):
    """Give packets the times that tools invent, of `COPIES`."""

    def change(packets):
        tick = round(1 / (25 * packets[0].time_base))
        for number, packet in enumerate(packets):
            packet.pts = COPIES[copy](packet.pts, packet.dts, number, tick)
            yield packet

    return change


def one_pass(path, number_of):
    with av.open(str(path)) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    return number_of(np.stack(frames).transpose(0, 3, 1, 2))


def assert_single_frames(path, number_of):
    """Frames of a freshly opened file are those of one pass, and so are all together and the pass of vidssl."""
    shown = one_pass(path, number_of)
    assert len({*shown}) == len(shown) and shown == sorted(shown)  # the reference is itself in order
    for i, number in [*[*enumerate(shown)][::5], (len(shown) - 1, shown[-1])]:
        index._cache.clear()
        with open_video(path) as video:
            assert video.meta.num_frames == len(shown)
            assert number_of(video.frames([i])) == [number], f"frame {i}"
    index._cache.clear()
    with open_video(path) as video:
        for pair in generator(4).integers(len(shown), size=(40, 2)).tolist():
            assert number_of(video.frames(pair)) == [shown[n] for n in pair]
        assert number_of(video.frames(range(len(shown)))) == shown
        assert number_of(np.stack(list(video.iter_frames())).transpose(0, 3, 1, 2)) == shown
    return shown


@pytest.mark.parametrize(("codec", "suffix", "copy"), TABLE, ids=lambda value: value)
def test_every_single_frame(tmp_path, encoded, write_video, numbered, number_of, remux, codec, suffix, copy):
    path = tmp_path / f"a.{suffix}"
    if copy == "regular":
        write(path, codec, write_video, numbered)
    else:
        remux(encoded(codec), path, retimed(copy))
    shown = assert_single_frames(path, number_of)
    if copy == "regular":
        faults = check_video(path, 1.0, MAX_PIXELS, lambda: None)[1]
        assert not [fault for fault in faults if fault[0] not in KEPT], faults
    # An MP4 whose first frame would be shown before 0 hides it, in every player.
    assert len(shown) == COUNT or (copy == "pts_is_dts" and suffix in ("mp4", "mov", "flv"))
    index._cache.clear()
    with open_video(path) as video:
        counted = video._decoder._packets.frame_of is None
    # Without an order in the packets, or (MPEG-4 in AVI) with frames so small that they may stand for none.
    may_count = suffix in ("ts", "mpg", "wmv", "asf") or (suffix == "avi" and codec.startswith(("h264", "mpeg4")))
    invented = copy != "regular" and CODECS[codec][1] > 0
    assert counted == invented or may_count  # what is stored right is not counted, which is slow


@pytest.mark.parametrize("suffix", ["mp4", "mkv", "avi"])
@pytest.mark.parametrize("name", ["xvid_b_frames.avi", "xvid_packed.avi"])
@pytest.mark.parametrize("copy", ["pts_is_dts", "regular"])  # regular: those that FFmpeg guesses for an AVI
def test_a_copy_of_an_avi(tmp_path, number_of, remux, name, suffix, copy):
    path = FILES / name if suffix == "avi" else remux(FILES / name, tmp_path / f"a.{suffix}", retimed(copy))

    def read(frames):  # stripes of 16 pixels instead of 8
        return number_of(frames[..., ::2])

    assert assert_single_frames(path, read) == list(range(62))


@pytest.mark.parametrize("name", ["xvid_b_frames.avi", "xvid_packed.avi"])
def test_the_time_stamps_of_these_files_are_out_of_order(name):
    """The trap is there: what does not hold of these files cannot be proven with them."""
    with av.open(str(FILES / name)) as container:
        stream = container.streams.video[0]
        assert (stream.codec_context.name, stream.codec_context.codec_tag) == ("mpeg4", "XVID")
        packets = [packet for packet in container.demux(stream) if packet.size]
    stamps = [packet.pts for packet in packets]
    assert stamps != sorted(stamps) and len(packets) == 62
    assert (b"DivX503b1393p" in bytes(packets[0])) == (name == "xvid_packed.avi")


LATE = 70


@pytest.mark.parametrize("suffix", ["mp4", "mkv"])
@pytest.mark.parametrize("copy", ["regular", "pts_counted"])
def test_b_frames_that_come_late(tmp_path, numbered, number_of, remux, copy, suffix):
    path, still = tmp_path / "late.mp4", av.video.frame.PictureType
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=25)
        stream.height, stream.width, stream.pix_fmt = 32, 64, "yuv420p"
        stream.options = {"x264-params": "scenecut=0:b-adapt=0:keyint=200:bframes=2:b-pyramid=none"}
        for number, pixels in enumerate(numbered(100)):
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pict_type = still.P if 0 < number < LATE else still.NONE
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    with av.open(str(path)) as container:
        times = [packet.pts for packet in container.demux(video=0) if packet.size]
    assert times[:LATE] == sorted(times[:LATE]) and times != sorted(times)
    path = remux(path, tmp_path / f"a.{suffix}", retimed(copy))
    assert assert_single_frames(path, number_of) == list(range(100))


@pytest.fixture
def unseen(monkeypatch):
    """The types of the frames show nothing, so only the decoder can."""
    monkeypatch.setattr(index, "first_doubt", lambda times, types: None)
    index._cache.clear()
    yield
    index._cache.clear()


@pytest.mark.parametrize("codec", ["h264_b", "h264_pyramid", "hevc_b", "mpeg4_b", "mpeg2_b"])
def test_a_step_back_that_shows_later(tmp_path, encoded, number_of, remux, unseen, codec):
    """The request is repeated, and the file is counted from then on, in this process and in others."""
    path = remux(encoded(codec), tmp_path / "a.mp4", retimed("pts_counted"))
    cache = tmp_path / "cache"
    every = list(range(COUNT))
    with open_video(path, cache=cache) as video:
        assert number_of(video.frames([0])) == [0] and not video.out_of_order
        assert number_of(video.frames(every)) == every and video.out_of_order
        assert number_of(video.frames([3, 1, 3])) == [3, 1, 3]
    for _ in range(2):
        with open_video(path, cache=cache) as video:
            for i in every:
                assert number_of(video.frames([i])) == [i]
        index._cache.clear()  # the second time as another process would


def test_a_step_back_in_one_pass(tmp_path, encoded, number_of, remux, unseen):
    path = remux(encoded("h264_b"), tmp_path / "a.mkv", retimed("pts_counted"))
    with open_video(path) as video:
        assert number_of(np.stack(list(video.iter_frames())).transpose(0, 3, 1, 2)) == list(range(COUNT))
        assert video.out_of_order and number_of(video.frames([1])) == [1]
    with open_video(path) as video:
        assert number_of(video.frames([1])) == [1]


def test_frames_that_are_streamed_are_asked_for_again(tmp_path, encoded, number_of, remux, unseen):
    """What was yielded may be wrong, so whoever takes frames one by one must know."""
    path = remux(encoded("h264_pyramid"), tmp_path / "a.mkv", retimed("pts_counted"))
    with open_video(path) as video:
        with pytest.raises(FramesOutOfOrderError, match="timestamps"):
            list(video.fetch(np.arange(COUNT)))
        images = dict(video.fetch(range(COUNT)))
        shown = np.stack([images[i] for i in range(COUNT)]).transpose(0, 3, 1, 2)
        assert number_of(shown) == list(range(COUNT))


def test_check_names_such_files_and_keeps_them(tmp_path, encoded, remux):
    names = {
        "good.mp4": ("h264_b", "regular"),
        "bad.mp4": ("h264_b", "pts_counted"),
        "bad.mkv": ("mpeg4_b", "pts_is_dts"),
    }
    for name, (codec, copy) in names.items():
        remux(encoded(codec), tmp_path / name, retimed(copy))
    (tmp_path / "list.csv").write_text("path,label\n" + "".join(f"{name},0\n" for name in names))
    checked = check(tmp_path / "list.csv", out=tmp_path / "out")
    findings = Counter((finding.path, finding.finding) for finding in checked.findings)
    assert findings == {(name, "timestamps out of order"): 1 for name in names if name.startswith("bad")}
    assert checked.kept == 3
