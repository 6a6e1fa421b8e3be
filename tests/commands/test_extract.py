"""Features into a file: at once or in parts, whole or not at all, and never those of another request."""

import json
import logging
import os
import shutil
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from vidssl.commands import extract as job
from vidssl.commands.extract import extract_features, merge, open_index
from vidssl.commands.load import Options, load_subject
from vidssl.commands.shrink import ShrinkOptions as Shrinking
from vidssl.commands.shrink import ShrinkSettings as Settings
from vidssl.commands.shrink import shrink_list as shrink
from vidssl.data.fingerprint import identify
from vidssl.data.video_list import read_list
from vidssl.engine.run_config import load_run
from vidssl.engine.train import train
from vidssl.errors import ConfigError, DataError
from vidssl.evaluation import features as evaluation
from vidssl.types import VideoRecord
from vidssl.video.reader import open_video

TOY = Path(__file__).parents[2] / "configs" / "toy" / "supervised.yaml"
ARRAYS = ("features", "label", "index", "path", "start", "end", "root", "classes", "missing")


def write_list(folder, digits, number, broken=(), name="list"):
    """A list of so many videos, some of them broken."""
    folder.mkdir(exist_ok=True)
    rows = ["path,label"]
    for n, record in enumerate(read_list(digits / "motion/test.csv").records[:number]):
        video = folder / f"{n}.mp4"
        if n in broken:
            video.write_text("<html>")
        else:
            shutil.copy(record.path, video)
        rows.append(f"{n}.mp4,{record.label}")
    (folder / f"{name}.csv").write_text("\n".join(rows) + "\n")
    return folder / f"{name}.csv"


@pytest.fixture
def options():
    told = ("data.moving_digits=null", "data.train=none.csv")
    return Options("random", TOY, told, clips=1, crops=1, size=24, batch_size=3, workers=0, device="cpu")


@pytest.fixture(scope="module")
def checkpoint(digits, tmp_path_factory):
    output = tmp_path_factory.mktemp("run")
    told = ["data.moving_digits=null", f"data.train={digits}/motion/train.csv", f"output={output}/run"]
    return train(load_run(TOY, [*told, "steps=1", "data.workers=0", "device=cpu"])).resolve()


def arrays(path):
    with np.load(path) as file:
        return {name: file[name] for name in file.files}


def assert_alike(one, other):
    """Equal but for the rounding of the features: a batch of other videos may be added up in another order."""
    one, other = arrays(one), arrays(other)
    assert {*one} == {*other} == {*ARRAYS, "request"}
    np.testing.assert_allclose(one["features"], other["features"], rtol=0, atol=1e-6)
    assert one["features"].dtype == other["features"].dtype == np.float32
    for name in (*ARRAYS[1:], "request"):
        assert one[name].dtype.kind == other[name].dtype.kind, name
        assert np.array_equal(one[name], other[name], equal_nan=name in ("start", "end")), name


@pytest.fixture
def never(monkeypatch):
    """From now on nothing may be extracted."""

    def extract(*_, **__):
        raise AssertionError("it was extracted again")

    return lambda: monkeypatch.setattr(job, "extract", extract)


@pytest.mark.parametrize("parts", [1, 3, 9])
def test_parts_are_the_whole(options, digits, tmp_path, parts):
    videos = write_list(tmp_path / "videos", digits, 7, broken=(1, 4))
    options = replace(options, allow_missing=True)
    whole = extract_features(options, videos, tmp_path / "whole.npz")
    assert (whole.count, len(whole.missing), whole.was_there) == (5, 2, False)
    out = tmp_path / "sub" / "all.npz"
    for n in reversed(range(parts)):
        found = extract_features(options, videos, out, f"{n}/{parts}")
        assert found.path == tmp_path / f"sub/all.{n}-of-{parts}.npz" and found.dim == whole.dim
        rows = arrays(found.path)["index"]
        assert all(row % parts == n for row in rows)
        assert len(rows) + len(found.missing) == len(range(n, 7, parts))
        assert not out.exists()
    merged = merge(out)
    assert replace(merged, path=whole.path) == whole
    assert_alike(out, tmp_path / "whole.npz")
    assert arrays(out)["path"].tolist() == [f"{n}.mp4" for n in (0, 2, 3, 5, 6)]
    assert len(list((tmp_path / "sub").iterdir())) == parts + 1  # nothing else was left there


