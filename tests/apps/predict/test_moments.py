"""Windows as moments by hand, and what to label next beside a search over all choices."""

import numpy as np
import pytest
import torch

from vidssl.apps.predict.moments import NONE, Moment, choose_to_label, join_windows, predict_rows
from vidssl.base.types import VideoRecord


def test_rows():
    probability = np.array([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6], [0.8, 0.1, 0.1]])
    records, none = [VideoRecord("a"), VideoRecord("b"), VideoRecord("c")], np.array([False, True, False])
    first, second, even = predict_rows(
        records, probability, np.array([0.2, 0.4, 0.2]), np.array([5, 6, 5]), "xyz", none
    )
    assert (even.first, even.second) == ("x", "")
    assert (first.label, first.first, first.second, first.confidence, first.example) == ("x", "x", "y", 0.7, 5)
    assert (second.label, second.first, second.second, second.distance) == (NONE, "z", "y", 0.4)


def window(start, end, label, confidence=0.5, path="a", row=0):
    return Moment(VideoRecord(path, start=start, end=end), row, label, confidence, label, "?", 0, 0.1)


@pytest.mark.parametrize(
    ("windows", "moments"),
    [
        # Half of a window is shared: each has what is nearer to its middle.
        (
            [window(0, 2, "x", 0.6), window(1, 3, "x", 0.8), window(2, 4, "y"), window(3, 5, "y")],
            [("a", 0, 2.5, "x", 0.7), ("a", 2.5, 5, "y", 0.5)],
        ),
        # Nothing is shared, and windows with a gap do not touch.
        ([window(0, 2, "x"), window(2, 4, "x"), window(5, 7, "x")], [("a", 0, 4, "x", 0.5), ("a", 5, 7, "x", 0.5)]),
        # Files are apart, whatever the order of the windows.
        (
            [window(2, 4, "x"), window(0, 2, "x", path="b"), window(0, 2, "x")],
            [("a", 0, 4, "x", 0.5), ("b", 0, 2, "x", 0.5)],
        ),
    ],
)
def test_windows_are_joined(windows, moments):
    joined = join_windows(windows)
    actual = [(m.record.path, m.record.start, m.record.end, m.label, round(m.confidence, 6)) for m in joined]
    assert actual == moments


def test_a_moment_is_shown_by_its_surest_window():
    moment = join_windows(
        [window(0, 2, "x", 0.6, row=3), window(2, 4, "x", 0.9, row=4), window(4, 6, "x", 0.3, row=5)]
    )[0]
    assert moment.row == 4 and moment.windows == 3 and moment.confidence == pytest.approx(0.6)


def test_what_to_label_is_uncertain_new_and_far_apart():
    angles = np.deg2rad([0, 1, 40, 80, 81, 120])
    x = torch.from_numpy(np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32))
    examples = x[:1]
    moments = [
        window(None, None, "x", confidence, row=n) for n, confidence in enumerate([0.5, 0.5, 0.5, 0.4, 0.5, 0.99])
    ]
    new = [True, True, False, True, True, True]
    rows = choose_to_label(moments, x, examples, new, 3)
    assert rows[:2] == [5, 4] or rows[:2] == [5, 3]  # the farthest from the example, then from both
    assert 2 not in rows  # its recording has an example
    certain = choose_to_label(moments, x, examples, [True] * 6, 1)  # five uncertain ones for each that is asked for
    assert certain[0] == 4 and choose_to_label([], x, examples, [], 3) == []
