"""Trajectories of real files: the pixels of every version, from one decoding."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from vidssl.apps.analysis.invariance import FRACTIONS, TRANSFORMATIONS, Trajectories, choose_transformations
from vidssl.base.errors import ConfigError, DataError
from vidssl.base.types import VideoRecord
from vidssl.data.clip_samplers import ClipSettings
from vidssl.data.read_instance_boxes import read_instance_boxes
from vidssl.data.video_list import Records, read_list
from vidssl.evaluation.features import TestClips, encode_videos
from vidssl.models.backbones import Backbone
from vidssl.transforms import center_crop
from vidssl.transforms.invariance_changes import CORRUPTIONS, GRAY
from vidssl.video.reader import DecodeSettings, Video, open_video

CLIP = ClipSettings(frames=3, sampling_rate=3)  # spans 7 frames


class Pixels(Backbone):
    """Gives the pixels themselves, 0 to 255: (B, 3 * T * S * S)."""

    def __init__(self, frames, size):
        super().__init__()
        self.dim = 3 * frames * size * size
        self.flat = nn.Flatten()

    def forward(self, x):
        return self.flat(x) * 255


def features(backbone, videos, trajectories, boxes=None, **options):
    clips = {"clip": trajectories.clip, "clips": trajectories.clips, "crops": 1, "size": trajectories.size}
    test = TestClips(**{**clips, "mean": (0.0,), "std": (1.0,), "batch_size": 3, "workers": 0, **options})
    dataset = trajectories.dataset(videos, DecodeSettings(), boxes, test.skips)
    columns, missing = encode_videos(backbone, dataset, test, torch.device("cpu"), trajectories.encode, "trajectories")
    return trajectories.features(*columns), missing


def encoded(videos, names, size=24, clips=1, clip=CLIP, short_side=None, **options):
    trajectories = Trajectories(clip, clips, size, names, short_side)
    found, _ = features(Pixels(clip.frames, size), videos, trajectories, **options)
    shape = (3, clip.frames, size, size)
    x = np.rint(found.x).astype(np.uint8).reshape(-1, *shape).swapaxes(1, 2)  # (N, T, 3, S, S)
    versions = np.rint(found.versions).astype(np.uint8).reshape(len(x), -1, *shape).swapaxes(2, 3)
    return found, x, versions, trajectories.places


def seen(video, numbers, size=24):
    return center_crop(video.frames(numbers), size).frames


def test_pixels_of_every_version(digits):
    """Every version, against the frames by hand."""
    videos = read_list(digits / "motion/test.csv").rows(range(4))
    boxes = read_instance_boxes(digits / "boxes.csv", videos)
    names = tuple(TRANSFORMATIONS)
    found, x, versions, places = encoded(videos, names, boxes=boxes, clips=2)
    assert found.index.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert set(places) == set(names) and versions.shape[1] == sum(len(TRANSFORMATIONS[name].amounts) for name in names)
    for row, record in enumerate(videos.records):
        with open_video(record.path) as video:
            for clip, first in ((0, 0), (1, 17)):  # 24 frames, a span of 7: at 0 and 17
                numbers = first + np.array([0, 3, 6])
                n = 2 * row + clip
                np.testing.assert_array_equal(x[n], seen(video, numbers))
                for name, kind in CORRUPTIONS.items():
                    wanted = [kind.apply(seen(video, numbers), amount) for amount in kind.amounts]
                    np.testing.assert_array_equal(versions[n, places[name]], np.stack(wanted))
                np.testing.assert_array_equal(versions[n, places["reverse"]][0], x[n][::-1])
                far = seen(video, numbers + (11 if clip == 0 else -11))  # 5 after 6; 5 before 17
                np.testing.assert_array_equal(versions[n, places["gap"]][0], far)
                later = seen(video, numbers + 4) if clip == 0 else x[n]  # half of 7, to the even 4
                np.testing.assert_array_equal(versions[n, places["shift"]][3], later)
                fast = seen(video, [0, 6, 13] if clip == 0 else [10, 16, 23])  # over 14 frames
                np.testing.assert_array_equal(versions[n, places["speed"]][3], fast)
                for share, version in zip(FRACTIONS, versions[n, places["instance"]], strict=True):
                    frames = video.frames(numbers).copy()
                    for frame, number in zip(frames, numbers.tolist(), strict=True):
                        x1, y1, x2, y2 = map(int, boxes[record.path][number])
                        frame[:, y1:y2, x1 : round(x1 + share * (x2 - x1))] = GRAY
                    np.testing.assert_array_equal(version, center_crop(frames, 24).frames)
    same = (versions == x[:, None]).all(axis=(2, 3, 4, 5))
    np.testing.assert_array_equal(found.changed, ~same)
    shifts = found.changed[:, places["shift"]]
    assert shifts[0].tolist() == [False, False, True, True] and shifts[1].tolist() == [True, True, False, False]


def test_the_square_of_a_larger_short_side(digits):
    videos = read_list(digits / "motion/test.csv").rows(range(1))
    _, x, versions, places = encoded(videos, ("blur", "reverse"), short_side=40)
    with open_video(videos.records[0].path) as video:
        first = (video.meta.num_frames - 7) // 2
        wanted = center_crop(video.frames(first + np.array([0, 3, 6])), 24, 40).frames
    np.testing.assert_array_equal(x[0], wanted)
    np.testing.assert_array_equal(versions[0, places["reverse"]][0], wanted[::-1])
    np.testing.assert_array_equal(
        versions[0, places["blur"]],
        np.stack([CORRUPTIONS["blur"].apply(wanted, amount) for amount in CORRUPTIONS["blur"].amounts]),
    )


class Product(Pixels):
    """The pixels by a matrix, which autocast multiplies in its precision."""

    def forward(self, x):
        x = super().forward(x)
        return x @ torch.eye(x.shape[1])


def test_half_precision_rounds_features(digits):
    videos = read_list(digits / "motion/test.csv").rows(range(1))
    trajectories = Trajectories(CLIP, 1, 24, ("reverse",))
    options = {"mean": (0.45,), "std": (0.225,)}
    found, halved = (
        features(Product(CLIP.frames, 24), videos, trajectories, precision=precision, **options)[0]
        for precision in ("float32", "bfloat16")
    )
    for name in ("x", "versions"):
        wanted = torch.from_numpy(getattr(found, name)).bfloat16().float().numpy()
        assert not np.array_equal(getattr(found, name), wanted)
        np.testing.assert_array_equal(getattr(halved, name), wanted)


def test_a_video_is_decoded_once(digits, monkeypatch):
    calls = []
    frames = Video.frames
    monkeypatch.setattr(Video, "frames", lambda self, n: calls.append(self.path) or frames(self, n))
    videos = read_list(digits / "motion/test.csv").rows(range(3))
    encoded(videos, tuple(TRANSFORMATIONS), boxes=read_instance_boxes(digits / "boxes.csv", videos))
    assert sorted(calls) == [record.path for record in videos.records]


def test_workers_and_batches_do_not_change_results(digits):
    videos = read_list(digits / "motion/test.csv").rows(range(5))
    names = ("occlusion", "speed")
    plain = encoded(videos, names, workers=0)[0]
    others = encoded(videos, names, workers=2, timeout=60.0)[0]
    for name in ("x", "versions", "changed", "index"):
        np.testing.assert_array_equal(getattr(plain, name), getattr(others, name))


def test_a_still_video_is_not_counted(write_video, tmp_path):
    """What leaves every pixel as it is, is no version: a perfect score for nothing would be wrong."""
    frame = np.zeros((16, 32, 32, 3), np.uint8)
    frame[:, 8:20, 4:18] = 200
    write_video(tmp_path / "still.mp4", frame, gop=1, options={"qp": "0"})
    (tmp_path / "list.csv").write_text("path,label\nstill.mp4,0\n")
    found, x, _, places = encoded(read_list(tmp_path / "list.csv"), ("occlusion", "shift", "reverse"))
    assert (x[0] == x[0, 0]).all()
    assert found.changed[0, places["occlusion"]].all()
    assert not found.changed[0, places["shift"]].any() and not found.changed[0, places["reverse"]].any()


def test_broken_videos(digits, tmp_path):
    videos = read_list(digits / "motion/test.csv").rows(range(3))
    broken = tmp_path / "broken.mp4"
    broken.write_bytes(b"no video")
    rows = (videos.records[0], VideoRecord(str(broken), 0), videos.records[2])
    mixed = replace(videos, records=Records(videos.root, rows))
    with pytest.raises(DataError, match=r"broken\.mp4"):
        encoded(mixed, ("blur",))
    for workers in (0, 1):
        trajectories = Trajectories(CLIP, 1, 24, ("blur",))
        found, missing = features(Pixels(3, 24), mixed, trajectories, allow_missing=True, workers=workers)
        assert found.index.tolist() == [0, 2] and [path for path, _ in missing] == [str(broken)]
    with pytest.raises(DataError, match="the only video of"):
        encoded(mixed.rows([1]), ("blur",), allow_missing=True)


def test_choice_of_transformations():
    every, left_out = choose_transformations(None, 8, boxes=True)
    assert every == tuple(TRANSFORMATIONS) and not left_out
    chosen, left_out = choose_transformations(None, 1, boxes=False)
    assert set(left_out) == {"shift", "speed", "reverse", "instance"} and "gap" in chosen
    assert choose_transformations(("blur", "occlusion"), 8, False)[0] == ("occlusion", "blur")
    with pytest.raises(ConfigError, match=r"no transformation 'blurr' \(did you mean 'blur'\?\)"):
        choose_transformations(("blurr",), 8, False)
    with pytest.raises(ConfigError, match=r"no transformation is left .*speed: a clip of one frame"):
        choose_transformations(("speed",), 1, False)


def test_boxes_of_spans_and_of_some_frames(digits, tmp_path):
    """Numbers in the file are those of the whole video; a frame without a box stays as it is."""
    source = read_list(digits / "motion/test.csv")
    (tmp_path / "list.csv").write_text(f"path,start,end\n{source.names[0]},0.32,0.72\n")  # frames 8 to 17
    videos = read_list(tmp_path / "list.csv", source.root)
    (tmp_path / "boxes.csv").write_text(
        f"path,frame,x1,y1,x2,y2\n{source.names[0]},9,4,8,44.4,40\n{source.names[1]},9,0,0,9,9\n"
    )
    boxes = read_instance_boxes(tmp_path / "boxes.csv", videos)
    assert list(boxes) == [videos.records[0].path]
    found, x, versions, _ = encoded(videos, ("instance",), boxes=boxes, size=48)
    with open_video(videos.records[0].path) as video:
        wanted = video.frames([9, 12, 15]).copy()
        np.testing.assert_array_equal(x[0], wanted)
    wanted[0, :, 8:40, 4:24] = GRAY
    np.testing.assert_array_equal(versions[0, 1], wanted)
    assert found.changed.all()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("path,frame,x,y,w,h\n", r"boxes\.csv:1: the header is not path,frame,x1,y1,x2,y2"),
        ("path,frame,x1,y1,x2,y2\n{0},0,1,1,9\n", r"boxes\.csv:2: .* is not a box"),
        ("path,frame,x1,y1,x2,y2\n{0},a,1,1,9,9\n", r"boxes\.csv:2: .*is not path,frame"),
        ("path,frame,x1,y1,x2,y2\n{0},0,1,1,9,9\n{0},1,9,1,9,9\n", r"boxes\.csv:3: .* is not a box"),
        ("path,frame,x1,y1,x2,y2\n{0},0,1,1,nan,9\n", r"boxes\.csv:2: .* is not a box"),
        ("path,frame,x1,y1,x2,y2\n{0},0,1,1,9,9\n{0},0,2,2,9,9\n", r"boxes\.csv:3: frame 0 .* has a box already"),
        ("path,frame,x1,y1,x2,y2\nother.mp4,0,1,1,9,9\n", r"boxes\.csv has no box for any video of"),
    ],
)
def test_invalid_files_of_boxes(text, message, digits, tmp_path):
    videos = read_list(digits / "motion/test.csv")
    (tmp_path / "boxes.csv").write_text(text.format(videos.names[0]))
    with pytest.raises(DataError, match=message):
        read_instance_boxes(tmp_path / "boxes.csv", videos)
