"""Curves of classes: what is drawn."""

import pytest

from vidssl.base.errors import DataError
from vidssl.page.charts import class_curves


def points(classes, steps=(10, 20, 30)):
    names = [f"c{n}" for n in range(classes)]
    return [
        {
            "step": step,
            "uniformity": 2.0 + step,
            "uniformity_per_class": {name: n + step for n, name in enumerate(names)},
            "distances": {a: {b: None if n == 1 else n * step for n, b in enumerate(names)} for a in names},
        }
        for step in steps
    ]


def test_solid_and_dashed_lines():
    figure = class_curves({"moco": points(3), "sup": points(3, steps=(5,))})
    above, below = figure.axes[0], figure.axes[1]
    assert [line.get_label() for line in above.lines] == ["c0", "c1", "c2", "all videos"]
    assert above.lines[-1].get_ydata().tolist() == [12, 22, 32] and above.lines[0].get_xdata().tolist() == [10, 20, 30]
    assert above.lines[2].get_ydata().tolist() == [12, 22, 32]
    assert [line.get_label() for line in below.lines] == ["c1", "c2", "within c0"]
    assert below.lines[1].get_ydata().tolist() == [20, 40, 60] and below.lines[2].get_ydata().tolist() == [0, 0, 0]
    assert figure.axes[2].lines[0].get_xdata().tolist() == [5]
    assert len(figure.axes) == 4


def test_many_classes_have_one_legend_entry():
    figure = class_curves({"moco": points(20)})
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == ["the 20 classes", "all videos"]
    with pytest.raises(DataError, match="nothing to draw"):
        class_curves({"moco": []})
