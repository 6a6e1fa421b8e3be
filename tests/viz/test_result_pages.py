import base64
import re
from html.parser import HTMLParser
from pathlib import Path

import cv2
import numpy as np
import pytest

from vidssl.viz.pages import Hit, Preview, QueryRow, preview, write_retrieval_page

NASTY = "a/<script>alert('x')</script> #;&\"'\\ é 漢 }.mp4"
VOID = {"meta", "link", "img", "input", "br"}


class Tree(HTMLParser):
    """Notes elements and texts, and that each element is closed in its order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] not in (["style"], ["script"]):
            self.texts.append(data.strip())

    def classes(self) -> list[str]:
        return [name for _, attrs in self.elements for name in (attrs.get("class") or "").split()]


def clip(value: int, t: int = 8, h: int = 64, w: int = 64) -> np.ndarray:
    frames = np.full((t, 3, h, w), value, np.uint8)
    frames += np.arange(t, dtype=np.uint8)[:, None, None, None]
    return frames


def base64_of(made: Preview) -> str:
    return base64.b64encode(made.jpeg).decode()


def retrieval(path: Path, queries, previews, **options) -> tuple[str, Tree]:
    options = {"title": "Nearest", "results": {}} | options
    write_retrieval_page(path, queries=queries, previews=previews, **options)
    page = path.read_text(encoding="utf-8")
    return page, Tree(page)


def assert_self_contained(page: str) -> None:
    assert not re.search(r"https?:|//[a-z]|@import", page, re.IGNORECASE)
    assert all(target.startswith("data:") for target in re.findall(r"url\(([^)]*)\)", page))
    for tag, attrs in Tree(page).elements:
        assert (attrs.get("src") or "data:").startswith("data:"), tag
        assert tag != "link" or attrs["href"] == "data:,"
        assert tag not in ("iframe", "video", "object", "embed")


def test_a_preview_is_one_strip_of_evenly_spaced_frames():
    frames = np.stack([np.full((3, 60, 80), 10 * t, np.uint8) for t in range(22)])
    made = preview(frames)
    strip = cv2.imdecode(np.frombuffer(made.jpeg, np.uint8), cv2.IMREAD_COLOR)
    assert (made.count, made.width, made.height) == (8, 80, 60) and strip.shape == (60, 640, 3)
    assert [int(strip[30, 40 + 80 * i, 0]) // 10 for i in range(8)] == [0, 3, 6, 9, 12, 15, 18, 21]


def test_a_preview_keeps_the_order_of_colours():
    red = np.zeros((2, 3, 32, 32), np.uint8)
    red[:, 0] = 255
    strip = cv2.imdecode(np.frombuffer(preview(red).jpeg, np.uint8), cv2.IMREAD_COLOR)
    blue, green, red_value = strip[16, 16].tolist()
    assert red_value > 240 and max(blue, green) < 15


@pytest.mark.parametrize(
    ("size", "stored", "shown"),
    [
        ((64, 64), (64, 64), (128, 128)),
        ((28, 28), (28, 28), (112, 112)),
        ((240, 320), (96, 128), (96, 128)),
        ((1080, 1920), (90, 160), (90, 160)),
        ((1920, 1080), (96, 54), (96, 54)),
        ((1, 900), (1, 160), (1, 160)),
    ],
)
def test_large_videos_are_shrunk_and_tiny_ones_shown_at_a_whole_multiple(size, stored, shown):
    made = preview(clip(9, 3, *size))
    assert (made.height, made.width, made.count) == (*stored, 3)
    assert made.shown[::-1] == shown


def test_names_are_shown_and_never_obeyed(tmp_path):
    rows = [QueryRow(NASTY, NASTY, 0, (Hit("b", NASTY, 1, 0.5),))]
    page, tree = retrieval(
        tmp_path / "page.html",
        rows,
        {NASTY: preview(clip(1)), "b": preview(clip(90))},
        title=NASTY,
        class_names=["<b>class</b>", "</style><i>"],
        details=[("<u>", "</dd><script>")],
        results={"R@1": 0.5},
    )
    assert_self_contained(page)
    tags = [tag for tag, _ in tree.elements]
    assert tags.count("script") == 1 and not {"b", "i", "u"} & set(tags)
    assert NASTY in [attrs.get("title") for _, attrs in tree.elements]
    assert NASTY in tree.texts and "<b>class</b>" in tree.texts
    assert page.isprintable() or "漢" in page


def test_a_file_name_that_is_no_utf8_does_not_stop_the_page(tmp_path):
    name = b"caf\xe9.mp4".decode("utf-8", "surrogateescape")
    _, tree = retrieval(tmp_path / "p.html", [QueryRow("q", name, -1, ())], {"q": preview(clip(1))})
    assert "caf?.mp4" in tree.texts


def test_long_names_lose_their_middle_but_stay_in_the_title(tmp_path):
    name = "folder/v_ApplyEyeMakeup_g01_c01_of_a_long_video.mp4"
    _, tree = retrieval(tmp_path / "p.html", [QueryRow("q", name, -1, ())], {"q": preview(clip(1))})
    (text,) = [text for text in tree.texts if text.endswith("video.mp4")]
    assert len(text) == 20 and "…" in text and text.startswith("v_Apply")
    assert name in [attrs.get("title") for _, attrs in tree.elements]


def test_each_video_is_embedded_once_and_only_if_it_is_used(tmp_path):
    previews = {name: preview(clip(40 * i)) for i, name in enumerate("abcd")}
    hits = tuple(Hit(name, name, 0, 0.5) for name in "abc")
    page, tree = retrieval(tmp_path / "p.html", [QueryRow(name, name, 0, hits) for name in "abc"], previews)
    for name in "abc":
        assert page.count(base64_of(previews[name])) == 1
    assert base64_of(previews["d"]) not in page and page.count("data:image/jpeg") == 3
    assert tree.classes().count("clip") == 12 and tree.classes().count("v0") == 4


def test_the_clip_of_each_video_is_its_own(tmp_path):
    previews = {name: preview(clip(60 * i)) for i, name in enumerate("abc")}
    page, tree = retrieval(tmp_path / "p.html", [QueryRow("c", "c", 0, (Hit("a", "a", 0, 0.5),))], previews)
    shown = [attrs["class"] for _, attrs in tree.elements if "clip" in (attrs.get("class") or "")]
    style = dict(re.findall(r"\.(v\d+) \{.*?base64,([^)]+)\)", page, re.DOTALL))
    wanted = [previews["c"].jpeg, previews["a"].jpeg]
    assert [base64.b64decode(style[name.split()[1]]) for name in shown] == wanted


def test_hits_and_misses_are_marked_by_colour_and_by_sign(tmp_path):
    hits = tuple(Hit("a", "a", label, 0.9) for label in (2, 1, 2, -1))
    _, tree = retrieval(
        tmp_path / "p.html",
        [QueryRow("a", "a", 2, hits)],
        {"a": preview(clip(1))},
        class_names=["x", "y"],
        results={"R@1": 0.5},
    )
    marks = [attrs["class"] for tag, attrs in tree.elements if tag == "li" and attrs["class"].split()[0] != "row"]
    assert marks == ["hit", "miss", "hit", "neutral"]
    signs = [a["aria-label"] for _, a in tree.elements if a.get("class") == "mark" and "aria-label" in a]
    assert signs == ["same class", "another class", "same class"]
    assert [text for text in tree.texts if text in ("✓", "✗")] == ["✓", "✗", "✓", "✗", "✓"]  # the first two: legend
    assert "class 2" in tree.texts and "0.900" in tree.texts


def test_without_labels_nothing_is_claimed(tmp_path):
    hits = (Hit("a", "a", 0, 0.9), Hit("a", "a", -1, 0.8))
    page, tree = retrieval(tmp_path / "p.html", [QueryRow("a", "a", -1, hits)], {"a": preview(clip(1))})
    assert not {"hit", "miss", "mark"} & set(tree.classes()) and tree.classes().count("neutral") == 2
    assert "✓" not in page and "same class" not in page
    assert not any(attrs.get("id") in ("misses", "class") for _, attrs in tree.elements)


def test_only_the_nearest_video_makes_a_row_a_miss(tmp_path):
    rows = [
        QueryRow("a", "a", 0, (Hit("a", "a", 0, 0.9), Hit("a", "a", 1, 0.8))),
        QueryRow("a", "a", 0, (Hit("a", "a", 1, 0.9), Hit("a", "a", 0, 0.8))),
        QueryRow("a", "a", 0, ()),
    ]
    page, tree = retrieval(tmp_path / "p.html", rows, {"a": preview(clip(1))})
    assert [attrs["data-miss"] for _, attrs in tree.elements if "data-miss" in attrs] == ["0", "1", "0"]
    assert "For 1 of the 2 shown, the nearest video is of the same class." in page


def test_the_table_and_the_note(tmp_path):
    results = {"R@1": 0.1234, "R@10": 0.9, "chance": 0.0101, "knn": 1.0, "num_queries": 3783, "x": 3}
    page, tree = retrieval(
        tmp_path / "p.html",
        [QueryRow("a", "a", 0, ())],
        {"a": preview(clip(1))},
        results=results,
        details=[("Protocol", "2 clips x 1 crop")],
        total_queries=3783,
    )
    head = tree.texts.index("R@1")
    words = [text for text in tree.texts[head:] if text]
    assert words[:8] == ["R@1", "R@10", "kNN", "Chance", "12.3%", "90.0%", "100.0%", "1.0%"]
    assert "Shows 1 of 3,783 queries, evenly spaced." in page
    assert {"3,783 videos", "2 clips x 1 crop"} <= set(words)
    page, _ = retrieval(tmp_path / "p.html", [QueryRow("a", "a", 0, ())] * 2, {"a": preview(clip(1))})
    assert "Shows all 2 queries." in page


def test_a_page_without_script_shows_everything(tmp_path):
    rows = [QueryRow("a", "a", label, (Hit("a", "a", 1, 0.9),)) for label in (0, 1)]
    _, tree = retrieval(tmp_path / "p.html", rows, {"a": preview(clip(1))})
    hidden = [attrs.get("id") for _, attrs in tree.elements if "hidden" in attrs]
    assert hidden == ["filters", "empty"]


def test_an_empty_page_is_a_page(tmp_path):
    page, _ = retrieval(tmp_path / "p.html", [], {})
    assert_self_contained(page)
