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


def test_numbers_stand_to_the_right_and_columns_below_each_other(tmp_path):
    rows = (Row("measured", ("a", "1.0", "x")), Row("not run", ("long name", "not run", "y")))
    text = Table("t", ("what", "R@1", "where"), (False, True, False), rows).markdown(tmp_path)
    assert text.splitlines() == [
        "| what      |     R@1 | where |",
        "| --------- | ------: | ----- |",
        "| a         |     1.0 | x     |",
        "| long name | not run | y     |",
    ]


def test_notes_are_numbered_and_rows_point_to_them(tmp_path):
    rows = (Row("measured", ("a", "1", "x"), (1, 2)), Row("published", ("b", "2", "y"), (2,)))
    table = Table("t", ("what", "R@1", "where"), (False, True, False), rows, ("first", "second"), ("All.",))
    text = table.markdown(tmp_path)
    assert "| a <sup>1, 2</sup> |" in text and "| b <sup>2</sup>    |" in text
    assert text.endswith("\n\n1. first\n2. second\n\nAll.")


def test_links_lead_from_the_page_to_the_file(tmp_path):
    file = tmp_path / "a (b)" / "results #1?.json"
    table = one("a", "1", "name", file=file)
    text = table.markdown(tmp_path / "docs")
    assert "[name](../a%20%28b%29/results%20%231%3F.json)" in text
