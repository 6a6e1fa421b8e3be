"""Retrieval: of lists and of one video, by features in a file or not; what is the same video, and what a copy of it."""

import json
import logging
import shutil
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

from vidssl import commands
from vidssl.api import extract as extract_job
from vidssl.api import retrieval as job
from vidssl.api import retrieval_index as gallery_job
from vidssl.api.extract import extract_features
from vidssl.api.network import LoadOptions
from vidssl.api.retrieval import RANKS, retrieve, table
from vidssl.api.shrink import ShrinkSettings as Settings
from vidssl.api.shrink import shrink_list as shrink
from vidssl.data.fingerprint import identify
from vidssl.data.middle_frames import middle_frames
from vidssl.data.video_list import read_list
from vidssl.errors import ConfigError, DataError
from vidssl.randomness import generator
from vidssl.types import VideoRecord

TOY = Path(__file__).parents[2] / "configs" / "toy" / "supervised.yaml"


@pytest.fixture
def options():
    given = ("data.moving_digits=null", "data.train=none.csv")
    return LoadOptions("random", TOY, given, clips=1, crops=1, size=24, batch_size=4, workers=0, device="cpu")


@pytest.fixture
def lists(digits, tmp_path):
    """Copies of 20 training videos and 8 test videos in a folder, and their lists: (gallery, query)."""
    found = []
    for name, count in (("train", 20), ("test", 8)):
        source = read_list(digits / f"motion/{name}.csv")
        (tmp_path / "videos" / name).mkdir(parents=True)
        rows = ["path,label"]
        for n, record in enumerate(source.records[:count]):
            shutil.copy(record.path, tmp_path / "videos" / name / f"{n}.mp4")
            rows.append(f"{name}/{n}.mp4,{record.label}")
        found.append(tmp_path / "videos" / f"{name}.csv")
        found[-1].write_text("\n".join(rows) + "\n")
        (tmp_path / "videos" / "classes.txt").write_text("".join(f"{c}\n" for c in source.classes))
    return found


@pytest.fixture
def one_line():
    """Run what must fail, and give its message."""

    def run(error, work, *arguments, **settings):
        with pytest.raises(error) as caught:
            work(*arguments, **settings)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    return run


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def without(results, *names):
    return {name: value for name, value in results.items() if name not in names}


def test_an_index_changes_nothing(options, lists, tmp_path):
    gallery, query = lists
    plain = retrieve(options, gallery, query, tmp_path / "plain", page_queries=3)
    made = retrieve(options, gallery, query, tmp_path / "made", index=tmp_path / "g", page_queries=3)
    before = files(tmp_path / "g")
    used = retrieve(options, gallery, query, tmp_path / "used", index=tmp_path / "g", page_queries=3)
    gallery.unlink()
    alone = retrieve(options, None, query, tmp_path / "alone", index=tmp_path / "g", page_queries=3)
    assert plain == json.loads((tmp_path / "plain/results.json").read_text())
    assert without(plain, "date") == without(made, "date") == without(used, "date")
    plain["overlap"]["gallery"]["list"] = str(tmp_path / "g")
    assert without(plain, "gallery", "date") == without(alone, "gallery", "date")
    assert alone["gallery"] == f"{tmp_path}/g"
    assert files(tmp_path / "g") == before
    pages = [(tmp_path / name / "index.html").read_text() for name in ("plain", "made", "used", "alone")]
    assert pages[0] == pages[1] == pages[2] and pages[3].replace("/g", "/train").count("train/") > 3
    stills = {(tmp_path / name / "retrieval.png").read_bytes() for name in ("plain", "made", "used", "alone")}
    assert len(stills) == 1


def test_an_index_is_what_extract_writes(options, lists, tmp_path):
    extract_features(options, lists[0], tmp_path / "one")
    retrieve(options, *lists, tmp_path / "out", index=tmp_path / "other", page_queries=0)
    assert files(tmp_path / "one") == files(tmp_path / "other")


