"""Images: confusion matrices, curves of a training and of classes, and sheets of retrieved videos."""

import io
import math

import cv2
import numpy as np
import pytest
from matplotlib.image import imread

from vidssl.base.errors import DataError
from vidssl.page.charts import Shot, class_curves, confusion_matrix, example_sheet, training_curves
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


# Curves of a training --------------------------------------------------------------------------------------

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


@pytest.mark.parametrize("steps", [(4,), (0, 1), (99, 101, 102), (0, 800_000)])
@pytest.mark.parametrize(("value", "difference"), [(4, 0), (4, 1e-9), (0, 1e-9), (3e-4, 2e-5), (-2e6, 5), (50, 40)])
def test_ticks_have_labels_of_their_own_and_the_legend_is_not_cut(steps, value, difference):
    columns = ("loss", "lr", "positive_similarity", "negative_similarity")
    figure = training_curves([{"step": n, **dict.fromkeys(columns, value + n * difference)} for n in steps], columns=1)
    figure.draw_without_rendering()
    for axes in figure.axes:
        for axis, limits in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
            ticks = zip(axis.get_majorticklocs(), axis.get_majorticklabels(), strict=True)
            shown = [label.get_text() for place, label in ticks if limits[0] <= place <= limits[1]]
            assert len({*shown}) == len(shown) > 0
    (legend,) = [axes.get_legend() for axes in figure.axes if axes.get_legend()]
    assert legend.get_window_extent().x1 < figure.bbox.x1


def test_the_image_is_the_same_each_time():
    assert png(training_curves(TRAINING), dpi=50) == png(training_curves(TRAINING), dpi=50)


@pytest.mark.parametrize("metrics", [[], [{"step": 1, "epoch": 0.1}], [{"loss": 1.0}]])
def test_no_curve_to_draw_is_said(metrics):
    with pytest.raises(DataError, match="no loss or other quantity to draw"):
        training_curves(metrics)


@pytest.mark.parametrize("value", [1e308, -1e308, float("inf"), 2**2000])
def test_values_that_cannot_be_drawn_are_left_out(value):
    drawn = png(training_curves([{"step": 0, "loss": 5.0}]))
    assert png(training_curves([{"step": 0, "loss": 5.0, "lr": value}, {"step": value, "loss": 1.0}])) == drawn
    with pytest.raises(DataError, match="no loss or other quantity"):
        training_curves([{"step": 0, "loss": value}])


# Curves of classes ------------------------------------------------------------------------------------------


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


# Examples -------------------------------------------------------------------------------------------


def clip(color, t=3, h=48, w=64):
    return np.broadcast_to(np.array(color, np.uint8)[None, :, None, None], (t, 3, h, w)).copy()


def sheet(rows):
    content = np.frombuffer(png(example_sheet([("", row) for row in rows], [""] * len(rows[0]), (1.3, 1.6))), np.uint8)
    return cv2.imdecode(content, cv2.IMREAD_COLOR)[..., ::-1]


def near(image, color):
    return (np.abs(image.astype(int) - color).max(axis=-1) < 12).sum()


def test_hits_are_framed_green_and_misses_red():
    def framed(*verdicts):
        shots = [Shot(clip((128, 128, 128)), "query $x^"), *(Shot(clip((128, 128, 128)), "hit", v) for v in verdicts)]
        return sheet([shots, shots])

    green, red = (20, 133, 74), (201, 42, 30)
    both, none = framed(True, False), framed(None, None)
    assert both.shape == none.shape
    assert near(both, green) > 500 and near(both, red) > 500
    assert near(none, green) == near(none, red) == 0


def test_the_middle_frame_is_shown():
    frames = clip((0, 0, 0), t=5)
    frames[2, 2] = 255
    assert near(sheet([[Shot(frames)]]), (0, 0, 255)) > 5000
