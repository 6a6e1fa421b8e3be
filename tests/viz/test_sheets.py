import cv2
import numpy as np
import pytest

from vidssl.viz import Shot, contact_sheet, retrieval_sheet, write_png


def clip(color, t=3, h=48, w=64):
    return np.broadcast_to(np.array(color, np.uint8)[None, :, None, None], (t, 3, h, w)).copy()


def test_a_sheet_has_a_row_for_each_clip():
    sheet = contact_sheet(
        [clip((255, 0, 0)), clip((0, 0, 255), t=2, h=192, w=192)], ["", ""], height=96, gap=4
    )
    assert sheet.shape == (2 * 100 + 4, 4 + 3 * (128 + 4), 3) and sheet.dtype == np.uint8
    assert (sheet[4:100, 4:132] == (255, 0, 0)).all() and (sheet[4:100, 136:264] == (255, 0, 0)).all()
    assert (sheet[104:200, 4:100] == (0, 0, 255)).all() and (sheet[104:200, 104:200] == (0, 0, 255)).all()
    assert (
        (sheet[:4] == 255).all() and (sheet[4:100, 132:136] == 255).all() and (sheet[100:, 204:] == 255).all()
    )


def test_frames_of_another_memory_order_and_in_their_order():
    frames = np.zeros((4, 20, 20, 3), np.uint8)
    frames += (np.arange(4, dtype=np.uint8) * 50)[:, None, None, None]
    sheet = contact_sheet([frames.transpose(0, 3, 1, 2)], [""], height=20, gap=1)
    assert [int(sheet[10, 10 + 21 * t, 1]) for t in range(4)] == [0, 50, 100, 150]


def test_labels_stand_left_of_the_frames_in_ascii():
    rows = [clip((9, 9, 9), t=1)] * 2
    plain, named = contact_sheet(rows, ["", ""]), contact_sheet(rows, ["view é", "v"])
    left = named.shape[1] - plain.shape[1]
    assert left > 20 and (named[:, left:] == plain).all()
    assert (named[4:100, :left] < 128).any() and (named[104:200, :left] < 128).any()
    assert (named == contact_sheet(rows, ["view ?", "v"])).all()


@pytest.mark.parametrize(
    ("rows", "labels"), [([], []), ([clip((1, 2, 3))], []), ([clip((1, 2, 3))], ["a", "b"])]
)
def test_rows_and_labels_must_match(rows, labels):
    with pytest.raises(ValueError, match=r"labels for \d+ rows"):
        contact_sheet(rows, labels)


@pytest.mark.parametrize("frames", [np.zeros((2, 8, 8, 3), np.uint8), np.zeros((2, 3, 8, 8))])
def test_something_else_than_a_clip_is_refused(frames):
    with pytest.raises(ValueError, match="a clip is"):
        contact_sheet([frames], [""])
    with pytest.raises(ValueError, match="a clip is"):
        retrieval_sheet([[Shot(frames, "")]])


def test_png_keeps_each_pixel(tmp_path):
    image = np.arange(5 * 7 * 3, dtype=np.uint8).reshape(5, 7, 3)
    write_png(tmp_path / "é.png", image)
    read = cv2.imdecode(np.frombuffer((tmp_path / "é.png").read_bytes(), np.uint8), cv2.IMREAD_COLOR)
    assert (read[..., ::-1] == image).all()
    with pytest.raises(ValueError, match="an image is"):
        write_png(tmp_path / "x.png", image[..., 0])


def near(image, color):
    return (np.abs(image.astype(int) - color).max(axis=-1) < 12).sum()


def test_hits_are_framed_green_and_misses_red():
    def drawn(*verdicts):
        shots = [
            Shot(clip((128, 128, 128)), "query $x^"),
            *(Shot(clip((128, 128, 128)), "hit", v) for v in verdicts),
        ]
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
