"""HTML pages without a server: what every page is made of."""

import base64
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from numpy.typing import NDArray

from vidssl.base.atomic import write_whole
from vidssl.base.types import Frames

WIDTH, HEIGHT = 160, 96  # pixels; larger frames are shrunk to fit
GROWN = 128  # pixels; smaller frames are enlarged by a whole number to at most this height
TEMPLATES = Path(__file__).with_name("templates")  # of all pages; those of an app are in its folder
_FRAMES = 8  # of a preview, evenly spaced


@dataclass(frozen=True)
class Preview:
    """A video as one JPEG with small frames side by side, which the page plays."""

    jpeg: bytes
    count: int  # frames in the strip
    width: int  # pixels, of one frame in the strip
    height: int

    @property
    def shown(self) -> tuple[int, int]:
        """Width and height on the page; tiny videos are enlarged by a whole number, so that they stay sharp."""
        zoom = max(1, min(GROWN // self.height, WIDTH // self.width))
        return self.width * zoom, self.height * zoom


def preview(
    frames: Frames, width: int = WIDTH, height: int = HEIGHT, count: int = _FRAMES, quality: int = 75
) -> Preview:
    """Make the preview of one video from its frames (T, 3, H, W): `count` of them, shrunk to fit width and height."""
    total = len(frames)
    small = shrunk(frames[np.linspace(0, total - 1, min(count, total)).round().astype(int)], width, height)
    size = small[0].shape[1], small[0].shape[0]
    strip = cv2.cvtColor(np.concatenate(small, axis=1), cv2.COLOR_RGB2BGR)
    # Full colour resolution: subsampled chroma would mix colours of neighbouring frames at the seams.
    how = [cv2.IMWRITE_JPEG_QUALITY, quality, cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444]
    return Preview(cv2.imencode(".jpg", strip, how)[1].tobytes(), len(small), *size)


def shrunk(frames: Frames, width: int, height: int) -> list[NDArray[np.uint8]]:
    """Shrink frames (T, 3, H, W) to fit width and height: images (H, W, 3). Smaller ones stay as they are."""
    full_height, full_width = frames.shape[2:]
    scale = min(1.0, height / full_height, width / full_width)
    size = max(1, round(full_width * scale)), max(1, round(full_height * scale))
    images = np.ascontiguousarray(frames.transpose(0, 2, 3, 1))
    return [np.asarray(cv2.resize(image, size, interpolation=cv2.INTER_AREA), np.uint8) for image in images]


def number_previews(previews: Iterable[Preview]) -> dict[Preview, int]:
    """Number each distinct preview, for its CSS class."""
    return {clip: number for number, clip in enumerate(dict.fromkeys(previews))}


def _short(name: str, limit: int = 20) -> str:
    """File name, with its middle left out if it is long: videos often differ at the start or end."""
    file = name.rstrip("/").rsplit("/", 1)[-1] or name
    tail = limit // 2
    return file if len(file) <= limit else f"{file[: limit - tail - 1]}…{file[-tail:]}"


def _percent(fraction: float | None) -> str:
    return "–" if fraction is None else f"{100 * fraction:.1f}%"


def _points(difference: float | None) -> str:
    """Difference of fractions in percentage points, with its sign; 0 is +0.0."""
    return "–" if difference is None else f"{round(100 * difference, 1) + 0.0:+.1f}".replace("-", "−")


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def render_page(path: Path, template: Path, **content: object) -> None:
    """Render a template, and write the page. `left_out` are videos that cannot be read, with the reasons.

    A template includes others of its folder, and those that all pages share: `page/templates`.
    """
    environment = Environment(
        loader=FileSystemLoader([template.parent, TEMPLATES]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(percent=_percent, points=_points, short=_short, base64=_base64)
    page = environment.get_template(template.name).render({"left_out": (), **content})
    # File names on Linux may hold bytes that are not UTF-8: they become "?".
    write_whole(path, page.encode("utf-8", errors="replace"))
