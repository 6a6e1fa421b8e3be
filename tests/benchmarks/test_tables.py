"""Markdown tables of the report: texts are escaped, nothing breaks a row, and links lead to the files."""

import re
import sys
from html import unescape
from pathlib import Path

import pytest
from markdown import markdown as render

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from tables import Row, Table

sys.path.pop(0)

NASTY = [
    "a|b",
    r"a\|b \ c",
    "*a* _b_ __c__ a_b_c",
    "`code` [x](y) ![z](w)",
    "<script>alert('x')</script> <b>",
    "a &amp; b & c &#35;",
    "two\nlines\r\nor three",
    "~~gone~~ é 漢 ± –",
]


def one(*cells, **more):
    return Table("Title", ("what", "x", "where"), (False, True, False), (Row("measured", cells, **more),))


def shown(text):
    """The texts of all cells as a browser shows them, by a renderer that is not ours."""
    cells = re.findall(r"<t[hd](?: [^>]*)?>(.*?)</t[hd]>", render(text, extensions=["tables"]), re.DOTALL)
    return [unescape(re.sub(r"<[^>]*>", "", cell)) for cell in cells]


@pytest.mark.parametrize("name", NASTY)
def test_markdown_shows_names_as_they_are(name, tmp_path):
    text = one(name, "1.0", name).markdown(tmp_path)
    assert len(text.splitlines()) == 3
    assert shown(text) == ["what", "x", "where", " ".join(name.split()), "1.0", " ".join(name.split())]
    linked = one(name, "1.0", name, file=tmp_path / "f").markdown(tmp_path)
    assert shown(linked)[-1] == " ".join(name.split()) and linked.endswith("](f) |")


def test_links_lead_from_the_page_to_the_file(tmp_path):
    file = tmp_path / "a (b)" / "results #1?.json"
    table = one("a", "1", "name", file=file)
    text = table.markdown(tmp_path / "docs")
    assert "[name](../a%20%28b%29/results%20%231%3F.json)" in text
