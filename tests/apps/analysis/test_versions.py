"""Versions of clips of real files: the pixels of each, that draws depend on seed and row only, from one decoding."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from vidssl.apps.analysis.corrupted_clips import COMPRESSIONS, ROBUSTNESS
from vidssl.apps.analysis.invariance import FRACTIONS, TRANSFORMATIONS, collect_trajectories, encode_trajectories
from vidssl.apps.analysis.invariance import trajectories as versions_of
from vidssl.apps.analysis.versions import ORIGINAL, Versions
from vidssl.base.errors import DataError
from vidssl.base.types import VideoRecord
from vidssl.data.clip_samplers import Clip, ClipSettings, Uniform
from vidssl.data.read_instance_boxes import read_instance_boxes
from vidssl.data.video_list import Records, read_list
from vidssl.evaluation.features import TestClips, encode_videos
from vidssl.jobs.grad_cam import version_of
from vidssl.models.backbones import Backbone
from vidssl.transforms import center_crop
from vidssl.transforms.gamma_and_shuffles import gamma
from vidssl.transforms.invariance_changes import CORRUPTIONS, GRAY
from vidssl.video.reader import DecodeSettings, Video, open_video

CLIP = ClipSettings(frames=3, sampling_rate=3)  # spans 7 frames


@pytest.fixture(scope="module")
def videos(digits):
    return read_list(digits / "motion/test.csv")


# Transformations, by the features of the pixels themselves --------------------------------------------------


class Pixels(Backbone):
    """Gives the pixels themselves, 0 to 255: (B, 3 * T * S * S), if asked for by a product that autocast rounds."""

    def __init__(self, frames, size, product=False):
        super().__init__()
        self.dim, self.product = 3 * frames * size * size, product
        self.flat = nn.Flatten()

    def forward(self, x):
        x = self.flat(x) * 255
        return x @ torch.eye(x.shape[1]) if self.product else x


def encoded(videos, names, boxes=None, product=False, **options):
    """The features, the pixels (N, T, 3, S, S) and (N, V, T, 3, S, S), the places of names, and what is missing."""
    arguments = {"clip": CLIP, "clips": 1, "crops": 1, "size": 24, "mean": (0.0,), "std": (1.0,), "batch_size": 3}
    test = TestClips(**{**arguments, "workers": 0, **options})
    versions = versions_of(test, names, boxes)
    dataset = versions.dataset(videos, DecodeSettings(), skip=test.skips)

    def encode(batch, features):
        return encode_trajectories(versions, batch, features)

    backbone = Pixels(CLIP.frames, test.size, product)
    columns, missing = encode_videos(backbone, dataset, test, torch.device("cpu"), encode, "versions")
    actual = collect_trajectories(*columns)
    shape = (3, CLIP.frames, test.size, test.size)
    x = np.rint(actual.x).astype(np.uint8).reshape(-1, *shape).swapaxes(1, 2)
    changed = np.rint(actual.versions).astype(np.uint8).reshape(len(x), -1, *shape).swapaxes(2, 3)
    places = {}
    for place, (name, _) in enumerate(versions.changed):
        places.setdefault(name, []).append(place)
    return actual, x, changed, places, missing


def test_pixels_of_every_transformation(digits, videos, monkeypatch):
    """Every version of two clips, against the frames by hand; each video is decoded once."""
    calls, frames_of = [], Video.frames
    monkeypatch.setattr(Video, "frames", lambda self, n: calls.append(self.path) or frames_of(self, n))
    videos = videos.rows(range(2))
    boxes = read_instance_boxes(digits / "boxes.csv", videos)
    actual, x, versions, places, _ = encoded(videos, tuple(TRANSFORMATIONS), boxes, clips=2)
    assert sorted(calls) == [record.path for record in videos.records]
    monkeypatch.undo()
    assert actual.index.tolist() == [0, 0, 1, 1] and [*places] == [*TRANSFORMATIONS]
    for row, record in enumerate(videos.records):
        with open_video(record.path) as video:

            def seen(numbers, video=video):
                return center_crop(video.frames(numbers), 24).frames

            for clip, first in ((0, 0), (1, 17)):  # 24 frames, a span of 7: at 0 and 17
                numbers = first + np.array([0, 3, 6])
                n = 2 * row + clip
                np.testing.assert_array_equal(x[n], seen(numbers))
                for name, kind in CORRUPTIONS.items():
                    expected = [kind.apply(seen(numbers), amount) for amount in kind.amounts]
                    np.testing.assert_array_equal(versions[n, places[name]], np.stack(expected))
                moved = {
                    ("reverse", 0): x[n][::-1],
                    ("gap", 0): seen(numbers + (11 if clip == 0 else -11)),  # 5 after 6; 5 before 17
                    ("shift", 3): seen(numbers + 4) if clip == 0 else x[n],  # half of 7, to the even 4
                    ("speed", 3): seen([0, 6, 13] if clip == 0 else [10, 16, 23]),  # over 14 frames
                }
                for (name, place), expected in moved.items():
                    np.testing.assert_array_equal(versions[n, places[name][place]], expected, name)
                for share, version in zip(FRACTIONS, versions[n, places["instance"]], strict=True):
                    frames = video.frames(numbers).copy()
                    for frame, number in zip(frames, numbers.tolist(), strict=True):
                        x1, y1, x2, y2 = map(int, boxes[record.path][number])
                        frame[:, y1:y2, x1 : round(x1 + share * (x2 - x1))] = GRAY
                    np.testing.assert_array_equal(version, center_crop(frames, 24).frames)
    np.testing.assert_array_equal(actual.changed, (versions != x[:, None]).any(axis=(2, 3, 4, 5)))
    shifts = actual.changed[:, places["shift"]]
    assert shifts[0].tolist() == [False, False, True, True] and shifts[1].tolist() == [True, True, False, False]


def test_the_square_of_a_larger_short_side(videos):
    _, x, versions, places, _ = encoded(videos.rows([0]), ("blur", "reverse"), short_side=40)
    with open_video(videos.records[0].path) as video:
        first = (video.meta.num_frames - 7) // 2
        expected = center_crop(video.frames(first + np.array([0, 3, 6])), 24, 40).frames
    np.testing.assert_array_equal(x[0], expected)
    np.testing.assert_array_equal(versions[0, places["reverse"][0]], expected[::-1])
    blurred = [CORRUPTIONS["blur"].apply(expected, amount) for amount in CORRUPTIONS["blur"].amounts]
    np.testing.assert_array_equal(versions[0, places["blur"]], np.stack(blurred))


def test_half_precision_rounds_features(videos):
    actual, halved = (
        encoded(videos.rows([0]), ("reverse",), product=True, precision=precision, mean=(0.45,), std=(0.225,))[0]
        for precision in ("float32", "bfloat16")
    )
    for name in ("x", "versions"):
        expected = torch.from_numpy(getattr(actual, name)).bfloat16().float().numpy()
        assert not np.array_equal(getattr(actual, name), expected)
        np.testing.assert_array_equal(getattr(halved, name), expected)


def test_a_still_video_is_not_counted(write_video, tmp_path):
    """What leaves every pixel as it is, is no version: a perfect score for nothing would be wrong."""
    frame = np.zeros((16, 32, 32, 3), np.uint8)
    frame[:, 8:20, 4:18] = 200
    write_video(tmp_path / "still.mp4", frame, gop=1, options={"qp": "0"})
    (tmp_path / "list.csv").write_text("path,label\nstill.mp4,0\n")
    actual, x, _, places, _ = encoded(read_list(tmp_path / "list.csv"), ("occlusion", "shift", "reverse"))
    assert (x[0] == x[0, 0]).all()
    counted = {name: actual.changed[0, rows].tolist() for name, rows in places.items()}
    assert all(counted["occlusion"]) and not any(counted["shift"] + counted["reverse"])


def test_broken_videos_and_workers(videos, tmp_path):
    (tmp_path / "broken.mp4").write_bytes(b"no video")
    rows = (videos.records[0], VideoRecord(str(tmp_path / "broken.mp4"), 0), videos.records[2])
    mixed = replace(videos, records=Records(videos.root, rows))
    with pytest.raises(DataError, match=r"broken\.mp4"):
        encoded(mixed, ("blur",))
    several = [encoded(mixed, ("blur", "speed"), allow_missing=True, workers=workers) for workers in (0, 1)]
    for outcome, *_, missing in several:
        assert outcome.index.tolist() == [0, 2] and [path for path, _ in missing] == [str(tmp_path / "broken.mp4")]
        np.testing.assert_array_equal(outcome.versions, several[0][0].versions)
    with pytest.raises(DataError, match="the only video cannot be read"):
        encoded(mixed.rows([1]), ("blur",), allow_missing=True)


def test_boxes_of_spans_and_of_some_frames(digits, videos, tmp_path):
    """Numbers in the file are those of the whole video; a frame without a box stays as it is."""
    (tmp_path / "list.csv").write_text(f"path,start,end\n{videos.names[0]},0.32,0.72\n")  # frames 8 to 17
    spans = read_list(tmp_path / "list.csv", videos.root)
    (tmp_path / "boxes.csv").write_text(
        f"path,frame,x1,y1,x2,y2\n{videos.names[0]},9,4,8,44.4,40\n{videos.names[1]},9,0,0,9,9\n"
    )
    boxes = read_instance_boxes(tmp_path / "boxes.csv", spans)
    assert list(boxes) == [spans.records[0].path]
    actual, x, versions, _, _ = encoded(spans, ("instance",), boxes, size=48)
    with open_video(spans.records[0].path) as video:
        expected = video.frames([9, 12, 15]).copy()
        np.testing.assert_array_equal(x[0], expected)
    expected[0, :, 8:40, 4:24] = GRAY
    np.testing.assert_array_equal(versions[0, 1], expected)
    assert actual.changed.all()


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
def test_invalid_files_of_boxes(text, message, videos, tmp_path):
    (tmp_path / "boxes.csv").write_text(text.format(videos.names[0]))
    with pytest.raises(DataError, match=message):
        read_instance_boxes(tmp_path / "boxes.csv", videos)


# Corruptions, by the views of a sample ----------------------------------------------------------------------

FOUR = ClipSettings(frames=4, sampling_rate=3)


def views(videos, names, row=0, severities=(1, 2, 3, 4, 5), clips=1, seed=0):
    """The frames of a sample by version; of several clips the numbers of their views."""
    changed = [(name, severity - 1) for name in ROBUSTNESS if name in names for severity in severities]
    versions = Versions(FOUR, clips, 32, ROBUSTNESS, changed)
    sample = versions.dataset(videos, DecodeSettings(), seed)[0, row]
    places = versions.split(torch.tensor([n]) for n in range(len(sample.views)))[0].tolist()  # of each clip
    if clips > 1:
        return dict(zip([ORIGINAL, *changed], zip(*places, strict=True), strict=True)), versions.originals
    return {version: sample.views[n] for version, n in zip([ORIGINAL, *changed], places[0], strict=True)}


def test_versions_do_not_depend_on_what_else_is_measured(videos):
    everything = views(videos, ROBUSTNESS)
    assert len(everything) == 1 + 5 * len(ROBUSTNESS)
    for names in (["rain"], ["shuffle", "drop"], ["h264_rate"], ["local_shuffle", "freeze"]):
        for version, frames in views(videos, names, severities=(2, 5)).items():
            np.testing.assert_array_equal(frames, everything[version], str(version))


def test_compression_is_deterministic(videos):
    """Whatever lies in the memory that the encoder gets."""
    first = views(videos, COMPRESSIONS, severities=(1, 5))
    for n in range(4):
        held = [bytes([n + 1]) * size for size in range(1000, 300_000, 13_000 + n)]
        again = views(videos, COMPRESSIONS, severities=(1, 5))
        del held
        for version, frames in first.items():
            np.testing.assert_array_equal(again[version], frames, str(version))


def test_draws_depend_on_seed_and_row(videos):
    names = ["gaussian_noise", "global_shuffle", "shuffle"]
    first, again, other_seed = (views(videos, names, seed=seed) for seed in (0, 0, 1))
    for version in list(first)[1:]:
        assert np.array_equal(first[version], again[version])
        assert (first[version] != other_seed[version]).any() or version == ("shuffle", 0)
    noise = [views(videos, names, row=row) for row in (0, 1)]
    added = [one["gaussian_noise", 0].astype(int) - one[ORIGINAL] for one in noise]
    assert (added[0] != added[1]).mean() > 0.5


def test_views_are_the_corruptions_of_the_central_square(videos):
    actual = views(videos, ["gamma_dark", "reverse"])
    with open_video(videos.records[0].path) as video:
        (clip,) = Uniform(Uniform.Config(**dict(FOUR), clips=1))(video.meta, ())
        square = center_crop(video.frames(clip.indices), 32).frames
    np.testing.assert_array_equal(actual[ORIGINAL], square)
    np.testing.assert_array_equal(actual["gamma_dark", 4], gamma(square, 2.5))
    np.testing.assert_array_equal(actual["reverse", 4], square[::-1])


def test_views_are_split_by_clip_and_version(videos):
    """Views: two squares with their gamma, then the reversed versions of both clips."""
    actual, originals = views(videos, ["gamma_dark", "reverse"], severities=(5,), clips=2)
    assert actual == {ORIGINAL: (0, 2), ("gamma_dark", 4): (1, 3), ("reverse", 4): (4, 5)}
    assert originals == [0, 0, 2, 2, 0, 2]


def test_compressed_copies_are_frames_of_one_video(write_video, numbered, number_of, tmp_path):
    path = write_video(tmp_path / "a.mp4", numbered(70))
    (tmp_path / "list.csv").write_text("path,label\na.mp4,0\n")
    videos, clip = read_list(tmp_path / "list.csv"), Clip(np.array([40, 3, 69]), 3, 69)
    versions = Versions(FOUR, 1, 32, ROBUSTNESS, [("h264_crf", 0), ("h264_crf", 2)])
    with versions.dataset(videos, DecodeSettings()).reading.open(videos.records[0]) as video:
        frames = video.frames(np.concatenate([version_of(clip, version).indices for version in (0, 1, 2)]))
    np.testing.assert_array_equal(frames[:3], open_video(path).frames(clip.indices))
    assert number_of(frames) == [40, 3, 69] * 3
    errors = [np.abs(frames[:3].astype(int) - frames[n : n + 3]).mean() for n in (3, 6)]
    assert 0 < errors[0] < errors[1]
