"""The page of analyses of networks: a verdict, charts and tables of each, and the terms explained."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from markupsafe import Markup, escape

from vidssl.apps.analysis.evidence import Evidence
from vidssl.evaluation.result_files import Results
from vidssl.jobs.job import File, Model, NetworkOptions, Videos, models
from vidssl.jobs.measurement_runner import JobResults, Measurement, measure_networks
from vidssl.page.grad_cam_page import previews_of
from vidssl.page.previews import number_previews
from vidssl.page.render import page_bytes
from vidssl.page.section import Section, section_text

TERMS: dict[str, str] = json.loads(Path(__file__).with_name("terms.json").read_text(encoding="utf-8"))
_NAMED = re.compile(rf"(?<![\w@])(?:{'|'.join(map(re.escape, sorted(TERMS, key=len, reverse=True)))})(?!\w)")


def with_terms(text: str) -> Markup:
    """Return a text as HTML whose terms are links to their explanations, each the first time."""
    seen: set[str] = set()
    parts, end = [], 0
    for match in _NAMED.finditer(text):
        term, key = match[0], term_key(match[0])
        link = f'<a class="term" href="#term-{key}" aria-describedby="about-{key}">{escape(term)}</a>'
        parts += [str(escape(text[end : match.start()])), str(escape(term)) if term in seen else link]
        seen.add(term)
        end = match.end()
    return Markup("".join([*parts, str(escape(text[end:]))]).replace(" %", "\u00a0%"))


def term_key(term: str) -> str:
    """Return what an id of the page can hold."""
    return re.sub(r"\W+", "-", term.replace("@", "-at-").replace("%", "percent")).strip("-").lower()


def analysis_page(
    title: str,
    sections: Sequence[Section],
    details: Sequence[tuple[str, str]] = (),
    notes: Sequence[str] = (),
    left_out: Sequence[str] = (),
) -> bytes:
    """Make the page; `details` are names and values at its head, `notes` hold for all sections.

    `left_out` are videos that cannot be read, and why.
    """
    linked = "".join(map(with_terms, [*notes, *(text for section in sections for text in section.words)]))
    used = {term: text for term, text in TERMS.items() if f'"#term-{term_key(term)}"' in linked}
    return page_bytes(
        Path(__file__).with_name("analysis.html"),
        title=title,
        details=details,
        sections=sections,
        notes=notes,
        left_out=left_out,
        terms=[(term, term_key(term), text) for term, text in used.items()],
        termed=with_terms,
        sprites=number_previews(previews_of([row for section in sections for row in section.maps])),
    )


def measure_sections(
    measurement: Measurement,
    model: Model | Sequence[Model],
    videos: Videos,
    options: NetworkOptions,
    out: File | None,
    section: Callable[[Evidence], Section],
    train_list: Videos | None = None,
    splits: Sequence[int] | None = None,
) -> JobResults:
    """Measure networks, as `measure_networks`, and show what a section says of them."""
    return measure_networks(
        measurement,
        models(model),
        videos,
        options,
        None if out is None else Path(out),
        train_list,
        splits,
        table=lambda networks: section_text(section(Evidence(networks))),
        page=lambda networks: page_of(section(Evidence(networks)), networks),
    )


def page_of(section: Section, networks: Mapping[str, Results]) -> bytes:
    """Make the page of one analysis of networks."""
    first = next(iter(networks.values()))
    measured = next(iter(first["splits"].values())) if "splits" in first else first
    unread = [gap["reason"] or gap["path"] for gap in measured["missing"]]
    title = f"{section.title}: {', '.join(networks)}"
    return analysis_page(title, [section], [("Videos", measured["list"])], left_out=unread)