def test_the_numbers_are_those_of_the_field(options, lists, tmp_path):
    found = retrieve(options, *lists, tmp_path / "out", page_queries=0)
    names = [f"R@{k}" for k in (1, 5, 10, 20, 50)]
    assert [f"R@{k}" for k in RANKS] == names and [name for name in found if name in names] == names
    assert [*found["centered_features"]] == names
    centred = retrieve(options, *lists, tmp_path / "centred", center=True, page_queries=0)
    assert {name: centred[name] for name in names} == found["centered_features"]
    assert centred["uncentered"] == {name: found[name] for name in names}
    assert (centred["knn"], centred["chance"]) == (found["knn"], found["chance"])
    for results in (found, centred):  # the plain ones stand first, whichever come first in results.json
        head, titles, plain, other, note = table(results).splitlines()
        assert head.startswith("8 queries, 20 in the gallery, 1 clip x 1 crop of 24²")
        assert titles.split() == ["percent", *names, "knn", "chance"]
        assert note == "R@50: all 20 videos of the gallery, which are fewer than k"
        assert plain.split()[0] == "plain" and other.split()[0] == "centred"
        shown = [found[name] for name in (*names, "knn", "chance")]
        assert plain.split()[1:] == [f"{100 * value:.1f}" for value in shown]
        assert other.split()[1:] == [f"{100 * found['centered_features'][name]:.1f}" for name in names]
        assert len({len(line) for line in (titles, plain)}) == 1


def test_links_to_one_file_are_one_video(options, lists, tmp_path, caplog):
    """A query under another name finds everything but itself, and nothing is called a copy."""
    gallery, _ = lists
    root = gallery.parent
    (root / "linked").symlink_to(root / "train")
    (root / "link.mp4").symlink_to(root / "train/3.mp4")
    (root / "q.csv").write_text("path,label\nlinked/2.mp4,0\nlink.mp4,0\ntrain/7.mp4,0\n")
    found = retrieve(options, gallery, root / "q.csv", tmp_path / "out", page_hits=50)
    assert found["duplicates"] == 0 and "bit-identical" not in caplog.text
    page = (tmp_path / "out/index.html").read_text()
    rows = page.partition('id="rows"')[2].split('<li class="row')[1:]
    for row, own in zip(rows, (2, 3, 7), strict=True):
        shown = [n for n in range(20) if f'title="train/{n}.mp4"' in row.partition('class="hits"')[2]]
        assert shown == [n for n in range(20) if n != own]
    for name, own in (("linked/2.mp4", 2), ("link.mp4", 3)):
        near = retrieve(options, gallery, root / name, tmp_path / f"one{own}", k=30)
        assert sorted(hit["path"] for hit in near["neighbours"]) == sorted(
            f"train/{n}.mp4" for n in range(20) if n != own
        )


def test_spans_that_overlap_are_one_video(options, lists, tmp_path):
    gallery, _ = lists
    root = gallery.parent
    rows = ["train/0.mp4,0,0,0.5", "train/0.mp4,0,0.5,0.9", "train/1.mp4,0,,"]
    gallery.write_text("\n".join(["path,label,start,end", *rows]) + "\n")
    near = retrieve(options, gallery, root / "train/0.mp4", tmp_path / "one")
    assert [hit["path"] for hit in near["neighbours"]] == ["train/1.mp4"]
    near = retrieve(options, gallery, root / "train/1.mp4", tmp_path / "two")
    assert {(hit["start"], hit["end"]) for hit in near["neighbours"]} == {(0, 0.5), (0.5, 0.9)}
    assert "train/0.mp4 0.5-0.9 s" in table(near)
    assert "train/0.mp4 0-0.5 s" in (tmp_path / "two/index.html").read_text()