def test_a_list_of_one_video_in_parts(options, digits, tmp_path):
    videos = write_list(tmp_path / "videos", digits, 1)
    extract_features(options, videos, tmp_path / "whole.npz")
    for n in range(3):
        assert extract_features(options, videos, tmp_path / "all", f"{n}/3").count == (n == 0)
    merge(tmp_path / "all")
    assert_alike(tmp_path / "all", tmp_path / "whole.npz")


def test_names_of_files_with_odd_characters(options, digits, tmp_path):
    videos = write_list(tmp_path / "videos", digits, 2)
    out = tmp_path / "a[1].b*.c"
    for n in range(2):
        extract_features(options, videos, out, f"{n}/2")
    assert merge(out).count == 2
    assert {path.name for path in tmp_path.iterdir()} == {
        *("videos", "a[1].b*.c", "a[1].b*.0-of-2.c", "a[1].b*.1-of-2.c")
    }


@pytest.mark.parametrize("shard", [None, "1/2"])
def test_what_is_there_is_left_as_it_is(options, digits, tmp_path, never, shard):
    videos = write_list(tmp_path / "videos", digits, 3)
    first = extract_features(options, videos, tmp_path / "x.npz", shard)
    before = first.path.read_bytes(), first.path.stat().st_mtime_ns
    never()
    # How fast it is made is not part of the request, nor how the root is written, nor when the files were copied.
    (tmp_path / "link").symlink_to(tmp_path / "videos")
    os.utime(tmp_path / "videos/0.mp4", (1, 1))
    fast = (*options.overrides, "data.prefetch=5")
    other = replace(options, batch_size=1, workers=1, root=tmp_path / "link", overrides=fast)
    assert load_subject(other).test.prefetch == 5
    again = extract_features(other, videos, tmp_path / "x.npz", shard)
    assert again == replace(first, was_there=True) and "they were there" in str(again)
    assert before == (first.path.read_bytes(), first.path.stat().st_mtime_ns)


def test_a_merged_file_is_that_of_one_run(options, digits, tmp_path, never):
    videos = write_list(tmp_path / "videos", digits, 3)
    for n in range(2):
        extract_features(options, videos, tmp_path / "x.npz", f"{n}/2")
    merge(tmp_path / "x.npz")
    never()
    assert extract_features(options, videos, tmp_path / "x.npz").was_there
    before = (tmp_path / "x.npz").stat().st_mtime_ns
    assert merge(tmp_path / "x.npz").was_there and (tmp_path / "x.npz").stat().st_mtime_ns == before


@pytest.fixture
def other_pixels(digits, write_video):
    """Write videos of other pixels under the names of a list, into another folder."""

    def write(folder, videos):
        for name, record in zip(read_list(videos).names, read_list(videos).records, strict=True):
            with open_video(record.path) as video:
                frames = video.frames(range(video.meta.num_frames)).transpose(0, 2, 3, 1)
            write_video(folder / name, 255 - frames)
        return folder

    return write


@pytest.mark.parametrize("shard", [None, "0/2"])
def test_other_files_of_the_same_names_are_another_request(
    options, digits, tmp_path, other_pixels, never, shard
):
    videos = write_list(tmp_path / "videos", digits, 3)
    path = extract_features(options, videos, tmp_path / "x.npz", shard).path
    moved = replace(options, root=other_pixels(tmp_path / "other", videos))
    other = extract_features(moved, videos, tmp_path / "y.npz", shard).path
    apart = np.abs(arrays(path)["features"] - arrays(other)["features"]).max()
    assert apart > 0.05  # so much would be wrong
    before = path.read_bytes()
    never()
    with pytest.raises(DataError) as caught:
        extract_features(moved, videos, tmp_path / "x.npz", shard)
    message = str(caught.value)
    assert f"data.root {tmp_path}/videos there, {tmp_path}/other asked for; data.bytes " in message
    assert message.endswith("delete it, or choose another --out") and "\n" not in message
    shutil.copy(tmp_path / "other/0.mp4", tmp_path / "videos/0.mp4")  # now under the same root
    with pytest.raises(
        DataError, match=r"holds features of another request \(data\.bytes \d+ there, \d+ asked"
    ):
        extract_features(options, videos, tmp_path / "x.npz", shard)
    assert path.read_bytes() == before


