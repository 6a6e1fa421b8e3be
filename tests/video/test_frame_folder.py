"""Folders of images as videos: any padding, numeric order, and an error with the reason otherwise."""

import struct
import zlib

import cv2
import numpy as np
import pytest
from PIL import Image

from vidssl.apps.check.file_defects import check_video
from vidssl.base.errors import DataError, DecodeError
from vidssl.data.clip_samplers import Uniform
from vidssl.data.dataset import ClipDataset
from vidssl.data.video_list import read_list
from vidssl.transforms import RECIPES
from vidssl.video.reader import DecodeSettings, open_video


def write(folder, names, size=(32, 64)):
    """Images (H, W) of one gray each, ten apart, in the order of the names."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(names):
        cv2.imwrite(str(folder / name), np.full((*size, 3), 10 * number, np.uint8))
    return folder


def grays(frames):
    return [round(float(frame.mean()) / 10) for frame in frames]


@pytest.mark.parametrize(
    "names",
    [
        [f"{n}.jpg" for n in range(12)],  # TrackingNet: from 0, not padded
        [f"{n:05d}.jpg" for n in range(1, 13)],
        [f"img_{n:05d}.png" for n in range(1, 13)],
        [f"frame{n}.JPG" for n in range(95, 107)],  # the number of digits grows
        [f"-id [1]#{n:03d}.webp" for n in range(0, 120, 10)],  # with gaps
    ],
)
def test_numeric_order(tmp_path, names):
    folder = write(tmp_path / "video", names)
    (folder / "._0.jpg").write_bytes(b"hidden")
    (folder / "readme.txt").write_text("no image")
    (folder / "thumbnail.jpg").write_bytes(b"no number")
    with open_video(folder, fps=12.5) as video:
        assert (video.meta.num_frames, video.meta.fps) == (12, 12.5)
        assert (video.meta.height, video.meta.width) == (32, 64)
        frames = video.frames([11, 0, 3, 3])
        assert frames.shape == (4, 3, 32, 64) and frames.transpose(0, 2, 3, 1).flags.c_contiguous
        assert grays(frames) == [11, 0, 3, 3]
        assert grays(video.iter_frames()) == list(range(12))
        with pytest.raises(DecodeError, match="frames 12-12 requested, the video has frames 0-11"):
            video.frames([12])


def test_colours_are_rgb(tmp_path):
    (tmp_path / "red").mkdir()
    cv2.imwrite(str(tmp_path / "red" / "0.png"), np.full((8, 8, 3), (0, 0, 255), np.uint8))
    with open_video(tmp_path / "red", fps=1) as video:
        assert video.frames([0])[0, :, 0, 0].tolist() == [255, 0, 0]


def test_refused_folders(tmp_path):
    refused = {
        "empty": ([], "no numbered images in the folder"),
        "two kinds": (["img_1.jpg", "flow_x_1.jpg"], "images are named flow_x_N and img_N: keep one kind"),
        "twice": (["1.jpg", "01.jpg"], "are both frame 1"),
    }
    for name, (names, reason) in refused.items():
        with pytest.raises(DecodeError, match=reason):
            open_video(write(tmp_path / name, names), fps=25)
    whole = write(tmp_path / "whole", ["0.jpg", "1.jpg"])
    with pytest.raises(DecodeError, match=r"set data\.fps, or add a column fps"):
        open_video(whole)
    with pytest.raises(DecodeError, match="64x32 is more than 2047 pixels"):
        open_video(whole, fps=25, max_pixels=2047)
    (whole / "1.jpg").write_bytes((whole / "1.jpg").read_bytes()[:40])
    write(tmp_path / "sizes", ["0.jpg"])
    cv2.imwrite(str(tmp_path / "sizes" / "1.jpg"), np.zeros((16, 16, 3), np.uint8))
    for folder, reason in ((whole, r"1\.jpg: not an image, or damaged"), (tmp_path / "sizes", "several sizes")):
        with open_video(folder, fps=25) as video:
            video.frames([0])
            with pytest.raises(DecodeError, match=reason):
                video.frames([0, 1])


def test_8_every_image_is_checked_against_the_limit(tmp_path):
    folder = write(tmp_path / "bomb", ["0.png"])
    cv2.imwrite(str(folder / "1.png"), np.zeros((64, 100, 3), np.uint8))
    with open_video(folder, fps=25, max_pixels=32 * 64) as video, pytest.raises(DecodeError, match="100x64 is more"):
        video.frames([1])
    header = bytearray((folder / "0.png").read_bytes())
    header[16:24] = (40_000).to_bytes(4, "big") * 2  # its size
    header[29:33] = zlib.crc32(header[12:29]).to_bytes(4, "big")
    (folder / "0.png").write_bytes(header)
    with pytest.raises(DecodeError, match=r"0\.png"):
        open_video(folder, fps=25)


def test_lists_of_folders(tmp_path):
    """The fps of a row, else that of the data set; seconds of clips go by it."""
    write(tmp_path / "a", [f"{n}.jpg" for n in range(20)])
    write(tmp_path / "b", [f"{n}.jpg" for n in range(20)])
    (tmp_path / "list.csv").write_text("path,label,fps\na,0,10\nb,1,\n")
    videos = read_list(tmp_path / "list.csv")
    assert [record.fps for record in videos.records] == [10, None]
    sampler = Uniform(Uniform.Config(frames=3, seconds=1.0, clips=1))
    recipe = RECIPES["center_crop"](RECIPES["center_crop"].Config(size=32))
    dataset = ClipDataset(videos, sampler, [recipe], reading=DecodeSettings(fps=5))
    assert grays(dataset[0, 0].views[0]) == [5, 9, 14]  # ten frames, from the sixth
    assert grays(dataset[0, 1].views[0]) == [7, 9, 11]  # five frames, from the eighth
    with pytest.raises(DataError, match="add a column fps to the list"):
        ClipDataset(videos, sampler, [recipe])[0, 1]


# One image alone


@pytest.mark.parametrize("name", ["0.png", "an image.JPG", "c.jpeg", "d.bmp", "e.webp"])
def test_an_image_is_a_video_of_one_frame(tmp_path, name):
    image = np.full((24, 40, 3), (0, 0, 250), np.uint8)  # red, as OpenCV writes it
    assert cv2.imwrite(str(tmp_path / name), image)
    with open_video(tmp_path / name) as video:
        meta = video.meta
        assert (meta.num_frames, meta.fps, meta.height, meta.width) == (1, 1.0, 24, 40)
        frames = video.frames([0, 0])
        assert frames.shape == (2, 3, 24, 40)
        assert frames[:, 0].min() > 230 and frames[:, 1:].max() < 20
        assert len(list(video.iter_frames())) == 1
        with pytest.raises(DecodeError, match="frames 1-1 requested, the video has frames 0-0"):
            video.frames([1])
    assert open_video(tmp_path / name, "decord", fps=25).meta.fps == 25  # the backend is not used


def test_8_images_that_are_refused(tmp_path):
    write(tmp_path, ["0.png", "1.jpg"], (64, 100))
    with pytest.raises(DecodeError, match="100x64 is more than 6399 pixels"):
        open_video(tmp_path / "0.png", max_pixels=6399)
    whole = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    header = whole["0.png"][12:16] + struct.pack(">II", 60_000, 60_000) + whole["0.png"][24:29]
    bomb = whole["0.png"][:12] + header + struct.pack(">I", zlib.crc32(header)) + whole["0.png"][33:]
    gif = cv2.imencode(".gif", np.zeros((8, 8, 3), np.uint8))[1].tobytes()
    tiff = cv2.imencode(".tiff", np.zeros((8, 8, 3), np.uint8))[1].tobytes()
    refused = {
        "text.png": (b"<html>", "not an image, or damaged", "not a video"),
        "empty.png": (b"", "the file is empty", "empty"),
        "bomb.png": (bomb, "more than|bomb", "oversized"),
        "cut.png": (whole["0.png"][:-20], "not an image, or damaged", "decode error"),
        "cut.jpg": (whole["1.jpg"][:-60], "not an image, or damaged", "decode error"),
        "gif.png": (gif, "not an image, or damaged", "not a video"),  # another kind than the name says
        "tiff.jpg": (tiff, "not an image, or damaged", "not a video"),
        "list.png": (b"ffconcat version 1.0\nfile 0.png\n", "not an image, or damaged", "not a video"),
    }
    for name, (content, reason, kind) in refused.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DecodeError, match=reason), open_video(tmp_path / name) as video:
            video.frames([0])
        faults = check_video(tmp_path / name, 1.0, 10**7, lambda: None)[1]
        assert [outcome for outcome, _ in faults] == [kind], name
        assert name not in faults[0][1]
    with pytest.raises(DecodeError, match=r"No such file; did you mean 0\.png"):
        open_video(tmp_path / "0.PNG")
    meta, faults = check_video(tmp_path / "0.png", 1.0, 10**7, lambda: None)
    assert meta is not None and meta.num_frames == 1 and faults == []


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp"])
def test_the_size_is_that_of_the_frames_whatever_the_orientation(tmp_path, suffix):
    """EXIF data turn the picture; such data that are damaged do not."""
    picture = Image.new("RGB", (100, 60))
    for orientation in range(9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        path = tmp_path / f"{orientation}.{suffix}"
        picture.save(path, exif=exif if orientation else b"Exif\0\0II no TIFF")
        with open_video(path) as video:
            assert video.frames([0]).shape[2:] == (video.meta.height, video.meta.width)
            assert (video.meta.height == 100) == (orientation > 4)


@pytest.mark.parametrize("shape", [(40, 60), (40, 60, 3), (40, 60, 4)])
def test_16_bits_are_refused(tmp_path, shape):
    """Cameras and depth sensors use a part of the range only: eight bits of it may be nothing."""
    (tmp_path / "frames").mkdir()
    for path in (tmp_path / "one.png", tmp_path / "frames/1.png"):
        cv2.imwrite(str(path), np.arange(np.prod(shape), dtype=np.uint16).reshape(shape))
    cv2.imwrite(str(tmp_path / "frames/0.png"), np.zeros(shape, np.uint8))
    with pytest.raises(DecodeError, match=r"one\.png: 16 bits per channel: write 8"):
        open_video(tmp_path / "one.png")
    with open_video(tmp_path / "frames", fps=1) as video, pytest.raises(DecodeError, match=r"1\.png: 16 bits"):
        video.frames([1])
    _, faults = check_video(tmp_path / "frames", 1.0, 10**7, lambda: None)
    assert [kind for kind, _ in faults] == ["decode error"]
