"""Features in a folder: at once or in parts, complete or not at all, and never those of another request."""

import csv
import json
import logging
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import vidssl
from vidssl.base.errors import ConfigError, DataError
from vidssl.base.types import VideoRecord
from vidssl.data.list_identity import identify
from vidssl.data.video_list import read_list
from vidssl.engine.run_config import load_run
from vidssl.engine.train import train
from vidssl.evaluation import features as evaluation
from vidssl.jobs import job
from vidssl.jobs.extract import extract, merge, open_index
from vidssl.jobs.load_network import load_subject
from vidssl.video.reader import open_video

TOY = Path(__file__).parents[2] / "configs" / "toy" / "supervised.yaml"
SETTINGS = ["data.moving_digits=null", "data.train=none.csv"]
CLIPS = {"clips": 1, "crops": 1, "size": 24, "batch_size": 3, "workers": 0, "device": "cpu"}


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
    """Of the untrained network: those of its config, and of its clips."""
    return {"cfg": TOY, "settings": SETTINGS, **CLIPS}


@pytest.fixture(scope="module")
def checkpoint(digits, tmp_path_factory):
    output = tmp_path_factory.mktemp("run")
    settings = ["data.moving_digits=null", f"data.train={digits}/motion/train.csv", f"output={output}/run"]
    return train(load_run(TOY, [*settings, "steps=1", "data.workers=0", "device=cpu"])).resolve()


def read(folder):
    """The array, the rows and the description of a folder of features, as anyone would read them."""
    with open(folder / "rows.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    return (np.load(folder / "features.npy", mmap_mode="r"), rows, json.loads((folder / "meta.json").read_text()))


def files(folder):
    """Content and time of every file of a folder."""
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()}


def assert_alike(one, other):
    """Equal but for the rounding of the features: a batch of other videos may be added up in another order."""
    (x, rows, meta), (y, other_rows, other_meta) = read(one), read(other)
    np.testing.assert_allclose(x, y, rtol=0, atol=1e-6)
    assert x.dtype == y.dtype == np.float32 and rows == other_rows
    assert {**meta, "sha256": None} == {**other_meta, "sha256": None}


@pytest.fixture
def never(monkeypatch):
    """From now on nothing may be extracted."""

    def again(*_, **__):
        raise AssertionError("it was extracted again")

    return lambda: monkeypatch.setattr(evaluation, "extract_features", again)


@pytest.fixture
def existed(caplog):
    """Whether the features were there, and left as they are: what the log says since it was asked last."""
    caplog.set_level(logging.INFO)

    def said():
        actual = "holds these features already" in caplog.text
        caplog.clear()
        return actual

    return said


def test_parts_are_the_whole(options, digits, tmp_path, existed):
    parts = 3
    videos = write_list(tmp_path / "videos", digits, 7, broken=(1, 4))
    options["allow_missing"] = True
    whole = extract("random", videos, out=tmp_path / "whole", **options)
    assert (len(whole), len(whole.missing), existed()) == (5, 2, False)
    out = tmp_path / "sub" / "a[1].b*.c"
    for n in reversed(range(parts)):
        features = extract("random", videos, out=out, shard=f"{n}/{parts}", **options)
        assert features.path == tmp_path / f"sub/a[1].b*.c.{n}-of-{parts}" and features.x.shape[1] == whole.x.shape[1]
        rows = read(features.path)[1]
        assert all(int(row["index"]) % parts == n for row in rows)
        assert len(rows) + len(features.missing) == len(range(n, 7, parts))
        assert not out.exists()
    merged = merge(out)
    assert not existed() and merged.path == out
    assert {**merged.describe(), "path": str(whole.path)} == whole.describe()
    assert str(merged) == f"5 videos x {whole.x.shape[1]} features in {out}, 2 files could not be read"
    assert_alike(out, tmp_path / "whole")
    assert [row["path"] for row in read(out)[1]] == [f"{n}.mp4" for n in (0, 2, 3, 5, 6)]
    assert len(list((tmp_path / "sub").iterdir())) == parts + 1  # nothing else was left there


def test_a_list_of_one_video_in_parts(options, digits, tmp_path):
    videos = write_list(tmp_path / "videos", digits, 1)
    extract("random", videos, out=tmp_path / "whole", **options)
    for n in range(3):
        assert len(extract("random", videos, out=tmp_path / "all", shard=f"{n}/3", **options)) == (n == 0)
    merge(tmp_path / "all")
    assert_alike(tmp_path / "all", tmp_path / "whole")