def test_copies_of_the_videos_are_another_request(options, digits, tmp_path, never):
    videos = write_list(tmp_path / "videos", digits, 2)
    extract_features(options, videos, tmp_path / "x.npz")
    shrink(videos, tmp_path / "small", Settings(short_side=32), Shrinking())
    never()
    with pytest.raises(
        DataError, match=r"data\.copies nothing there, {'fps': None, 'quality': 18, 'short_side': 32} "
    ):
        extract_features(replace(options, root=tmp_path / "small"), videos, tmp_path / "x.npz")


def test_another_frame_rate_is_another_request(options, tmp_path, never):
    for n in range(12):
        (tmp_path / "frames/v").mkdir(parents=True, exist_ok=True)
        image = np.full((24, 24, 3), 20 * n, np.uint8)
        assert cv2.imwrite(str(tmp_path / f"frames/v/{n}.png"), image)
    videos = tmp_path / "frames/list.csv"
    videos.write_text("path,fps\nv,25\n")
    extract_features(options, videos, tmp_path / "x.npz")
    videos.write_text("path,fps\nv,5\n")
    never()
    with pytest.raises(DataError, match=r"data\.fps \[25\.0, 25\.0\] there, \[5\.0, 5\.0\] asked for"):
        extract_features(options, videos, tmp_path / "x.npz")
    videos.write_text("path\nv\n")
    told = ("data.moving_digits=null", "data.train=none.csv")
    for fps in (None, 5.0):
        asked = replace(options, overrides=(*told, *([] if fps is None else [f"data.fps={fps}"])))
        with pytest.raises(DataError, match=r"data\.fps \[25\.0, 25\.0\] there, nothing asked for"):
            extract_features(asked, videos, tmp_path / "x.npz")
    with pytest.raises(DataError, match=r"protocol\.fps nothing there, 5\.0 asked for"):
        extract_features(asked, videos, tmp_path / "x.npz")


def test_files_of_before_are_refused(options, digits, tmp_path, never):
    """Their request does not say of which files they are."""
    videos = write_list(tmp_path / "videos", digits, 2)
    path = extract_features(options, videos, tmp_path / "x.npz").path
    content = arrays(path)
    request = json.loads(str(content["request"]))
    del request["data"]
    for name in ("x.npz", "y.0-of-1.npz"):
        np.savez(tmp_path / name, **{**content, "request": np.array(json.dumps(request))})
    never()
    why = "was written by an earlier version, which did not record the files that its features are of: "
    for work in (
        lambda: extract_features(options, videos, path),
        lambda: merge(tmp_path / "y.npz"),
        lambda: open_index(path, load_subject(options)),
    ):
        with pytest.raises(DataError, match=why):
            work()


@pytest.mark.parametrize("shard", [None, "0/2"])
@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"clips": 2}, "protocol.clips 1 there, 2 asked for"),
        ({"crops": 3}, "protocol.crops 1 there, 3 asked for"),
        ({"allow_missing": True}, "protocol.allow_missing False there, True asked for"),
        ({"overrides": ("data.moving_digits=null", "data.train=none.csv", "seed=5")}, "weights.seed"),
        (
            {"overrides": ("data.moving_digits=null", "data.train=none.csv", "backbone.width=12")},
            "weights.backbone.width",
        ),
        ("list", "list "),
        ("checkpoint", "weights.sha256 nothing there, "),
    ],
)
def test_features_of_another_request_are_refused(
    options, digits, tmp_path, never, change, named, shard, checkpoint
):
    videos = write_list(tmp_path / "videos", digits, 3)
    path = extract_features(options, videos, tmp_path / "x.npz", shard).path
    before = path.read_bytes()
    never()
    if change == "list":
        videos.write_text("path,label\n0.mp4,0\n1.mp4,1\n")
    elif change == "checkpoint":
        options = replace(options, checkpoint=str(checkpoint), cfg=None, overrides=())
    else:
        options = replace(options, **change)
    with pytest.raises(DataError) as caught:
        extract_features(options, videos, tmp_path / "x.npz", shard)
    message = str(caught.value)
    assert message.startswith(f"{path} holds features of another request (") and named in message
    assert message.endswith("): delete it, or choose another --out") and "\n" not in message
    assert path.read_bytes() == before


