"""Tables in Markdown and HTML: every text is shown as it is, nothing breaks a row, and links lead to the files."""

import importlib.util
import re
from html import unescape
from pathlib import Path

import pytest
from markdown import markdown as render

from vidssl.viz import Row, Table, markdown, write_tables_page

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
SPEC = importlib.util.spec_from_file_location("pages", Path(__file__).with_name("test_page.py"))
PAGES = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(PAGES)


def one(*cells, **more):
    return Table("Title", ("what", "x", "where"), (False, True, False), (Row("measured", cells, **more),))


def shown(text):
    """The texts of all cells as a browser shows them, by a renderer that is not ours."""
    cells = re.findall(r"<t[hd](?: [^>]*)?>(.*?)</t[hd]>", render(text, extensions=["tables"]), re.DOTALL)
    return [unescape(re.sub(r"<[^>]*>", "", cell)) for cell in cells]


@pytest.mark.parametrize("name", NASTY)
def test_markdown_shows_names_as_they_are(name, tmp_path):
    text = markdown(one(name, "1.0", name), tmp_path)
    assert len(text.splitlines()) == 3
    assert shown(text) == ["what", "x", "where", " ".join(name.split()), "1.0", " ".join(name.split())]
    linked = markdown(one(name, "1.0", name, file=tmp_path / "f"), tmp_path)
    assert shown(linked)[-1] == " ".join(name.split()) and linked.endswith("](f) |")


@pytest.mark.parametrize("name", NASTY)
def test_html_shows_names_as_they_are(name, tmp_path):
    table = Table(
        name, (name, "x", "y"), (False, True, False), (Row("published", (name, "1", name)),), (name,), (name,)
    )
    write_tables_page(tmp_path / "p.html", title=name, summary=name, tables=[table])
    page = (tmp_path / "p.html").read_text(encoding="utf-8")
    PAGES.assert_self_contained(page)
    tree = PAGES.Tree(page)
    assert not {"script", "b", "em", "code"} & {tag for tag, _ in tree.elements}
    assert [" ".join(text.split()) for text in tree.texts].count(" ".join(name.split())) == 9


def test_numbers_stand_to_the_right_and_columns_below_each_other(tmp_path):
    rows = (Row("measured", ("a", "1.0", "x")), Row("not run", ("long name", "not run", "y")))
    text = markdown(Table("t", ("what", "R@1", "where"), (False, True, False), rows), tmp_path)
    assert text.splitlines() == [
        "| what      |     R@1 | where |",
        "| --------- | ------: | ----- |",
        "| a         |     1.0 | x     |",
        "| long name | not run | y     |",
    ]


def test_notes_are_numbered_and_rows_point_to_them(tmp_path):
    rows = (Row("measured", ("a", "1", "x"), (1, 2)), Row("published", ("b", "2", "y"), (2,)))
    table = Table("t", ("what", "R@1", "where"), (False, True, False), rows, ("first", "second"), ("All.",))
    text = markdown(table, tmp_path)
    assert "| a <sup>1, 2</sup> |" in text and "| b <sup>2</sup>    |" in text
    assert text.endswith("\n\n1. first\n2. second\n\nAll.")
    write_tables_page(tmp_path / "p.html", title="T", summary="S", tables=[table, table])
    tree = PAGES.Tree((tmp_path / "p.html").read_text())
    targets = [attrs["href"] for tag, attrs in tree.elements if tag == "a"]
    places = [attrs["id"] for _, attrs in tree.elements if "id" in attrs]
    assert targets == ["#t1", "#t2", "#n1-1", "#n1-2", "#n1-2", "#n2-1", "#n2-2", "#n2-2"]
    assert len({*places}) == len(places) and {target[1:] for target in targets} <= {*places}


def test_links_lead_from_the_page_to_the_file(tmp_path):
    file = tmp_path / "a (b)" / "results #1?.json"
    table = one("a", "1", "name", file=file)
    text = markdown(table, tmp_path / "docs")
    assert "[name](../a%20%28b%29/results%20%231%3F.json)" in text
    (tmp_path / "docs").mkdir()
    write_tables_page(tmp_path / "docs/p.html", title="T", summary="S", tables=[table])
    tree = PAGES.Tree((tmp_path / "docs/p.html").read_text())
    (target,) = [attrs["href"] for tag, attrs in tree.elements if tag == "a"]
    assert target == "../a%20%28b%29/results%20%231%3F.json"


def test_the_head_and_the_numbers_of_the_page(tmp_path):
    rows = (
        Row("measured", ("a", "1", "x")),
        Row("not run", ("b", "not run", "y")),
        Row("published", ("c", "2", "z")),
    )
    table = Table("t", ("what", "R@1", "where"), (False, True, False), rows)
    write_tables_page(tmp_path / "p.html", title="T", summary="S", tables=[table])
    tree = PAGES.Tree((tmp_path / "p.html").read_text())
    assert [attrs["class"] for tag, attrs in tree.elements if tag == "tr" and attrs] == [
        "measured",
        "absent",
        "published",
    ]
    assert [attrs.get("class") for tag, attrs in tree.elements if tag == "td"] == ["number", None] * 3
    assert [attrs.get("class") for tag, attrs in tree.elements if tag == "th"] == [None, "number", None] + [
        None
    ] * 3
    assert not [tag for tag, attrs in tree.elements if tag in ("ol", "script")]