def test_what_is_there_is_left_as_it_is(options, digits, tmp_path, never, existed):
    videos = write_list(tmp_path / "videos", digits, 3, broken=(1,))
    for n in range(2):
        extract("random", videos, out=tmp_path / "merged", shard=f"{n}/2", allow_missing=True, **options)
    merge(tmp_path / "merged")
    merged = files(tmp_path / "merged")
    first = extract("random", videos, out=tmp_path / "x", **options)
    before = files(first.path)
    assert not existed() and len(first.missing) == 1
    never()
    # How fast it is made is not part of the request, nor how the root is written, nor when the files were copied.
    (tmp_path / "link").symlink_to(tmp_path / "videos")
    os.utime(tmp_path / "videos/0.mp4", (1, 1))
    settings = [*SETTINGS, "data.timeout=5"]
    other = options | {"batch_size": 1, "workers": 1, "root": tmp_path / "link", "settings": settings}
    assert load_subject("random", other).test.timeout == 5
    again = extract("random", videos, out=tmp_path / "x", allow_missing=True, **other)
    assert existed() and again.describe() == first.describe() and torch.equal(again.x, first.x)
    assert before == files(first.path)
    merge(tmp_path / "merged")
    assert existed() and files(tmp_path / "merged") == merged
    extract("random", videos, out=tmp_path / "merged", **options)  # the file is that of one run
    assert existed() and files(tmp_path / "merged") == merged


def test_features_of_a_folder(options, digits, tmp_path):
    """They are those that were extracted; other folders, and files that were changed, are refused."""
    videos = write_list(tmp_path / "videos", digits, 3, broken=(1,))
    made = extract("random", videos, out=tmp_path / "x", allow_missing=True, **options)
    read = vidssl.load_features(str(tmp_path / "x"))
    assert torch.equal(read.x, made.x) and torch.equal(read.label, made.label) and read.missing == made.missing
    assert [each.path for each in read.records] == [str(tmp_path / f"videos/{n}.mp4") for n in (0, 2)]
    assert torch.equal(vidssl.search(read, k=1).index, vidssl.search(made, k=1).index)
    for path, message in {
        tmp_path / "none": "is not a folder; vidssl extract writes features with out=FOLDER",
        tmp_path / "videos": "is not a folder of features of format 1: name a folder that vidssl extract wrote",
    }.items():
        with pytest.raises(DataError, match=f"^{path} {message}$"):
            vidssl.load_features(path)
    array = np.load(tmp_path / "x/features.npy")
    np.save(tmp_path / "x/features.npy", array + 1)
    with pytest.raises(DataError, match=r"features\.npy was changed"):
        vidssl.load_features(tmp_path / "x")


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


def test_other_files_of_the_same_names_do_not_replace_them(options, digits, tmp_path, other_pixels, never):
    shard = "0/2"
    videos = write_list(tmp_path / "videos", digits, 3)
    path = extract("random", videos, out=tmp_path / "x", shard=shard, **options).path
    moved = options | {"root": other_pixels(tmp_path / "other", videos)}
    other = extract("random", videos, out=tmp_path / "y", shard=shard, **moved).path
    apart = np.abs(read(path)[0] - read(other)[0]).max()
    assert apart > 0.05  # so much would be wrong
    before = files(path)
    never()
    with pytest.raises(DataError) as caught:
        extract("random", videos, out=tmp_path / "x", shard=shard, **moved)
    said = f"{path} holds features of other videos, and of none of {videos}: choose another folder for the features"
    assert str(caught.value) == said and files(path) == before


def test_features_of_another_request_are_refused(options, digits, tmp_path, never, checkpoint, check_all):
    videos = write_list(tmp_path / "videos", digits, 3)
    path = extract("random", videos, out=tmp_path / "x", **options).path
    before = files(path)
    never()

    def check(model, change, named):
        with pytest.raises(DataError) as caught:
            extract(model, videos, out=tmp_path / "x", **{**(options if model == "random" else CLIPS), **change})
        message = str(caught.value)
        assert message.startswith(f"{path} holds features of another request (") and named in message
        assert message.endswith("): choose another folder for the features") and "\n" not in message
        assert files(path) == before

    changes = [
        ({"clips": 2}, "(clips 1 stored, 2 requested)"),
        ({"crops": 3}, "(crops 1 stored, 3 requested)"),
        ({"settings": [*SETTINGS, "data.fps=5"]}, "(fps nothing stored, 5.0 requested)"),
        ({"settings": [*SETTINGS, "seed=5"]}, "(weights.seed 0 stored, 5 requested)"),
        ({"settings": [*SETTINGS, "backbone.width=12"]}, "(weights.backbone.width 8 stored, 12 requested)"),
        ({"window": 0.3, "stride": 0.2}, "windows nothing stored, "),
    ]
    cases = [("random", change, named) for change, named in changes]
    cases += [(checkpoint, {}, "(network random stored, /")]
    check_all(check, dict(enumerate(cases)))


