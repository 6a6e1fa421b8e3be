"""Frames by number: the same pixels as a plain decode of the whole file, for any indices in any order."""

import http.server
import re
import runpy
import subprocess
import sys
import tarfile
import threading
import zlib
from pathlib import Path

import av
import numpy as np
import pytest

from vidssl.apps.check.file_defects import check_video
from vidssl.base.errors import DecodeError
from vidssl.base.keyed_generators import generator
from vidssl.video import decode, reader
from vidssl.video.reader import BACKENDS, open_video

REAL = Path(__file__).parents[3] / "shared" / "data"
FILES = Path(__file__).with_name("files")  # of our own: in every clone
GOOD = sorted(FILES.glob("*.avi")) + sorted(
    path
    for pattern in ("containers/*", "ucf101_clips/*", "weizmann/bend/person00*_a.mp4", "surveillance/fight/fi001.mp4")
    for path in REAL.glob(pattern)
    if path.name != "corrupted.mp4"
)


def turned(frame, pixels):
    """Rotate by the display matrix of the file, pixel by pixel: (x, y) goes to (ax + cy, bx + dy)."""
    matrix = frame.side_data.get("DISPLAYMATRIX")
    if matrix is None:
        return pixels
    a, b, _, c, d = (int(v) >> 16 for v in np.frombuffer(bytes(matrix), np.int32)[:5])
    y, x = np.mgrid[: pixels.shape[0], : pixels.shape[1]]
    right, down = a * x + c * y, b * x + d * y
    right, down = right - right.min(), down - down.min()
    out = np.empty((down.max() + 1, right.max() + 1, 3), np.uint8)
    out[down, right] = pixels
    return out


def sums(frames):
    """One checksum for each frame (H, W, 3)."""
    return [(*frame.shape, zlib.crc32(np.ascontiguousarray(frame))) for frame in frames]


def plain_decode(path, past_damage=False):
    """Checksums of all frames until the end, or until the file fails; past damage by their number."""
    decoded = {}
    with av.open(f"file:{path}") as container:
        stream = container.streams.video[0]
        stream.thread_type = "NONE"
        for packet in container.demux(stream):
            try:
                for frame in packet.decode():
                    number = frame.pts // 1024 if past_damage else len(decoded)
                    decoded[number] = sums([turned(frame, frame.to_ndarray(format="rgb24"))])[0]
            except av.FFmpegError:
                if not past_damage:
                    break
    return decoded if past_damage else [*decoded.values()]


def fetched(video, indices):
    frames = video.frames(indices)
    assert frames.dtype == np.uint8 and frames.shape[:2] == (len(indices), 3)
    channels_last = frames.transpose(0, 2, 3, 1)
    assert channels_last.flags.c_contiguous
    return sums(channels_last)


