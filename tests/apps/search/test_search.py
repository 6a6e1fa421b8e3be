"""Retrieval: of lists and of one video, by features in a file or not; what is the same video, and what a copy of it."""

import json
import logging
import os
import re
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

from vidssl import cli
from vidssl.apps import search as job
from vidssl.apps.search import RANKS, retrieval
from vidssl.apps.shrink import shrink
from vidssl.base.errors import ConfigError, DataError
from vidssl.base.types import VideoRecord
from vidssl.data.dataset import ClipDataset
from vidssl.data.video_list import read_list
from vidssl.jobs.extract import extract
from vidssl.page.previews import middle_frames, preview

TOY = Path(__file__).parents[3] / "configs" / "toy" / "supervised.yaml"
GALLERY, QUERIES = 12, 7  # videos


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def without(results, *names):
    return {name: value for name, value in results.items() if name not in names}


def test_an_index_changes_nothing(options, lists, tmp_path):
    gallery, query = lists
    asked = {"query": query, "page_queries": 1, **options}
    plain = retrieval(gallery=gallery, **asked)
    made = retrieval(gallery=gallery, out=tmp_path / "made", **asked)
    g = tmp_path / "made/features"
    before = files(g)
    used = retrieval(gallery=gallery, out=tmp_path / "used", index=g, **asked)
    extract(videos=gallery, out=tmp_path / "extracted", **options)
    gallery.unlink()
    alone = retrieval(out=tmp_path / "alone", index=g, **asked)
    assert made == json.loads((tmp_path / "made/results.json").read_text())
    assert without(made, "date") == without(used, "date")
    assert without(plain, "date", "page", "hits") == without(made, "date", "page")
    made["overlap"]["gallery"]["list"] = str(g)
    assert without(made, "gallery", "date") == without(alone, "gallery", "date")
    assert alone["gallery"] == str(g) and files(g) == before == files(tmp_path / "extracted")
    pages = [(tmp_path / name / "index.html").read_text() for name in ("made", "used", "alone")]
    assert pages[0] == pages[1] and pages[2].replace("made/features", "train").count("train/") > 3


def test_the_numbers_are_those_of_the_field(options, lists, tmp_path):
    actual = retrieval(query=lists[1], gallery=lists[0], out=tmp_path / "out", page_queries=0, **options)
    names = [f"R@{k}" for k in (1, 5, 10, 20, 50)]
    assert [f"R@{k}" for k in RANKS] == names and [name for name in actual if name in names] == names
    assert [*actual["centered_features"]] == names
    centred = retrieval(
        query=lists[1], gallery=lists[0], out=tmp_path / "centred", center=True, page_queries=0, **options
    )
    assert {name: centred[name] for name in names} == actual["centered_features"]
    assert centred["uncentered"] == {name: actual[name] for name in names}
    assert (centred["knn"], centred["chance"]) == (actual["knn"], actual["chance"])
    for results in (actual, centred):  # the plain ones stand first, whichever come first in results.json
        labels, head, titles, plain, other, note = results.text.splitlines()
        assert head.startswith(f"{QUERIES} queries, {GALLERY} in the gallery, 1 clip x 1 crop of 24²")
        assert labels == actual["labels"] and labels.startswith("labels: the list's, ")
        assert titles.split() == ["percent", *names, "knn", "majority"]
        assert note == f"R@20, R@50: all {GALLERY} videos of the gallery, which are fewer than k"
        assert plain.split()[0] == "plain" and other.split()[0] == "centred"
        shown = [actual[name] for name in (*names, "knn", "majority")]
        assert plain.split()[1:] == [f"{100 * value:.1f}" for value in shown]
        assert other.split()[1:] == [f"{100 * actual['centered_features'][name]:.1f}" for name in names]
        assert len({len(line) for line in (titles, plain)}) == 1


def test_links_to_one_file_are_one_video(options, lists, tmp_path, caplog, search_page):
    """A query under another name finds everything but itself, and nothing is called a copy."""
    gallery, _ = lists
    root = gallery.parent
    (root / "linked").symlink_to(root / "train")
    (root / "link.mp4").symlink_to(root / "train/3.mp4")
    (root / "q.csv").write_text("path,label\nlinked/2.mp4,0\nlink.mp4,0\ntrain/7.mp4,0\n")
    actual = retrieval(query=root / "q.csv", gallery=gallery, out=tmp_path / "out", page_hits=50, **options)
    assert actual["duplicates"] == 0 and "bit-identical" not in caplog.text
    for (_, hits), own in zip(search_page(tmp_path / "out"), (2, 3, 7), strict=True):
        assert {hit.name for hit in hits} == {f"train/{n}.mp4" for n in range(GALLERY) if n != own}
    for name, own in (("linked/2.mp4", 2), ("link.mp4", 3)):
        near = retrieval(query=root / name, gallery=gallery, out=tmp_path / f"one{own}", k=30, **options)
        assert sorted(hit["path"] for hit in near["neighbours"]) == sorted(
            f"train/{n}.mp4" for n in range(GALLERY) if n != own
        )


