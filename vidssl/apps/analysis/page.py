"""The page of all analyses of a network: a verdict, charts and tables for each, and the terms explained."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup, escape

from vidssl.page.grad_cam_page import CamRow, previews_of
from vidssl.page.previews import number_previews
from vidssl.page.render import render_page

TERMS: dict[str, str] = json.loads(Path(__file__).with_name("terms.json").read_text(encoding="utf-8"))
_NAMED = re.compile(
    rf"(?<![\w@])(?:{'|'.join(re.escape(term) for term in sorted(TERMS, key=len, reverse=True))})(?!\w)"
)


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


class Point(NamedTuple):
    """A number, with its 95 % interval if it has one."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class PageChart:
    """One quantity: rows with the points of networks, over one axis."""

    quantity: str  # with its unit: the name of the axis
    rows: Mapping[str, Mapping[str, Point]]  # by name, and by network
    references: Mapping[str, float]  # dashed lines, by their meaning
    top: float | None = None  # end of the axis; None: that of the values
    digits: int = 0

    def at(self, value: float) -> float:
        """Place of a value on the axis, in percent."""
        return round(100 * min(max(value / self.end, 0), 1), 2)

    @property
    def end(self) -> float:
        """The end of the axis, a tick."""
        if self.top is not None:
            return self.top
        points = [point for networks in self.rows.values() for point in networks.values()]
        highest = max(*(point.high or point.value for point in points), *self.references.values(), 1e-9)
        return math.ceil(highest / _step(highest)) * _step(highest)

    @property
    def ticks(self) -> list[str]:
        """The ticks of the axis, from 0."""
        step = 25.0 if self.top == 100 else _step(self.end)
        digits = max(0, -math.floor(math.log10(step) + 1e-9)) if step < 1 else 0 if step == round(step) else 1
        return [f"{n * step:.{digits}f}" for n in range(round(self.end / step) + 1)]

    @property
    def overlaid(self) -> bool:
        """Whether the networks share a row: points without intervals do not hide one another."""
        return all(point.low is None for networks in self.rows.values() for point in networks.values())

    def text(self, value: float) -> str:
        """Format a value."""
        return f"{value:.{self.digits}f}"


@dataclass(frozen=True)
class PageTable:
    """Numbers; the first cell of a row is its name."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    heat: bool = False  # cells are percents, coloured by their size
    folded: bool = False  # opened on demand


@dataclass(frozen=True)
class Section:
    """One analysis."""

    name: str  # of its folder beside the page
    title: str
    about: str  # the question, and how it is answered
    setting: str = ""  # videos and clips
    verdict: str = ""
    open: bool = False  # the verdict is that nothing can be said
    charts: Sequence[PageChart] = ()
    tables: Sequence[PageTable] = ()
    notes: Sequence[str] = ()
    maps: Sequence[CamRow] = ()
    links: Sequence[tuple[str, str]] = ()  # text and file
    reason: str | None = None  # why it was left out

    @property
    def says(self) -> str:
        """The verdict, or why there is none."""
        return self.verdict if self.reason is None else f"Not measured: {self.reason}"


def write_analysis_page(
    path: Path,
    *,
    title: str,
    details: Sequence[tuple[str, str]],
    sections: Sequence[Section],
    notes: Sequence[str],
    left_out: Sequence[str] = (),
) -> None:
    """Write the page; `details` are names and values at its head, `notes` hold for all sections.

    `left_out` are videos that cannot be read, and why.
    """
    texts = [*notes, *(text for section in sections for text in _texts(section))]
    linked = "".join(map(with_terms, texts))
    used = {term: text for term, text in TERMS.items() if f'"#term-{term_key(term)}"' in linked}
    render_page(
        path,
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


def _texts(section: Section) -> list[str]:
    """All texts of a section in which terms are linked."""
    texts = [section.about, section.setting, section.says, *section.notes]
    for chart in section.charts:
        texts += [chart.quantity, *chart.rows, *chart.references]
        texts += [network for networks in chart.rows.values() for network in networks]
    for table in section.tables:
        texts += [table.caption, *table.header, *(row[0] for row in table.rows)]
    return texts


def _step(highest: float) -> float:
    """The distance of ticks, of which there are three to eight."""
    power = 10.0 ** math.floor(math.log10(highest))
    return next(n * power for n in (0.2, 0.5, 1, 2) if highest <= 6 * n * power)