def test_copies_are_counted_and_left_out_when_asked(options, lists, tmp_path, caplog):
    gallery, query = lists
    root = gallery.parent
    for n in (1, 4, 6):
        shutil.copy(root / f"test/{n}.mp4", root / f"train/copy{n}.mp4")
    labels = [record.label for record in read_list(query).records]
    with open(gallery, "a") as file:
        file.write("".join(f"train/copy{n}.mp4,{labels[n]}\n" for n in (1, 4, 6)))
    plain = replace(options, batch_size=1)  # rounding may depend on the batch
    found = retrieve(plain, gallery, query, tmp_path / "with", page_queries=0)
    assert found["duplicates"] == 3 and not found["drop_duplicates"]
    (warning,) = (record.getMessage() for record in caplog.records if record.levelname == "WARNING")
    assert warning.startswith(f"3 of 8 videos of {query} are in the gallery {gallery} too (3 under another name)")
    assert "the first: test/1.mp4 = train/copy1.mp4" in warning and "\n" not in warning
    dropped = retrieve(plain, gallery, query, tmp_path / "without", drop_duplicates=True, page_queries=0)
    assert dropped["duplicates"] == 3 and dropped["drop_duplicates"]
    for row, first in ((1, True), (0, False)):
        near = retrieve(plain, gallery, root / f"test/{row}.mp4", tmp_path / f"one{row}")
        assert (near["neighbours"][0]["path"] == f"train/copy{row}.mp4") is first
        assert [hit["duplicate"] for hit in near["neighbours"]] == [first] + [False] * 9
        assert near["duplicates"] == first and ("(a duplicate)" in table(near)) is first
    near = retrieve(plain, gallery, root / "test/1.mp4", tmp_path / "one1", k=30, drop_duplicates=True)
    paths = [hit["path"] for hit in near["neighbours"]]
    assert len(paths) == 22 and "train/copy1.mp4" not in paths and near["duplicates"] == 0
    # Each copy has its query's label: it was a hit at once.
    assert found["R@1"] >= 3 / 8 and found["R@1"] > dropped["R@1"]


def test_one_video_finds_what_its_list_finds(options, lists, tmp_path):
    gallery, query = lists
    extract_features(options, gallery, tmp_path / "g")
    extract_features(options, query, tmp_path / "q")
    one, other = (np.load(tmp_path / name / "features.npy").astype(float) for name in ("q", "g"))
    cosines = (one @ other.T) / np.linalg.norm(one, axis=1)[:, None] / np.linalg.norm(other, axis=1)
    labels = read_list(gallery)
    for n in (0, 5):
        found = retrieve(
            options, None, gallery.parent / f"test/{n}.mp4", tmp_path / f"out{n}", index=tmp_path / "g", k=7
        )
        near, order = found["neighbours"], np.argsort(-cosines[n])[:7]
        assert [hit["path"] for hit in near] == [f"train/{row}.mp4" for row in order]
        assert [hit["similarity"] for hit in near] == pytest.approx(cosines[n][order], abs=1e-5)
        assert [hit["rank"] for hit in near] == list(range(1, 8))
        assert [hit["label"] for hit in near] == [labels.records[row].label for row in order]
        assert [hit["class"] for hit in near] == [labels.classes[labels.records[row].label] for row in order]
        assert found == json.loads((tmp_path / f"out{n}/results.json").read_text())
        lines = table(found).splitlines()
        assert len(lines) == 9 and lines[2].split()[0] == "1" and lines[2].endswith(f"train/{order[0]}.mp4")
    page = (tmp_path / "out5/index.html").read_text()
    assert "test/5 in" in page and page.count('class="neutral"') == 7 and "the only query" in page
    assert (tmp_path / "out5/retrieval.png").stat().st_size > 1000


def test_the_gallerys_videos_are_not_read_again(options, lists, tmp_path, caplog):
    """They may be gone, or be elsewhere by now: the page is grey for them, or shows them where they are."""
    gallery, _ = lists
    root = gallery.parent
    expected = retrieve(options, gallery, root / "test/0.mp4", tmp_path / "before", index=tmp_path / "g")
    shutil.move(root / "train", tmp_path / "elsewhere")
    assert "cannot be decoded" not in caplog.text
    found = retrieve(options, None, root / "test/0.mp4", tmp_path / "gone", index=tmp_path / "g")
    assert found["neighbours"] == expected["neighbours"]
    (notice,) = (record.getMessage() for record in caplog.records if "cannot be decoded" in record.getMessage())
    assert notice.startswith("10 videos of the page cannot be decoded, the first: ") and "No such file" in notice
    assert "10 videos, grey here" in (tmp_path / "gone/index.html").read_text()
    (tmp_path / "new").mkdir()
    shutil.move(tmp_path / "elsewhere", tmp_path / "new/train")
    caplog.clear()
    moved = replace(options, root=tmp_path / "new")
    retrieve(moved, None, root / "test/0.mp4", tmp_path / "moved", index=tmp_path / "g")
    assert "cannot be decoded" not in caplog.text
    pages = [(tmp_path / name / "index.html").read_text() for name in ("before", "moved")]
    assert pages[0].replace("videos/train", "X/g") == pages[1].replace(f"{tmp_path.name}/g", "X/g")