def test_two_checkpoints(options, digits, tmp_path, checkpoint):
    videos = write_list(tmp_path / "videos", digits, 2)
    options = replace(options, checkpoint=str(checkpoint), cfg=None, overrides=())
    assert not extract_features(options, videos, tmp_path / "x.npz").was_there
    shutil.copy(checkpoint, tmp_path / "copy.pt")  # the same weights of another name
    assert extract_features(
        replace(options, checkpoint=str(tmp_path / "copy.pt")), videos, tmp_path / "x.npz"
    ).was_there
    content = torch.load(checkpoint, weights_only=True)
    content["step"] += 1
    torch.save(content, tmp_path / "other.pt")
    with pytest.raises(DataError, match=r"weights\.sha256 \w{64} there, \w{64} asked for"):
        extract_features(replace(options, checkpoint=str(tmp_path / "other.pt")), videos, tmp_path / "x.npz")


@pytest.mark.parametrize("damage", ["empty", "start", "half", "end", "changed"])
def test_fault_18_a_damaged_part_is_made_anew(options, digits, tmp_path, caplog, damage):
    videos = write_list(tmp_path / "videos", digits, 3)
    path = extract_features(options, videos, tmp_path / "x.npz", "0/2").path
    whole = path.read_bytes()
    before = arrays(path)
    place = whole.index(before["features"].tobytes())
    keep = {"empty": 0, "start": 2, "half": len(whole) // 2, "end": len(whole) - 1}.get(damage, len(whole))
    spoilt = bytearray(whole[:keep])
    if damage == "changed":
        spoilt[place + 9] ^= 1
    path.write_bytes(spoilt)
    extract_features(options, videos, tmp_path / "x.npz", "1/2")
    with pytest.raises(DataError, match=r"x\.0-of-2\.npz is damaged .*: extract again with --shard 0/2$"):
        merge(tmp_path / "x.npz")
    with caplog.at_level(logging.WARNING):
        found = extract_features(options, videos, tmp_path / "x.npz", "0/2")
    assert not found.was_there and f"{path} is damaged (" in caplog.text and "made anew" in caplog.text
    assert path.read_bytes() == whole
    assert merge(tmp_path / "x.npz").count == 3


def test_fault_18_a_part_cut_anywhere_is_found(options, digits, tmp_path):
    videos = write_list(tmp_path / "videos", digits, 1)
    path = extract_features(options, videos, tmp_path / "x.npz", "0/1").path
    whole = path.read_bytes()
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        with pytest.raises(DataError) as caught:
            merge(tmp_path / "x.npz")
        assert "\n" not in str(caught.value)
    for place in range(0, len(whole), 5):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x24]) + whole[place + 1 :])
        try:
            merge(tmp_path / "x.npz")
        except DataError as error:
            assert "\n" not in str(error)
        else:  # a time or a flag of the zip file, not what it holds
            assert_alike(path, tmp_path / "x.npz")
            (tmp_path / "x.npz").unlink()


@pytest.mark.parametrize("kind", ["text", "npz", "checkpoint", "folder"])
def test_a_file_of_somebody_else_is_never_overwritten(options, digits, tmp_path, never, kind, checkpoint):
    videos = write_list(tmp_path / "videos", digits, 2)
    out = tmp_path / "x.npz"
    if kind == "text":
        shutil.copy(videos, out)
    elif kind == "npz":
        np.savez(out, features=np.zeros((2, 3)))
    elif kind == "checkpoint":
        shutil.copy(checkpoint, out)
    else:
        out.mkdir()
    before = None if kind == "folder" else out.read_bytes()
    never()
    with pytest.raises(DataError) as caught:
        extract_features(options, videos, out)
    assert str(out) in str(caught.value) and "\n" not in str(caught.value)
    assert out.is_dir() if kind == "folder" else out.read_bytes() == before


