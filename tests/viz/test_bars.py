"""Charts of bars: what is drawn is what was given."""

import io

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.image import imread

from vidssl.base.errors import DataError
from vidssl.page.charts import grouped_bars
from vidssl.page.figure_style import png

GROUPS = ["unchanged", "blur", "a$b$", "mean"]
SERIES = {"random": [2.0, 1.5, None, 1.25], "trained": [3.0, 2.5, 2.25, 0.5]}
TOLD = {"title": "Invariance", "unit": "score", "apart": {"unchanged"}}


def test_bars_have_the_heights_that_were_given():
    axes = grouped_bars(GROUPS, SERIES, levels={"chance": 1.0}, **TOLD).axes[0]
    heights = [[bar.get_height() for bar in container] for container in axes.containers]
    np.testing.assert_array_equal(heights, [[2.0, 1.5, np.nan, 1.25], SERIES["trained"]])
    assert [label.get_text() for label in axes.get_xticklabels()] == [*GROUPS]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["random", "trained"]
    written = [text.get_text() for text in axes.texts]
    values = [value for values in SERIES.values() for value in values if value is not None]
    assert [text for text in written if text[:1].isdigit()] == [f"{value:.2f}" for value in values]
    assert "chance" in written and axes.lines[0].get_ydata()[0] == 1.0
    colors = [to_hex(container[1].get_facecolor()) for container in axes.containers]
    pale = [to_hex(container[0].get_facecolor()) for container in axes.containers]
    assert len({*colors, *pale}) == 4
    places = [bar.get_x() + bar.get_width() / 2 for bar in axes.containers[0]]
    gaps = np.diff(places)
    assert gaps[0] > gaps[1] == pytest.approx(gaps[2])  # behind a gap: what is apart
    assert axes.containers[1][0].get_x() >= axes.containers[0][0].get_x() + axes.containers[0][0].get_width()


def test_a_level_far_above_is_written_as_text():
    axes = grouped_bars(GROUPS, SERIES, levels={"chance": 1.0, "perfect\nunits": 101.0}, **TOLD).axes[0]
    assert len(axes.lines) == 1 and axes.get_ylim()[1] < 4
    assert "perfect units: 101, above the chart" in [text.get_text() for text in axes.texts]
    near = grouped_bars(GROUPS, SERIES, levels={"perfect": 4.0}, **TOLD).axes[0]
    assert len(near.lines) == 1 and near.get_ylim()[1] > 4


def test_the_image():
    content = png(grouped_bars(GROUPS, SERIES, levels={}, **TOLD), dpi=60)
    assert content == png(grouped_bars(GROUPS, SERIES, levels={}, **TOLD), dpi=60)
    image = imread(io.BytesIO(content))
    blue = np.abs(image[..., :3] - np.array([0x2A, 0x5B, 0xC7]) / 255).max(axis=-1) < 0.02
    assert blue.mean() > 0.02  # bars, not the legend alone


def test_nothing_to_draw():
    with pytest.raises(DataError, match="no values to draw"):
        grouped_bars(["a"], {"b": [None]}, levels={}, **TOLD)
    axes = grouped_bars(["a"], {"b": [0.0]}, levels={}, **TOLD).axes[0]
    assert axes.get_ylim()[1] > 0
