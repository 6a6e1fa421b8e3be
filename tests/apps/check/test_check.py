"""A check finds what would spoil a run, says why, and the list that it writes can be trained on."""

import csv
import ctypes
import faulthandler
import struct
import time
from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np
import pytest
from PIL import Image, features

from vidssl import cli
from vidssl.apps.check import KEPT, check
from vidssl.apps.check.file_defects import _Contents, check_video
from vidssl.base.errors import ConfigError, DataError, DecodeError
from vidssl.base.keyed_generators import generator
from vidssl.data.video_list import read_list
from vidssl.video import decode, frame_folder
from vidssl.video.reader import MAX_PIXELS, open_video


@pytest.fixture(scope="module")
def noisy(numbered):
    """Frames that show their number, with grain, so that packets have some size."""

    def make(count):
        grain = generator(2).integers(-20, 21, (count, 32, 64, 1))
        return (numbered(count) + grain).clip(0, 255).astype(np.uint8)

    return make


def write_list(folder, rows, header="path,label", classes=("no", "yes"), name="all.csv"):
    folder.mkdir(exist_ok=True)
    with open(folder / name, "w", newline="") as file:
        csv.writer(file).writerows([header.split(","), *rows])
    (folder / "classes.txt").write_text("".join(f"{name}\n" for name in classes))
    return folder / name


def checked(folder, rows, header="path,label", **options):
    """Check files of a folder; give the findings by path, the names that are kept, and all that came out."""
    videos = write_list(folder / "lists", rows, header)
    result = check(videos, out=folder / "out", root=folder, **{"workers": 1, **options})
    with open(folder / "out/report.csv", newline="") as file:
        report = list(csv.DictReader(file))
    findings = {}
    for row in report:
        assert row["kept"] == ("yes" if row["finding"] in KEPT else "no")
        assert "\n" not in row["reason"] and str(folder) not in row["reason"]
        findings.setdefault(row["path"], []).append(row["finding"])
    with open(folder / "out/all.csv", newline="") as file:
        kept = [row["path"] for row in csv.DictReader(file)]
    return findings, kept, result


def remuxed(source, path):
    """The same packets with the index in front, as files for the web have it."""
    with av.open(str(source)) as container, av.open(str(path), "w", options={"movflags": "+faststart"}) as out:
        stream = out.add_stream_from_template(container.streams.video[0])
        for packet in container.demux(video=0):
            if packet.size:
                packet.stream = stream
                out.mux(packet)
    return path


@pytest.mark.parametrize("suffix", ["webp", "png"])
def test_animated_images_are_named(tmp_path, suffix, caplog, monkeypatch):
    """Only their first frame is read: a finding, and one warning a process."""
    monkeypatch.setattr(frame_folder, "_warned", [])
    frames = [Image.new("RGB", (32, 32), (40 * n, 0, 0)) for n in range(3)]
    for name in ("moving", "other"):
        frames[0].save(tmp_path / f"{name}.{suffix}", save_all=True, append_images=frames[1:], duration=40)
    frames[0].save(tmp_path / f"still.{suffix}")
    actual, kept, _ = checked(tmp_path, [(f"{name}.{suffix}", 0) for name in ("still", "moving", "other")])
    assert actual == {f"moving.{suffix}": ["animated image"], f"other.{suffix}": ["animated image"]} and len(kept) == 3
    for name in ("still", "moving", "other"):
        with open_video(tmp_path / f"{name}.{suffix}") as video:
            assert video.meta.num_frames == 1
    assert [record.getMessage().split(" is animated: ")[0] for record in caplog.records] == [
        str(tmp_path / f"moving.{suffix}")
    ]


def place_of(path, number):
    """Where a frame of a file begins and ends, in bytes."""
    with av.open(str(path)) as container:
        return [(packet.pos, packet.pos + packet.size) for packet in container.demux(video=0) if packet.size][number]


def patched(path, at, offset, number):
    content = bytearray(path.read_bytes())
    place = content.index(at) + offset
    content[place : place + len(number)] = number
    return content