@pytest.mark.parametrize(
    ("shard", "why"),
    [
        ("3/3", "parts count from 0, the last of 3 is 2/3"),
        ("7/3", "the last of 3 is 2/3"),
        ("0/0", "there are 1 or more parts, not 0"),
        *[
            (text, "is not i/n: write 0/4")
            for text in ("a/b", "1", "", "-1/3", "1/3/", "1 /3", "1/3\n", "٣/٤")
        ],
        ("1/" + "9" * 5000, "is not i/n"),
    ],
)
def test_shards_that_there_are_not(options, tmp_path, shard, why):
    with pytest.raises(ConfigError) as caught:
        extract_features(options, tmp_path / "none.csv", tmp_path / "x.npz", shard)
    assert why in str(caught.value) and "\n" not in str(caught.value)


def test_parts_that_cannot_be_merged(options, digits, tmp_path):
    videos = write_list(tmp_path / "videos", digits, 5)
    out = tmp_path / "x.npz"

    def refused():
        with pytest.raises(DataError) as caught:
            merge(out)
        assert not out.exists() and "\n" not in str(caught.value)
        return str(caught.value)

    assert (
        refused() == f"there is no part of {out}, such as {tmp_path}/x.0-of-4.npz: extract with --shard 0/4 …"
    )
    extract_features(options, videos, out, "1/4")
    assert refused() == f"3 of 4 parts of {out} are not there: extract with --shard 0/4, 2/4, 3/4"
    for n in (0, 2):
        extract_features(options, videos, out, f"{n}/4")
    assert refused() == f"1 of 4 parts of {out} are not there: extract with --shard 3/4"
    extract_features(options, videos, out, "0/3")
    assert refused() == f"beside {out} are parts of 3 and of 4: delete those that are not meant"
    (tmp_path / "x.0-of-3.npz").unlink()
    # A part of another request.
    extract_features(replace(options, clips=2), videos, out, "3/4")
    assert f"{tmp_path}/x.3-of-4.npz holds features of another request (protocol.clips 2" in refused()
    assert refused().endswith("delete it, and extract with --shard 3/4")
    # A part under the name of another.
    shutil.copy(tmp_path / "x.2-of-4.npz", tmp_path / "x.3-of-4.npz")
    assert "x.3-of-4.npz holds features of another request (shard [2, 4] there, [3, 4]" in refused()
    (tmp_path / "x.3-of-4.npz").unlink()
    extract_features(options, videos, out, "3/4")
    assert merge(out).count == 5
    with pytest.raises(DataError, match=r"cannot read .*none: No such file"):
        merge(tmp_path / "none" / "x.npz")


@pytest.mark.parametrize("spoil", ["twice", "lacking", "foreign"])
def test_a_part_without_all_of_its_videos(options, digits, tmp_path, spoil):
    videos = write_list(tmp_path / "videos", digits, 5)
    for n in range(2):
        extract_features(options, videos, tmp_path / "x.npz", f"{n}/2")
    path = tmp_path / "x.1-of-2.npz"
    found = arrays(path)
    if spoil == "lacking":
        found = {**found, **{name: found[name][:1] for name in ("features", "label", "index", "path")}}
    else:
        found["index"] = np.array([1, 2] if spoil == "foreign" else [1, 1])
    np.savez(path, **found)
    with pytest.raises(DataError, match=r"x\.1-of-2\.npz .*with --shard 1/2$"):
        merge(tmp_path / "x.npz")
    assert not (tmp_path / "x.npz").exists()


def test_fault_4_nothing_that_can_be_read(options, digits, tmp_path):
    videos = write_list(tmp_path / "videos", digits, 3, broken=(0, 1, 2))
    options = replace(options, allow_missing=True)
    with pytest.raises(DataError, match="none of the 3 videos"):
        extract_features(options, videos, tmp_path / "whole.npz")
    for n in range(2):
        assert extract_features(options, videos, tmp_path / "x.npz", f"{n}/2").count == 0
    with pytest.raises(
        DataError, match=r"none of the 3 videos can be read; the first: .*0\.mp4: not a video"
    ):
        merge(tmp_path / "x.npz")
    assert not (tmp_path / "whole.npz").exists() and not (tmp_path / "x.npz").exists()


def test_fault_4_a_broken_video_leaves_no_file(options, digits, tmp_path):
    videos = write_list(tmp_path / "videos", digits, 4, broken=(3,))
    with pytest.raises(DataError, match=r"3\.mp4: not a video"):
        extract_features(options, videos, tmp_path / "out/x.npz", "1/2")
    assert extract_features(options, videos, tmp_path / "out/x.npz", "0/2").count == 2
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["x.0-of-2.npz"]


