"""The page of a retrieval as a file: its data, its previews, its addresses. What it draws: test_browser.py."""

import json
import re
import runpy
from pathlib import Path
from urllib.parse import unquote

import cv2
import numpy as np
import pytest

from vidssl.apps.search.page import (
    FoundVideo,
    Hit,
    QueryRow,
    remove_other_previews,
    store_preview,
    write_retrieval_page,
)
from vidssl.base.types import VideoRecord
from vidssl.page.previews import preview

NASTY = "a/<script>alert('x')</script> #;&\"'\\ é 漢 }.mp4"
PARSED = runpy.run_path(str(Path(__file__).parents[1] / "parsed_page.py"))["ParsedPage"]


def clip(value: int, t: int = 8, h: int = 64, w: int = 64) -> np.ndarray:
    frames = np.full((t, 3, h, w), value, np.uint8)
    frames += np.arange(t, dtype=np.uint8)[:, None, None, None]
    return frames


def video(name: str, label: int = -1, **more) -> FoundVideo:
    return FoundVideo(name, VideoRecord(f"/nowhere/{name}", label), **more)


def written(path: Path, videos, queries, **options) -> tuple[str, PARSED, dict]:
    """Write a page: its text, its elements, and its data."""
    options = {"title": "Nearest", "results": {"num_gallery": 9}} | options
    write_retrieval_page(path, videos=videos, queries=queries, **options)
    page = path.read_text(encoding="utf-8")
    match = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    return page, PARSED(page), json.loads(match[1])


def test_names_are_shown_and_never_obeyed(tmp_path):
    page, tree, data = written(
        tmp_path / "page.html",
        [video(NASTY, 0), video("b", 1)],
        [QueryRow(0, (Hit(1, 0.5),))],
        title=NASTY,
        class_names=["<b>class</b>", "</style><i>"],
        network="</dd><script>",
        unread=[(NASTY, f"{NASTY}: no <b>video</b>")],
        copies=[["b", NASTY]],
        results={"R@1": 0.5, "num_gallery": 2},
    )
    assert not re.search(r"https?:|//[a-z]|@import|url\(", page, re.IGNORECASE)
    tags = [tag for tag, _ in tree.elements]
    assert tags.count("script") == 2 and not {"b", "i", "u", "img", "iframe", "video"} & {*tags}
    assert NASTY in tree.texts and "no <b>video</b>" in tree.texts and f"b = {NASTY}" in tree.texts
    assert data["files"][0][0] == NASTY and data["classes"] == {"0": "<b>class</b>", "1": "</style><i>"}


def test_a_file_name_that_is_no_utf8_does_not_stop_the_page(tmp_path):
    name = b"caf\xe9.mp4".decode("utf-8", "surrogateescape")
    (tmp_path / name).write_bytes(b"")
    actual = FoundVideo(name, VideoRecord(str(tmp_path / name)))
    _, tree, data = written(tmp_path / "p.html", [actual], [QueryRow(0, ())], unread=[(name, "no video")])
    assert "caf?.mp4" in tree.texts and data["files"][0][2] == "caf%E9.mp4"


def test_each_file_is_named_once_and_each_moment_has_its_own_preview(tmp_path):
    """A video that is a neighbour of many is in the data and on the disk once."""
    a, b = (store_preview(preview(clip(value)), tmp_path) for value in (10, 90))
    moments = [
        FoundVideo("a.mp4", VideoRecord("/v/a.mp4", start=0.0, end=2.5), a),
        FoundVideo("a.mp4", VideoRecord("/v/a.mp4", start=2.5), b),
        FoundVideo("c.mp4", VideoRecord("/v/c.mp4", 3)),
    ]
    rows = [QueryRow(2, (Hit(0, 0.91239, is_copy=True), Hit(1, 0.5))), QueryRow(0, (Hit(1, 0.25),))]
    page, _, data = written(tmp_path / "p.html", moments, rows)
    assert data["files"] == [["a.mp4", "/v/a.mp4", ""], ["c.mp4", "/v/c.mp4", ""]]
    assert data["videos"] == [
        [0, -1, "0-2.5 s", "#t=0,2.5", [a.file, 8, 128, 128, 1]],
        [0, -1, "2.5- s", "#t=2.5", [b.file, 8, 128, 128, 1]],
        [1, 3, "", "", None],
    ]
    assert data["queries"] == [[2, [[0, 0.912, 1], [1, 0.5, 0]]], [0, [[1, 0.25, 0]]]]
    assert "data:image" not in page


def test_equal_previews_are_one_file_and_those_of_earlier_pages_go(tmp_path):
    first, same, other = (store_preview(preview(clip(value)), tmp_path) for value in (10, 10, 90))
    assert first == same and first != other
    stored = cv2.imread(str(tmp_path / first.file))
    assert stored.shape == (64, 8 * 64, 3) and (first.width, first.height, first.enlarged) == (128, 128, True)
    foreign = ("mine.jpg", "0123456789abcdef.png", "0123456789abcdef.jpg")  # the last is not the hash of its content
    for name in foreign:
        (tmp_path / "previews" / name).write_text("mine")
    remove_other_previews(tmp_path, [other])
    kept = {*foreign, Path(other.file).name}
    assert {path.name for path in (tmp_path / "previews").iterdir()} == kept