def test_copies_are_counted_and_left_out_when_asked(options, lists, tmp_path, caplog):
    gallery, query = lists
    root = gallery.parent
    for n in (1, 4, 6):
        shutil.copy(root / f"test/{n}.mp4", root / f"train/copy{n}.mp4")
    labels = [record.label for record in read_list(query).records]
    with open(gallery, "a") as file:
        file.write("".join(f"train/copy{n}.mp4,{labels[n]}\n" for n in (1, 4, 6)))
    plain = options | {"batch_size": 1}  # rounding may depend on the batch
    actual = retrieval(query=query, gallery=gallery, out=tmp_path / "with", page_queries=0, **plain)
    assert actual["duplicates"] == 3 and not actual["drop_duplicates"]
    (warning,) = (record.getMessage() for record in caplog.records if record.levelname == "WARNING")
    assert warning.startswith(
        f"3 of {QUERIES} videos of {query} are in the gallery {gallery} too (3 under another name)"
    )
    assert "the first: test/1.mp4 = train/copy1.mp4; drop_duplicates=True" in warning and "\n" not in warning
    caplog.clear()
    dropped = retrieval(
        query=query, gallery=gallery, out=tmp_path / "without", drop_duplicates=True, page_queries=0, **plain
    )
    (warning,) = (record.getMessage() for record in caplog.records if record.levelname == "WARNING")
    assert warning.endswith("the first: test/1.mp4 = train/copy1.mp4; they are left out")
    assert dropped["duplicates"] == 3 and dropped["drop_duplicates"]
    for row, first in ((1, True), (0, False)):
        near = retrieval(query=root / f"test/{row}.mp4", gallery=gallery, out=tmp_path / f"one{row}", **plain)
        assert (near["neighbours"][0]["path"] == f"train/copy{row}.mp4") is first
        assert [hit["duplicate"] for hit in near["neighbours"]] == [first] + [False] * 9
        assert near["duplicates"] == first and ("(a duplicate)" in near.text) is first
    near = retrieval(
        query=root / "test/1.mp4", gallery=gallery, out=tmp_path / "one1", k=30, drop_duplicates=True, **plain
    )
    paths = [hit["path"] for hit in near["neighbours"]]
    assert len(paths) == GALLERY + 2 and "train/copy1.mp4" not in paths and near["duplicates"] == 0
    # Each copy has its query's label: it was a hit at once.
    assert actual["R@1"] >= 3 / QUERIES and actual["R@1"] > dropped["R@1"]


def test_one_video_finds_what_its_list_finds(options, lists, tmp_path, search_page):
    gallery, query = lists
    extract(videos=gallery, out=tmp_path / "g", **options)
    extract(videos=query, out=tmp_path / "q", **options)
    one, other = (np.load(tmp_path / name / "features.npy").astype(float) for name in ("q", "g"))
    cosines = (one @ other.T) / np.linalg.norm(one, axis=1)[:, None] / np.linalg.norm(other, axis=1)
    labels = read_list(gallery)
    near = retrieval(query=gallery.parent / "test/5.mp4", out=tmp_path / "out", index=tmp_path / "g", k=7, **options)
    order = np.argsort(-cosines[5])[:7]
    hits = near["neighbours"]
    assert [hit["path"] for hit in hits] == [f"train/{row}.mp4" for row in order]
    assert [hit["similarity"] for hit in hits] == pytest.approx(cosines[5][order], abs=1e-5)
    assert [hit["rank"] for hit in hits] == list(range(1, 8))
    assert [hit["label"] for hit in hits] == [labels.records[row].label for row in order]
    assert [hit["class"] for hit in hits] == [labels.classes[labels.records[row].label] for row in order]
    assert near == json.loads((tmp_path / "out/results.json").read_text())
    lines = near.text.splitlines()
    assert len(lines) == 9 and lines[2].split()[0] == "1" and lines[2].endswith(f"train/{order[0]}.mp4")
    assert "Nearest videos of test/5 in" in (tmp_path / "out/index.html").read_text()
    ((_, shown),) = search_page(tmp_path / "out")
    assert [hit.name for hit in shown] == [hit["path"] for hit in hits]


