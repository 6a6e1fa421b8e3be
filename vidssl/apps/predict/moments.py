"""What is predicted of videos: a row for each, or, of windows, for each moment; and which of them to label next."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from vidssl.base.types import VideoRecord
from vidssl.data.video_list import rows_by
from vidssl.evaluation.search import nearest
from vidssl.evaluation.statistics import Floats

NONE = "none of these"
_UNCERTAIN = 5  # times as many uncertain moments as are asked for
_TOUCH = 1e-3  # seconds between moments that touch


@dataclass(frozen=True)
class Moment:
    """A video, or a part of one, and what is predicted of it."""

    record: VideoRecord
    row: int  # of the features; of several windows the one that is most certain
    label: str  # a class, or `NONE`
    confidence: float  # probability of the class, the mean over windows
    first: str  # the most probable class, whatever the distance
    second: str  # empty: the others are equally likely
    example: int  # row of the nearest example
    distance: float  # to it, 1 minus the cosine
    windows: int = 1


def predict_rows(
    records: Sequence[VideoRecord],
    probability: Floats,
    distance: Floats,
    example: NDArray[np.int64],
    classes: Sequence[str],
    none: NDArray[np.bool_],
) -> list[Moment]:
    """Say what is predicted of each row (N,), and that it is none of the classes where `none` marks it."""
    moments = []
    for n, (second, first) in enumerate(np.argsort(probability, axis=1)[:, -2:].tolist()):
        others = np.delete(probability[n], first)
        is_even = len(others) > 1 and others.min() == others.max()
        label, names = NONE if none[n] else classes[first], (classes[first], "" if is_even else classes[second])
        confidence = float(probability[n, first])
        moments.append(Moment(records[n], n, label, confidence, *names, int(example[n]), float(distance[n])))
    return moments


def join_windows(windows: Sequence[Moment]) -> list[Moment]:
    """Join the windows of a file that touch and have one class.

    What several windows share belongs to the one whose middle is nearer.
    """
    joined: list[Moment] = []
    for rows in rows_by(window.record.path for window in windows).values():
        of_file = sorted((windows[n] for n in rows), key=lambda window: window.record.start or 0.0)
        previous: Moment | None = None
        for window in map(_own_part, of_file, [None, *of_file[:-1]], [*of_file[1:], None]):
            if previous is not None and _continues(previous, window):
                joined.pop()
                window = _joined(previous, window)
            joined.append(window)
            previous = window
    return joined


def _own_part(window: Moment, before: Moment | None, after: Moment | None) -> Moment:
    start, end = window.record.start or 0.0, window.record.end
    assert end is not None  # a window has both ends
    if before is not None and before.record.end is not None and before.record.end > start:
        start = (before.record.end + start) / 2
    if after is not None and (next_start := after.record.start or 0.0) < end:
        end = (next_start + end) / 2
    return replace(window, record=replace(window.record, start=start, end=max(end, start + _TOUCH)))


def _continues(previous: Moment, window: Moment) -> bool:
    end = previous.record.end
    touches = end is not None and abs((window.record.start or 0.0) - end) <= _TOUCH
    return touches and (previous.label, previous.first) == (window.label, window.first)


def _joined(previous: Moment, window: Moment) -> Moment:
    count = previous.windows + 1
    mean = (previous.windows * previous.confidence + window.confidence) / count
    certain = previous if previous.confidence >= window.confidence else window
    record = replace(previous.record, end=window.record.end)
    return replace(certain, record=record, confidence=mean, windows=count)


def choose_to_label(
    moments: Sequence[Moment], x: Tensor, examples: Tensor, new: Sequence[bool], count: int
) -> list[int]:
    """Choose moments whose labels would help most, by number: uncertain, far from each other and from all examples.

    Of the least certain ones, five times as many as are asked for, the next is always the one that is farthest from the
    examples and from those that were chosen (k-centre, Sener and Savarese, 2018). Moments of recordings without an
    example, which `new` (moments,) marks, come first. `x` are the features of all rows.
    """
    doubt = [2.0 if moment.label == NONE else 1 - moment.confidence for moment in moments]
    order = sorted(range(len(moments)), key=lambda n: (not new[n], -doubt[n]))[: _UNCERTAIN * count]
    if not order:
        return []
    unit = x[[moments[n].row for n in order]].float()
    distance = 1 - nearest(unit, examples, 1).similarity[:, 0].numpy()
    chosen: list[int] = []
    is_new = np.array([new[n] for n in order])
    for _ in range(min(count, len(order))):
        distance[chosen] = -np.inf
        best = int(np.argmax(distance + 4 * is_new))  # no distance is above 2
        chosen.append(best)
        distance = np.minimum(distance, 1 - nearest(unit, unit[[best]], 1).similarity[:, 0].numpy())
    return [order[n] for n in chosen]