def test_an_index_that_does_not_fit(options, lists, tmp_path, one_line):
    gallery, query = lists
    index, video = tmp_path / "g", gallery.parent / "test/0.mp4"
    message = one_line(DataError, retrieve, options, None, video, tmp_path / "out", index=index)
    assert message == f"cannot read {index}: No such file or directory; extract it with --gallery"
    assert "there is no gallery" in one_line(ConfigError, retrieve, options, None, video, tmp_path / "out")
    extract_features(options, gallery, index)
    for change, named in (
        ({"overrides": (*options.overrides, "seed=5")}, "weights.seed 0 stored, 5 requested"),
        ({"clips": 2}, "protocol.clips 1 stored, 2 requested"),
        ({"size": 32}, "protocol.size 24 stored, 32 requested"),
    ):
        other = replace(options, **change)
        for work, asked in ((retrieve, video), (retrieve, query)):
            message = one_line(DataError, work, other, None, asked, tmp_path / "out", index=index)
            assert message.startswith(f"{index} holds features of another request (") and named in message
            assert message.endswith("search with the same network and clips, or choose another --index")
    # An index may have been extracted with or without --allow-missing.
    retrieve(replace(options, allow_missing=True), None, video, tmp_path / "out", index=index)
    message = one_line(DataError, retrieve, options, query, query, tmp_path / "other", index=index)
    assert "list " in message and "videos 20 stored, 8 requested" in message
    part = extract_features(options, gallery, index, "0/2").path
    message = one_line(DataError, retrieve, options, None, video, tmp_path / "part", index=part)
    assert "shard [0, 2] stored, [0, 1] requested" in message


