"""The page of a comparison of encoders: what it holds, without a browser."""

import base64
import re
import runpy
from pathlib import Path

import numpy as np

from vidssl.apps.compare.page import by_accuracy, disputed_row, write_encoders_page
from vidssl.page.previews import preview

RESULTS = runpy.run_path(str(Path(__file__).with_name("encoder_results.py")))["encoder_results"]
PARSED = runpy.run_path(str(Path(__file__).parents[1] / "parsed_page.py"))["ParsedPage"]
NASTY = "a/<script>alert('x')</script> #;&\"'\\ é 漢 }.mp4"
NAMES = [NASTY, "b.mp4", "c.mp4", "d.mp4"]
CLASSES = ["<b>walk</b>", "run"]
PREDICTED = {"first": [0, 1, 0, 1], "second": [0, 1, 1, 1], "floor:thumbnails": [1, 1, 1, 1]}
CLIP = preview(np.full((3, 3, 48, 64), 60, np.uint8))


def write(path: Path, **more) -> tuple[str, PARSED]:
    parts = {name: more.pop(name) for name in ("disputed", "previews") if name in more}
    results = RESULTS(PREDICTED, NAMES, [0, 1, 0, 1], CLASSES) | more
    write_encoders_page(path / "index.html", results, "Encoders", "vidssl compare", **parts)
    page = (path / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"https?:|//[a-z]+\.|@import", page)
    return page, PARSED(page)


def table(texts: list[str], start: str, end: str) -> list[str]:
    return texts[texts.index(start) : texts.index(end)]


def test_near_copies_and_failures_are_named(tmp_path):
    _, parsed = write(tmp_path, near_copies_not_searched="3 could not be decoded")
    assert "Near copies: 3 could not be decoded." in parsed.texts
    page, parsed = write(tmp_path)
    assert "same footage" not in page and "Near copies" not in page and "Left out" not in parsed.texts
    _, parsed = write(tmp_path, near_copies=[[NAMES[0], NAMES[2]]], failed={"third": f"no {NASTY}"})
    assert "1 pair of videos of different recordings shows the same footage" in parsed.texts
    assert f"{NASTY} and c.mp4" in parsed.texts and f": no {NASTY}" in parsed.texts
    _, parsed = write(tmp_path, near_copies=[[NAMES[0], NAMES[2]], NAMES[1:3]])
    assert "2 pairs of videos of different recordings show the same footage" in parsed.texts


def test_accuracies_with_their_intervals_and_differences_to_the_best(tmp_path):
    """The difference of an encoder that is first in its pair is turned around."""
    _, parsed = write(tmp_path)
    rows = table(parsed.texts, "first", "guessing")
    assert rows[:6] == ["first", "best", "100.0%", "10.0 to 90.0", "100.0%", "100.0%"]
    second = rows[rows.index("second") :]
    assert second[:8] == ["second", "75.0%", "10.0 to 90.0", "75.0%", "75.0%", "37.5%", "−10.0", "−18.0 to −2.0"]
    lines = [own for tag, own in parsed.elements if tag in ("line", "circle")][:3]
    assert [(own.get("x1"), own.get("x2"), own.get("cx")) for own in lines] == [
        ("50.0%", "50.0%", None),
        ("10.0%", "90.0%", None),
        (None, None, "100.0%"),
    ]
    classes = table(parsed.texts, "Class", "The same neighbours")
    walk, run = (classes.index(name) for name in CLASSES)
    assert classes[walk + 1 : walk + 6] == ["2", "2", "100.0%", "50.0%", "0.0%"]
    assert walk < run and classes[run + 5] == "100.0%"
    neighbours = table(parsed.texts, "The same neighbours", "What they are")
    assert neighbours[-6:] == ["first and second", "50.0%", "10.0%", "first and floor:thumbnails", "50.0%", "10.0%"]
    assert "features/0" in parsed.texts


def test_every_table_has_the_best_first_and_k(tmp_path):
    """The order of the page is that of the numbers, not that of the command."""
    results = RESULTS({"low": [0, 0, 0, 0], "high": [0, 1, 0, 1], "floor": [0, 1, 1, 1]}, NAMES, [0, 1, 0, 1], CLASSES)
    results["sections"][0]["verdict"]["best"] = "high"
    assert by_accuracy(results["sections"][0]) == ["high", "floor", "low"]
    write_encoders_page(tmp_path / "index.html", results, "Encoders", "vidssl compare")
    texts = PARSED((tmp_path / "index.html").read_text(encoding="utf-8")).texts
    starts = [n for n, text in enumerate(texts) if text == "Encoder"]  # accuracies, costs, what they are
    for start in starts:
        after = [text for text in texts[start:] if text in ("high", "floor", "low")]
        assert after[:3] == ["high", "floor", "low"]
    assert len(starts) == 3 and "kNN, k = 20" in texts


def test_videos_without_labels(tmp_path):
    said = {"sentences": ["In common: little.", "Nothing is better."]}
    page, found = write(tmp_path, sections=[], labels="labels: none", without_labels=said, common_neighbours=[])
    shown = ["Labels: none.", "In common: little.", "What they are"]
    assert [text for text in found.texts if text in (*shown, "The same neighbours")] == shown and "Accuracy" not in page


def test_disagreements_are_a_table_with_the_prediction_of_each_encoder(tmp_path):
    """A video without a preview keeps its place; each preview is there once, and names are text."""
    results = RESULTS(PREDICTED, NAMES, [0, 1, 0, 1], CLASSES)
    disputed = [disputed_row(row, entropy, results) for row, entropy in ((3, 0.694), (2, 0.5))]
    page, parsed = write(tmp_path)
    assert "on which the encoders disagree" not in page and "base64" not in page
    page, parsed = write(tmp_path, disputed=disputed, previews={2: CLIP})
    rows = table(parsed.texts, "Video", "The same neighbours")
    assert rows[:5] == ["Video", "first", "second", "floor:thumbnails", "entropy"]
    assert rows[5:11] == ["d.mp4", "labelled run", "run", "run", "run", "0.69"]
    assert rows[11:] == ["c.mp4", f"labelled {CLASSES[0]}", CLASSES[0], "run", "run", "0.50"]
    assert parsed.with_attribute("href", "disagreements.csv") and page.count(base64.b64encode(CLIP.jpeg).decode()) == 1
    assert [own["aria-label"] for own in parsed.with_attribute("role", "img")] == ["c.mp4"] and page.count(
        'class="none"'
    ) == 1
    assert not parsed.scripts and "<b>walk" not in page and "first is best." in parsed.texts
