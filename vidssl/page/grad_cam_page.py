"""What a page shows of Grad-CAM: videos and the maps of several networks, playing."""

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from vidssl.base.types import Frames
from vidssl.page.previews import Preview

_LEAST, _MOST = 0.15, 0.7  # opacity of the colours where the map is 0, and at its maximum
_GAP = 4  # pixels between images that are joined


def draw_heat(frames: Frames, maps: NDArray[np.float32]) -> Frames:
    """Draw maps (T, H, W), not negative, over frames (T, 3, H, W): blue is 0, red the maximum over the whole clip."""
    heat = maps / (float(maps.max()) or 1.0)
    images = []
    for frame, values in zip(frames.transpose(0, 2, 3, 1), heat, strict=True):
        color = cv2.applyColorMap(np.round(255 * values).astype(np.uint8), cv2.COLORMAP_JET)
        opacity = (_LEAST + (_MOST - _LEAST) * values)[..., None]
        images.append((1 - opacity) * frame + opacity * cv2.cvtColor(color, cv2.COLOR_BGR2RGB))
    return np.stack(images).round().astype(np.uint8).transpose(0, 3, 1, 2)


def side_by_side(clips: Sequence[Frames]) -> Frames:
    """Join clips of equal shape (T, 3, H, W) to one, separated by white."""
    gap = np.full((*clips[0].shape[:3], _GAP), 255, np.uint8)
    parts = [part for clip in clips for part in (gap, clip)][1:]
    return np.concatenate(parts, axis=3)


@dataclass(frozen=True)
class CamCell:
    """What one network sees in a video."""

    network: str
    lines: tuple[str, ...]  # the score, and numbers
    clips: tuple[tuple[str, Preview], ...]  # caption and preview of each map
    file: str  # of the overlay, relative to the page


@dataclass(frozen=True)
class CamRow:
    """One video and its maps."""

    video: Preview
    name: str
    label: str  # name of its class, or nothing
    cells: tuple[CamCell, ...]  # one for each network


def previews_of(rows: Sequence[CamRow]) -> list[Preview]:
    """Return all previews of rows."""
    return [clip for row in rows for clip in (row.video, *(clip for cell in row.cells for _, clip in cell.clips))]
