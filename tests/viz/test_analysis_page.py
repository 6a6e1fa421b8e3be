"""Charts and terms of the page of all analyses."""

import re

import pytest

from vidssl.apps.analysis.page import TERMS, PageChart, Point, Section, term_key, with_terms, write_analysis_page


def chart(*values, references=(), top=None):
    rows = {str(n): {"trained": Point(value)} for n, value in enumerate(values)}
    return PageChart("q", rows, dict(references), top)


@pytest.mark.parametrize(
    ("highest", "end", "ticks"),
    [
        (0.57, 0.6, ["0.0", "0.1", "0.2", "0.3", "0.4", "0.5", "0.6"]),
        (6.0, 6.0, ["0", "1", "2", "3", "4", "5", "6"]),
        (6.1, 8.0, ["0", "2", "4", "6", "8"]),
        (1.0, 1.0, ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
        (95.0, 100.0, ["0", "20", "40", "60", "80", "100"]),
        (0.031, 0.04, ["0.00", "0.01", "0.02", "0.03", "0.04"]),
        (0.027, 0.03, ["0.000", "0.005", "0.010", "0.015", "0.020", "0.025", "0.030"]),
    ],
)
def test_an_axis_ends_at_a_tick_beyond_its_values(highest, end, ticks):
    found = chart(highest / 2, highest)
    assert found.end == pytest.approx(end) and found.ticks == ticks
    assert found.at(0) == 0 and found.at(end / 2) == pytest.approx(50, abs=0.01) and found.at(9 * end) == 100


def test_intervals_and_references_are_on_the_axis():
    assert PageChart("q", {"a": {"trained": Point(2, 1, 5)}}, {}).end == 5
    assert chart(2.0, references={"perfect": 7.0}.items()).end == 8
    assert chart(50.0, top=100).ticks == ["0", "25", "50", "75", "100"]
    assert chart(1.0).overlaid and not PageChart("q", {"a": {"trained": Point(2, 1, 5)}}, {}).overlaid


def test_terms_become_links_and_the_rest_stays_text():
    found = with_terms("<b>R@1</b> and R@10, R@1 of the untrained network; 95 % interval & xkNN")
    assert (
        found.count('href="#term-r-at-1"') == 1 and "R@10" in found and "&lt;b&gt;" in found and "&amp; xkNN" in found
    )
    assert 'aria-describedby="about-untrained"' in found and "95\u00a0% interval</a>" in found
    assert len({*map(term_key, TERMS)}) == len(TERMS) and all(
        re.fullmatch("[a-z0-9-]+", term_key(term)) for term in TERMS
    )


def test_the_page_explains_what_it_links_and_nothing_else(tmp_path):
    section = Section("one", "One", "kNN", verdict="mPC & majority", notes=["rPC"], setting="features")
    path = tmp_path / "index.html"
    write_analysis_page(path, title="t", details=[], sections=[section], notes=["uniformity"])
    page = path.read_text()
    linked = {*re.findall('href="#term-([^"]+)"', page)}
    assert linked == {"knn", "mpc", "majority", "rpc", "features", "uniformity"}
    assert {*re.findall('dt id="term-([^"]+)"', page)} == linked == {*re.findall('dd id="about-([^"]+)"', page)}