def test_what_is_not_an_index(options, lists, tmp_path, one_line):
    gallery, _ = lists
    video = gallery.parent / "test/0.mp4"
    index = extract_features(options, gallery, tmp_path / "g").path
    whole = files(index)

    def refused():
        return one_line(DataError, retrieve, options, None, video, tmp_path / "out", index=index)

    for name in ("features.npy", "rows.csv", "meta.json"):
        for length in (0, 3, len(whole[name]) // 2):
            (index / name).write_bytes(whole[name][:length])
            message = refused()
            assert message.startswith(f"{index} is damaged (")
            assert message.endswith(": extract it with --gallery")
        (index / name).write_bytes(whole[name])
    (index / "meta.json").write_text('{"format": 7, "sha256": {}, "request": {}}')
    other = "is not a folder of features of format 1: choose another --index, or extract one with --gallery"
    assert refused() == f"{index} {other}"
    (index / "meta.json").write_text("[]")
    assert refused() == f"{index} {other}"
    (index / "meta.json").unlink()
    assert "is incomplete: it has no meta.json" in refused()
    index = tmp_path / "other"
    index.mkdir()
    (index / "a.txt").touch()
    assert refused() == f"{index} {other}"


def test_lists_and_videos_that_cannot_be_used(options, lists, tmp_path, one_line, monkeypatch):
    gallery, _ = lists
    (tmp_path / "other").mkdir()
    (tmp_path / "other/classes.txt").write_text("a\nb\n")
    shutil.copy(gallery, tmp_path / "other/x.csv")
    (tmp_path / "other/x.csv").write_text("path,label\na.mp4,0\n")
    monkeypatch.setattr(job, "load_subject", None)  # the error comes before anything is loaded
    message = one_line(DataError, retrieve, options, gallery, tmp_path / "other/x.csv", tmp_path / "out")
    assert "different classes.txt" in message
    missing = gallery.parent / "test/none.mp4"
    message = one_line(DataError, retrieve, options, gallery, missing, tmp_path / "out")
    assert message.startswith(f"{missing} does not exist")
    missing.write_text("<html>")
    assert "not a video" in one_line(DataError, retrieve, options, gallery, missing, tmp_path / "out")
    (tmp_path / "file").write_text("in the way")
    message = one_line(DataError, retrieve, options, gallery, gallery.parent / "test/0.mp4", tmp_path / "file")
    assert message == f"cannot write to {tmp_path}/file: it is a file; name a folder"
    assert not [*(tmp_path / "out").glob("[!.]*")]


def test_a_list_of_another_name_is_explained(options, lists, tmp_path, one_line):
    shutil.copy(lists[1], tmp_path / "queries.txt")
    message = one_line(DataError, retrieve, options, lists[0], tmp_path / "queries.txt", tmp_path / "out")
    assert message.startswith(f"{tmp_path}/queries.txt: ")
    assert message.endswith("; if it is a list, its name must end in .csv")


@pytest.mark.parametrize("suffix", ["m2ts", "mts", "vob"])
def test_one_video_of_a_rarer_suffix(options, lists, tmp_path, write_video, suffix):
    gallery, _ = lists
    frames = generator(0).integers(0, 255, (24, 48, 48, 3), np.uint8)
    given = {"codec": "mpeg2video", "options": {}} if suffix == "vob" else {}
    video = write_video(tmp_path / f"q.{suffix}", frames, **given)
    results = retrieve(options, gallery, video, tmp_path / "out", k=3)
    assert len(results["neighbours"]) == 3 and results["query"] == str(video)


def test_an_image_is_a_query(tmp_path, capsys):
    """By the command, as docs/images.md has it: an image finds its copy first, then one like it."""
    rows = ["path,label"]
    source = generator(0)
    (tmp_path / "images").mkdir()
    for n in range(6):
        image = source.integers(0, 90, (32, 40, 3), np.uint8)
        image[..., n % 3] += 150
        assert cv2.imwrite(str(tmp_path / f"images/{n}.png"), image)
        rows.append(f"{n}.png,{n % 3}")
    (tmp_path / "images/list.csv").write_text("\n".join(rows) + "\n")
    shutil.copy(tmp_path / "images/4.png", tmp_path / "new.png")
    still = "{name: random, frames: 1, sampling_rate: 1}"
    given = ["data.moving_digits=null", "data.train=none.csv", f"data.sampler={still}", "backbone={name: resnet18}"]
    arguments = ["--checkpoint", "random", "--cfg", TOY, "--clips", 1, "--crops", 1, "--size", 24, "--workers", 0]
    arguments += ["--device", "cpu", "--gallery", tmp_path / "images/list.csv", "--query", tmp_path / "new.png"]
    commands.run("retrieval", [str(word) for word in (*arguments, "--out", tmp_path / "out", *given)])
    results = json.loads((tmp_path / "out/results.json").read_text())
    first, second = results["neighbours"][:2]
    assert (first["path"], second["path"]) == ("4.png", "1.png") and first["similarity"] > 0.9999
    assert "4.png" in capsys.readouterr().out and "new.png" in (tmp_path / "out/index.html").read_text()
    assert (tmp_path / "out/retrieval.png").stat().st_size > 1000


def test_copies_are_not_searched_for_among_originals(options, lists, tmp_path, one_line, monkeypatch):
    """Nor originals among copies, nor copies of other settings: docs/videos.md."""
    gallery, query = lists
    small, smaller = tmp_path / "small", tmp_path / "smaller"
    for out, side in ((small, 40), (smaller, 24)):
        for listed in lists:
            shrink(listed, out, Settings(short_side=side))
    of_originals = extract_features(options, gallery, tmp_path / "g").path
    copies = replace(options, root=small)
    of_copies = extract_features(copies, gallery, tmp_path / "c").path
    found = retrieve(copies, gallery, query, tmp_path / "out", page_queries=0)  # copies with copies
    assert found["copies"] == {"fps": None, "quality": 18, "short_side": 40}
    assert retrieve(options, gallery, query, tmp_path / "out", page_queries=0)["copies"] is None
    near = retrieve(copies, None, small / "test/1.mp4", tmp_path / "near", index=of_copies)
    assert near["copies"] == found["copies"] and len(near["neighbours"]) == 10
    monkeypatch.setattr(job, "extract", lambda *_, **__: pytest.fail("it was extracted"))
    one = small / "test/0.mp4"
    for work, asked, of, index in (
        (retrieve, query, copies, of_originals),
        (retrieve, one, options, of_originals),
        (retrieve, query.parent / "test/0.mp4", copies, of_copies),
        (retrieve, query, replace(options, root=smaller), of_copies),
        (retrieve, smaller / "test.csv", options, of_copies),
    ):
        message = one_line(DataError, work, of, None, asked, tmp_path / "none", index=index)
        assert message.startswith(f"{index} contains ") and f", {asked} contains " in message
        assert "compare originals with originals, or copies with copies of the same settings" in message
    # Each list has a root.txt of its own.
    message = one_line(DataError, retrieve, options, gallery, small / "test.csv", tmp_path / "none")
    assert (
        f"{gallery} contains original videos, {small}/test.csv contains shrunk copies (quality 18, short_side 40)"
        in message
    )
    # With the list, the index is compared with the list's files.
    message = one_line(DataError, retrieve, copies, gallery, query, tmp_path / "none", index=of_originals)
    assert f"data.root {gallery.parent} stored, {small} requested" in message


def test_a_new_video_is_searched_in_copies_once_it_is_shrunk(options, lists, tmp_path, one_line):
    """The remedy that the error names, as docs/evaluation.md has it."""
    gallery, query = lists
    small, new = tmp_path / "small", tmp_path / "new"
    shrink(gallery, small, Settings(short_side=40))
    index = extract_features(replace(options, root=small), gallery, tmp_path / "c").path
    new.mkdir()
    video = shutil.copy(query.parent / "test/0.mp4", new / "v.mp4")
    message = one_line(DataError, retrieve, options, None, video, tmp_path / "out", index=index)
    assert f"{index} contains shrunk copies (quality 18, short_side 40), {video} contains original" in message
    assert "vidssl shrink makes copies, also of a list of a single video" in message
    (new / "list.csv").write_text("path\nv.mp4\n")
    shrink(new / "list.csv", tmp_path / "new_40", Settings(short_side=40))
    found = retrieve(options, None, tmp_path / "new_40/v.mp4", tmp_path / "out", index=index)
    assert len(found["neighbours"]) == 10 and found["copies"]["short_side"] == 40


def test_the_files_of_a_gallery_are_looked_at_once(options, lists, tmp_path, monkeypatch):
    gallery, query = lists
    looked = []
    for module in (job, gallery_job, extract_job):
        monkeypatch.setattr(module, "identify", lambda videos: (looked.append(videos.path), identify(videos))[1])
    retrieve(options, gallery, query, tmp_path / "out", index=tmp_path / "g", page_queries=0)
    assert sorted(looked) == sorted([gallery, query])


def test_previews_show_the_part_that_is_meant(write_video, tmp_path):
    """Black, then white: a span's picture is of the span."""
    frames = np.zeros((50, 32, 32, 3), np.uint8)
    frames[25:] = 255
    path = write_video(tmp_path / "v.mp4", frames)
    record = VideoRecord(str(path))
    assert middle_frames(replace(record, end=0.9)).max() < 40
    assert middle_frames(replace(record, start=1.1)).min() > 215
    assert middle_frames(record).min() < 40 and middle_frames(record).max() > 215


def test_previews_of_folders_of_images_go_by_the_frame_rate_of_the_run(tmp_path):
    """At 25 frames a second the span would lie outside of the 40 images."""
    for n in range(40):
        cv2.imwrite(str(tmp_path / f"{n}.png"), np.full((32, 32, 3), 255 * (n >= 30), np.uint8))
    record = VideoRecord(str(tmp_path), start=3.0, end=4.0)
    assert middle_frames(record, fps=10.0).min() == 255
    with pytest.raises(DataError, match="lies outside the file, which is 1\\.60 s long"):
        middle_frames(record)


def test_a_page_of_a_gallery_of_one(options, lists, tmp_path, caplog):
    """The query is all there is: nothing is found, and the page says so without a picture."""
    gallery, _ = lists
    gallery.write_text("path,label\ntrain/0.mp4,0\n")
    with caplog.at_level(logging.WARNING):
        found = retrieve(options, gallery, gallery.parent / "train/0.mp4", tmp_path / "out")
    assert found["neighbours"] == [] and found["num_gallery"] == 1
    assert (tmp_path / "out/retrieval.png").stat().st_size and not caplog.records