def test_the_gallerys_videos_are_not_read_again(options, lists, tmp_path, caplog, search_page):
    """They may be gone, or be elsewhere by now: the page lists them, or shows them where they are."""
    gallery, _ = lists
    root = gallery.parent
    expected = retrieval(
        query=root / "test/0.mp4", gallery=gallery, out=tmp_path / "before", index=tmp_path / "g", **options
    )
    shutil.move(root / "train", tmp_path / "elsewhere")
    assert "cannot be decoded" not in caplog.text
    results = retrieval(query=root / "test/0.mp4", out=tmp_path / "gone", index=tmp_path / "g", **options)
    assert results["neighbours"] == expected["neighbours"]
    assert "10 videos of the page cannot be decoded, the first: " in caplog.text
    assert "10 videos cannot be read" in (tmp_path / "gone/index.html").read_text()
    ((_, hits),) = search_page(tmp_path / "gone")
    assert {(hit.link, hit.preview) for hit in hits} == {("", None)} and len(hits) == 10
    (tmp_path / "new").mkdir()
    shutil.move(tmp_path / "elsewhere", tmp_path / "new/train")
    moved = options | {"root": tmp_path / "new"}
    retrieval(query=root / "test/0.mp4", out=tmp_path / "moved", index=tmp_path / "g", **moved)
    ((_, before), (_, after)) = (*search_page(tmp_path / "before"), *search_page(tmp_path / "moved"))
    assert [hit.preview for hit in before] == [hit.preview for hit in after] and None not in [h.preview for h in after]
    assert {hit.link.rpartition("/")[0] for hit in after} == {"../new/train"}


def test_an_index_that_does_not_fit(options, lists, tmp_path, one_line):
    gallery, query = lists
    index, video = tmp_path / "g", gallery.parent / "test/0.mp4"

    def refused(error=DataError, **arguments):
        return one_line(
            error, retrieval, **{"query": video, "out": tmp_path / "out", "index": index, **options, **arguments}
        )

    assert refused() == f"cannot read {index}: No such file or directory; extract it with gallery=LIST"
    extract(videos=gallery, out=index, **options)
    message = refused(query=query, size=32)
    assert message.startswith(f"{index} and the query differ (size 24 and 32, short side 24 and 32): ")
    assert message.endswith("use the same network and clips, or another index")
    # Another number of clips fits, and an index may have been extracted with or without allow_missing.
    retrieval(query=video, out=tmp_path / "two", index=index, allow_missing=True, **options | {"clips": 2})
    message = refused(query=query, gallery=query, out=tmp_path / "other")
    assert message.startswith(f"{index} holds features of other videos, and of none of {query}: ")
    part = extract(videos=gallery, out=index, shard="0/2", **options).path
    assert refused(out=tmp_path / "part", index=part) == f"{part} has a part of its list: merge the parts"
    (index / "rows.csv").write_bytes(b"path")
    message = refused()
    assert message.startswith(f"{index} is damaged (") and message.endswith(": extract it with gallery=LIST")
    assert "choose another folder for one" in refused(ConfigError, query=query, gallery=gallery, out=index)


def test_lists_and_videos_that_cannot_be_used(options, lists, tmp_path, one_line, monkeypatch):
    gallery, query = lists
    video, out, file = query.parent / "test/0.mp4", tmp_path / "out", tmp_path / "page"
    file.write_text("in the way")
    (tmp_path / "other").mkdir()
    (tmp_path / "other/classes.txt").write_text("a\nb\n")
    (tmp_path / "other/x.csv").write_text("path,label\na.mp4,0\nb.mp4,1\n")
    (tmp_path / "text.mp4").write_text("<html>")
    monkeypatch.setattr(job, "load_subject", None)  # the error comes before anything is loaded
    for error, arguments, message in (
        (DataError, {"query": tmp_path / "none.mp4"}, f"{tmp_path}/none.mp4 does not exist"),
        (DataError, {"query": tmp_path / "none.csv"}, "cannot read list"),
        (DataError, {"query": tmp_path / "text.mp4"}, "not a video"),
        (DataError, {"out": file}, f"cannot write to {file}: it is a file; name a folder"),
        (ConfigError, {"gallery": None, "out": file}, "there is no gallery: give gallery=LIST, index=FOLDER or both"),
        (ConfigError, {"center": True}, "the mean of one video is the video itself"),
    ):
        arguments = {"query": video, "gallery": gallery, "out": out, **options, **arguments}
        assert message in one_line(error, retrieval, **arguments)
    assert not [*out.glob("[!.]*")]