def demands(count):
    """Index sequences to test for a video of so many frames."""
    random = generator(5, count)
    few = random.integers(count, size=min(8, count))
    yield "last", [count - 1]
    yield "first", [0]
    yield "random", few.tolist()
    yield "sorted", np.sort(few)
    yield "reversed", np.sort(few)[::-1]
    yield "repeated", [int(few[0])] * 3 + [0, 0]
    middle = count // 2
    yield "consecutive", list(range(middle, min(middle + 8, count)))
    yield "stride", list(range(count % 3, count, max(1, count // 6))) or [0]


@pytest.mark.parametrize("path", GOOD, ids=[path.name for path in GOOD])
def test_parity_with_a_plain_decode(path):
    expected = plain_decode(path)
    with open_video(path) as video:
        assert video.meta.num_frames == len(expected)
        for name, indices in demands(len(expected)):
            assert fetched(video, indices) == [expected[i] for i in indices], name
        if expected[0][0] * expected[0][1] <= 640 * 480:
            assert fetched(video, list(range(len(expected)))) == expected


def test_7_meta_of_known_files_and_the_first_of_two_streams(real):
    known = {
        "containers/nasa_13013.mp4": (325, 25, 180, 320),  # the first of two streams
        "containers/testsrc2_odd_height_and_width_mpeg2.mp4": (10, 25, 81, 121),
        "containers/sine_stereo_mp2.mpg": (100, 25, 128, 128),
        "containers/gradient.gif": (1, None, 720, 1280),
        "ucf101_clips/v_ApplyEyeMakeup_g01_c01.avi": (164, 25, 240, 320),
    }
    for name, (count, fps, height, width) in known.items():
        with open_video(real / name) as video:
            assert (video.meta.num_frames, video.meta.height, video.meta.width) == (count, height, width), name
            assert fps is None or abs(video.meta.fps - fps) < 0.01
            assert video.meta.duration == count / video.meta.fps


def test_2_a_damaged_file_returns_its_good_frames_and_no_others(real):
    path = real / "containers" / "corrupted.mp4"
    expected = plain_decode(path)
    assert len(expected) == 28
    with open_video(path) as video:
        assert video.meta.num_frames == 50  # as it declares
    # Some frames after the damage do not depend on it: those of a decode that goes on may come, no others.
    later = plain_decode(path, past_damage=True)
    for indices in ([0], [27], [3, 20], [28], [32], [35], [49], [5, 30], list(range(50))):
        with open_video(path) as video:
            if max(indices) < len(expected):
                assert fetched(video, indices) == [expected[i] for i in indices]
                continue
            try:
                actual = fetched(video, indices)
            except DecodeError as error:
                assert re.search(r"corrupted\.mp4.*damaged", str(error))
            else:
                assert actual == [later[i] for i in indices]
                assert max(indices) < 33


HEVC = {"crf": "12", "x265-params": "open-gop=1:scenecut=0:b-adapt=0:bframes=3:keyint=6:min-keyint=1:log-level=none"}


def test_an_avi_that_marks_every_frame_as_a_key_frame(tmp_path, write_video, numbered, number_of):
    """As in a truncated recording without an index."""
    path = write_video(tmp_path / "a.avi", numbered(40), codec="msmpeg4v3", gop=12)
    content = bytearray(path.read_bytes())
    place = content.rindex(b"idx1")
    content[place : place + 4] = b"JUNK"
    path.write_bytes(content)
    with open_video(path) as video:
        for i in range(video.meta.num_frames):
            assert number_of(video.frames([i])) == [i]


def test_a_stream_cut_at_an_open_group_of_pictures(tmp_path, write_video, numbered, remux):
    """Frames that refer to missing ones are not decoded, and have no number."""

    def from_the_third_key_frame(packets):
        return packets[[number for number, packet in enumerate(packets) if packet.is_keyframe][2] :]

    whole = write_video(tmp_path / "whole.mkv", numbered(40), codec="libx265", options=HEVC)
    expected = plain_decode(remux(whole, tmp_path / "cut.mkv", from_the_third_key_frame))
    with open_video(tmp_path / "cut.mkv") as video:
        assert 10 < video.meta.num_frames == len(expected)
        for i in range(len(expected)):
            assert fetched(video, [i]) == [expected[i]]


def test_b_frames_packed_into_other_packets(tmp_path, number_of):
    """Of frames so small that they are like the empty ones that stand for them; the others are in the files."""
    xvid = runpy.run_path(str(FILES / "make_xvid.py"))
    path, packets = tmp_path / "packed.avi", [*xvid["packed"]([*xvid["encoded"](2, contrast=0.0)])]
    xvid["write"](path, packets)
    expected, random = plain_decode(path), generator(2)
    assert sum(len(packet) < 10 for packet in packets) > 4 and len(expected) == 62
    with open_video(path) as video:
        assert number_of(video.frames(range(62))[..., ::2]) == list(range(62))
        for pair in random.integers(62, size=(60, 2)).tolist():
            assert fetched(video, pair) == [expected[n] for n in pair]


def test_1_7_files_that_are_not_videos(tmp_path, write_sound):
    (tmp_path / "empty.mp4").touch()
    (tmp_path / "page.mp4").write_text("<!doctype html><html><body>404: not found</body></html>\n" * 50)
    (tmp_path / "zeros.mp4").write_bytes(bytes(100_000))
    write_sound(tmp_path / "sound.mp4")
    for name, reason in {
        "empty.mp4": "empty",
        "page.mp4": "not a video",
        "zeros.mp4": "not a video",
        "sound.mp4": "no video stream",
    }.items():
        with pytest.raises(DecodeError, match=reason) as caught:
            open_video(tmp_path / name)
        assert str(tmp_path / name) in str(caught.value) and "\n" not in str(caught.value)


@pytest.fixture
def unreadable(tmp_path, write_video, numbered, monkeypatch):
    """A folder of files that cannot be read, each for another reason."""
    monkeypatch.chdir(tmp_path)
    content = write_video(tmp_path / "whole.mp4", numbered(3)).read_bytes()
    for name in ("denied.mp4", "closed/a.mp4", "denied.png", "frames/0.png", "folder.mp4/0.txt", "shut/0.png"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_bytes(content)
    for name in ("denied.mp4", "closed", "denied.png", "frames/0.png", "shut"):
        Path(name).chmod(0)
    links = {"link.mp4": "gone.avi", "link.png": "gone.png", "loop.mp4": "loop.mp4", "to_denied.mp4": "denied.mp4"}
    for name, target in {**links, "link.tar": "gone.tar"}.items():
        Path(name).symlink_to(target)
    with tarfile.open("denied.tar", "w") as tar:
        tar.add("whole.mp4")
    Path("denied.tar").chmod(0)
    yield
    for name in ("closed", "shut"):
        Path(name).chmod(0o700)


DENIED = "cannot be read: Permission denied; give this user the permission"
REASONS = {
    **dict.fromkeys(("denied.mp4", "closed/a.mp4", "to_denied.mp4", "denied.png", "shut", "frames"), DENIED),
    "denied.tar#whole.mp4": DENIED,
    "link.mp4": "a link to gone.avi, which does not exist",
    "link.png": "a link to gone.png, which does not exist",
    "link.tar#a.mp4": "a link to gone.tar, which does not exist",
    "loop.mp4": "cannot be read: Too many levels of symbolic links",
    "whole.mp4/a.mp4": "cannot be read: Not a directory; a folder of this path is a file",
    "folder.mp4": "no numbered images in the folder (.bmp, .jpeg, .jpg, .png, .webp)",
    "whole.avi": "No such file; did you mean whole.mp4?",
    "other.mp4": "No such file",
}


@pytest.mark.parametrize("name", REASONS)
def test_each_reason_why_a_file_cannot_be_read(name, unreadable, permissions):
    with permissions(), pytest.raises(DecodeError) as caught:
        open_video(name, fps=5)
    file = {"frames": "frames/0.png"}.get(name, name.partition("#")[0])
    assert str(caught.value) == f"{file}: {REASONS[name]}"


def test_a_file_that_vanishes_before_ffmpeg_opens_it(tmp_path, write_video, numbered, monkeypatch):
    path, real = write_video(tmp_path / "a.mp4", numbered(3)), reader.open_container

    def vanished(path, max_pixels):
        path.unlink()
        return real(path, max_pixels)

    monkeypatch.setattr(reader, "open_container", vanished)
    with pytest.raises(DecodeError, match=r"a\.mp4: No such file$"):
        open_video(path)


def test_1_truncated_file(tmp_path, write_video, numbered, number_of):
    whole = write_video(tmp_path / "whole.mkv", numbered(60), gop=10).read_bytes()
    (tmp_path / "cut.mkv").write_bytes(whole[: len(whole) // 2])
    with open_video(tmp_path / "cut.mkv") as video:
        count = video.meta.num_frames
        assert 10 < count < 60
        assert number_of(video.frames([0, 5])) == [0, 5]
        with pytest.raises(DecodeError, match="frames 59-59 requested"):
            video.frames([59])
    mp4 = write_video(tmp_path / "whole.mp4", numbered(60), gop=10).read_bytes()
    (tmp_path / "cut.mp4").write_bytes(mp4[: len(mp4) // 2])  # its index stands at the end
    with pytest.raises(DecodeError, match=r"cut\.mp4: not a video"):
        open_video(tmp_path / "cut.mp4")


def test_2_damaged_packets_are_an_error_in_their_own_group_only(tmp_path, write_video, numbered, number_of):
    noise = generator(2).integers(-20, 20, (40, 32, 64, 1))  # so that packets have some size
    content = bytearray(
        write_video(tmp_path / "clip.mp4", (numbered(40) + noise).clip(0, 255).astype(np.uint8), gop=8).read_bytes()
    )
    with av.open(str(tmp_path / "clip.mp4")) as container:
        packets = [(packet.pts // 512, packet.pos, packet.size) for packet in container.demux(video=0) if packet.size]
    assert [number for number, _, _ in packets] == list(range(40))
    _, start, size = packets[19]
    content[start : start + size] = generator(1).bytes(size)
    (tmp_path / "damaged.mp4").write_bytes(content)
    for i in range(40):
        with open_video(tmp_path / "damaged.mp4") as video:
            assert video.meta.num_frames == 40
            if 19 <= i < 24:  # the packet, and what is predicted from it until the next key frame
                with pytest.raises(DecodeError, match=r"damaged\.mp4.*damaged"):
                    video.frames([i])
            else:
                assert number_of(video.frames([i])) == [i]


@pytest.mark.parametrize("indices", [[24], [-1], [0, 24], [], [3, 10**9]])
def test_frames_that_do_not_exist(digits, indices):
    with open_video(digits / "videos/test/00000.mp4") as video:
        with pytest.raises(DecodeError, match=r"00000\.mp4.*requested, the video has frames 0-23"):
            video.frames(indices)


GROWTH = """
import sys
from vidssl.video.reader import BACKENDS, open_video
from vidssl.base.errors import DecodeError
def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) / 1024
with open_video(sys.argv[1]) as video:
    video.frames([0])
before = peak()
try:
    with open_video(sys.argv[2]) as video:
        count = video.meta.num_frames
        video.frames([0, count // 2, count - 1])
        print(count, "frames")
except DecodeError as error:
    print(error)
print(peak() - before)
"""


def growth(small, path):
    """Output of a separate process for a video, and the growth of its memory in MB over a small one."""
    done = subprocess.run(
        [sys.executable, "-c", GROWTH, str(small), str(path)], capture_output=True, text=True, check=True
    )
    said, megabytes = done.stdout.splitlines()[-2:]
    return said, float(megabytes)


def stretched(copies, last):
    """The packets of a video many times over, the last frame at `last` seconds."""

    def change(packets):
        total, ticks, base = copies * len(packets), packets[0].duration, packets[0].time_base
        for number in range(total):
            packet = packets[number % len(packets)]
            copy = av.Packet(bytes(packet))
            copy.time_base, copy.is_keyframe = base, packet.is_keyframe
            copy.dts = copy.pts = max(number * ticks, round(last / base) if number == total - 1 else 0)
            yield copy

    return change


@pytest.mark.alone
@pytest.mark.long
def test_9_a_video_of_ten_hours(tmp_path, digits, write_video, numbered, number_of, remux):
    source = write_video(tmp_path / "short.mp4", numbered(200), fps=5, gop=50)
    path = remux(source, tmp_path / "long.mp4", stretched(900, 0))
    with open_video(path) as video:
        assert video.meta.num_frames == 180_000 and abs(video.meta.duration - 36_000) < 60
        assert number_of(video.frames([3, 90_007, 179_999])) == [3, 7, 199]
    said, megabytes = growth(digits / "videos/test/00000.mp4", path)
    assert said == "180000 frames" and megabytes < 50


def test_9_a_header_that_states_ten_hours(tmp_path, digits, write_video, numbered, number_of, remux):
    path = remux(write_video(tmp_path / "short.mp4", numbered(200)), tmp_path / "lying.mp4", stretched(1, 36_000))
    with av.open(str(path)) as container:
        assert container.duration > 35_000e6  # microseconds
    with open_video(path) as video:
        assert video.meta.num_frames == 200
        assert number_of(video.frames([0, 100, 199])) == [0, 100, 199]
    assert growth(digits / "videos/test/00000.mp4", path)[1] < 50


@pytest.mark.parametrize(
    ("name", "codec", "code"),
    [("a.mp4", "libx264", b"avc1"), ("a.mkv", "libx264", b"V_MPEG4/ISO/AVC"), ("a.avi", "mpeg4", b"FMP4")],
)
def test_a_codec_without_a_decoder(tmp_path, write_video, numbered, name, codec, code):
    path = write_video(tmp_path / name, numbered(3), codec=codec, options={})
    content = path.read_bytes()
    assert code in content
    path.write_bytes(content.replace(code, code[:2] + b"zz" + code[4:]))
    with pytest.raises(DecodeError, match=r"no decoder for its codec: convert the file"):
        open_video(path)
    missing, faults = check_video(path, 1.0, reader.MAX_PIXELS, lambda: None)
    assert missing is None and len(faults) == 1 and "no decoder" in faults[0][1]


@pytest.fixture
def server():
    """A local web server that counts its requests."""
    hits = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            hits.append(self.path)
            self.send_error(404)

        do_HEAD = do_GET

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}", hits
        running.shutdown()
        thread.join()


def test_13_playlists_are_refused_and_nothing_is_fetched(tmp_path, server, digits):
    address, hits = server
    (tmp_path / "other.mp4").write_bytes((digits / "videos/test/00000.mp4").read_bytes())
    (tmp_path / "other.ts").write_bytes(b"G" * 188 * 8)
    head = "#EXTM3U\n#EXT-X-VERSION:3\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\n"
    contents = {
        "concat_local": "ffconcat version 1.0\nfile other.mp4\n",
        "concat_web": f"ffconcat version 1.0\nfile '{address}/a.mp4'\n",
        "hls_local": f"{head}other.ts\n#EXT-X-ENDLIST\n",
        "hls_web": f"{head}{address}/a.ts\n#EXT-X-ENDLIST\n",
        "hls_mp4": f"{head}other.mp4\n#EXT-X-ENDLIST\n",
        "dash": f'<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011"><BaseURL>{address}/</BaseURL></MPD>',
        "sdp": f"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nu={address}\nm=video 9 RTP/AVP 96\n",
        "smil": f'<smil><body><video src="{address}/a.mp4"/></body></smil>',
    }
    for name, content in contents.items():
        for suffix in ("mp4", "m3u8", "ts", "avi"):
            path = tmp_path / f"{name}.{suffix}"
            path.write_text(content)
            for backend in BACKENDS:
                with pytest.raises(DecodeError, match="not a video"):
                    open_video(path, backend)
    assert hits == []
    with open_video(tmp_path / "other.mp4") as video:
        assert video.meta.num_frames == 24


def test_12_a_url_is_not_a_file(server):
    address, hits = server
    for backend in BACKENDS:
        with pytest.raises(DecodeError, match="No such file"):
            open_video(f"{address}/a.mp4", backend)
    assert hits == []


def test_9_few_packets_are_decoded(tmp_path, write_video, numbered, number_of, monkeypatch):
    path = write_video(tmp_path / "long.mp4", np.concatenate([numbered(200)] * 4), gop=20)
    decoded = []
    original = decode.PyAV._decode

    def spy(self, codec, packet):
        if packet is not None:
            decoded.append(packet.pts)
        return original(self, codec, packet)

    monkeypatch.setattr(decode.PyAV, "_decode", spy)
    with open_video(path) as video:
        assert video.meta.num_frames == 800 and not decoded  # no pixel to learn the shape
        for indices, most in (([3], 10), ([790], 30), ([0, 799], 40), ([405, 408, 411], 30)):
            decoded.clear()
            assert number_of(video.frames(indices)) == [i % 200 for i in indices]
            assert 0 < len(decoded) <= most, indices
