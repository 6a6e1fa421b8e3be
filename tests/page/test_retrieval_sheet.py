import cv2
import numpy as np

from vidssl.page.charts import Shot, retrieval_sheet
from vidssl.page.figure_style import png


def clip(color, t=3, h=48, w=64):
    return np.broadcast_to(np.array(color, np.uint8)[None, :, None, None], (t, 3, h, w)).copy()


def sheet(rows):
    content = np.frombuffer(png(retrieval_sheet(rows)), np.uint8)
    return cv2.imdecode(content, cv2.IMREAD_COLOR)[..., ::-1]


def near(image, color):
    return (np.abs(image.astype(int) - color).max(axis=-1) < 12).sum()


def test_hits_are_framed_green_and_misses_red():
    def drawn(*verdicts):
        shots = [Shot(clip((128, 128, 128)), "query $x^"), *(Shot(clip((128, 128, 128)), "hit", v) for v in verdicts)]
        return sheet([shots, shots[:1]])

    green, red = (20, 133, 74), (201, 42, 30)
    both, none = drawn(True, False), drawn(None, None)
    assert both.shape == none.shape
    assert near(both, green) > 500 and near(both, red) > 500
    assert near(none, green) == near(none, red) == 0


def test_the_middle_frame_is_shown():
    frames = clip((0, 0, 0), t=5)
    frames[2, 2] = 255
    assert near(sheet([[Shot(frames, "")]]), (0, 0, 255)) > 5000
