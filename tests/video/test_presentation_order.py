"""Frame i is the i-th frame that is shown: each frame from a freshly opened file equals one pass of the decoder.

Tools that copy a stream into another container invent times of presentation where the old one stores none: an AVI or a
raw stream with B-frames gets those of decoding. Players show such files right, as they show what the decoder returns.
"""

from collections import Counter
from pathlib import Path

import av
import numpy as np
import pytest

from vidssl.apps.check import check
from vidssl.base.errors import FramesOutOfOrderError
from vidssl.video import packet_index as index
from vidssl.video.reader import open_video

COUNT = 26
FILES = Path(__file__).with_name("files")
X264 = "scenecut=0:b-adapt=0:keyint=12:"
CODECS = {  # name: codec, consecutive B-frames, options
    "h264": ("libx264", 0, {"x264-params": X264 + "bframes=0"}),
    "h264_b": ("libx264", 2, {"x264-params": X264 + "bframes=2:b-pyramid=none"}),
    "h264_pyramid": ("libx264", 7, {"x264-params": X264 + "bframes=7:b-pyramid=normal"}),
    "h264_open": ("libx264", 3, {"x264-params": X264 + "bframes=3:open-gop=1"}),
    "h264_slices": ("libx264", 2, {"x264-params": X264 + "bframes=2:slices=2:aud=1"}),
    "h264_interlaced": ("libx264", 2, {"x264-params": X264 + "bframes=2:interlaced=1"}),
    "hevc": ("libx265", 0, {"x265-params": "log-level=none:bframes=0:keyint=12"}),
    "hevc_b": ("libx265", 3, {"x265-params": "log-level=none:bframes=3:b-adapt=0:keyint=12"}),
    "mpeg4": ("mpeg4", 0, {}),
    "mpeg4_b": ("mpeg4", 2, {"b_strategy": "0"}),
    "mpeg2": ("mpeg2video", 0, {}),
    "mpeg2_b": ("mpeg2video", 2, {"b_strategy": "0"}),
    "mpeg1_b": ("mpeg1video", 2, {"b_strategy": "0"}),
    "vp8": ("libvpx", 0, {"auto-alt-ref": "1", "lag-in-frames": "8", "deadline": "realtime"}),
    "vp9": ("libvpx-vp9", 0, {"lag-in-frames": "8", "deadline": "realtime", "cpu-used": "8"}),
    "mjpeg": ("mjpeg", 0, {"strict": "unofficial"}),
    "wmv2": ("wmv2", 0, {}),
    "flv1": ("flv", 0, {}),
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
SUFFIXES = {
    "h264": "mp4 mov mkv avi flv ts",
    "h264_b": "mp4 mov mkv avi flv ts",
    "h264_pyramid": "mp4 mkv flv",
    "h264_open": "mp4 mkv",
    "h264_slices": "mp4 mkv",
    "h264_interlaced": "mp4 mkv",
    "hevc": "mp4 mkv ts",
    "hevc_b": "mp4 mov mkv ts",
    "mpeg4": "mp4 mkv avi",
    "mpeg4_b": "mp4 mov mkv avi",
    "mpeg2": "mp4 mkv",
    "mpeg2_b": "mp4 mov mkv mpg ts",
    "mpeg1_b": "mkv mpg mp4",
    "vp8": "webm",
    "vp9": "webm mp4",
    "mjpeg": "mov avi mkv",
    "wmv2": "wmv avi",
    "flv1": "flv",
}
INVENTED = ("mp4", "mov", "mkv", "flv")  # containers that keep what a tool invents
TABLE = [
    (codec, suffix, copy)
    for codec, suffixes in SUFFIXES.items()
    for suffix in suffixes.split()
    for copy in COPIES
    if copy == "regular" or (codec != "flv1" and suffix in INVENTED and (suffix != "mov" or copy == "pts_is_dts"))
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
    name, b_frames, options = CODECS[codec]
    return write_video(path, numbered(COUNT), codec=name, b_frames=b_frames, options=options or None)


def copy_stream(source, path, retime):
    """Copy the packets of a file into another container, with the pts that `retime` gives."""
    with av.open(str(source)) as before, av.open(str(path), "w") as container:
        old = before.streams.video[0]
        new = container.add_stream_from_template(old)
        tick = round(1 / (25 * old.time_base))
        for number, packet in enumerate(packet for packet in before.demux(old) if packet.size):
            packet.pts, packet.stream = retime(packet.pts, packet.dts, number, tick), new
            container.mux_one(packet)
    return path


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
        assert number_of(video.frames(range(len(shown)))) == shown
        assert number_of(np.stack(list(video.iter_frames())).transpose(0, 3, 1, 2)) == shown
    return shown


@pytest.mark.parametrize(("codec", "suffix", "copy"), TABLE, ids=lambda value: value)
def test_every_single_frame(tmp_path, encoded, write_video, numbered, number_of, codec, suffix, copy):
    path = tmp_path / f"a.{suffix}"
    if copy == "regular":
        write(path, codec, write_video, numbered)
    else:
        copy_stream(encoded(codec), path, COPIES[copy])
    shown = assert_single_frames(path, number_of)
    # An MP4 whose first frame would be shown before 0 hides it, in every player.
    assert len(shown) == COUNT or (copy == "pts_is_dts" and suffix in ("mp4", "mov", "flv"))
    index._cache.clear()
    with open_video(path) as video:
        counted = video._decoder._packets.frame_of is None
    # Without an order in the packets, or (MPEG-4 in AVI) with frames so small that they may stand for none.
    may_count = suffix in ("ts", "mpg", "wmv") or (suffix == "avi" and codec.startswith(("h264", "mpeg4")))
    invented = copy != "regular" and CODECS[codec][1] > 0
    assert counted == invented or may_count  # what is stored right is not counted, which is slow


@pytest.mark.parametrize("suffix", ["mp4", "mkv"])
@pytest.mark.parametrize("name", ["xvid_b_frames.avi", "xvid_packed.avi"])
@pytest.mark.parametrize("times", ["dts", "pts"])  # pts: those that FFmpeg guesses for an AVI, as `+genpts` does
def test_a_copy_of_an_avi(tmp_path, number_of, name, suffix, times):
    path = copy_stream(
        FILES / name, tmp_path / f"a.{suffix}", lambda pts, dts, number, tick: pts if times == "pts" else dts
    )

    def read(frames):  # stripes of 16 pixels instead of 8
        return number_of(frames[..., ::2])

    assert assert_single_frames(path, read) == list(range(62))


LATE = 70


@pytest.mark.parametrize("suffix", ["mp4", "mkv"])
@pytest.mark.parametrize("copy", ["regular", "pts_counted"])
def test_b_frames_that_come_late(tmp_path, numbered, number_of, copy, suffix):
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
    path = copy_stream(path, tmp_path / f"a.{suffix}", COPIES[copy])
    assert assert_single_frames(path, number_of) == list(range(100))


@pytest.fixture
def unseen(monkeypatch):
    """The types of the frames show nothing, so only the decoder can."""
    monkeypatch.setattr(index, "first_doubt", lambda times, types: None)
    index._cache.clear()
    yield
    index._cache.clear()


@pytest.mark.parametrize("codec", ["h264_b", "h264_pyramid", "hevc_b", "mpeg4_b", "mpeg2_b"])
def test_a_step_back_that_shows_later(tmp_path, encoded, number_of, unseen, codec):
    """The request is repeated, and the file is counted from then on, in this process and in others."""
    path = copy_stream(encoded(codec), tmp_path / "a.mp4", COPIES["pts_counted"])
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


def test_a_step_back_in_one_pass(tmp_path, encoded, number_of, unseen):
    path = copy_stream(encoded("h264_b"), tmp_path / "a.mkv", COPIES["pts_counted"])
    with open_video(path) as video:
        assert number_of(np.stack(list(video.iter_frames())).transpose(0, 3, 1, 2)) == list(range(COUNT))
        assert video.out_of_order and number_of(video.frames([1])) == [1]
    with open_video(path) as video:
        assert number_of(video.frames([1])) == [1]


def test_frames_that_are_streamed_are_asked_for_again(tmp_path, encoded, number_of, unseen):
    """What was yielded may be wrong, so whoever takes frames one by one must know."""
    path = copy_stream(encoded("h264_pyramid"), tmp_path / "a.mkv", COPIES["pts_counted"])
    with open_video(path) as video:
        with pytest.raises(FramesOutOfOrderError, match="timestamps"):
            list(video.fetch(np.arange(COUNT)))
        images = dict(video.fetch(np.arange(COUNT)))
        shown = np.stack([images[i] for i in range(COUNT)]).transpose(0, 3, 1, 2)
        assert number_of(shown) == list(range(COUNT))


def test_check_names_such_files_and_keeps_them(tmp_path, encoded):
    names = {
        "good.mp4": ("h264_b", "regular"),
        "bad.mp4": ("h264_b", "pts_counted"),
        "bad.mkv": ("mpeg4_b", "pts_is_dts"),
    }
    for name, (codec, copy) in names.items():
        copy_stream(encoded(codec), tmp_path / name, COPIES[copy])
    (tmp_path / "list.csv").write_text("path,label\n" + "".join(f"{name},0\n" for name in names))
    checked = check(tmp_path / "list.csv", out=tmp_path / "out")
    found = Counter((finding.path, finding.finding) for finding in checked.findings)
    assert found == {(name, "timestamps out of order"): 1 for name in names if name.startswith("bad")}
    assert checked.kept == 3