def test_two_checkpoints(digits, tmp_path, checkpoint, existed):
    videos = write_list(tmp_path / "videos", digits, 2)
    extract(checkpoint, videos, out=tmp_path / "x", **CLIPS)
    assert not existed()
    shutil.copy(checkpoint, tmp_path / "copy.pt")  # the same weights of another name
    extract(tmp_path / "copy.pt", videos, out=tmp_path / "x", **CLIPS)
    assert existed()
    content = torch.load(checkpoint, weights_only=True)
    content["step"] += 1
    torch.save(content, tmp_path / "other.pt")
    with pytest.raises(DataError, match=r"\(network \S+\.pt stored, \S+other\.pt requested\): "):
        extract(tmp_path / "other.pt", videos, out=tmp_path / "x", **CLIPS)


def test_fault_18_a_damaged_part_is_extracted_again(options, digits, tmp_path, caplog, existed):
    videos = write_list(tmp_path / "videos", digits, 3)
    path, _ = (extract("random", videos, out=tmp_path / "x", shard=f"{n}/2", **options).path for n in (0, 1))
    before = {file: content for file, (content, _) in files(path).items()}
    for name in ("features.npy", "rows.csv", "meta.json"):
        content = before[name]
        changed = bytearray(content)
        changed[0 if name == "meta.json" else len(content) // 2] ^= 1
        end = content[:-2] if name == "meta.json" else content[:-1]  # without the last brace
        for spoilt in (b"", content[:2], content[: len(content) // 2], end, changed, None):
            (path / name).unlink()
            if spoilt is not None:
                (path / name).write_bytes(spoilt)
            with pytest.raises(DataError, match=r"x\.0-of-2 is (damaged|incomplete).*: extract with shard 0/2$"):
                merge(tmp_path / "x")
        extract("random", videos, out=tmp_path / "x", shard="0/2", **options)
        said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        assert any(line.startswith(f"{path} is ") and "extracting it again" in line for line in said) and not existed()
        assert {file: content for file, (content, _) in files(path).items()} == before
    assert len(merge(tmp_path / "x")) == 3


@pytest.mark.parametrize("name", ["features.npy", "rows.csv"])
def test_fault_18_a_part_cut_or_changed_anywhere_is_found(options, digits, tmp_path, name):
    videos = write_list(tmp_path / "videos", digits, 1)
    file = extract("random", videos, out=tmp_path / "x", shard="0/1", **options).path / name
    content = file.read_bytes()
    step = max(1, len(content) // 100)
    cut = [content[:length] for length in range(0, len(content), step)]
    changed = [content[:n] + bytes([content[n] ^ 0x24]) + content[n + 1 :] for n in range(0, len(content), step)]
    for spoilt in (*cut, *changed):
        file.write_bytes(spoilt)
        with pytest.raises(DataError) as caught:
            merge(tmp_path / "x")
        assert "\n" not in str(caught.value)


def test_a_process_killed_while_writing_leaves_an_incomplete_folder(options, digits, tmp_path, monkeypatch, existed):
    """Whatever file comes next: it is not taken for features, and extracted again."""
    videos = write_list(tmp_path / "videos", digits, 2)
    extract("random", videos, out=tmp_path / "whole", **options)

    def killed(*_):
        raise KeyboardInterrupt

    for name in ("replacing", "write_whole", "write_json"):
        with monkeypatch.context() as patch:
            patch.setattr(evaluation, name, killed)
            patch.setattr(job, "remove_unused", lambda: None)  # a process that is killed removes nothing
            with pytest.raises(KeyboardInterrupt):
                extract("random", videos, out=tmp_path / "x", **options)
        assert not (tmp_path / "x/meta.json").exists()
        with pytest.raises(DataError, match="is incomplete"):
            open_index(tmp_path / "x", load_subject("random", options))
        (tmp_path / "x/near_copies.json").touch()  # of a map of the former features
    extract("random", videos, out=tmp_path / "x", **options)
    assert not existed()
    assert_alike(tmp_path / "x", tmp_path / "whole")


@pytest.mark.parametrize("shard", ["3/3", "0/0", "", "-1/3", "1/3\n", "٣/٤", "1/" + "9" * 5000])
def test_shards_that_there_are_not(options, tmp_path, shard):
    with pytest.raises(ConfigError, match=r"^shard [^\n]{1,50} is not i/n with i < n: write 0/4 for the first of 4"):
        extract("random", tmp_path / "none.csv", out=tmp_path / "x", shard=shard, **options)


def test_parts_that_cannot_be_merged(options, digits, tmp_path):
    videos = write_list(tmp_path / "videos", digits, 5)
    out = tmp_path / "x"

    def refused():
        with pytest.raises(DataError) as caught:
            merge(out)
        assert not out.exists() and "\n" not in str(caught.value)
        return str(caught.value)

    assert refused() == f"{out} needs parts of one shard i/n, found n = none: extract all, move others away"
    extract("random", videos, out=out, shard="1/4", **options)
    assert refused() == f"3 of 4 parts of {out} are missing: extract with shard 0/4, 2/4, 3/4"
    for n in (0, 2):
        extract("random", videos, out=out, shard=f"{n}/4", **options)
    assert refused() == f"1 of 4 parts of {out} are missing: extract with shard 3/4"
    extract("random", videos, out=out, shard="0/3", **options)
    assert "found n = 3 and 4: extract all, move others away" in refused()
    shutil.rmtree(tmp_path / "x.0-of-3")
    # A part of another request.
    extract("random", videos, out=out, shard="3/4", **options | {"clips": 2})
    assert f"{tmp_path}/x.3-of-4 holds features of another request (clips 2 stored, 1 requested)" in refused()
    assert refused().endswith("move it away, and extract with shard 3/4")
    # A part under the name of another.
    shutil.rmtree(tmp_path / "x.3-of-4")
    shutil.copytree(tmp_path / "x.2-of-4", tmp_path / "x.3-of-4")
    assert "x.3-of-4 holds features of another request (shard [2, 4] stored, [3, 4]" in refused()
    shutil.rmtree(tmp_path / "x.3-of-4")
    extract("random", videos, out=out, shard="3/4", **options)
    assert len(merge(out)) == 5
    with pytest.raises(DataError, match=r"found n = none"):
        merge(tmp_path / "none" / "x")


def test_fault_4_nothing_that_can_be_read(options, digits, tmp_path):
    videos = write_list(tmp_path / "videos", digits, 3, broken=(0, 1, 2))
    options["allow_missing"] = True
    with pytest.raises(DataError, match="none of the 3 videos"):
        extract("random", videos, out=tmp_path / "whole", **options)
    for n in range(2):
        assert len(extract("random", videos, out=tmp_path / "x", shard=f"{n}/2", **options)) == 0
    with pytest.raises(DataError, match=r"none of the 3 videos of \S+x can be read; the first: .*0\.mp4: not a video"):
        merge(tmp_path / "x")
    assert not (tmp_path / "whole").exists() and not (tmp_path / "x").exists()


def test_fault_18_what_cannot_be_written(options, digits, tmp_path, monkeypatch):
    videos = write_list(tmp_path / "videos", digits, 2)
    (tmp_path / "file").write_text("in the way")

    def full(file, *_):
        file.write(b"NUMPY")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(np.lib.format, "write_array_header_1_0", full)
        with pytest.raises(DataError, match=r"^cannot write .*out/x: No space left on device; free disk space or"):
            extract("random", videos, out=tmp_path / "out/x", **options)
    assert not (tmp_path / "out/x").exists()
    monkeypatch.setattr(evaluation, "eval_loader", None)  # said before the long work, not after it
    with pytest.raises(DataError, match=r"^cannot write .*file/x\: "):
        extract("random", videos, out=tmp_path / "file/x", **options)


def test_the_request_is_plain(options, digits, tmp_path):
    videos = write_list(tmp_path / "videos", digits, 3)
    extract("random", videos, out=tmp_path / "x", shard="1/2", **options)
    request = read(tmp_path / "x.1-of-2")[2]["request"]
    assert request["list"] == read_list(videos).fingerprint and request["data"] == identify(read_list(videos))
    assert (request["videos"], request["shard"]) == (3, [1, 2])
    assert request["weights"]["seed"] == 0 and request["weights"]["backbone"]["name"] == "resnet3d18"
    assert request["protocol"]["clips"] == 1
    assert not {"batch_size", "workers", "timeout"} & {*request["protocol"]}


def test_an_index_describes_its_videos_without_their_list(options, digits, tmp_path):
    videos = write_list(tmp_path / "videos", digits, 3)
    videos.write_text("path,label,start,end\n0.mp4,1,,\n1.mp4,0,0.1,0.6\n1.mp4,0,0.5,\n")
    (tmp_path / "videos/classes.txt").write_text("no\nyes\n")
    for n in range(2):
        extract("random", videos, out=tmp_path / "x", shard=f"{n}/2", **options)
    merge(tmp_path / "x")
    listed = read_list(videos)
    index = open_index(tmp_path / "x", load_subject("random", options))
    there = index.videos(range(3))
    assert (there.names, there.records, there.classes) == (listed.names, listed.records, ("no", "yes"))
    assert index.videos([2], tmp_path / "moved").records == (VideoRecord(str(tmp_path / "moved/1.mp4"), 0, 0.5, None),)
    x = np.load(tmp_path / "x/features.npy", mmap_mode="r")
    assert np.array_equal(x, index.features.x) and x.ctypes.data % 64 == 0
    lines = (tmp_path / "x/rows.csv").read_text().splitlines()
    assert [line.split(",")[:5] for line in lines] == [
        *(["path", "label", "index", "start", "end"], ["0.mp4", "1", "0", "", ""]),
        *(["1.mp4", "0", "1", "0.1", "0.6"], ["1.mp4", "0", "2", "0.5", ""]),
    ]


def test_parts_are_merged_by_blocks(options, digits, tmp_path, monkeypatch):
    """Whatever the number of rows at a time, and paths with commas, quotes and line ends keep their rows."""
    videos = write_list(tmp_path / "videos", digits, 6)
    names = ['a,"b".mp4', "c\nd.mp4", "0.mp4", "1.mp4"]
    for n, name in zip((2, 3), names, strict=False):
        (tmp_path / f"videos/{n}.mp4").rename(tmp_path / "videos" / name)
    with open(videos, "w", newline="") as file:
        csv.writer(file).writerows([["path", "label"], *([name, n % 2] for n, name in enumerate(names))])
    for n in range(3):
        extract("random", videos, out=tmp_path / "x", shard=f"{n}/3", **options)
    monkeypatch.setattr(evaluation, "_BLOCK_ROWS", 1)
    merge(tmp_path / "x")
    extract("random", videos, out=tmp_path / "whole", **options)
    assert_alike(tmp_path / "x", tmp_path / "whole")
    assert [(row["path"], row["label"]) for row in read(tmp_path / "x")[1]] == [
        (name, str(n % 2)) for n, name in enumerate(names)
    ]


def test_only_the_files_of_a_folder_are_read_whatever_it_names(options, digits, tmp_path):
    videos = write_list(tmp_path / "videos", digits, 2)
    extract("random", videos, out=tmp_path / "x", **options)
    meta = json.loads((tmp_path / "x/meta.json").read_text())
    for digests in ({"": "0"}, {"../videos": "0"}, [], "features.npy"):
        (tmp_path / "x/meta.json").write_text(json.dumps({**meta, "sha256": digests}))
        with pytest.raises(DataError, match=r"is (damaged|not a folder of features)"):
            vidssl.load_features(tmp_path / "x")


@pytest.mark.parametrize("name", ["vidssl-small", "floor:thumbnails", "floor:thumbnails+floor:untrained"])
def test_an_encoder_that_is_loaded_once(digits, tmp_path, existed, never, name):
    """A job that takes it computes what it computes by the name, and finds the folder of the other."""
    videos = write_list(tmp_path / "videos", digits, 2)
    clips = {"device": "cpu"} | ({} if "+" in name else {"clips": 1})
    loaded = vidssl.load_encoder(name, **clips)
    assert repr(loaded) == str(loaded) == name
    by_name = extract(name, videos, workers=0, **clips)
    for batch_size in (1, 2):
        again = extract(loaded, videos, workers=0, batch_size=batch_size)
        torch.testing.assert_close(again.x, by_name.x, rtol=0, atol=1e-6)
        assert again.made_by == by_name.made_by
    for option in ({"clips": 1}, {"device": "cpu"}, {"cfg": TOY}):
        with pytest.raises(ConfigError, match=f"is loaded already: give {next(iter(option))} to vidssl.load_encoder$"):
            extract(loaded, videos, **option)
    first = extract(loaded, videos, out=tmp_path / "x", workers=0)
    before = files(first.path)
    never()
    assert not existed() and torch.equal(extract(name, videos, out=tmp_path / "x", **clips).x, first.x)
    assert existed() and files(first.path) == before
