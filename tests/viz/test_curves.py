import math

import cv2
import numpy as np
import pytest

from vidssl.base.errors import DataError
from vidssl.page.charts import training_curves
from vidssl.page.figure_style import png

TRAINING = [
    {
        "step": step,
        "epoch": step / 20,
        "loss": 7 / step,
        "lr": 0.002,
        "positive_similarity": 0.5,
        "negative_similarity": 0.1,
        "negative_spread": 0.2,
        "key_rank": 20.0 + step,
        "clips_per_second": 100.0,
    }
    for step in (10, 20, 30)
]
EVALUATION = [{"step": 30, "knn": 0.4, "R@1": 0.35, "uniformity_loss": -2.1}]


def titles(metrics):
    return [axes.get_title(loc="left") for axes in training_curves(metrics).axes]


def test_all_panels_are_one_png():
    content = png(training_curves(TRAINING + EVALUATION))
    image = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR)
    assert content.startswith(b"\x89PNG") and image.shape == (825, 1650, 3)
    assert len(titles(TRAINING + EVALUATION)) == 6


def test_panels_below_each_other():
    figure = training_curves(TRAINING, columns=1)
    wide, narrow = training_curves(TRAINING).get_size_inches(), figure.get_size_inches()
    assert len(figure.axes) == 4 and narrow[0] == pytest.approx(wide[0] / 3) and narrow[1] == 2 * wide[1]
    assert len({axes.get_position().x0.round(1) for axes in figure.axes}) == 1


def test_panels_without_data_are_left_out():
    assert titles(TRAINING) == ["Loss", "Similarity of query and key", "Effective rank of the keys", "Learning rate"]
    assert titles([{"step": 1, "loss": 2.0, "knn": 0.3}]) == ["Loss", "Retrieval while training"]
    assert titles([{"step": 1, "loss": 2.0, "lr": None}]) == ["Loss"]


def test_what_is_drawn_is_what_was_logged():
    loss, similarity, _, _, retrieval, _ = training_curves(TRAINING + EVALUATION).axes
    assert loss.lines[0].get_xydata().tolist() == [[10, 0.7], [20, 0.35], [30, pytest.approx(7 / 30)]]
    low, high = similarity.collections[0].get_datalim(similarity.transData).intervaly
    assert (low, high) == (pytest.approx(-0.1), pytest.approx(0.3))
    assert [line.get_ydata().tolist() for line in retrieval.lines] == [[40.0], [35.0]]
    assert all(axes.get_xlabel() == "step" and axes.get_ylabel() for axes in (loss, similarity, retrieval))


def test_steps_written_again_by_a_resumed_run_count_once():
    metrics = [{"step": 1, "loss": 1.0}, {"step": 2, "loss": 2.0}, {"step": 3, "loss": 3.0}, {"step": 2, "loss": 9.0}]
    (axes,) = training_curves(metrics).axes
    assert axes.lines[0].get_xydata().tolist() == [[1, 1], [2, 9], [3, 3]]


def test_a_missing_spread_or_a_nan_is_a_hole_not_an_error():
    metrics = [{"step": 1, "negative_similarity": 0.1, "negative_spread": 0.1}, {"step": 2, "negative_similarity": 0.2}]
    assert png(training_curves([*metrics, {"step": 3, "loss": math.nan}]))


def test_the_image_is_the_same_each_time():
    assert png(training_curves(TRAINING), dpi=50) == png(training_curves(TRAINING), dpi=50)


@pytest.mark.parametrize("metrics", [[], [{"step": 1, "epoch": 0.1}], [{"loss": 1.0}]])
def test_nothing_to_draw_is_said(metrics):
    with pytest.raises(DataError, match="no loss or other quantity to draw"):
        training_curves(metrics)


@pytest.mark.parametrize("value", [1e308, -1e308, float("inf"), 2**2000])
def test_values_that_cannot_be_drawn_are_left_out(value):
    drawn = png(training_curves([{"step": 0, "loss": 5.0}]))
    assert png(training_curves([{"step": 0, "loss": 5.0, "lr": value}, {"step": value, "loss": 1.0}])) == drawn
    with pytest.raises(DataError, match="no loss or other quantity"):
        training_curves([{"step": 0, "loss": value}])
