"""Quantities as text, as tables, and on the axis of a chart."""

import pytest

from vidssl.page.section import Point, Quantity, Section, section_text


def chart(*values, levels=(), percent=False):
    rows = {str(n): {"trained": Point(value)} for n, value in enumerate(values)}
    return Quantity("q", rows, dict(levels), percent=percent)


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
    quantity = chart(highest / 2, highest)
    assert quantity.end == pytest.approx(end) and [*quantity.ticks] == ticks
    assert [*quantity.ticks.values()][-1] == pytest.approx(end)
    assert quantity.at(0) == 0 and quantity.at(end / 2) == pytest.approx(50, abs=0.01) and quantity.at(9 * end) == 100


def test_intervals_and_levels_are_on_the_axis():
    assert Quantity("q", {"a": {"trained": Point(2, 1, 5)}}, percent=False).end == 5
    assert chart(2.0, levels={"perfect": 7.0}.items()).end == 8
    assert chart(0.5, percent=True).ticks == {"0": 0, "25": 0.25, "50": 0.5, "75": 0.75, "100": 1}
    pair = {"a": {"trained": Point(2), "untrained": Point(1)}}
    assert Quantity("q", pair).overlaid and not Quantity("q", {"a": {**pair["a"], "c": Point(3)}}).overlaid
    assert not Quantity("q", {"a": {"trained": Point(2, 1, 5), "untrained": Point(1)}}).overlaid


def test_tables():
    rows = {"R@1": {"a": Point(0.5, 0.4, 0.625), "b": Point(0.25, spread=0.02)}, "kNN": {"a": Point(0.125)}}
    quantity = Quantity("Right", rows, {"majority": 0.2}, {"R@1": Point(0.25, -0.05, 0.55)})
    assert quantity.table == [
        ["Right, percent", "a", "b", "a minus b"],
        ["R@1", "50.0 (40.0 to 62.5)", "25.0 ± 2.0", "+25.0 (−5.0 to +55.0)"],
        ["kNN", "12.5", "–", "–"],
        ["majority", "20.0", "20.0", "–"],
    ]
    assert quantity.text(0.499) == "50" and chart(0.5, percent=True).text(0.499) == "49.9"
    many = Quantity("Uniformity", {"all": {f"step {n}": Point(n / 4) for n in range(4)}}, percent=False, digits=2)
    assert many.table == [["Uniformity", "all"], *([f"step {n}", f"{n / 4:.2f}"] for n in range(4))]


def test_the_text_has_all_numbers_but_those_of_heat_maps():
    heat = Quantity("each", {"noise": {"severity 1": Point(0.5)}}, heat=True)
    section = Section("s", "S", setting="3 videos", quantities=[chart(1.0, 2.5), heat, chart(0.5)], notes=["note"])
    lines = ["3 videos", "q  trained", "0      1.0", "1      2.5", "q  trained", "0      0.5", "note"]
    assert section_text(section).splitlines() == lines
    assert section.says == "" and Section("s", "S", reason="no boxes").says == "Not measured: no boxes"
