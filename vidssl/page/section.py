"""What a measurement says: its quantities as the tables that a command prints and as the charts and tables of a page.

Text and page are functions of the same `Section`, so a number is formatted in one place.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from vidssl.page.grad_cam_page import CamRow

_UPRIGHT = 3  # networks that are always the columns of a table


class Point(NamedTuple):
    """A number, with its 95 % interval, or its spread over splits, if it has one."""

    value: float
    low: float | None = None
    high: float | None = None
    spread: float | None = None


@dataclass(frozen=True)
class Quantity:
    """Numbers of one kind, over one axis: rows, each with a point of every network that has it."""

    title: str
    rows: Mapping[str, Mapping[str, Point]]  # by name, and by network; of a heat map by name and column
    levels: Mapping[str, float] = field(default_factory=dict)  # references, such as guessing, by their meaning
    differences: Mapping[str, Point] = field(default_factory=dict)  # the first network minus the second, by row
    percent: bool = True  # fractions, shown in percent
    digits: int = 1  # behind the point, in tables
    drawn: bool = True  # as a chart; else in the table only
    heat: bool = False  # a table with colours

    @property
    def networks(self) -> list[str]:
        """The names of the networks, in the order of the first row that has all."""
        return [*dict.fromkeys(network for points in self.rows.values() for network in points)]

    @property
    def axis(self) -> str:
        """The title with its unit."""
        return f"{self.title}, percent" if self.percent else self.title

    @property
    def end(self) -> float:
        """The end of the axis, a tick."""
        if self.percent:
            return 1.0
        points = [point for networks in self.rows.values() for point in networks.values()]
        highest = max(*(point.high or point.value for point in points), *self.levels.values(), 1e-9)
        return math.ceil(highest / _step(highest)) * _step(highest)

    @property
    def ticks(self) -> dict[str, float]:
        """The ticks of the axis from 0, by their text."""
        step = 0.25 if self.percent else _step(self.end)
        scaled = 100 * step if self.percent else step
        digits = max(0, -math.floor(math.log10(step) + 1e-9)) if scaled < 1 else 0 if scaled == round(scaled) else 1
        return {f"{n * scaled:.{digits}f}": n * step for n in range(round(self.end / step) + 1)}

    @property
    def overlaid(self) -> bool:
        """Whether two networks share a row: points without intervals do not hide one another."""
        points = [point for networks in self.rows.values() for point in networks.values()]
        return len(self.networks) == 2 and all(point.low is None for point in points)

    @property
    def chart_digits(self) -> int:
        """Digits of a chart: percents with an interval have none."""
        points = [point for networks in self.rows.values() for point in networks.values()]
        return 0 if self.percent and any(point.low is not None for point in points) else self.digits

    @property
    def shown_whole(self) -> bool:
        """Whether the chart has all that the table has."""
        return self.drawn and not self.differences and self.chart_digits == self.digits

    def at(self, value: float) -> float:
        """Place of a value on the axis, in percent."""
        return round(100 * min(max(value / self.end, 0), 1), 2)

    def text(self, value: float | None, digits: int | None = None, sign: str = "") -> str:
        """Format a value, with the digits of a chart or of others."""
        if value is None:
            return "–"
        digits = self.chart_digits if digits is None else digits
        return f"{100 * value if self.percent else value:{sign}.{digits}f}".replace("-", "−")

    def cell(self, point: Point | None, sign: str = "") -> str:
        """Format a point for a table: `45.0 (30.1 to 60.2)`, `45.0 ± 1.2` over splits, or `–`."""
        if point is None:
            return "–"
        value, low, high, spread = (self.text(number, self.digits, sign) for number in point)
        interval = "" if point.low is None else f" ({low} to {high})"
        return value + (interval if point.spread is None else f" ± {spread.removeprefix('+')}")

    @property
    def table(self) -> list[list[str]]:
        """A header and a row of each name; of many networks with few names a row of each network."""
        networks, levels = self.networks, self.levels
        names = [*self.rows, *levels]
        cells = [[self.cell(points.get(name)) for name in networks] for points in self.rows.values()]
        cells += [[self.text(level, self.digits)] * len(networks) for level in levels.values()]
        if not self.heat and len(networks) > max(_UPRIGHT, len(self.rows)):
            columns = zip(networks, *cells, strict=True)
            return [[self.axis, *names], *(list(column) for column in columns)]
        rows = [[self.axis, *networks], *([name, *row] for name, row in zip(names, cells, strict=True))]
        if self.differences:
            rows[0].append(f"{networks[0]} minus {networks[1]}")
            for row in rows[1:]:
                row.append(self.cell(self.differences.get(row[0]), "+"))
        return rows


@dataclass(frozen=True)
class Section:
    """One measurement of one network or several."""

    name: str  # of its folder beside the page
    title: str
    about: str = ""  # the question, and how it is answered
    setting: str = ""  # videos and clips
    verdict: str = ""
    open: bool = False  # the verdict is that nothing can be said
    quantities: Sequence[Quantity] = ()
    notes: Sequence[str] = ()
    maps: Sequence[CamRow] = ()
    figures: Mapping[str, bytes] = field(default_factory=dict)  # PNG files by what they show
    links: Sequence[tuple[str, str]] = ()  # text and file
    reason: str | None = None  # why it was left out

    @property
    def says(self) -> str:
        """The verdict, or why there is none."""
        return self.verdict if self.reason is None else f"Not measured: {self.reason}"

    @property
    def words(self) -> list[str]:
        """All texts but numbers."""
        texts = [self.about, self.setting, self.says, *self.notes]
        for quantity in self.quantities:
            texts += [quantity.axis, *quantity.rows, *quantity.levels, *quantity.networks]
        return texts


def section_text(section: Section) -> str:
    """Format the numbers of a section, without heat maps, as short tables."""
    tables = [quantity.table for quantity in section.quantities if not quantity.heat]
    width = max((len(row[0]) for table in tables for row in table), default=0)
    lines = [section.setting]
    for table in tables:
        rows = [[name.ljust(width), *cells] for name, *cells in table]
        lines += format_table(rows, "<" + ">" * (len(rows[0]) - 1))
    return "\n".join([*lines, *section.notes])


def format_table(rows: Sequence[Sequence[str]], sides: str) -> list[str]:
    """Format rows as lines with columns of equal width; `sides` has `<` (left) or `>` (right) per column."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    line = "  ".join(f"{{:{side}{width}}}" for side, width in zip(sides, widths, strict=True))
    return [line.format(*row).rstrip() for row in rows]


def _step(highest: float) -> float:
    """The distance of ticks, of which there are three to eight."""
    power = 10.0 ** math.floor(math.log10(highest))
    return next(n * power for n in (0.2, 0.5, 1, 2) if highest <= 6 * n * power)
