"""Names in any script: drawn with an installed font, or numbered and explained; never boxes and warnings."""

import warnings

import numpy as np
import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from matplotlib.font_manager import fontManager
from matplotlib.text import Text

from vidssl.page import figure_style as glyphs
from vidssl.page.charts import Shot, class_curves, confusion_matrix, example_sheet
from vidssl.page.figure_style import png

NAMES = ["ピアノ", "größe", "漢字 3", "Pferde–Rennen", "字鍵"]


def figures(names):
    """One figure of each kind, with names of classes, networks or files."""
    counts = np.eye(len(names), len(names) + 1, dtype=np.int64)
    zeros = dict.fromkeys(names, 0.5)
    point = {"step": 1, "uniformity": 0.5, "uniformity_per_class": zeros, "distances": dict.fromkeys(names, zeros)}
    shot = np.zeros((1, 3, 8, 8), np.uint8)
    return {
        "confusion": confusion_matrix(counts, names),
        "curves": class_curves({names[0]: [point]}),
        "sheet": example_sheet([("", [Shot(shot, name) for name in names])], names, (1.3, 1.6)),
    }


KINDS = [*figures(["a", "b", "c"])]


@pytest.fixture(autouse=True)
def fresh():
    glyphs._fallbacks.cache_clear()
    glyphs._named.clear()
    yield
    glyphs._fallbacks.cache_clear()


def drawn(figure):
    """Draw a figure; warnings of missing glyphs are errors. Returns its texts."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert png(figure, dpi=60)
    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


def only_own_fonts(monkeypatch):
    own = [entry for entry in fontManager.ttflist if entry.name.startswith(("DejaVu", "Last Resort", "cm", "STIX"))]
    monkeypatch.setattr(fontManager, "ttflist", own)


@pytest.mark.parametrize("kind", KINDS)
def test_letters_of_no_font_are_numbered(monkeypatch, caplog, kind):
    only_own_fonts(monkeypatch)
    figure = figures(NAMES)[kind]
    texts = drawn(figure)
    assert not any(letter in text for text in texts for letter in "ピアノ漢字鍵")
    assert any("[1]" in text for text in texts)
    assert "no installed font has the letters of 'ピアノ' [1]" in caplog.text or kind == "severity"
    if kind != "sheet":
        legend = next(text for text in texts if "U+" in text)
        assert "U+30D4 U+30A2 U+30CE" in legend
    if kind == "confusion":
        labels = [tick.get_text() for tick in figure.axes[0].get_yticklabels()]
        assert labels[0] == "[1]" and labels[1] == "größe" and labels[3] == "Pferde–Rennen"


SCRIPTS = {
    "Japanese": "ピアノ",
    "Arabic": "موسيقى",
    "Hebrew": "שלום עולם",
    "Devanagari": "हिन्दी",
    "emoji": "🎹🎻",
    "Korean": "피아노",
}


@pytest.mark.parametrize("shapes", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_every_script_is_drawn_or_numbered(monkeypatch, kind, shapes):
    only_own_fonts(monkeypatch)
    monkeypatch.setattr(glyphs, "_shapes", lambda: shapes)  # matplotlib before 3.11 writes Arabic in the wrong order
    figure = figures([*SCRIPTS.values()])[kind]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        explained = {number: run for run, number in glyphs.make_readable(figure).items()}
        png(figure, dpi=60)
    texts = " ".join(text.get_text() for text in figure.findobj(Text))
    for number in explained:
        assert number in texts
    letters = {letter for line in explained.values() for letter in line}
    drawn_here = {letter for letter in texts if letter in "".join(SCRIPTS.values()).replace(" ", "")}
    assert not drawn_here & letters
    own = {letter for name in ("Arabic", "Hebrew") for letter in SCRIPTS[name]} - {" "}
    assert drawn_here <= (own if shapes else set())
    if kind == "confusion":
        assert explained["[1]"] == SCRIPTS["Japanese"] and SCRIPTS["Korean"] in explained.values()


def test_a_chart_of_plain_names_has_nothing_to_explain():
    assert glyphs.make_readable(figures(["a", "b", "c"])["confusion"]) == {}


@pytest.mark.parametrize("kind", KINDS)
def test_letters_of_an_installed_font_are_drawn(monkeypatch, tmp_path, caplog, kind):
    only_own_fonts(monkeypatch)
    pen = TTGlyphPen(None)
    pen.moveTo((100, 0))
    pen.lineTo((100, 700))
    pen.lineTo((600, 0))
    pen.closePath()
    letters = {f"g{n}": letter for n, letter in enumerate("ピアノ漢字鍵")}
    font = FontBuilder(1000)
    font.setupGlyphOrder([".notdef", *letters])
    font.setupCharacterMap({ord(letter): name for name, letter in letters.items()})
    font.setupGlyf(dict.fromkeys([".notdef", *letters], pen.glyph()))
    font.setupHorizontalMetrics(dict.fromkeys([".notdef", *letters], (700, 100)))
    font.setupHorizontalHeader(ascent=800, descent=-200)
    font.setupNameTable({"familyName": "Scripts", "styleName": "Regular"})
    font.setupOS2(sTypoAscender=800, usWeightClass=400)
    font.setupPost()
    font.save(tmp_path / "scripts.ttf")
    fontManager.addfont(str(tmp_path / "scripts.ttf"))  # the list is the monkeypatch's
    texts = drawn(figures(NAMES)[kind])
    assert not any("[" in text or "U+" in text for text in texts) and not caplog.records
    assert any("ピアノ" in text for text in texts)


@pytest.mark.parametrize("kind", KINDS)
def test_plain_names_change_nothing(kind, monkeypatch):
    names = ["größe", "Pferde–Rennen", "ünï_Archery", "ελ", "да"]
    before = png(figures(names)[kind], dpi=60)
    monkeypatch.setattr("vidssl.page.figure_style.make_readable", lambda figure: None)
    assert png(figures(names)[kind], dpi=60) == before
