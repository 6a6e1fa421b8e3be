import cv2
import numpy as np
import pytest

from vidssl.viz import Shot, retrieval_sheet


def clip(color, t=3, h=48, w=64):
    return np.broadcast_to(np.array(color, np.uint8)[None, :, None, None], (t, 3, h, w)).copy()


def near(image, color):
    return (np.abs(image.astype(int) - color).max(axis=-1) < 12).sum()


def test_hits_are_framed_green_and_misses_red():
    def drawn(*verdicts):
        shots = [Shot(clip((128, 128, 128)), "query $x^"), *(Shot(clip((128, 128, 128)), "hit", v) for v in verdicts)]
        png = np.frombuffer(retrieval_sheet([shots, shots[:1]], title="Nearest"), np.uint8)
        return cv2.imdecode(png, cv2.IMREAD_COLOR)[..., ::-1]

    green, red = (20, 133, 74), (201, 42, 30)
    both, none = drawn(True, False), drawn(None, None)
    assert both.shape == none.shape
    assert near(both, green) > 500 and near(both, red) > 500
    assert near(none, green) == near(none, red) == 0


def test_the_middle_frame_is_shown():
    frames = clip((0, 0, 0), t=5)
    frames[2, 2] = 255
    png = np.frombuffer(retrieval_sheet([[Shot(frames, "")]]), np.uint8)
    assert near(cv2.imdecode(png, cv2.IMREAD_COLOR)[..., ::-1], (0, 0, 255)) > 5000


@pytest.mark.parametrize("rows", [[], [[]]])
def test_a_retrieval_sheet_needs_a_query(rows):
    with pytest.raises(ValueError, match="at least one row"):
        retrieval_sheet(rows)
