"""The page of a comparison of encoders: what it holds, without a browser."""

import base64
import re
import runpy
from html.parser import HTMLParser
from pathlib import Path

import numpy as np

from vidssl.apps.compare.page import Disagreements, EncoderNeighbours, ShownVideos, write_encoders_page
from vidssl.page.previews import preview

RESULTS = runpy.run_path(str(Path(__file__).with_name("encoder_results.py")))["encoder_results"]
NASTY = "a/<script>alert('x')</script> #;&\"'\\ é 漢 }.mp4"
NAMES = [NASTY, "b.mp4", "c.mp4", "d.mp4"]
CLASSES = ["<b>walk</b>", "run"]
PREDICTED = {"first": [0, 1, 0, 1], "second": [0, 1, 1, 1], "floor:thumbnails": [1, 1, 1, 1]}
CLIPS = {n: preview(np.full((3, 3, 48, 64), 60 * n, np.uint8)) for n in (0, 2)}
VIDEOS = ShownVideos(NAMES, [0, 1, 0, -1], CLASSES, CLIPS)


class Texts(HTMLParser):
    """Texts and attributes by tag, outside of styles and scripts; the contents of scripts apart."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open, self.texts, self.attributes, self.scripts = [], [], [], []
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.attributes.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "img", "input", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] == ["script"]:
            self.scripts.append(data)
        elif self.open[-1:] != ["style"] and data.strip():
            self.texts.append(" ".join(data.split()))

    def named(self, **wanted: str) -> list[dict[str, str | None]]:
        return [
            own
            for _, own in self.attributes
            if all(own.get(key.rstrip("_").replace("_", "-")) == wanted[key] for key in wanted)
        ]


def write(path: Path, labels=(0, 1, 0, 1), near_copies=(), **parts) -> tuple[str, Texts]:
    results = RESULTS(PREDICTED, NAMES, list(labels), CLASSES) | {"near_copies": [*near_copies]}
    write_encoders_page(path / "index.html", results, "Encoders", "vidssl compare", **parts)
    page = (path / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"https?:|//[a-z]+\.|@import", page)
    return page, Texts(page)


def table(texts: list[str], start: str, end: str) -> list[str]:
    return texts[texts.index(start) : texts.index(end)]


def test_near_copies_are_named(tmp_path):
    page, _ = write(tmp_path)
    assert "same footage" not in page
    page, found = write(tmp_path, near_copies=[[NAMES[0], NAMES[2]]])
    assert "1 pair of videos of different recordings shows the same footage" in found.texts
    assert f"{NASTY} and c.mp4" in found.texts
    _, found = write(tmp_path, near_copies=[[NAMES[0], NAMES[2]], NAMES[1:3]])
    assert "2 pairs of videos of different recordings show the same footage" in found.texts


def test_the_page_works_without_the_parts(tmp_path):
    page, found = write(tmp_path)
    assert "first is best." in found.texts and "<b>walk</b>" in found.texts and not found.scripts
    assert not {"Most similar videos", "What to label next"} & {*found.texts}
    assert "base64" not in page and ".neighbours" not in page and ".next" not in page


def test_all_parts_embed_each_preview_once_with_names_as_text(tmp_path):
    neighbours = EncoderNeighbours(("first", "second"), [(0, [2, 1], [1, 3])], VIDEOS)
    disagreements = Disagreements(VIDEOS, [0, 3], {"first": [0, 1], "second": [1, -1]}, [0.69, 0.5])
    page, found = write(tmp_path, neighbours=neighbours, disagreements=disagreements)
    assert {"Most similar videos", "What to label next"} <= {*found.texts}
    for clip in CLIPS.values():
        assert page.count(base64.b64encode(clip.jpeg).decode()) == 1
    assert not found.scripts and "<b>walk" not in page and NASTY in found.texts


# Neighbours -------------------------------------------------------------------------------------------------


def test_neighbours_are_in_two_strips_with_marks_of_the_same_class(tmp_path):
    queries = [(0, [2, 1], [1, 3]), (3, [0], [1])]
    _, found = write(tmp_path, neighbours=EncoderNeighbours(("first", "<i>second</i>"), queries, VIDEOS))
    assert len(found.named(class_="strip wide", tabindex="0")) == 4
    assert [own["aria-label"] for own in found.named(class_="strip wide")][:2] == [
        "Most similar by first",
        "Most similar by <i>second</i>",
    ]
    assert len(found.named(class_="same")) == 1 and len(found.named(role="img", aria_label="same class")) == 1
    shown = table(found.texts, "is of the same class.", "What they are")
    assert shown[shown.index("1 of 2 of its class") - 1] == "first"
    assert shown[shown.index("0 of 2 of its class") - 1] == "<i>second</i>"
    assert sum("of its class" in text for text in shown) == 2  # the second query has no class
    assert [own["aria-label"] for own in found.named(role="img") if "clip" in (own.get("class") or "")] == [
        f"Video: {NASTY}",
        "c.mp4",
        NASTY,
    ]
    assert shown.count("no preview") == 5  # 2 of the first query, its own and 2 of the second


def test_neighbours_without_classes_and_previews_are_names(tmp_path):
    videos = ShownVideos(NAMES, [-1] * 4)
    page, found = write(tmp_path, neighbours=EncoderNeighbours(("first", "second"), [(1, [2], [3])], videos))
    assert table(found.texts, "first", "What they are")[-4:] == ["first", "c.mp4", "second", "d.mp4"]
    assert "no preview" not in page and "✓" not in page and "of its class" not in page and "Point at" not in page


# What to label next -----------------------------------------------------------------------------------------


def test_disagreements_are_a_table_with_the_prediction_of_each_encoder(tmp_path):
    predicted = {"first": [0, 1], "library/a_long_name_of_an_encoder": [1, -1]}
    _, found = write(tmp_path, disagreements=Disagreements(VIDEOS, [3, 0], predicted, [0.694, 0.5]))
    rows = table(found.texts, "Video", "What they are")
    assert rows[:4] == ["Video", "first", "a_long_na…an_encoder", "entropy"]
    assert rows[4:8] == ["d.mp4", CLASSES[0], "run", "0.69"]
    assert rows[8:] == [NASTY, f"labelled {CLASSES[0]}", "run", "–", "0.50"]
    assert found.named(href="disagreements.csv") and "disagreements.csv" in found.texts
    assert any("may be wrong" in text and "Entropy is 0" in text for text in found.texts)