def test_copies_are_not_searched_for_among_originals(options, lists, tmp_path, one_line):
    """Nor originals among copies: docs/videos.md."""
    gallery, query = lists
    small = tmp_path / "small"
    for listed in lists:
        shrink(listed, out=small, short_side=40)
    of_originals = extract(videos=gallery, out=tmp_path / "g", **options).path
    copies = options | {"root": small}
    of_copies = extract(videos=gallery, out=tmp_path / "c", **copies).path
    near = retrieval(query=small / "test/1.mp4", out=tmp_path / "near", index=of_copies, **copies)
    assert near["copies"] == {"fps": None, "quality": 18, "short_side": 40} and len(near["neighbours"]) == 10
    for asked, of, index in (
        (small / "test.csv", options, of_originals),
        (small / "test/0.mp4", options, of_originals),
        (query.parent / "test/0.mp4", copies, of_copies),
    ):
        message = one_line(DataError, retrieval, query=asked, out=tmp_path / "none", index=index, **of)
        assert message.startswith(f"{index} contains ") and f", {asked} contains " in message
    message = one_line(
        DataError, retrieval, query=small / "test.csv", gallery=gallery, out=tmp_path / "none", **options
    )
    assert f"{gallery} contains original videos, {small}/test.csv contains shrunk copies" in message


def test_the_page_has_all_queries_and_each_video_once(options, lists, tmp_path, search_page):
    gallery, _ = lists
    shutil.copy(gallery.parent / "train/3.mp4", gallery.parent / "train/copy.mp4")
    with open(gallery, "a") as file:
        file.write("train/copy.mp4,0\n")
    of = {"gallery": gallery, "query": gallery, "out": tmp_path / "out", **options, "workers": 2}
    actual = retrieval(**of)
    shown = search_page(tmp_path / "out")
    assert [video.name for video, _ in shown] == [*read_list(gallery).names] and actual["duplicates"] == 1
    assert all(len(hits) == 6 for _, hits in shown)
    files = {path.name for path in (tmp_path / "out/previews").iterdir()}
    assert len(files) == GALLERY  # of one more, two are equal
    for video, hits in shown:
        for one in (video, *hits):
            assert (tmp_path / "out" / one.link).samefile(gallery.parent / one.name)
            assert one.preview == preview(middle_frames(VideoRecord(str(gallery.parent / one.name)))).jpeg
    copies = {(video.name, hit.name) for video, hits in shown for hit in hits if hit.is_copy}
    assert copies == {("train/3.mp4", "train/copy.mp4"), ("train/copy.mp4", "train/3.mp4")}
    retrieval(**of, page_queries=2, page_hits=1)  # its previews are fewer, and those of before go
    shown = search_page(tmp_path / "out")
    assert [video.name for video, _ in shown] == ["train/0.mp4", f"train/{(GALLERY + 1) // 2}.mp4"]
    assert {path.name for path in (tmp_path / "out/previews").iterdir()} < files
    assert f"2 of {GALLERY + 1} queries" in (tmp_path / "out/index.html").read_text()


def test_equal_videos_are_listed_by_group(options, lists, tmp_path):
    gallery, query = lists
    root = gallery.parent
    for name in ("train/a.mp4", "train/b.mp4", "test/c.mp4"):
        shutil.copy(root / "test/2.mp4", root / name)
    gallery.write_text(gallery.read_text() + "train/a.mp4,0\ntrain/b.mp4,0\n")
    query.write_text(query.read_text() + "test/c.mp4,0\n")
    of = {"query": query, "gallery": gallery, "out": tmp_path / "out", **options, "batch_size": 1}
    assert retrieval(**of)["duplicates"] == 4
    page = (tmp_path / "out/index.html").read_text()
    assert re.findall("<li>(.*)</li>", page) == ["test/2.mp4 = train/a.mp4 = train/b.mp4 = test/c.mp4"]
    assert "4 videos are duplicates of one another" in page
    retrieval(query=root / "test/2.mp4", gallery=gallery, out=tmp_path / "one", **options)
    page = (tmp_path / "one/index.html").read_text()
    assert re.findall("<li>(.*)</li>", page) == ["2.mp4 = train/a.mp4 = train/b.mp4"]