def test_fault_18_what_cannot_be_written(options, digits, tmp_path, monkeypatch):
    videos = write_list(tmp_path / "videos", digits, 2)
    (tmp_path / "file").write_text("in the way")

    def full(file, *_, **__):
        file.write(b"PK")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(np.lib.format, "write_array", full)
        with pytest.raises(DataError, match=r"^cannot write .*out/x\.npz: No space left on device$"):
            extract_features(options, videos, tmp_path / "out/x.npz")
    assert not list((tmp_path / "out").iterdir())
    monkeypatch.setattr(evaluation, "eval_loader", None)  # said before the long work, not after it
    with pytest.raises(DataError, match=r"^cannot write .*file/x\.npz: "):
        extract_features(options, videos, tmp_path / "file/x.npz")


def test_the_request_is_plain(options, digits, tmp_path):
    videos = write_list(tmp_path / "videos", digits, 3)
    extract_features(options, videos, tmp_path / "x.npz", "1/2")
    request = json.loads(str(arrays(tmp_path / "x.1-of-2.npz")["request"]))
    assert request["list"] == read_list(videos).fingerprint and request["data"] == identify(read_list(videos))
    assert (request["videos"], request["shard"]) == (3, [1, 2])
    assert request["weights"]["seed"] == 0 and request["weights"]["backbone"]["name"] == "resnet3d18"
    assert request["protocol"]["clips"] == 1
    assert not {"batch_size", "workers", "prefetch", "timeout"} & {*request["protocol"]}


def test_what_is_told_of_the_videos_without_their_list(options, digits, tmp_path):
    videos = write_list(tmp_path / "videos", digits, 3)
    videos.write_text("path,label,start,end\n0.mp4,1,,\n1.mp4,0,0.1,0.6\n1.mp4,0,0.5,\n")
    (tmp_path / "videos/classes.txt").write_text("no\nyes\n")
    for n in range(2):
        extract_features(options, videos, tmp_path / "x.npz", f"{n}/2")
    merge(tmp_path / "x.npz")
    listed = read_list(videos)
    index = open_index(tmp_path / "x.npz", load_subject(options))
    there = index.videos(range(3))
    assert (there.names, there.records, there.classes) == (listed.names, listed.records, ("no", "yes"))
    assert index.videos([2], tmp_path / "moved").records == (
        VideoRecord(str(tmp_path / "moved/1.mp4"), 0, 0.5, None),
    )
    # Nothing was copied: the arrays are the file, and lie where numbers may lie.
    x = index.features.x.numpy()
    assert x.ctypes.data % 64 == 0 and x.tobytes() in (tmp_path / "x.npz").read_bytes()
    assert isinstance(index.names, np.memmap) and isinstance(index.start, np.memmap)


def test_another_classes_file_is_refused(options, digits, tmp_path):
    videos = write_list(tmp_path / "videos", digits, 2)
    extract_features(options, videos, tmp_path / "x.npz")
    (tmp_path / "videos/classes.txt").write_text("".join(f"class {n}\n" for n in range(8)))
    with pytest.raises(DataError, match=r"^\S+x\.npz was made with another classes\.txt: delete it[^\n]*$"):
        extract_features(options, videos, tmp_path / "x.npz")


@pytest.mark.parametrize("how", [np.savez, np.savez_compressed])
def test_files_that_others_wrote_anew(options, digits, tmp_path, how):
    """numpy's own files are read where their numbers lie at odd places; compressed ones cannot be mapped."""
    videos = write_list(tmp_path / "videos", digits, 2)
    whole = arrays(extract_features(options, videos, tmp_path / "x.npz").path)
    how(tmp_path / "y.npz", **whole)
    if how is np.savez:
        index = open_index(tmp_path / "y.npz", load_subject(options))
        assert np.array_equal(index.features.x.numpy(), whole["features"])
    else:
        with pytest.raises(
            DataError, match=r"^\S+y\.npz is damaged \(ValueError: \S+ is compressed, [^\n]*$"
        ):
            open_index(tmp_path / "y.npz", load_subject(options))
