"""The image of a confusion matrix: every share in its place, readable for two classes and for four hundred."""

import io

import numpy as np
import pytest
from matplotlib.image import imread

from vidssl.page.charts import confusion_matrix
from vidssl.page.figure_style import png


def drawn(counts, names):
    return imread(io.BytesIO(png(confusion_matrix(np.asarray(counts), names), dpi=120)))[..., :3]


def matrix(counts, names):
    axes = confusion_matrix(np.asarray(counts), names).axes[0]
    columns, rows = ([tick.get_text() for tick in axis.get_ticklabels()] for axis in (axes.xaxis, axes.yaxis))
    written = {
        tuple(round(float(place)) for place in text.get_position()[::-1]): text.get_text() for text in axes.texts
    }
    return axes.images[0].get_array().tolist(), columns, rows, written


def test_each_row_is_coloured_by_its_shares():
    shares, columns, rows, written = matrix([[8, 2, 0, 0], [0, 50, 50, 0], [0, 0, 0, 0]], ["a", "b", "c"])
    assert shares == [[0.8, 0.2, 0], [0, 0.5, 0.5], [0, 0, 0]]
    assert columns == rows == ["a", "b", "c"]
    assert written == {(0, 0): "8", (0, 1): "2", (1, 1): "50", (1, 2): "50"}


def test_those_without_a_prediction_have_a_column_where_there_are_some():
    shares, columns, rows, written = matrix([[3, 1, 4], [0, 4, 0]], ["a", "b"])
    assert shares == [[0.375, 0.125, 0.5], [0, 1, 0]] and written[0, 2] == "4"
    assert (columns, rows) == (["a", "b", "none"], ["a", "b"])


def test_so_many_classes_that_no_count_can_be_read():
    _, columns, _, written = matrix(np.ones((51, 52), np.int64), [f"class {n}" for n in range(51)])
    assert written == {} and len(columns) == 52
    assert matrix(np.ones((400, 401), np.int64), ["x"] * 400)[1] == []


@pytest.mark.parametrize("classes", [1, 51, 400])
def test_any_number_of_classes(classes):
    counts = np.concatenate([np.eye(classes, dtype=np.int64) * 3, np.zeros((classes, 1), np.int64)], axis=1)
    image = drawn(counts, [f"class number {n} with a long name" for n in range(classes)])
    assert 300 < image.shape[0] < 2000 and 300 < image.shape[1] < 2200


def test_names_are_no_formulas():
    drawn([[1, 0, 0], [0, 1, 0]], ["pay $5", "$\\frac{"])
