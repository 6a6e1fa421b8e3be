"""Charts of sweeps: what is drawn is what was given."""

import sys
from pathlib import Path

import numpy as np

from vidssl.page.figure_style import png

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from sweep_chart import sweep_chart

sys.path.pop(0)

MEASURED = {
    "I_NCE": [[1.0, 2.0], [4.0, 3.0], [0.5]],
    "kNN": [[20.0, 30.0], [50.0, 40.0], [10.0]],
    "linear": [[], [], []],
}


def lines(axes):
    """Lines of means, without the dots of seeds."""
    return [line for line in axes.get_lines() if line.get_linestyle() == "-"]


def test_means_and_seeds_are_drawn_in_the_order_of_the_knob():
    figure = sweep_chart("sigma", [2.0, 1.0, 4.0], MEASURED)
    bound, accuracy, path = figure.axes
    for axes, name, row in ((bound, "I_NCE", [3.5, 1.5, 0.5]), (accuracy, "kNN", [45.0, 25.0, 10.0])):
        (line,) = lines(axes)
        np.testing.assert_array_equal(line.get_xydata(), np.column_stack([[1.0, 2.0, 4.0], row]))
        dots = np.concatenate([dot.get_ydata() for dot in axes.get_lines() if dot.get_linestyle() != "-"])
        assert sorted(dots) == sorted(x for each in MEASURED[name] for x in each)
        assert axes.get_xlabel() == "sigma" and [text.get_text() for text in axes.get_xticklabels()] == ["1", "2", "4"]
    (line,) = lines(path)
    np.testing.assert_array_equal(line.get_xydata(), [[3.5, 45.0], [1.5, 25.0], [0.5, 10.0]])
    assert [text.get_text() for text in path.texts] == ["1", "2", "4"]
    assert png(figure).startswith(b"\x89PNG")