def test_a_video_that_crashes_costs_its_preview_alone(options, lists, tmp_path, search_page, monkeypatch):
    def crash(record, fps=None):
        if record.path.endswith("train/4.mp4"):
            os.kill(os.getpid(), signal.SIGKILL)
        return middle_frames(record, fps)

    gallery, _ = lists
    monkeypatch.setattr("vidssl.page.previews.middle_frames", crash)
    of = options | {"workers": 1}
    retrieval(query=gallery, gallery=gallery, out=tmp_path / "out", page_queries=2, page_hits=20, **of)
    hits = [hit for _, hits in search_page(tmp_path / "out") for hit in hits]
    assert {hit.name for hit in hits if hit.preview is None} == {"train/4.mp4"}
    assert "1 video cannot be read" in (tmp_path / "out/index.html").read_text()


def test_a_page_of_a_gallery_of_one(options, lists, tmp_path, caplog):
    """The query is all there is: nothing is found, and the page says so without a picture."""
    gallery, _ = lists
    gallery.write_text("path,label\ntrain/0.mp4,0\n")
    with caplog.at_level(logging.WARNING):
        actual = retrieval(query=gallery.parent / "train/0.mp4", gallery=gallery, out=tmp_path / "out", **options)
    assert actual["neighbours"] == [] and actual["num_gallery"] == 1
    assert (tmp_path / "out/index.html").exists() and not caplog.records


# The command ------------------------------------------------------------------------------------------------


def test_the_command(lists, tmp_path, capsys):
    gallery, query = lists
    words = ["--checkpoint", "random", "--cfg", TOY, "data.moving_digits=null", "--clips", "1", "--workers", "0"]
    words += ["--gallery", gallery, "--query", query, "--index", tmp_path / "g", "--page-queries", "1"]
    cli.run("retrieval", [*map(str, words), "--k", str(GALLERY + 1), "--out", str(tmp_path / "out")])
    printed = capsys.readouterr().out.splitlines()
    assert printed[3].startswith("plain") and printed[-1] == f"{tmp_path}/out/index.html" and (tmp_path / "g").exists()
    note = f"R@20, R@50, knn: all {GALLERY} videos of the gallery, which are fewer than k"
    assert note in printed and note in (tmp_path / "out/index.html").read_text()


@pytest.fixture
def copies(digits, tmp_path):
    """A folder of six videos: one is a copy of another, and one is broken."""
    folder = tmp_path / "videos"
    folder.mkdir()
    for n in (0, 1, 2, 3):
        shutil.copy(digits / f"videos/test/{n:05d}.mp4", folder / f"{n}.mp4")
    shutil.copy(folder / "1.mp4", folder / "copy.mp4")
    (folder / "broken.mp4").write_bytes(b"no video" * 99)
    return folder


def test_a_folder_in_itself_is_read_once(options, copies, tmp_path, caplog, monkeypatch, search_page):
    decoded, plan = [], ClipDataset.plan  # the frames of a video are planned, then decoded
    monkeypatch.setattr(ClipDataset, "plan", lambda self, key, meta: decoded.append(key) or plan(self, key, meta))
    linked = tmp_path / "linked"
    linked.mkdir()
    for file in copies.iterdir():
        (linked / file.name).hardlink_to(file)
    collected = {}
    for name, other in (("same", copies / ".." / "videos"), ("two", linked)):
        decoded.clear()
        caplog.clear()
        arguments = {"query": copies, "gallery": other, "out": tmp_path / name, "index": tmp_path / f"{name}.features"}
        retrieval(**arguments, **options)
        collected[name] = json.loads((tmp_path / name / "results.json").read_text())
        assert len(decoded) == (5 if name == "same" else 10)
        assert caplog.text.count("left out:") == 1 and caplog.text.count("broken.mp4: ") == len(decoded) / 5
        assert collected[name]["num_queries"] == collected[name]["num_gallery"] == 5
        assert len(collected[name]["missing_queries"]) == len(collected[name]["missing_gallery"]) == 1
    assert collected["same"]["duplicates"] == 1
    page = (tmp_path / "same" / "index.html").read_text()
    assert "1 video cannot be read<" in page and "<li>1.mp4 = copy.mp4</li>" in page
    shown = [(video.name, hit.name) for video, hits in search_page(tmp_path / "same") for hit in hits if hit.is_copy]
    assert shown == [("1.mp4", "copy.mp4"), ("copy.mp4", "1.mp4")]
    page = (tmp_path / "two" / "index.html").read_text()  # names that both folders have are not enough
    assert f"<li>{copies}/0.mp4 = {linked}/0.mp4</li>" in page