@pytest.mark.parametrize("name", ["a b#1?/100 % é.mp4", "c:d.mp4"])
def test_links_are_relative_to_the_page_and_quoted(tmp_path, name):
    path = tmp_path / "videos" / name
    path.parent.mkdir(parents=True)
    path.write_bytes(b"")
    (tmp_path / "output/x").mkdir(parents=True)
    _, _, data = written(tmp_path / "output/x/p.html", [FoundVideo(name, VideoRecord(str(path)))], [QueryRow(0, ())])
    ((_, full, link),) = data["files"]
    assert full == str(path) and not re.search(r"[ #?:]", link) and link.startswith("../../videos/")
    assert (tmp_path / "output/x" / unquote(link)).samefile(path)


def test_a_member_of_a_tar_is_named_and_has_no_link(tmp_path):
    (tmp_path / "v.tar").write_bytes(b"")
    _, _, data = written(
        tmp_path / "p.html", [FoundVideo("a", VideoRecord(str(tmp_path / "v.tar#a")))], [QueryRow(0, ())]
    )
    assert data["files"] == [["a", str(tmp_path / "v.tar#a"), ""]]


def test_spans_are_in_seconds_to_hundredths():
    spans = [(None, None), (4, 5.2), (None, 1.256), (3.1, None), (120, 123)]
    assert [VideoRecord("a", start=start, end=end).span for start, end in spans] == [
        "",
        "4-5.2 s",
        "0-1.26 s",
        "3.1- s",
        "120-123 s",
    ]


def test_without_labels_nothing_is_claimed(tmp_path):
    page, tree, _ = written(tmp_path / "p.html", [video("a"), video("b", 0)], [QueryRow(0, (Hit(1, 0.9),))] * 2)
    assert "✓" not in page.partition('id="rows"')[0] and "same class" not in page.partition('id="rows"')[0]
    ids = {attributes.get("id") for _, attributes in tree.elements}
    assert not {"misses", "class"} & ids and "search" in ids


def test_only_the_nearest_video_makes_a_row_a_miss(tmp_path):
    videos = [video("a", 0), video("b", 1)]
    rows = [QueryRow(0, (Hit(0, 0.9), Hit(1, 0.8))), QueryRow(0, (Hit(1, 0.9), Hit(0, 0.8))), QueryRow(0, ())]
    page, _, _ = written(tmp_path / "p.html", videos, rows)
    assert "For 1 of 2 queries, the nearest video is of the same class." in page


def test_the_table_and_the_note(tmp_path):
    results = {
        "R@1": 0.1234,
        "R@10": 0.9,
        "majority": 0.0101,
        "knn": 1.0,
        "num_queries": 3783,
        "num_gallery": 9,
        "note": "R@10: all 9",
    }
    page, tree, _ = written(
        tmp_path / "p.html",
        [video("a", 0)],
        [QueryRow(0, ())],
        results=results,
        network="mine",
        protocol=[("Clips", "2 clips x 1 crop")],
    )
    words = tree.texts[tree.texts.index("R@1") :]
    assert words[:8] == ["R@1", "R@10", "kNN", "Majority", "12.3%", "90.0%", "100.0%", "1.0%"]
    assert "The page has 1 of 3,783 queries, evenly spaced." in page and words[8].endswith("R@10: all 9.")
    assert words.index("3,783 videos") < words.index("mine") < words.index("How this was measured")
    assert words.index("How this was measured") < words.index("2 clips x 1 crop")
    page, _, _ = written(tmp_path / "p.html", [video("a")], [QueryRow(0, ())] * 2)
    assert "2 queries" in page and "evenly spaced" not in page


def test_what_is_wrong_with_videos_is_counted_and_listed(tmp_path):
    _, tree, _ = written(
        tmp_path / "p.html",
        [video("a")],
        [QueryRow(0, ())],
        unread=[("x/1.mp4", "x/1.mp4: not a video"), ("x/2.mp4", "damaged")],
        copies=[["a", "b", "c"], ["d", "e"]],
    )
    for text in ("2 videos cannot be read", "x/1.mp4", "not a video", "x/2.mp4", "damaged"):
        assert text in tree.texts
    assert {"5 videos are duplicates of one another", "a = b = c", "d = e"} <= {*tree.texts}
    _, tree, _ = written(tmp_path / "p.html", [video("a")], [QueryRow(0, ())], unread=[("x", "y")])
    assert "1 video cannot be read" in tree.texts and not any("duplicates" in text for text in tree.texts)


def test_a_thousand_queries_are_a_small_page(tmp_path):
    made = store_preview(preview(clip(1)), tmp_path)
    name = "camera 12/2026-11-03/clip_{:06d}_of_a_day.mp4"
    videos = [video(name.format(n), n % 9, preview=made) for n in range(1000)]
    rows = [QueryRow(n, tuple(Hit((n + k) % 1000, 0.9) for k in range(6))) for n in range(1000)]
    page, _, data = written(tmp_path / "p.html", videos, rows)
    assert len(page) < 550_000 and len(data["queries"]) == 1000
