"""Maps over frames, and the rows of a page that show them."""

import cv2
import numpy as np

from vidssl.apps.analysis.page import analysis_page
from vidssl.base.keyed_generators import generator
from vidssl.page.grad_cam_page import CamCell, CamRow, draw_heat, side_by_side
from vidssl.page.previews import preview
from vidssl.page.section import Section


def frames(t=4, h=32, w=48):
    return generator(0).integers(0, 256, (t, 3, h, w), np.uint8)


def test_heat_is_a_blend_with_the_colours_of_opencv():
    clip, maps = frames(), np.zeros((4, 32, 48), np.float32)
    maps[2, 5, 7], maps[1, 3, 3] = 4.0, 1.0
    drawn = draw_heat(clip, maps)
    assert drawn.shape == clip.shape and drawn.dtype == np.uint8
    for (t, y, x), value in {(2, 5, 7): 1.0, (1, 3, 3): 0.25, (0, 0, 0): 0.0}.items():
        color = cv2.applyColorMap(np.uint8([[round(255 * value)]]), cv2.COLORMAP_JET)[0, 0, ::-1].astype(float)
        opacity = 0.15 + 0.55 * value
        assert np.abs(drawn[t, :, y, x] - ((1 - opacity) * clip[t, :, y, x] + opacity * color)).max() <= 0.51
    assert np.array_equal(draw_heat(clip, 0 * maps)[0], drawn[0])  # zero everywhere: blue, without a division by 0


def test_joined_clips_keep_their_pixels():
    clip, other = frames(), 255 - frames()
    joined = side_by_side([clip, other])
    assert np.array_equal(joined[..., :48], clip) and np.array_equal(joined[..., -48:], other)
    assert (joined[..., 48:-48] == 255).all()


def test_the_page_escapes_names_and_has_each_clip():
    name = "a/<script>alert('x')</script> #;&.mp4"
    video, one, two = (preview(frames() + np.uint8(n)) for n in range(3))
    cells = (CamCell("<b>", ("similarity 0.5",), (("map", one), ("neighbour", two)), "<b>/overlays/1#.mp4"),)
    page = analysis_page(name, [Section("gradcam", "Grad-CAM", maps=[CamRow(video, name, "", cells)])]).decode()
    assert "<script>alert" not in page and "<b>/" not in page and page.count('class="clip v') == 3
    assert 'href="%3Cb%3E/overlays/1%23.mp4"' in page and "similarity 0.5" in page