@pytest.fixture(scope="module")
def damaged(tmp_path_factory, write_video, noisy):
    """Videos of several containers, damaged in many ways, and what a check finds: (folder, {name: finding})."""
    folder = tmp_path_factory.mktemp("damaged")
    findings = {}
    codecs = {"mp4": "libx264", "mkv": "libx264", "webm": "libvpx", "avi": "mpeg4", "ts": "libx264", "flv": "flv1"}
    for suffix, codec in codecs.items():
        options = {"crf": "10", "b": "1M"} if suffix == "webm" else None
        b_frames = 2 if suffix == "avi" else 0
        content = write_video(folder / f"fine.{suffix}", noisy(40), codec=codec, b_frames=b_frames, options=options)
        content = content.read_bytes()
        findings[f"fine.{suffix}"] = None
        # x264 does not write the same bytes in every run: a transport stream is cut within a packet, wherever it is.
        end = place_of(folder / "fine.ts", 26)[1] + 60 if suffix == "ts" else len(content) * 2 // 3 - 50
        (folder / f"cut.{suffix}").write_bytes(content[:end])
        findings[f"cut.{suffix}"] = "decode error" if suffix == "ts" else "truncated"
    mp4, front = folder / "fine.mp4", remuxed(folder / "fine.mp4", folder / "front.mp4").read_bytes()
    whole = mp4.read_bytes()
    one_key = write_video(folder / "one_key.avi", noisy(40), codec="mpeg4", gop=99).read_bytes()
    contents = {
        "one_key.avi": (one_key[: len(one_key) * 2 // 3], "truncated"),
        "half_front.mp4": (front[: len(front) // 2], "truncated"),
        "clean_cut.mp4": (front[: place_of(folder / "front.mp4", 19)[1]], "truncated"),  # all that is left decodes
        "no_index.mp4": (whole[: whole.index(b"moov") - 4], "truncated"),
        "half_index.mp4": (whole[: whole.index(b"moov") + 90], "truncated"),
        "tail.mkv": ((folder / "fine.mkv").read_bytes()[:-1], None),  # of what is no frame
        "empty.mp4": (b"", "empty"),
        "page.mp4": (b"<!doctype html><html><body>404: not found</body></html>\n" * 50, "not a video"),
        "zeros.avi": (bytes(100_000), "not a video"),
        "frames.avi": (patched(folder / "fine.avi", b"strh", 40, struct.pack("<I", 90_000)), "header mismatch"),
        "frames.mp4": (patched(mp4, b"stts", 12, struct.pack(">I", 4_000)), "header mismatch"),
        "hours.mkv": (patched(folder / "fine.mkv", b"\x44\x89", 3, struct.pack(">d", 36_000e3)), "header mismatch"),
        "longer.mkv": (patched(folder / "fine.mkv", b"\x44\x89", 3, struct.pack(">d", 1728)), None),  # by 8 %
    }
    flv = folder / "fine.flv"
    contents["clean_cut.flv"] = flv.read_bytes()[: place_of(flv, 10)[0]], "header mismatch"
    static = write_video(folder / "static.mkv", noisy(1).repeat(40, axis=0), gop=99)
    contents["block.mkv"] = bytearray(static.read_bytes()), "decode error"
    contents["block.mkv"][0][place_of(static, 19)[0] - 2] ^= 0xFF  # the type of a block, in its header
    findings["static.mkv"] = None
    if features.check("avif"):
        Image.fromarray(noisy(1)[0]).save(folder / "image.avif")
        findings["image.avif"] = None
    for number in (19, 39):
        spoilt, (start, end) = bytearray(whole), place_of(mp4, number)
        spoilt[start:end] = generator(1).bytes(end - start)
        contents[f"garbled{number}.mp4"] = spoilt, "decode error"
    for name, (content, finding) in contents.items():
        (folder / name).write_bytes(content)
        findings[name] = finding
    # Frames from 10 s on, behind long tags; one is transparent.
    with av.open(str(folder / "late_alpha.webm"), "w") as out:
        out.metadata["comment"] = "x" * 3000
        stream = out.add_stream("libvpx", rate=25)
        stream.height, stream.width, stream.pix_fmt = 32, 64, "yuva420p"
        stream.options = {"auto-alt-ref": "0", "crf": "10", "b": "1M"}
        for number, image in enumerate(np.pad(noisy(40), [(0, 0)] * 3 + [(0, 1)])):
            image[..., 3] = generator(3).integers(0, 256, (32, 64)) if number == 20 else 255
            frame = av.VideoFrame.from_ndarray(image, format="rgba")
            frame.pts, frame.time_base = 250 + number, Fraction(1, 25)
            out.mux(stream.encode(frame))
        out.mux(stream.encode())
    # The last frame comes after ten hours, and the header agrees.
    with av.open(str(mp4)) as container, av.open(str(folder / "jump.mp4"), "w") as out:
        stream = out.add_stream_from_template(container.streams.video[0])
        packets = [packet for packet in container.demux(video=0) if packet.size]
        packets[-1].pts = packets[-1].dts = round(36_000 / packets[-1].time_base)
        for packet in packets:
            packet.stream = stream
            out.mux(packet)
    return folder, findings | {"jump.mp4": "timestamp gap", "late_alpha.webm": None}


REASONS = {
    "clean_cut.mp4": "20 of 40 frames are there",
    "half_front.mp4": "bytes, it has",
    "hours.mkv": "the header states 36000 s, the file has 1.6",
    "block.mkv": "is damaged, so frames are missing",
    "no_index.mp4": "its index (moov) is missing",
    "frames.avi": "the header states 90000 frames, the file has 40",
    "empty.mp4": "the file has 0 bytes",
    "jump.mp4": "one frame lasts 3599",
}


def test_damaged_files(tmp_path, damaged):
    folder, findings = damaged
    names = sorted(findings)
    videos = write_list(tmp_path / "lists", [[name, 0] for name in names])
    result = check(videos, out=tmp_path / "out", root=folder, workers=2)
    assert {row.path: row.finding for row in result.findings} == {name: kind for name, kind in findings.items() if kind}
    kept = [name for name in names if findings[name] in (None, "header mismatch", "timestamp gap")]
    assert list(read_list(result.list).names) == kept
    reasons = {row.path: row.reason for row in result.findings}
    assert all(words in reasons[name] for name, words in REASONS.items())
    report = str(result)
    assert f"{len(names)} files in {len(names)} rows; {len(kept)} rows kept" in report and "1 empty" in report
    assert str(tmp_path / "out/report.csv") in report and str(tmp_path / "out/all.csv") in report


def test_real_files_that_are_cut(tmp_path, real):
    """Without its headers FFmpeg may find no decoder for a stream."""
    cuts = [("cases/vfr.mp4", fraction) for fraction in (0.3, 0.7, 0.9)]
    cuts += [("containers/flipping_a_pancake.mkv", 0.7), ("containers/video_90.mov", 0.7)]
    for name, fraction in cuts:
        content, path = (real / name).read_bytes(), tmp_path / Path(name).name
        path.write_bytes(content[: int(fraction * len(content))])
        assert [kind for kind, _ in check_video(path, 1.0, MAX_PIXELS, lambda: None)[1]] == ["truncated"]


def test_a_file_without_timestamps_has_no_header_mismatch():
    assert _Contents(8.0, "s", packets=200).mismatches() == []
    assert _Contents(8.0, "s", packets=200, start=0.0, end=4.0).mismatches()[0][0] == "header mismatch"


def test_nothing_is_found_in_real_videos(tmp_path, real):
    names = [
        path.relative_to(real).as_posix()
        for pattern in ("containers/*", "ucf101_clips/*", "surveillance/fight/fi00*.mp4")
        for path in sorted(real.glob(pattern))[:: 1 if "containers" in pattern else 5]
        if path.name != "corrupted.mp4"
    ]
    videos = write_list(tmp_path, [[name, 0] for name in names])
    result = check(videos, out=tmp_path / "out", root=real, workers=2, min_frames=1)
    assert not result.findings and result.kept == len(names) > 15
    assert read_list(result.list).names == tuple(names)


def test_5_names_in_other_letters_and_missing_files(tmp_path, digits):
    source = (digits / "videos/test/00000.mp4").read_bytes()
    for name in ("HandStand/v_HandStand.mp4", "twice/A.mp4", "twice/a.mp4", "Fine.mp4"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(source)
    rows = [
        ["Fine.mp4", 0],
        ["handstand/v_Handstand.mp4", 1],
        ["fine.mp4", 0],  # would be the first row again
        ["FINE.mp4", 1],
        ["Twice/a.MP4", 0],
        ["Fime.mp4", 0],
        ["nowhere/x.mp4", 1],
    ]
    findings, kept, result = checked(tmp_path, rows)
    assert findings == {
        "handstand/v_Handstand.mp4": ["wrong case"],
        "fine.mp4": ["wrong case", "duplicate"],
        "FINE.mp4": ["wrong case", "duplicate"],
        "Twice/a.MP4": ["missing"],
        "Fime.mp4": ["missing"],
        "nowhere/x.mp4": ["missing"],
    }
    assert kept == ["Fine.mp4", "HandStand/v_HandStand.mp4"]
    reasons = {(each.path, each.finding): each.reason for each in result.findings}
    assert reasons["fine.mp4", "duplicate"] == "the list has the same row for Fine.mp4"
    assert reasons["FINE.mp4", "duplicate"] == "the list has the same row for Fine.mp4 with label 0"
    assert reasons["Twice/a.MP4", "missing"] == "there are twice/A.mp4 and twice/a.mp4"
    assert reasons["Fime.mp4", "missing"] == "No such file"
    assert read_list(result.list).names == tuple(kept)


def test_5_in_training_a_name_in_other_letters_is_an_error_that_names_the_nearest(tmp_path, digits):
    (tmp_path / "v_HandStand.mp4").write_bytes((digits / "videos/test/00000.mp4").read_bytes())
    for name in ("v_Handstand.mp4", "v_HandStamd.mp4"):
        with pytest.raises(DecodeError, match=r"No such file; did you mean v_HandStand\.mp4\?") as caught:
            open_video(tmp_path / name)
        assert str(tmp_path / name) in str(caught.value)


def test_5_links_that_leave_the_root_are_no_right_name(tmp_path, digits):
    folder = tmp_path / "root"
    folder.mkdir()
    (tmp_path / "secret.mp4").write_bytes((digits / "videos/test/00000.mp4").read_bytes())
    (folder / "Link.mp4").symlink_to(tmp_path / "secret.mp4")
    (folder / "gone.mp4").symlink_to(tmp_path / "nowhere.mp4")
    (folder / "fine.mp4").write_bytes((tmp_path / "secret.mp4").read_bytes())
    findings, kept, _ = checked(folder, [["link.mp4", 0], ["fine.mp4", 0]])
    assert findings == {"link.mp4": ["missing"]} and kept == ["fine.mp4"]
    findings, kept, _ = checked(folder, [["link.mp4", 0], ["gone.mp4", 1]], allow_external=True)
    assert findings == {"link.mp4": ["wrong case"], "gone.mp4": ["missing"]} and kept == ["Link.mp4"]


def test_7_short_videos_and_files_without_pictures(tmp_path, write_video, write_sound, numbered, noisy):
    write_video(tmp_path / "one.mp4", numbered(1))
    write_video(tmp_path / "ten.mp4", numbered(10), fps=5)
    write_video(tmp_path / "fifty.mp4", numbered(50))
    write_sound(tmp_path / "sound.mp4")
    rows = [[name, 0, "", ""] for name in ("one.mp4", "ten.mp4", "fifty.mp4", "sound.mp4")]
    rows += [["fifty.mp4", 1, 0.4, 0.8], ["fifty.mp4", 1, 0, 1.9], ["fifty.mp4", 1, 2.5, ""]]
    header = "path,label,start,end"
    findings, kept, _ = checked(tmp_path, rows, header)
    assert findings == {"sound.mp4": ["no video stream"], "fifty.mp4": ["span out of range"]}
    assert kept == ["one.mp4", "ten.mp4", *3 * ["fifty.mp4"]]
    findings, kept, result = checked(tmp_path, rows, header, min_frames=11)
    assert findings["one.mp4"] == findings["ten.mp4"] == ["too short"] and kept == 2 * ["fifty.mp4"]
    assert "10 frames, the minimum is 11" in {each.reason for each in result.findings}
    findings, kept, _ = checked(tmp_path, rows, header, min_seconds=1.5)
    assert kept == ["ten.mp4", "fifty.mp4", "fifty.mp4"]  # 2 s, 2 s and 1.9 s
    assert result.files == 4  # each once, though three rows more are about one of them


def test_7_all_columns_are_kept(tmp_path, digits):
    (tmp_path / "Fine.mp4").write_bytes((digits / "videos/test/00000.mp4").read_bytes())
    videos = tmp_path / "lists/all.csv"
    videos.parent.mkdir()
    videos.write_bytes(
        b"\xef\xbb\xbflabel, start,path,end\r\n1,0.10,Fine.mp4,\r\n\r\n0,,none.mp4,\r\n-1,0.1,fine.mp4,0.9\r\n"
    )
    (tmp_path / "lists/root.txt").write_text(f"{tmp_path}\n")
    result = check(videos, out=tmp_path / "out")
    assert result.list.read_bytes() == b"path,label,start,end\nFine.mp4,1,0.1,\nFine.mp4,-1,0.1,0.9\n"
    assert (tmp_path / "out/root.txt").read_text() == f"{tmp_path.resolve()}\n"
    assert not (tmp_path / "out/classes.txt").exists()
    assert [record.label for record in read_list(result.list).records] == [1, -1]


def test_8_larger_frames_than_the_limit(tmp_path, digits):
    findings, kept, result = checked(tmp_path, copies(tmp_path, digits, ["small.mp4"]), max_pixels=48 * 48 - 1)
    assert findings == {"small.mp4": ["oversized"]} and kept == []
    assert "48x48 is more than 2303 pixels" in result.findings[0].reason


def decode_slowly(monkeypatch, deed):
    """Let the decoder do something to those files whose names say so."""
    original = decode.PyAV.iter_frames

    def iter_frames(self):
        for number, image in enumerate(original(self)):
            deed(self._path.name, number)
            yield image

    monkeypatch.setattr(decode.PyAV, "iter_frames", iter_frames)


def copies(folder, digits, names):
    for name in names:
        (folder / name).write_bytes((digits / "videos/test/00000.mp4").read_bytes())
    return [[name, 0] for name in names]


def test_decoders_that_hang_crash_or_raise(tmp_path, digits, monkeypatch):
    def deed(name, number):
        if "hang" in name and number == 3:
            time.sleep(60)
        if "crash" in name:
            faulthandler.disable()  # it would fill the log
            ctypes.string_at(0)
        if "odd" in name:
            raise MemoryError("what?\nnobody knows")
        if "slow" in name:  # the clock starts anew with each of its 24 frames
            time.sleep(0.1)

    decode_slowly(monkeypatch, deed)
    rows = copies(tmp_path, digits, ["a.mp4", "hang.mp4", "b.mp4", "crash.mp4", "odd.mp4", "slow.mp4"])
    actual, kept, result = checked(tmp_path, rows, timeout=1.0, workers=2)
    assert actual == {name: ["hangs or crashes"] for name in ("hang.mp4", "crash.mp4")} | {"odd.mp4": ["decode error"]}
    assert kept == ["a.mp4", "b.mp4", "slow.mp4"]
    reasons = {row.path: row.reason for row in result.findings}
    assert "timed out after 1 s, twice" in reasons["hang.mp4"] and "signal 11" in reasons["crash.mp4"]
    assert "MemoryError" in reasons["odd.mp4"]


def test_12_lists_are_read_as_for_training(tmp_path, digits):
    (tmp_path / "out.mp4").write_bytes((digits / "videos/test/00000.mp4").read_bytes())
    root = tmp_path / "root"
    root.mkdir()
    for name in ("../out.mp4", str(tmp_path / "out.mp4"), "http://127.0.0.1:9/a.mp4"):
        videos = write_list(tmp_path / "lists", [[name, 0]])
        with pytest.raises(DataError, match=r"all\.csv:2"):
            check(videos, out=tmp_path / "checked", root=root)
    for name in ("../out.mp4", str(tmp_path / "out.mp4")):
        videos = write_list(tmp_path / "lists", [[name, 0]])
        result = check(videos, out=tmp_path / "checked", root=root, allow_external=True)
        assert result.kept == 1
        assert read_list(result.list, allow_external=True).records[0].path == str(root / name)


def images(folder, count, size=(32, 24), start=1):
    folder.mkdir(parents=True)
    for number in range(start, start + count):
        picture = generator(3, number).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
        cv2.imwrite(str(folder / f"img_{number}.jpg"), picture)


def test_images_alone(tmp_path):
    """An image is a video of one frame, of one second unless the list says otherwise."""
    images(tmp_path / "all", 4)
    (tmp_path / "all/img_2.jpg").write_text("<html>")
    (tmp_path / "all/img_3.jpg").write_bytes(b"")
    names = [f"all/img_{number}.jpg" for number in (1, 2, 3, 4, 9)]
    findings, kept, _ = checked(tmp_path, [[name, number % 2] for number, name in enumerate(names)])
    assert findings == {names[1]: ["not a video"], names[2]: ["empty"], names[4]: ["missing"]}
    assert kept == [names[0], names[3]]
    assert checked(tmp_path, [[names[0], 0]], min_frames=2)[0] == {names[0]: ["too short"]}
    assert checked(tmp_path, [[names[0], 0]], min_seconds=1.0)[1] == [names[0]]


def test_frame_folders(tmp_path):
    for name in ("fine", "cut", "mixed", "page", "bomb"):
        images(tmp_path / name, 8)
    content = (tmp_path / "cut/img_7.jpg").read_bytes()
    (tmp_path / "cut/img_7.jpg").write_bytes(content[:100])
    images(tmp_path / "other", 1, size=(64, 24))
    (tmp_path / "other/img_1.jpg").replace(tmp_path / "mixed/img_9.jpg")
    (tmp_path / "page/img_3.jpg").write_text("<html>")
    header = cv2.imencode(".png", np.zeros((1, 1, 3), np.uint8))[1].tobytes()
    (tmp_path / "bomb/img_9.png").write_bytes(header[:16] + struct.pack(">II", 60_000, 60_000) + header[24:])
    (tmp_path / "none").mkdir()
    names = ["fine", "cut", "mixed", "page", "bomb", "none", "Fine"]  # the first and the last get one label
    findings, kept, result = checked(tmp_path, [[name, number % 2] for number, name in enumerate(names)])
    assert findings == {
        "cut": ["decode error"],
        "mixed": ["several sizes"],
        "page": ["decode error"],
        "bomb": ["decode error"],
        "none": ["not a video"],
        "Fine": ["wrong case", "duplicate"],
    }
    reasons = {each.path: each.reason for each in result.findings}
    assert reasons["page"] == "img_3.jpg: not an image, or damaged"
    assert reasons["mixed"] == "its frames have several sizes: 32x24 and 64x24"
    findings, kept, _ = checked(tmp_path, [["fine", 0, 4], ["fine", 0, 20]], "path,label,fps", min_seconds=1.0)
    assert findings == {"fine": ["too short"]} and kept == ["fine"]
    with pytest.raises(ConfigError, match="fine is an image folder without a frame rate: give fps=RATE"):
        checked(tmp_path, [["fine", 0]], min_seconds=1.0)
    assert checked(tmp_path, [["fine", 0]], min_seconds=1.0, fps=8.0)[1] == ["fine"]


def test_nothing_is_written_over(tmp_path, digits):
    rows = copies(tmp_path, digits, ["a.mp4"])
    videos = write_list(tmp_path / "lists", rows)
    before = videos.read_bytes()
    with pytest.raises(DataError, match="is an input, and an output could replace it"):
        check(videos, out=tmp_path / "lists", root=tmp_path)
    assert videos.read_bytes() == before and not (tmp_path / "lists/report.csv").exists()
    check(videos, out=tmp_path / "out", root=tmp_path)
    check(videos, out=tmp_path / "out", root=tmp_path)  # the same once more
    with pytest.raises(DataError, match="holds report of a check of other inputs"):
        check(write_list(tmp_path / "lists", rows, name="b.csv"), out=tmp_path / "out", root=tmp_path)
    (tmp_path / "out/report.csv").unlink()
    other = write_list(tmp_path / "other", rows, classes=("maybe", "never"))
    with pytest.raises(DataError, match=r"all\.csv was made from \.\./lists/all\.csv .*, not from \.\./other/all\.csv"):
        check(other, out=tmp_path / "out", root=tmp_path)
    with pytest.raises(DataError, match=r"root\.txt belongs to other lists"):
        check(videos, out=tmp_path / "out", root=digits / "videos/test")
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="it is a file; name a folder"):
        check(videos, out=tmp_path / "file", root=tmp_path)


def test_the_command(tmp_path, digits, monkeypatch, capsys):
    def status(*arguments):
        try:
            cli.run("check", [*map(str, arguments), "--workers", "1"])
        except SystemExit as end:
            return end.code
        return 0

    copies(tmp_path, digits, ["a.mp4", "b.mp4"])
    monkeypatch.chdir(tmp_path)
    write_list(tmp_path / "cased", [["A.mp4", 0], ["b.mp4", 1]])
    assert status("cased/all.csv", "--root", ".", "--out", "renamed") == 0  # every row was kept
    assert "1 wrong case (kept)" in capsys.readouterr().out
    (tmp_path / "b.mp4").write_bytes(b"")
    assert status("cased/all.csv", "--root", ".", "--out", "empty", "--min-frames", "1", "--max-pixels", "9999") == 1
    assert "b.mp4: the file has 0 bytes" in capsys.readouterr().out
