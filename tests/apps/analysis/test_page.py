"""Terms of the page of analyses."""

import re

from vidssl.apps.analysis.page import TERMS, analysis_page, term_key, with_terms
from vidssl.page.section import Section


def test_terms_become_links_and_the_rest_stays_text():
    found = with_terms("<b>R@1</b> and R@10, R@1 of the untrained network; 95 % interval & xkNN")
    assert (
        found.count('href="#term-r-at-1"') == 1 and "R@10" in found and "&lt;b&gt;" in found and "&amp; xkNN" in found
    )
    assert 'aria-describedby="about-untrained"' in found and "95\u00a0% interval</a>" in found
    assert len({*map(term_key, TERMS)}) == len(TERMS) and all(
        re.fullmatch("[a-z0-9-]+", term_key(term)) for term in TERMS
    )


def test_the_page_explains_what_it_links_and_nothing_else():
    section = Section("one", "One", "kNN", verdict="mPC & majority", notes=["rPC"], setting="features")
    page = analysis_page("t", [section], notes=["uniformity"]).decode()
    linked = {*re.findall('href="#term-([^"]+)"', page)}
    assert linked == {"knn", "mpc", "majority", "rpc", "features", "uniformity"}
    assert {*re.findall('dt id="term-([^"]+)"', page)} == linked == {*re.findall('dd id="about-([^"]+)"', page)}
